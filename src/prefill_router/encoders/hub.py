"""Encoders from Hugging Face: any causal or bidirectional network, by hub id or local folder.

Only the blocks up to the last requested layer are loaded and run, and never the vocabulary head.
Batches are padded on the right and masked, which is exact for every family tested; packing several
prompts into one row is silently wrong for hybrid networks, so it isn't done.

Layers are read during the forward pass by hooks that pool at once, so that full states aren't kept.
Layer l is read as the input of block l + 1, or, for the last block, as its output: always before
the final norm. The forward pass stops after the last requested layer.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from prefill_router.activations import Pooling, Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders.base import (
    Encoder,
    States,
    TokenizedPrompt,
    check_prompt,
    input_text,
    require_finite,
    tokenized,
)
from prefill_router.encoders.device_batches import DeviceBatches, sent
from prefill_router.errors import ConfigError, PromptError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

Keep = Callable[[int, Tensor], None]


class _LastLayerReadError(Exception):
    """Stops the forward pass; caught in `layer_hooks`."""


@contextmanager
def layer_hooks(blocks: nn.ModuleList, layers: Collection[int], keep: Keep) -> Iterator[None]:
    """A context in which a forward pass calls `keep(layer, states)` and stops at the last layer.

    Args:
        blocks: The network's blocks.
        layers: The layers to read: 0 is the input of the first block, l the output of block l.
        keep: Called with the layer and its states, [query, token, hidden].
    """
    last = max(layers)

    def got(layer: int, states: Tensor) -> None:
        keep(layer, states)
        if layer == last:
            raise _LastLayerReadError

    with ExitStack() as stack:
        stack.enter_context(suppress(_LastLayerReadError))
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
class TokenBatch:
    """Prompts padded on the right to one length.

    Attributes:
        ids: Token ids, [query, token].
        mask: 1 for a token, 0 for padding, [query, token].
        lengths: The number of tokens of each prompt, [query].
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
                f"a block's states have the shape {tuple(states.shape)} instead of [query, token, "
                "hidden]; this family of networks isn't supported: choose another encoder"
            )
        if pooling == "last":
            rows = torch.arange(len(states), device=states.device)
            return states[rows, self.lengths - 1].float()
        if self.is_padded:
            states = states.masked_fill((self.mask == 0)[..., None], 0)
        count = self.lengths[:, None]
        if pooling == "mean":
            return states.sum(1, dtype=torch.float32) / count
        # the first state is never added, since taking it off again would leave its rounding
        rest = states[:, 1:].sum(1, dtype=torch.float32) / (count - 1).clamp(min=1)
        return torch.where(count > 1, rest, states[:, 0].float())


def pad(rows: list[Any], padding: int, device: torch.device) -> TokenBatch:
    """A batch of rows of token ids."""
    counts = [len(row) for row in rows]
    ids = torch.full((len(rows), max(counts)), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.from_numpy(row)
        mask[number, : len(row)] = 1
    lengths = sent(torch.tensor(counts), device)
    return TokenBatch(sent(ids, device), sent(mask, device), lengths, min(counts) < max(counts))


def read_batch(
    network: nn.Module, blocks: nn.ModuleList, batch: TokenBatch, sites: tuple[Site, ...]
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

    mask = None if is_causal(network) else batch.mask
    with torch.inference_mode(), layer_hooks(blocks, {site.layer for site in sites}, keep):
        network(input_ids=batch.ids, attention_mask=mask, **_options(network))
    if len(rows) < len(sites):
        raise ConfigError(
            f"{type(network).__name__} doesn't run its blocks in sequence; choose another encoder"
        )
    return torch.stack([rows[site] for site in sites])


def is_causal(network: nn.Module) -> bool:
    """Whether every token sees only those before it, and so never the padding on the right.

    Such networks need no mask, and compute attention in half the time without one.
    """
    return {m.is_causal for m in network.modules() if hasattr(m, "is_causal")} == {True}


def _options(network: nn.Module) -> dict[str, Any]:
    has_cache = getattr(network.config, "use_cache", None) is not None
    return {"use_cache": False} if has_cache else {}


@short_repr
@final
@dataclass(frozen=True, eq=False)
class HubEncoder(Encoder):
    """A `transformers` network whose blocks are read. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its states.
        tokenizer: The network's tokenizer.
        network: The base network, with only the blocks that are needed.
        blocks: The network's blocks.
        last_layer: The last layer that can be read.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    made_by: Provenance
    tokenizer: Any
    network: nn.Module
    blocks: nn.ModuleList
    last_layer: int
    batch_tokens: int

    @property
    def provenance(self) -> Provenance:
        """How the states are made."""
        return self.made_by

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return tuple(range(self.last_layer + 1))

    @cached_property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    @property
    def padding(self) -> int:
        """The padding token; it is masked, but some networks derive positions from it."""
        config: Any = self.network.config
        ids = (config.pad_token_id, self.tokenizer.pad_token_id, 0)
        return next(i for i in ids if isinstance(i, int) and i >= 0)

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded, or the template refuses its roles.
        """
        return tokenize_prompts(queries, self.tokenizer, self.made_by)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        wanted = tuple(dict.fromkeys(sites))
        shape = (len(wanted), len(prompts), self.made_by.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]

        def launch(numbers: list[int]) -> Tensor:
            batch = pad([prompts[i].ids for i in numbers], self.padding, self.device)
            return read_batch(self.network, self.blocks, batch, wanted)

        with (progress or SilentProgress()).task("tokens", total=float(sum(lengths))) as advance:
            for numbers, found in self._batches.read(lengths, launch):
                rows[:, numbers] = found
                advance(float(sum(lengths[i] for i in numbers)))
        states = dict(zip(wanted, rows, strict=True))
        require_finite(states, prompts, self.made_by.dtype)
        return states

    @cached_property
    def _batches(self) -> DeviceBatches:
        return DeviceBatches(self.device, self.batch_tokens)


def tokenize_prompts(
    queries: Sequence[Query], tokenizer: Any, made_by: Provenance
) -> list[TokenizedPrompt]:
    """The tokens of each query's prompt, in order, as the provenance says.

    Raises:
        PromptError: A prompt can't be encoded, or the template refuses its roles.
    """
    for query in queries:
        check_prompt(query)
    if not queries:
        return []

    def render(query: Query, messages: list[dict[str, str]]) -> str:
        return _rendered(query, messages, tokenizer, made_by.encoder)

    texts = [input_text(query, made_by.template, render) for query in queries]
    ids = tokenizer(texts, add_special_tokens=made_by.template == "plain")["input_ids"]
    return tokenized(queries, ids, max_tokens=made_by.max_tokens, encoder=made_by.encoder)


def _rendered(query: Query, messages: list[dict[str, str]], tokenizer: Any, encoder: str) -> str:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError):
        roles = [message["role"] for message in messages]
        raise PromptError(
            f"the chat template of {encoder} refuses a chat with the roles {roles}; change the "
            "chat, or encode with --template plain",
            query_id=query.id,
        ) from None
    return str(text)
