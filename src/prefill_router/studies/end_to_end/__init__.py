"""What routing costs and how long it takes with everything counted: encoder, decision, answer."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
