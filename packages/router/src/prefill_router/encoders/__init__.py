"""Encoders: from prompts to hidden states at prefill. Importing this doesn't load torch."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(
    __name__, __file__, needed_for="an encoder that is a language model"
)
