"""What an answer will cost: Equation 1 of the paper, and the length that is expected of it."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
