"""Is a router better than a fixed choice? Controls that decide it, and one verdict."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
