"""Which layer and pooling of an encoder says most about which target is right."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
