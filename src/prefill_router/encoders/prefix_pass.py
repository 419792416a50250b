"""Reading the rest of a prompt, whose beginning a causal network has read before."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from prefill_router.activations import Site
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.prefix_store import BLOCK, Ids, PrefixBlock
from prefill_router.encoders.reading import reading
from prefill_router.errors import ConfigError


def read_on(
    encoder: HubEncoder, ids: Ids, before: Sequence[PrefixBlock], sites: tuple[Site, ...]
) -> tuple[Tensor, list[PrefixBlock]]:
    """The states of one prompt, and what was computed of each whole block of its tokens.

    Args:
        encoder: Reads it; its network must be causal.
        ids: All tokens of the prompt.
        before: What was computed of its first tokens, fewer than all.
        sites: What to read, always the same for one chain of blocks.

    Returns:
        The states in float32, [site, hidden], and the blocks, those of `before` first.

    Raises:
        ConfigError: The network isn't of the kind that this works for.
    """
    seen: dict[int, Tensor] = {}
    layers = sorted({site.layer for site in sites})
    start, total = len(before) * BLOCK, len(ids)
    cache = _cache_of(before)
    rest = torch.from_numpy(ids[start:]).long()[None].to(encoder.device)
    mask = torch.ones((1, total), dtype=torch.long, device=encoder.device)
    with torch.inference_mode():
        with reading(encoder.blocks, layers, seen.__setitem__):
            encoder.network(
                input_ids=rest, attention_mask=mask, past_key_values=cache, use_cache=True
            )
        if any(layer not in seen or seen[layer].shape[:2] != rest.shape for layer in layers):
            raise ConfigError(f"{type(encoder.network).__name__} doesn't tell of each token")
        sums = torch.stack([_sums(seen[layer][0], total - start) for layer in layers])
        if before:
            sums += before[-1].sums[:, None]
        rows = [
            seen[site.layer][0, -1].float()
            if site.pooling == "last"
            else (sums[layers.index(site.layer), -1] / total).float()
            for site in sites
        ]
        return torch.stack(rows), [*before, *_blocks(cache, sums, start, total, layers[-1])]


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


def _blocks(
    cache: DynamicCache, sums: Tensor, start: int, total: int, depth: int
) -> list[PrefixBlock]:
    """Copies of what the cache holds of each new whole block: a view would hold all of it.

    Raises:
        ConfigError: It doesn't hold every token at every block of the network that was run.
    """
    layers: list[Any] = cache.layers
    held = [layer for layer in layers if layer.is_initialized]
    if len(held) != depth or any(layer.keys.shape[-2] != total for layer in held):
        raise ConfigError("the network doesn't keep the keys and values of each token")
    return [
        PrefixBlock(
            tuple(layer.keys[..., first : first + BLOCK, :].clone() for layer in held),
            tuple(layer.values[..., first : first + BLOCK, :].clone() for layer in held),
            sums[:, number].clone(),
        )
        for number, first in enumerate(range(start, total - BLOCK + 1, BLOCK))
    ]
