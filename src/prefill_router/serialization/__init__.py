"""What is fitted is saved as the fields it declares; what is read back is checked by them."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
