"""Robustness: whether decisions stay the same if a request is worded or ordered otherwise."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
