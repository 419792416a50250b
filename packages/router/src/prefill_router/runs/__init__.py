"""Runs: the questions that targets were asked, and every answer, in a folder on disk."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
