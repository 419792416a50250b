"""The baselines of the paper that need libraries of their own, and those that `fit` never tries."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
