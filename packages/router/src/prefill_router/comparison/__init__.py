"""Comparison of any set of routers, fitted and judged on one split."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
