"""Judge routers: metrics, the exact accuracy-cost curve, bootstrap intervals."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
