"""Paths at a URL, such as s3://bucket/answers: objects, whole folders of them, and their copies."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
