"""Studies of routers: seeds, domain shift, learning curves, comparisons, and more."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
