"""Saving of fitted parts: written as the fields that they declare, and checked when read back."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
