"""For those who come from LiteLLM: its configuration imported, a strategy for its Router.

LiteLLM itself is never imported: what is followed are its file and interface.
"""

from prefill_router.gateway.litellm.importing import Imported, LeftOut, import_config
from prefill_router.gateway.litellm.strategy import PrefillRouterStrategy, SpentError

__all__ = ["Imported", "LeftOut", "PrefillRouterStrategy", "SpentError", "import_config"]
