"""Learning curves: the quality of a router with fewer labels, and whether more would help."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
