"""The search for the best configuration on train rows, and one evaluation on the test part."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
