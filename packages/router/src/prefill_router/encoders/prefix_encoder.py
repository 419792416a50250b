"""Encoders that compute the shared prefixes of prompts only once, from a prefix cache.

Conversations grow at their end, and system prompts repeat. In a causal network the states of a
token depend only on the tokens up to it, so what was computed for a prefix is cached and used
again. The states equal those of a full forward pass, except for rounding.

A cached prefix is valid for every prompt with that prefix if each token attends only to earlier
tokens, and if nothing depends on the length of the prompt. The first condition is tested with a
short prompt; for the second the network's configuration is checked, and unknown kinds of networks
are refused.

The cache has the keys and values of prefixes in blocks of tokens, and is bounded by its size. A
block is looked up by its tokens and the block before it, never by a hash alone, so a prompt that
differs anywhere before the block can't match it.
"""

import copy
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast, final

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from prefill_router.activations import POOLINGS, Pooling, Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders.base import Encoder, States, require_finite
from prefill_router.encoders.hub import HubEncoder, is_causal, layer_hooks
from prefill_router.encoders.packing import SAME_AT_ANY_LENGTH, rotary_kinds
from prefill_router.encoders.parallel import ParallelEncoder
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress

BLOCK = 64
"""The number of tokens of a block."""
Ids = Int32[NDArray[np.int32], " token"]
_Key = tuple[int, bytes]
_BEFORE_ALL = 0


@final
@dataclass(frozen=True, eq=False)
class PrefixBlock:
    """What the network computed for `BLOCK` tokens after a given prefix.

    Attributes:
        keys: Attention keys of each block of the network that was run, [1, head, token, width].
        values: Attention values of the same blocks and shape.
        sums: Sums of the states over all tokens up to the end of this block, [layer, hidden], in
            float64.
        first: The states of the prompt's first token, [layer, hidden], in float64.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    sums: Tensor
    first: Tensor

    @property
    def nbytes(self) -> int:
        """Its memory in bytes."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, self.sums, self.first))


@final
class PrefixStore:
    """An LRU cache of the blocks of recent prompts. Not thread-safe."""

    def __init__(self, *, most_bytes: int) -> None:
        """Hold at most `most_bytes` bytes."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._blocks: OrderedDict[_Key, tuple[int, PrefixBlock]] = OrderedDict()
        self._numbers = count(_BEFORE_ALL + 1)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """The memory of all blocks in bytes."""
        return self._bytes

    def longest(self, ids: Ids) -> list[PrefixBlock]:
        """The blocks of the longest cached prefix; at least one token is left over."""
        blocks = []
        number = _BEFORE_ALL
        for tokens in _whole_blocks(ids, leaving=1):
            entry = self._blocks.get((number, tokens))
            if entry is None:
                break
            number, block = entry
            blocks.append(block)
        return blocks

    def keep(self, ids: Ids, blocks: Sequence[PrefixBlock]) -> None:
        """Cache the blocks of a prompt's prefix, within the size limit.

        Args:
            ids: The prompt's tokens.
            blocks: The blocks of its prefix, from the first one on.
        """
        keys: list[_Key] = []
        number = _BEFORE_ALL
        for tokens, block in zip(_whole_blocks(ids), blocks, strict=False):
            key = (number, tokens)
            if key not in self._blocks:
                self._blocks[key] = (next(self._numbers), block)
                self._bytes += block.nbytes
            number = self._blocks[key][0]
            keys.append(key)
        # the first block last, so that no block outlives its predecessor
        for key in reversed(keys):
            self._blocks.move_to_end(key)
        while self._bytes > self._most_bytes:
            _, (_, block_to_drop) = self._blocks.popitem(last=False)
            self._bytes -= block_to_drop.nbytes


def _whole_blocks(ids: Ids, *, leaving: int = 0) -> list[bytes]:
    whole = (len(ids) - leaving) // BLOCK
    return [ids[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in range(whole)]


def read_on(
    encoder: HubEncoder, ids: Ids, before: Sequence[PrefixBlock], sites: tuple[Site, ...]
) -> tuple[Tensor, list[PrefixBlock]]:
    """The states of one prompt, computed from its cached prefix, and the blocks of its tokens.

    Args:
        encoder: The encoder, whose network must be causal.
        ids: All tokens of the prompt.
        before: The cached blocks of its first tokens, fewer than all.
        sites: The sites to read, always the same for one chain of blocks.

    Returns:
        The states in float32, [site, hidden], and the blocks, those of `before` first.

    Raises:
        ConfigError: The network doesn't support this.
    """
    states: dict[int, Tensor] = {}
    layers = sorted({site.layer for site in sites})
    start, total = len(before) * BLOCK, len(ids)
    cache = _cache_of(before)
    rest = torch.from_numpy(ids[start:]).long()[None].to(encoder.device)
    mask = torch.ones((1, total), dtype=torch.long, device=encoder.device)
    with torch.inference_mode():
        with layer_hooks(encoder.blocks, layers, states.__setitem__):
            cache_option = {cache_argument(encoder.network): cache}
            encoder.network(input_ids=rest, attention_mask=mask, use_cache=True, **cache_option)
        if any(layer not in states or states[layer].shape[:2] != rest.shape for layer in layers):
            raise ConfigError(f"{type(encoder.network).__name__} doesn't output a state per token")
        sums = torch.stack([_sums(states[layer][0], total - start) for layer in layers])
        if before:
            sums += before[-1].sums[:, None]
        first = (
            before[0].first
            if before
            else torch.stack([states[layer][0, 0].double() for layer in layers])
        )
        means = _means(sums[:, -1], first, total)
        rows = [
            states[site.layer][0, -1].float()
            if site.pooling == "last"
            else means[site.pooling][layers.index(site.layer)]
            for site in sites
        ]
        blocks = _new_blocks(cache, sums, first, range(start, total), layers[-1])
        return torch.stack(rows), [*before, *blocks]


def cache_argument(network: Any) -> str:
    """The argument of a network's `forward` that has the cache of keys and values.

    It is `cache` since transformers 5.24.
    """
    has_new_name = "cache" in inspect.signature(network.forward).parameters
    return "cache" if has_new_name else "past_key_values"


def _means(sums: Tensor, first: Tensor, total: int) -> dict[Pooling, Tensor]:
    """The poolings that are means, [layer, hidden]; float64 sums lose nothing of the rest."""
    rest = (sums - first) / (total - 1) if total > 1 else first
    return {"mean": (sums / total).float(), "rest": rest.float()}


def _cache_of(before: Sequence[PrefixBlock]) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(len(before[0].keys) if before else 0):
        keys = torch.cat([block.keys[layer] for block in before], dim=-2)
        values = torch.cat([block.values[layer] for block in before], dim=-2)
        cache.update(keys, values, layer)
    return cache


def _sums(states: Tensor, count: int) -> Tensor:
    """Sums over the tokens to the end of each whole block, then over all, in float64."""
    ends = [*range(BLOCK, count + 1, BLOCK), count]
    starts = [0, *ends[:-1]]
    parts = [states[a:b].sum(0, dtype=torch.float64) for a, b in zip(starts, ends, strict=True)]
    return torch.stack(parts).cumsum(0)


def _new_blocks(
    cache: DynamicCache, sums: Tensor, first: Tensor, positions: range, depth: int
) -> list[PrefixBlock]:
    """Copies of the keys and values of each new block; a view would keep all of them in memory.

    Raises:
        ConfigError: The cache lacks tokens at a block of the network that was run.
    """
    layers: list[Any] = cache.layers
    layers_in_use = [layer for layer in layers if layer.is_initialized]
    if len(layers_in_use) != depth or any(
        layer.keys.shape[-2] != positions.stop for layer in layers_in_use
    ):
        raise ConfigError("the network doesn't keep the keys and values of each token")
    return [
        PrefixBlock(
            tuple(layer.keys[..., begin : begin + BLOCK, :].clone() for layer in layers_in_use),
            tuple(layer.values[..., begin : begin + BLOCK, :].clone() for layer in layers_in_use),
            sums[:, number].clone(),
            first,
        )
        for number, begin in enumerate(range(positions.start, positions.stop - BLOCK + 1, BLOCK))
    ]


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
        self._reader: Encoder = encoder
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
    def cache_bytes(self) -> int:
        """The memory of the cached prefixes in bytes."""
        return self._store.nbytes

    @property
    def workers(self) -> int:
        """The most prompts that are computed at once."""
        return self._reader.workers

    def with_workers(self, count: int) -> Encoder:
        """The encoder, with an empty cache, and so many prompts at once on a processor's cores."""
        other = copy.copy(self)
        other._reader, other._sites = self._encoder.with_workers(count), ()
        return other

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
        distinct_sites = tuple(dict.fromkeys(sites))
        self._begin(distinct_sites)
        depth = max(site.layer for site in distinct_sites)
        long = [
            i for i, p in enumerate(prompts) if depth and not p.truncated and len(p.ids) > BLOCK
        ]
        short = sorted(set(range(len(prompts))) - set(long))
        shape = (len(distinct_sites), len(prompts), self.provenance.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        total = float(sum(len(prompt.ids) for prompt in prompts))
        with (progress or SilentProgress()).task("tokens", total=total) as advance:
            plain = self._reader.states([prompts[i] for i in short], distinct_sites)
            rows[:, short] = np.stack([plain[site] for site in distinct_sites])
            count = sum(len(prompts[i].ids) for i in short)
            self.read_tokens += count
            advance(float(count))
            for place, prompt_states in self._read_long([prompts[i] for i in long]):
                rows[:, long[place]] = prompt_states
                advance(float(len(prompts[long[place]].ids)))
        states = dict(zip(distinct_sites, rows, strict=True))
        require_finite(states, prompts, self.provenance.dtype)
        return states

    def _begin(self, sites: tuple[Site, ...]) -> None:
        if sites != self._sites:
            self._sites, self._store = sites, PrefixStore(most_bytes=self._most_bytes)

    def _read_long(self, prompts: Sequence[TokenizedPrompt]) -> Iterator[tuple[int, States]]:
        """The number and the states of each prompt; those that are read at once share nothing."""
        size = self.workers
        for first in range(0, len(prompts), size):
            for place, states in self._read_at_once(prompts[first : first + size]):
                yield first + place, states

    def _read_at_once(self, prompts: Sequence[TokenizedPrompt]) -> Iterator[tuple[int, States]]:
        prefixes = [self._store.longest(prompt.ids) for prompt in prompts]

        def read(encoder: Encoder, place: int) -> tuple[Tensor, list[PrefixBlock]]:
            network = cast("HubEncoder", encoder)
            return read_on(network, prompts[place].ids, prefixes[place], self._sites)

        places = range(len(prompts))
        if isinstance(self._reader, ParallelEncoder):
            results = self._reader.map(read, places)
        else:
            results = ((place, read(self._encoder, place)) for place in places)
        for place, (rows, blocks) in results:
            ids, reused = prompts[place].ids, len(prefixes[place]) * BLOCK
            self._store.keep(ids, blocks)
            self.reused_tokens += reused
            self.read_tokens += len(ids) - reused
            yield place, rows.cpu().numpy()


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
    if encoder.packing is not None:
        return f"{encoder.made_by.encoder} is run packed, without a cache of keys and values"
    reason = _reason_in_encoder(encoder) or _reason_in_network(encoder.network)
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


def _reason_in_encoder(encoder: HubEncoder) -> str | None:
    name = type(encoder.network).__name__
    if not type(encoder.network).__module__.startswith("transformers."):
        return f"{name} isn't part of transformers, so its behaviour at other lengths is unknown"
    if encoder.made_by.max_tokens <= 2 * BLOCK or encoder.last_layer < 1:
        return f"{encoder.made_by.encoder} has too small a limit of tokens for it to help"
    return None


def _reason_in_network(network: nn.Module) -> str | None:
    """How a network differs from those whose only cache is each token's keys and values."""
    config: Any = network.config
    name = type(network).__name__
    if not is_causal(network):
        return f"{name} isn't declared to be causal"
    odd = set(rotary_kinds(getattr(config, "rope_parameters", None))) - SAME_AT_ANY_LENGTH
    if odd:
        return f"the positions of {name} may depend on the prompt's length: {sorted(odd)}"
    try:
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    except _ODD as error:
        return f"the cache of {name} is of an unknown kind: {type(error).__name__}"
    full_kinds: set[type[DynamicLayer]] = {DynamicLayer}
    if config.model_type in _WINDOWED:
        full_kinds.add(DynamicSlidingWindowLayer)
    if not kinds <= full_kinds:
        names = sorted(kind.__name__ for kind in kinds)
        return f"the cache of {name} may lack the keys and values of some tokens: {names}"
    return None


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
    prefix_states = read_on(encoder, other, blocks[:1], sites)[0].cpu().numpy()
    prompt = TokenizedPrompt("probe", "probe", other, len(other))
    whole = encoder.states([prompt], sites)
    errors = [
        np.linalg.norm(row - whole[site][0]) / np.linalg.norm(whole[site][0])
        for site, row in zip(sites, prefix_states, strict=True)
    ]
    return float(np.max(errors))
