"""Whether what a network computed of a prompt's beginning holds for any prompt that begins so.

It does where each token sees only those before it, and what it sees doesn't depend on how many
follow. The first is tried out, as far as a short prompt can tell; for the rest the network must say
what it is, and what isn't understood is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from prefill_router.activations import POOLINGS, Site
from prefill_router.encoders.base import TokenizedPrompt
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.prefix_pass import read_on
from prefill_router.encoders.prefix_store import BLOCK
from prefill_router.errors import ConfigError

_SAME_AT_ANY_LENGTH = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary positions that don't look at how long the prompt is."""
_WINDOWED = frozenset({"gemma3_text", "gpt_oss", "mistral"})
"""Families (`config.model_type`) with sliding windows for which tests hold them to a whole reading
beyond their window; all keys and values are kept, and their masks hide what is out of it."""
_ODD = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)
"""What networks raise that can't go on from a beginning."""
_TOLERANCE = {"float32": 1e-4}
_COARSE = 0.02  # of types with 8 to 11 bits


def why_not(encoder: HubEncoder) -> str | None:
    """Why this encoder can't read on from a beginning; None where it can.

    Takes a few passes over a made-up prompt of some 150 tokens.
    """
    reason = _unknown(encoder) or _unlike_the_rest(encoder.network)
    if reason is not None:
        return reason
    name = type(encoder.network).__name__
    try:
        worst = _worst_error(encoder)
    except (ConfigError, *_ODD) as error:
        return f"{name} can't go on from a beginning: {type(error).__name__}"
    if not worst < _TOLERANCE.get(encoder.made_by.dtype, _COARSE):  # NaN isn't below it either
        return f"{name} gives other states when it goes on from a beginning: off by {worst:.1g}"
    return None


def _unknown(encoder: HubEncoder) -> str | None:
    name = type(encoder.network).__name__
    if not type(encoder.network).__module__.startswith("transformers."):
        return f"{name} isn't part of transformers, and what it does at other lengths is unknown"
    if encoder.made_by.max_tokens <= 2 * BLOCK or encoder.last_layer < 1:
        return f"{encoder.made_by.encoder} reads too little for it to be worth while"
    return None


def _unlike_the_rest(network: nn.Module) -> str | None:
    """In what a network differs from those that keep each token's keys and values and no more."""
    config: Any = network.config
    name = type(network).__name__
    causal = {module.is_causal for module in network.modules() if hasattr(module, "is_causal")}
    if causal != {True}:
        return f"{name} doesn't say that its tokens see only those before them"
    odd = set(_rotary_kinds(getattr(config, "rope_parameters", None))) - _SAME_AT_ANY_LENGTH
    if odd:
        return f"the positions of {name} may depend on the prompt's length: {sorted(odd)}"
    try:
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    except _ODD as error:
        return f"what {name} keeps of each token is unknown: {type(error).__name__}"
    known: set[type[DynamicLayer]] = {DynamicLayer}
    if config.model_type in _WINDOWED:
        known.add(DynamicSlidingWindowLayer)
    if not kinds <= known:
        names = sorted(kind.__name__ for kind in kinds)
        return f"{name} may not keep the keys and values of every token: {names}"
    return None


def _rotary_kinds(parameters: Any) -> Iterator[str]:
    """The kinds that a configuration names, of all layers or of each kind of layer."""
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            if name in ("rope_type", "type"):
                yield str(value)
            yield from _rotary_kinds(value)


def _worst_error(encoder: HubEncoder) -> float:
    """How far states of a prompt are off that begins as another one, as a share of their size."""
    config: Any = encoder.network.config
    size = int(config.vocab_size)
    ids = np.random.default_rng(0).integers(0, size, 2 * BLOCK + 17).astype(np.int32)
    ids = ids[: encoder.made_by.max_tokens]
    other = ids.copy()
    other[BLOCK:] = ids[BLOCK:][::-1]
    layers = range(1, encoder.last_layer + 1)
    sites = tuple(Site(layer, pooling) for layer in layers for pooling in POOLINGS)
    _, blocks = read_on(encoder, ids, [], sites)
    found = read_on(encoder, other, blocks[:1], sites)[0].cpu().numpy()
    prompt = TokenizedPrompt("probe", "probe", other, len(other))
    whole = encoder.states([prompt], sites)
    errors = [
        np.linalg.norm(row - whole[site][0]) / np.linalg.norm(whole[site][0])
        for site, row in zip(sites, found, strict=True)
    ]
    return float(np.max(errors))
