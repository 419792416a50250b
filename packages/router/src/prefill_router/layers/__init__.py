"""The selection of the layer and pooling of an encoder that predict correctness best."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
