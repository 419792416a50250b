"""The loop that learns from traffic: labels, versions, and tests that are valid at any moment."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
