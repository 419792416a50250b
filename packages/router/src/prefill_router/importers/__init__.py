"""Import of scored answers: a reader for each format, and one function for all of them."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
