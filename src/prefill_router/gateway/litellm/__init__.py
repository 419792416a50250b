"""For those who come from LiteLLM: its configuration imported, a strategy for its Router.

LiteLLM itself is never imported: what is followed are its file and interface.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
