"""Reading layers while the network runs: hooks that pool on the spot, so no full state is kept.

Layer l is read where block l + 1 receives it, or, for the last block, as its output: always before
the final norm. After the last layer that is wanted the network is stopped.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from prefill_router.activations import Pooling, Site
from prefill_router.errors import ConfigError

Keep = Callable[[int, Tensor], None]


class _EnoughError(Exception):
    """Stops the network; caught in `reading`."""


@contextmanager
def reading(blocks: nn.ModuleList, layers: Collection[int], keep: Keep) -> Iterator[None]:
    """Within it, a forward pass calls `keep(layer, states)` per layer and ends at the last.

    Args:
        blocks: The network's blocks.
        layers: 0 for what the first block receives, l for what block l gives.
        keep: Gets the layer and its states, [query, token, hidden].
    """
    last = max(layers)

    def got(layer: int, states: Tensor) -> None:
        keep(layer, states)
        if layer == last:
            raise _EnoughError

    with ExitStack() as stack:
        stack.enter_context(suppress(_EnoughError))
        for layer in layers:
            stack.callback(_hook(blocks, layer, got).remove)
        yield


def _hook(blocks: nn.ModuleList, layer: int, got: Keep) -> Any:
    if layer == len(blocks):

        def after(module: nn.Module, args: Any, output: Any) -> None:
            del module, args
            got(layer, output if isinstance(output, Tensor) else output[0])

        return blocks[-1].register_forward_hook(after)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        got(layer, args[0] if args else kwargs["hidden_states"])

    return blocks[layer].register_forward_pre_hook(before, with_kwargs=True)


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts padded on the right to one length.

    Attributes:
        ids: Token ids, [query, token].
        mask: 1 for a token, 0 for padding, [query, token].
        lengths: Tokens of each prompt, [query].
        is_padded: Whether there is any padding.
    """

    ids: Tensor
    mask: Tensor
    lengths: Tensor
    is_padded: bool

    def pool(self, states: Tensor, pooling: Pooling) -> Tensor:
        """One float32 row per prompt, [query, hidden].

        Raises:
            ConfigError: The network's states aren't [query, token, hidden].
        """
        if states.shape[:2] != self.ids.shape or states.ndim != 3:
            raise ConfigError(
                f"a block's states have the shape {tuple(states.shape)}; needed is [query, token, "
                "hidden]: this family of networks can't be read"
            )
        if pooling == "last":
            rows = torch.arange(len(states), device=states.device)
            return states[rows, self.lengths - 1].float()
        if self.is_padded:
            states = states.masked_fill((self.mask == 0)[..., None], 0)
        return states.sum(1, dtype=torch.float32) / self.lengths[:, None]


def pad(rows: list[Any], padding: int, device: torch.device) -> Batch:
    """A batch of rows of token ids."""
    counts = [len(row) for row in rows]
    ids = torch.full((len(rows), max(counts)), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.from_numpy(row)
        mask[number, : len(row)] = 1
    lengths = torch.tensor(counts, device=device)
    return Batch(ids.to(device), mask.to(device), lengths, min(counts) < max(counts))


def read_batch(
    network: nn.Module, blocks: nn.ModuleList, batch: Batch, sites: tuple[Site, ...]
) -> Tensor:
    """The pooled states of a batch in float32, [site, query, hidden].

    Raises:
        ConfigError: The network didn't reach a layer.
    """
    rows: dict[Site, Tensor] = {}

    def keep(layer: int, states: Tensor) -> None:
        for site in sites:
            if site.layer == layer:
                rows[site] = batch.pool(states, site.pooling)

    with torch.inference_mode(), reading(blocks, {site.layer for site in sites}, keep):
        network(input_ids=batch.ids, attention_mask=batch.mask, **_options(network))
    if len(rows) < len(sites):
        raise ConfigError(f"{type(network).__name__} doesn't run its blocks one after another")
    return torch.stack([rows[site] for site in sites])


def _options(network: nn.Module) -> dict[str, Any]:
    has_cache = getattr(network.config, "use_cache", None) is not None
    return {"use_cache": False} if has_cache else {}
