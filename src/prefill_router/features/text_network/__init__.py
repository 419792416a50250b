"""Networks tuned on the text itself; importing it loads neither torch nor peft."""

from prefill_router.features.registry import Entry
from prefill_router.features.text_network.config import TextNetworkConfig
from prefill_router.features.text_network.family import TextNetwork

ENTRY = Entry(TextNetworkConfig, TextNetwork)

__all__ = ["ENTRY", "TextNetwork", "TextNetworkConfig"]
