"""Reports for people and programs: pages, figures and tables, on disk whole or not at all."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
