"""A network cut to its first blocks, and where those blocks are.

Most families build only the first K blocks when their configuration says so, and load only those
weights. That is done for the families for which tests compare it with the whole network; any other
family is loaded whole and its later blocks are dropped, since some (such as those whose last blocks
share keys and values) compute something else when the configuration is cut.
"""

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from prefill_router.errors import ConfigError

CUT_BY_CONFIG = frozenset(
    {
        "bert",
        "deberta-v2",
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "llama",
        "mistral",
        "modernbert",
        "nemotron_h",
        "qwen2",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "roberta",
    }
)
"""Families (`config.model_type`) that are loaded with fewer blocks from the start."""

_TYPES_OF_BLOCKS = ("layers_block_type", "layer_types")
_TEXT_PART = {r"^(?:model\.)?language_model\.(?:model\.)?": ""}
_MAY_BE_MISSING = ("pooler.",)


def text_config(config: Any) -> Any:
    """The configuration of the text network, where others (vision, audio) stand beside it.

    Raises:
        ConfigError: The network can't be read at prefill.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{config.model_type} is an encoder-decoder; choose a causal LM or an encoder"
        )
    text = config.get_text_config(decoder=True)
    if not isinstance(getattr(text, "num_hidden_layers", None), int):
        raise ConfigError(f"{config.model_type} doesn't say how many blocks it has")
    return text


def cut_config(config: Any, blocks: int) -> Any:
    """The configuration of the first blocks alone, where the family allows it; else as it is."""
    config = copy.deepcopy(config)
    if config.model_type not in CUT_BY_CONFIG or blocks >= config.num_hidden_layers:
        return config
    for name in _TYPES_OF_BLOCKS:
        types = getattr(config, name, None)
        if isinstance(types, list):
            setattr(config, name, types[:blocks])
    config.num_hidden_layers = blocks
    return config


def load_network(
    source: str,
    config: Any,
    *,
    revision: str | None,
    dtype: torch.dtype,
    is_part: bool,
    trust_remote_code: bool,
) -> nn.Module:
    """Load the base network, without the vocabulary head.

    Args:
        source: Folder or hub id.
        config: Of the text network, cut.
        revision: Commit of a hub id.
        dtype: What to compute in.
        is_part: Whether the text network is a part of what is stored, beside vision, say.
        trust_remote_code: Whether code that comes with the weights may run.

    Raises:
        ConfigError: Weights that it needs aren't there.
    """
    network, report = AutoModel.from_pretrained(
        source,
        config=config,
        revision=revision,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        key_mapping=_TEXT_PART if is_part else None,
    )
    missing = [k for k in report["missing_keys"] if not k.startswith(_MAY_BE_MISSING)]
    if missing or report["mismatched_keys"]:
        raise ConfigError(
            f"the weights of {source} don't fit its configuration: {len(missing)} tensors are "
            f"missing ({', '.join(sorted(missing)[:3])}), {len(report['mismatched_keys'])} are of "
            "another shape; is it a whole checkpoint?"
        )
    evaluated: nn.Module = network.eval().requires_grad_(False)
    return evaluated


def find_blocks(network: nn.Module, count: int) -> nn.ModuleList:
    """The list of the network's blocks: the outermost list of that many modules.

    Raises:
        ConfigError: There is none, as where blocks share their weights.
    """
    lists = [
        (name.count("."), name, module)
        for name, module in network.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise ConfigError(
            f"{type(network).__name__} has no list of its {count} blocks; its layers can't be read"
        )
    return min(lists, key=lambda found: found[:2])[2]


def keep_blocks(blocks: nn.ModuleList, count: int) -> None:
    """Drop the blocks after the first `count`; they are never reached."""
    for number in range(count, len(blocks)):
        blocks[number] = nn.Identity()
