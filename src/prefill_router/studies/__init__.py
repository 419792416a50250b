"""Studies: seeds, shift, learning curves, and whether a router is worth having."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
