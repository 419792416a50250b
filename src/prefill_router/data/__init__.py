"""Queries, labels and token counts: the dataset, its regimes, its splits, its folder on disk."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
