"""Encoders: prompts in, hidden states at prefill out. Importing this loads no torch."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
