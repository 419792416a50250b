"""For users of LiteLLM: an importer of its configuration, a routing strategy and a plugin for it.

LiteLLM itself is never imported; only its file format and its interface are used.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
