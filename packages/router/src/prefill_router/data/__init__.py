"""Queries, labels and token counts: the dataset, consensus regimes, splits, the folder on disk."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
