"""What encoders and their layers know of correctness, by depth, and the sweep over encoders."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
