"""Grading: from a run's answers to the dataset that `fit` reads, without asking anybody again."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
