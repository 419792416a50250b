"""A prefix cache: keys and values of prompts' prefixes in blocks of tokens, and their reuse.

The cache is bounded by its size. A block is looked up by its tokens and the block before it, never
by a hash alone, so a prompt that differs anywhere before the block can't match it.
"""

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from prefill_router.activations import Pooling, Site
from prefill_router.encoders.hub import HubEncoder, layer_hooks
from prefill_router.errors import ConfigError

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
        self._held: OrderedDict[_Key, tuple[int, PrefixBlock]] = OrderedDict()
        self._numbers = count(_BEFORE_ALL + 1)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """The memory of all blocks in bytes."""
        return self._bytes

    def longest(self, ids: Ids) -> list[PrefixBlock]:
        """The blocks of the longest cached prefix; at least one token is left over."""
        found = []
        number = _BEFORE_ALL
        for tokens in _whole_blocks(ids, leaving=1):
            held = self._held.get((number, tokens))
            if held is None:
                break
            number, block = held
            found.append(block)
        return found

    def keep(self, ids: Ids, blocks: Sequence[PrefixBlock]) -> None:
        """Cache the blocks of a prompt's prefix, within the size limit.

        Args:
            ids: The prompt's tokens.
            blocks: The blocks of its prefix, from the first one on.
        """
        used: list[_Key] = []
        number = _BEFORE_ALL
        for tokens, block in zip(_whole_blocks(ids), blocks, strict=False):
            key = (number, tokens)
            if key not in self._held:
                self._held[key] = (next(self._numbers), block)
                self._bytes += block.nbytes
            number = self._held[key][0]
            used.append(key)
        for key in reversed(
            used
        ):  # the first block last, so that no block outlives its predecessor
            self._held.move_to_end(key)
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._held.popitem(last=False)
            self._bytes -= dropped.nbytes


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
    seen: dict[int, Tensor] = {}
    layers = sorted({site.layer for site in sites})
    start, total = len(before) * BLOCK, len(ids)
    cache = _cache_of(before)
    rest = torch.from_numpy(ids[start:]).long()[None].to(encoder.device)
    mask = torch.ones((1, total), dtype=torch.long, device=encoder.device)
    with torch.inference_mode():
        with layer_hooks(encoder.blocks, layers, seen.__setitem__):
            held = {cache_argument(encoder.network): cache}
            encoder.network(input_ids=rest, attention_mask=mask, use_cache=True, **held)
        if any(layer not in seen or seen[layer].shape[:2] != rest.shape for layer in layers):
            raise ConfigError(f"{type(encoder.network).__name__} doesn't output a state per token")
        sums = torch.stack([_sums(seen[layer][0], total - start) for layer in layers])
        if before:
            sums += before[-1].sums[:, None]
        first = (
            before[0].first
            if before
            else torch.stack([seen[layer][0, 0].double() for layer in layers])
        )
        means = _means(sums[:, -1], first, total)
        rows = [
            seen[site.layer][0, -1].float()
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
    cache: DynamicCache, sums: Tensor, first: Tensor, read: range, depth: int
) -> list[PrefixBlock]:
    """Copies of the keys and values of each new block; a view would keep all of them in memory.

    Raises:
        ConfigError: The cache lacks tokens at a block of the network that was run.
    """
    layers: list[Any] = cache.layers
    held = [layer for layer in layers if layer.is_initialized]
    if len(held) != depth or any(layer.keys.shape[-2] != read.stop for layer in held):
        raise ConfigError("the network doesn't keep the keys and values of each token")
    return [
        PrefixBlock(
            tuple(layer.keys[..., begin : begin + BLOCK, :].clone() for layer in held),
            tuple(layer.values[..., begin : begin + BLOCK, :].clone() for layer in held),
            sums[:, number].clone(),
            first,
        )
        for number, begin in enumerate(range(read.start, read.stop - BLOCK + 1, BLOCK))
    ]
