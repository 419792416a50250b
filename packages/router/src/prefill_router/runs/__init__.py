"""The harness: asks the targets, grades their answers, and makes the dataset that `fit` reads."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
