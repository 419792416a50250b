"""Encoders from Hugging Face: any causal or bidirectional network, in batches on a device.

Only the blocks up to the last requested layer are loaded and run, and never the vocabulary head.
Batches are padded on the right and masked, which is exact for every family tested, and at most a
tenth of a batch is padding. On a GPU, families of pure attention are packed instead (`packing`).

Layers are read during the forward pass by hooks that pool at once, so that full states aren't kept.
Layer l is read as the input of block l + 1, or, for the last block, as its output: always before
the final norm. The forward pass stops after the last requested layer.

On a GPU the host only queues work. While one batch is computed, the next is prepared and sent from
pinned memory, and the states of the previous one are copied back. Memory that runs out is known
when a batch is queued: the limit is halved, and the prompts that are left are batched again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prefill_router.activations import Pooling, Provenance, Site
from prefill_router.encoders.base import Batch, Encoder, NetworkEncoder
from prefill_router.encoders.batching import SMALL_BATCH, batches, packed_batches
from prefill_router.encoders.compiling import BlockCompiler
from prefill_router.encoders.devices import GPU_SMALL_BATCH, send
from prefill_router.encoders.graphs import RecordedPasses
from prefill_router.encoders.packing import PackedBatch, Packing, pack, without_cache
from prefill_router.encoders.parallel import ParallelEncoder, share_weights
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.errors import ConfigError, name_option
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr

Launch = Callable[[list[int]], Tensor]
"""Computes the states of these prompts, [site, query, hidden], in float32 on the device."""
_NO_WORKSPACE = "CUBLAS_STATUS_ALLOC_FAILED"
"""What cuBLAS says, instead of torch, where memory runs out."""


def move_to_device(network: nn.Module, device: torch.device, source: str) -> nn.Module:
    """The network, moved to the device.

    Raises:
        ConfigError: The device's memory is too small for it.
    """
    try:
        return network.to(device)
    except torch.OutOfMemoryError:
        pass
    raise too_large([device], source)


def too_large(devices: Sequence[torch.device], source: str) -> ConfigError:
    """The error of weights that don't fit into the memory of devices."""
    option, device = name_option(" (--layers)", ""), name_option("--device")
    memory = " and ".join(map(_memory, devices))
    return ConfigError(
        f"the weights of {source} don't fit into {memory}; choose another {device}, several like "
        f"cuda:0,cuda:1, or read fewer blocks{option}"
    )


@final
class DeviceBatches:
    """Reads prompts in batches on one device, padded or packed.

    Attributes:
        tokens: The most tokens, padding included, in one batch; it only falls.
    """

    def __init__(self, device: torch.device, tokens: int, *, is_packed: bool = False) -> None:
        self.tokens = tokens
        self._device = device
        self._is_packed = is_packed

    def read(
        self, lengths: Sequence[int], launch: Launch
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """The numbers of the prompts of each batch, and their states, [site, query, hidden].

        Args:
            lengths: The number of tokens of each prompt.
            launch: Computes a batch.

        Raises:
            ConfigError: The device's memory is too small for a single prompt.
        """
        waiting = deque(self._split(lengths))
        batches_in_flight: deque[tuple[list[int], Callable[[], NDArray[np.float32]]]] = deque()
        while waiting:
            numbers = waiting.popleft()
            rows = self._launch(numbers, launch)
            if rows is None:
                self._halve([lengths[i] for i in numbers])
                remaining = [*numbers, *chain.from_iterable(waiting)]
                parts = self._split([lengths[i] for i in remaining])
                waiting = deque([remaining[i] for i in part] for part in parts)
                continue
            batches_in_flight.append((numbers, rows))
            if len(batches_in_flight) > 1:
                batch, wait_for_states = batches_in_flight.popleft()
                yield batch, wait_for_states()
        for batch, wait_for_states in batches_in_flight:
            yield batch, wait_for_states()

    def _split(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """The positions of the prompts of each batch."""
        if self._is_packed:
            return packed_batches(lengths, self.tokens)
        small = GPU_SMALL_BATCH if self._device.type == "cuda" else SMALL_BATCH
        return batches(lengths, self.tokens, small=small)

    def _launch(
        self, numbers: list[int], launch: Launch
    ) -> Callable[[], NDArray[np.float32]] | None:
        """Begin a batch; None where memory ran out, once the error holds no tensor any more."""
        try:
            with self.current():
                return _begin_copy(launch(numbers))
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not (isinstance(error, torch.OutOfMemoryError) or _NO_WORKSPACE in str(error)):
                raise
        return None

    def current(self) -> AbstractContextManager[Any]:
        """Makes a GPU the current one, where kernels and events of other libraries go."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _halve(self, lengths: list[int]) -> None:
        """Lower the limit to half of the batch that was too large."""
        if len(lengths) == 1:
            tokens, device = name_option("--max-tokens"), name_option("--device")
            option = name_option(" (--layers)", "")
            raise ConfigError(
                f"a prompt of {lengths[0]:,} tokens doesn't fit into {_memory(self._device)}; "
                f"lower {tokens}, read fewer blocks{option}, choose another {device}, or end other "
                "programs that use its memory"
            )
        size = sum(lengths) if self._is_packed else len(lengths) * max(lengths)
        self.tokens = size // 2
        torch.cuda.empty_cache()


def _begin_copy(rows: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Begin to copy states to the host; the function that is returned waits for them."""
    if rows.device.type != "cuda":
        here: NDArray[np.float32] = rows.cpu().numpy()
        return lambda: here
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    host.copy_(rows, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(rows.device))

    def wait_for_copy() -> NDArray[np.float32]:
        event.synchronize()
        states: NDArray[np.float32] = host.numpy()
        return states

    return wait_for_copy


def _memory(device: torch.device) -> str:
    """The memory of a device, in words."""
    if device.type != "cuda":
        return f"the memory of {device}"
    free, total = torch.cuda.mem_get_info(device)
    return f"the memory of {device}, of which {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"


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

    def keep_and_stop(layer: int, states: Tensor) -> None:
        keep(layer, states)
        if layer == last:
            raise _LastLayerReadError

    with ExitStack() as stack:
        stack.enter_context(suppress(_LastLayerReadError))
        for layer in layers:
            stack.callback(_hook(blocks, layer, keep_and_stop).remove)
        yield


def _hook(blocks: nn.ModuleList, layer: int, keep: Keep) -> Any:
    if layer == len(blocks):

        def after(module: nn.Module, args: Any, output: Any) -> None:
            del module, args
            keep(layer, output if isinstance(output, Tensor) else output[0])

        return blocks[-1].register_forward_hook(after)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        keep(layer, args[0] if args else kwargs["hidden_states"])

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

    def inputs(self, network: nn.Module) -> dict[str, Any]:
        """The arguments of the network's `forward`."""
        mask = None if is_causal(network) else self.mask
        return {"input_ids": self.ids, "attention_mask": mask, **without_cache(network)}

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
            return states[rows, self.lengths.to(states.device) - 1].float()
        if self.is_padded:
            states = states.masked_fill((self.mask.to(states.device) == 0)[..., None], 0)
        count = self.lengths.to(states.device)[:, None]
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
    lengths = send(torch.tensor(counts), device)
    return TokenBatch(send(ids, device), send(mask, device), lengths, min(counts) < max(counts))


def read_batch(
    network: nn.Module,
    blocks: nn.ModuleList,
    batch: TokenBatch | PackedBatch,
    sites: Sequence[Site],
) -> Tensor:
    """The pooled states of a batch in float32, [site, query, hidden].

    Raises:
        ConfigError: The network didn't reach a layer.
    """
    rows: dict[Site, Tensor] = {}

    def keep(layer: int, states: Tensor) -> None:
        for site in sites:
            if site.layer == layer:
                rows[site] = batch.pool(states, site.pooling).to(batch.ids.device)

    with torch.inference_mode(), layer_hooks(blocks, {site.layer for site in sites}, keep):
        network(**batch.inputs(network))
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


@short_repr
@final
@dataclass(frozen=True, eq=False)
class HubEncoder(NetworkEncoder):
    """A `transformers` network whose blocks are read. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its states.
        tokenizer: The network's tokenizer.
        network: The base network, with only the blocks that are needed.
        blocks: The network's blocks.
        last_layer: The last layer that can be read.
        batch_tokens: The most tokens, padding included, in one batch.
        packing: How prompts are packed; None where they are padded.
        compiler: Compiles the blocks where that pays; None where they run as they are.
        passes: Reads few prompts by recorded passes; None where none are recorded.
    """

    made_by: Provenance
    tokenizer: Any
    network: nn.Module
    blocks: nn.ModuleList
    last_layer: int
    batch_tokens: int
    packing: Packing | None = None
    compiler: BlockCompiler | None = None
    passes: RecordedPasses | None = None

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

    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of prompts of similar length."""
        recorded = self._read_recorded(prompts, sites)
        if recorded is not None:
            yield list(range(len(prompts))), recorded
            return
        lengths = [len(prompt.ids) for prompt in prompts]
        self.expect_tokens(sum(lengths))

        def launch(numbers: list[int]) -> Tensor:
            batch = self._batch([prompts[i].ids for i in numbers])
            return read_batch(self.network, self.blocks, batch, sites)

        for numbers, rows in self._batches.read(lengths, launch):
            if self.compiler is not None:
                self.compiler.count(sum(lengths[i] for i in numbers))
            yield numbers, rows

    def _read_recorded(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> NDArray[np.float32] | None:
        """The states by a recorded pass, [site, prompt, hidden]; None where there is none."""
        if self.passes is None:
            return None
        with self._batches.current():
            ids = [prompt.ids for prompt in prompts]
            rows = self.passes.read(ids, tuple(sites), self.device)
            states: NDArray[np.float32] | None = None if rows is None else rows.cpu().numpy()
        return states

    def expect_tokens(self, tokens: int, *, progress: Progress | None = None) -> None:
        """Compile the blocks, if that pays for so many tokens."""
        if self.compiler is not None:
            self.compiler.expect(tokens, self._read_sample, progress)

    def _read_sample(self) -> None:
        """Read three made-up prompts."""
        rows = [np.ones(count, dtype=np.int32) for count in (40, 25, 7)]
        sites = [Site(self.last_layer, "last")]
        read_batch(self.network, self.blocks, self._batch(rows), sites)

    def with_prefix_cache(self, *, most_bytes: int) -> Encoder:
        """The encoder with a cache of shared prefixes, or itself if its network can't use one.

        On a GPU too it is itself: prompts would be encoded one by one, and batches gain more.
        """
        from prefill_router.encoders.prefix_encoder import PrefixCachingEncoder

        if self.device.type == "cuda":
            return self
        try:
            return PrefixCachingEncoder(self, most_bytes=most_bytes)
        except ConfigError:
            return self

    def _batch(self, rows: list[Any]) -> TokenBatch | PackedBatch:
        """A batch of rows of token ids."""
        if self.packing is None:
            return pad(rows, self.padding, self.device)
        return pack(rows, self.device, self.packing.padding)

    def with_workers(self, count: int) -> Encoder:
        """The encoder with so many batches at once on a processor; on a GPU it is itself."""
        if self.device.type != "cpu" or count == 1:
            return self
        return ParallelEncoder(self, [self._copy() for _ in range(count)], self.batch_tokens)

    def _copy(self) -> "HubEncoder":
        network, blocks = share_weights((self.network, self.blocks))
        return replace(self, network=network, blocks=blocks)

    @cached_property
    def _batches(self) -> DeviceBatches:
        is_packed = self.packing is not None
        return DeviceBatches(self.device, self.batch_tokens, is_packed=is_packed)
