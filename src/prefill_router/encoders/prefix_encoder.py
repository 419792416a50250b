"""An encoder with a prefix cache, which computes shared prefixes of prompts only once.

Conversations grow at their end, and system prompts repeat. In a causal network the states of a
token depend only on the tokens up to it, so what was computed for a prefix is cached and used
again. The states equal those of a full forward pass, except for rounding.

A cached prefix is valid for every prompt with that prefix if each token attends only to earlier
tokens, and if nothing depends on the length of the prompt. The first condition is tested with a
short prompt; for the second the network's configuration is checked, and unknown kinds of networks
are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from prefill_router.activations import POOLINGS, Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders.base import Encoder, States, TokenizedPrompt, require_finite
from prefill_router.encoders.hub import HubEncoder, is_causal
from prefill_router.encoders.prefix_cache import BLOCK, PrefixStore, read_on
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress

MOST_BYTES = 512 << 20


@final
class PrefixCachingEncoder(Encoder):
    """Wraps an encoder with a prefix cache. Not thread-safe.

    Truncated prompts, and those shorter than a block, are read without the cache.

    Attributes:
        reused_tokens: The number of tokens taken from the cache so far.
        read_tokens: The number of tokens computed so far.
    """

    def __init__(self, encoder: Encoder, *, most_bytes: int = MOST_BYTES) -> None:
        """Wrap a causal encoder.

        Args:
            encoder: The encoder to wrap.
            most_bytes: The limit of the cache in bytes, on the encoder's device.

        Raises:
            ConfigError: The encoder isn't known to support a prefix cache.
        """
        if not isinstance(encoder, HubEncoder):
            raise ConfigError(
                f"{encoder.provenance.encoder} isn't read at a network's blocks, so prefixes "
                "can't be cached; use it as it is"
            )
        reason = reason_against_prefix_cache(encoder)
        if reason is not None:
            raise ConfigError(f"{reason}; use the encoder as it is")
        self.reused_tokens = self.read_tokens = 0
        self._encoder = encoder
        self._most_bytes = most_bytes
        self._store = PrefixStore(most_bytes=most_bytes)
        self._sites: tuple[Site, ...] = ()

    @property
    def provenance(self) -> Provenance:
        """The provenance of the wrapped encoder."""
        return self._encoder.provenance

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return self._encoder.layers

    @property
    def kept_bytes(self) -> int:
        """The memory of the cached prefixes in bytes."""
        return self._store.nbytes

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit."""
        return self._encoder.tokenize(queries)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        The cache is for one choice of sites; another choice empties it.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        wanted = tuple(dict.fromkeys(sites))
        self._begin(wanted)
        depth = max(site.layer for site in wanted)
        long = [
            i for i, p in enumerate(prompts) if depth and not p.truncated and len(p.ids) > BLOCK
        ]
        short = sorted(set(range(len(prompts))) - set(long))
        shape = (len(wanted), len(prompts), self.provenance.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        total = float(sum(len(prompt.ids) for prompt in prompts))
        with (progress or SilentProgress()).task("tokens", total=total) as advance:
            plain = self._encoder.states([prompts[i] for i in short], wanted)
            rows[:, short] = np.stack([plain[site] for site in wanted])
            count = sum(len(prompts[i].ids) for i in short)
            self.read_tokens += count
            advance(float(count))
            for i in long:
                rows[:, i] = self._read(prompts[i])
                advance(float(len(prompts[i].ids)))
        states = dict(zip(wanted, rows, strict=True))
        require_finite(states, prompts, self.provenance.dtype)
        return states

    def _begin(self, sites: tuple[Site, ...]) -> None:
        if sites != self._sites:
            self._sites, self._store = sites, PrefixStore(most_bytes=self._most_bytes)

    def _read(self, prompt: TokenizedPrompt) -> States:
        before = self._store.longest(prompt.ids)
        rows, blocks = read_on(self._encoder, prompt.ids, before, self._sites)
        self._store.keep(prompt.ids, blocks)
        self.reused_tokens += len(before) * BLOCK
        self.read_tokens += len(prompt.ids) - len(before) * BLOCK
        found: States = rows.cpu().numpy()
        return found


def with_prefix_reuse(encoder: Encoder, *, most_bytes: int = MOST_BYTES) -> Encoder:
    """The encoder with a prefix cache if it supports one, or else as it is."""
    try:
        return PrefixCachingEncoder(encoder, most_bytes=most_bytes)
    except ConfigError:
        return encoder


_SAME_AT_ANY_LENGTH = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary position embeddings that don't depend on the prompt's length."""
_WINDOWED = frozenset({"gemma3_text", "gpt_oss", "mistral"})
"""Families (`config.model_type`) with sliding windows that tests compare with full forward passes
beyond the window; all keys and values are cached, and masks hide those outside the window."""
_ODD = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)
"""Exceptions of networks that can't continue from a cached prefix."""
_TOLERANCE = {"float32": 1e-4}
_COARSE = 0.02  # for types with 8 to 11 significant bits


def reason_against_prefix_cache(encoder: HubEncoder) -> str | None:
    """Why this encoder can't use a prefix cache; None where it can.

    It takes a few forward passes over a made-up prompt of about 150 tokens.
    """
    reason = _unknown(encoder) or _unlike_the_rest(encoder.network)
    if reason is not None:
        return reason
    name = type(encoder.network).__name__
    try:
        worst = _worst_error(encoder)
    except (ConfigError, *_ODD) as error:
        return f"{name} can't continue from a cached prefix: {type(error).__name__}"
    if not worst < _TOLERANCE.get(encoder.made_by.dtype, _COARSE):  # NaN isn't below it either
        return f"{name} has other states with a cached prefix: off by {worst:.1g}"
    return None


def _unknown(encoder: HubEncoder) -> str | None:
    name = type(encoder.network).__name__
    if not type(encoder.network).__module__.startswith("transformers."):
        return f"{name} isn't part of transformers, so its behaviour at other lengths is unknown"
    if encoder.made_by.max_tokens <= 2 * BLOCK or encoder.last_layer < 1:
        return f"{encoder.made_by.encoder} has too small a limit of tokens for it to help"
    return None


def _unlike_the_rest(network: nn.Module) -> str | None:
    """How a network differs from those whose only cache is each token's keys and values."""
    config: Any = network.config
    name = type(network).__name__
    if not is_causal(network):
        return f"{name} isn't declared to be causal"
    odd = set(_rotary_kinds(getattr(config, "rope_parameters", None))) - _SAME_AT_ANY_LENGTH
    if odd:
        return f"the positions of {name} may depend on the prompt's length: {sorted(odd)}"
    try:
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    except _ODD as error:
        return f"the cache of {name} is of an unknown kind: {type(error).__name__}"
    known: set[type[DynamicLayer]] = {DynamicLayer}
    if config.model_type in _WINDOWED:
        known.add(DynamicSlidingWindowLayer)
    if not kinds <= known:
        names = sorted(kind.__name__ for kind in kinds)
        return f"the cache of {name} may lack the keys and values of some tokens: {names}"
    return None


def _rotary_kinds(parameters: Any) -> Iterator[str]:
    """The kinds that a configuration names, for all layers or for each kind of layer."""
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            if name in ("rope_type", "type"):
                yield str(value)
            yield from _rotary_kinds(value)


def _worst_error(encoder: HubEncoder) -> float:
    """The relative error of the states of a prompt computed from another prompt's prefix."""
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
