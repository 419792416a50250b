"""Which linear layers of a network are adapted."""

from collections.abc import Iterable

from torch import nn
from transformers.pytorch_utils import Conv1D

from prefill_router.errors import ConfigError

_QUERIES_AND_VALUES = (
    ("query_proj", "value_proj"),  # DeBERTa v2 and v3
    ("q_proj", "v_proj"),  # Llama, Qwen, Mistral, Gemma, OPT
    ("query", "value"),  # BERT, RoBERTa
    ("q_lin", "v_lin"),  # DistilBERT
    ("Wqkv",),  # ModernBERT
    ("qkv_proj",),  # Phi-3
    ("query_key_value",),  # GPT-NeoX, Falcon
    ("c_attn",),  # GPT-2
)


def adapted_modules(network: nn.Module, names: Iterable[str] | None) -> tuple[str, ...]:
    """The full names of the layers to adapt, in the network's order.

    Args:
        network: The base network.
        names: Last parts of their names; those of an attention's queries and values if not given.

    Raises:
        ConfigError: There are none, or one of the names is nowhere.
    """
    linear = [name for name, module in network.named_modules() if _is_linear(module)]
    last = {name.rpartition(".")[2] for name in linear}
    if names is None:
        wanted = next((set(pair) for pair in _QUERIES_AND_VALUES if set(pair) <= last), set())
    else:
        wanted = set(names)
    if not wanted or wanted - last:
        what = f"no linear layer called {sorted(wanted - last)}" if wanted else "no known names"
        raise ConfigError(
            f"{type(network).__name__} has {what}; name the layers to adapt with `modules`: "
            f"its linear layers are {sorted(last)}"
        )
    return tuple(name for name in linear if name.rpartition(".")[2] in wanted)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)
