"""For those who come from LiteLLM: its configuration imported, a strategy for its Router.

LiteLLM itself is never imported: what is followed are its file and interface.
"""

from prefill_router.gateway.litellm.config import ImportedConfig, OmittedSetting, import_config
from prefill_router.gateway.litellm.gateway_client import SpentError
from prefill_router.gateway.litellm.strategy import PrefillRouterStrategy

__all__ = [
    "ImportedConfig",
    "OmittedSetting",
    "PrefillRouterStrategy",
    "SpentError",
    "import_config",
]
