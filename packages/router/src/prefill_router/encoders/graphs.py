"""Passes over few tokens as CUDA graphs, for single requests.

A pass over a short prompt takes as long as the host needs to queue its thousands of kernels. A CUDA
graph queues them all at once. It runs on the same memory each time, so there is one for each of a
few lengths: the prompts are packed into a row of that length, and the rest is one more prompt of
padding, which the attention of packed prompts keeps apart.

What records a pass is an ordinary function here. The tests put one in its place that runs the pass
again, so that all the rest runs on a processor.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prefill_router.activations import Site
from prefill_router.encoders.packing import PIECE, PackedBatch, Packing, pack

Ids = NDArray[np.int32]
Pass = Callable[[], Tensor]
"""Computes the pooled states of a batch, [site, prompt, hidden], from its tensors."""
Record = Callable[[Pass], Pass]
"""Turns a pass into one that reads and writes the same memory each time."""
Read = Callable[[PackedBatch, Sequence[Site]], Tensor]

_LENGTHS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Tokens of a row. Beyond the last the kernels take longer than queueing them."""
_PROMPTS = (1, 8)
"""Prompts of a row, without the padding."""
_MOST_GRAPHS = 24
_WARM_UPS = 3
"""Passes before one is recorded: kernels are chosen and workspaces allocated in them."""


@cache
def _shared_memory() -> Any:
    """The memory that all graphs compute in: one runs at a time, and is read before the next."""
    return torch.cuda.graph_pool_handle()


def record_graph(run: Pass) -> Pass:
    """Record a pass as a CUDA graph.

    Raises:
        RuntimeError: The pass waits for the device, so it can't be recorded.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_shared_memory(), capture_error_mode="thread_local"):
        rows = run()

    def replay() -> Tensor:
        graph.replay()
        return rows

    return replay


@final
class RecordedPasses:
    """Reads few prompts by passes that were recorded before. Not thread-safe.

    The passes that were least recently used are dropped beyond a number. Where a pass can't be
    recorded, as in networks whose blocks wait for the device, none is recorded any more.

    Attributes:
        is_possible: Whether passes can be recorded, as far as is known.
    """

    def __init__(self, packing: Packing, read: Read, record: Record = record_graph) -> None:
        """Record nothing yet.

        Args:
            packing: How prompts are packed.
            read: Computes the pooled states of a batch.
            record: Records a pass.
        """
        self._packing = packing
        self._read = read
        self._record = record
        self.is_possible = True
        self._passes: OrderedDict[Any, tuple[PackedBatch, Pass]] = OrderedDict()

    def read(
        self, rows: Sequence[Ids], sites: tuple[Site, ...], device: torch.device
    ) -> Tensor | None:
        """The pooled states of the prompts, [site, prompt, hidden], on the device.

        They are overwritten by the next call.

        Args:
            rows: The token ids of each prompt.
            sites: The sites to read.
            device: The network's device.

        Returns:
            None where there are too many tokens or prompts, or a pass can't be recorded.
        """
        shape = fitting_shape([len(row) for row in rows])
        if shape is None or not self.is_possible:
            return None
        batch = pack_into(rows, shape, torch.device("cpu"), self._packing.padding)
        key = (shape, sites)
        if key not in self._passes and not self._record_pass(key, batch, sites, device):
            return None
        self._passes.move_to_end(key)
        device_batch, run = self._passes[key]
        for place, values in zip(device_batch.tensors, batch.tensors, strict=True):
            place.copy_(values)
        return run()[:, : len(rows)]

    def _record_pass(
        self, key: Any, batch: PackedBatch, sites: tuple[Site, ...], device: torch.device
    ) -> bool:
        """Record the pass of a shape; whether that was possible."""
        device_batch = batch.copy_to(device)
        try:
            run = self._record(lambda: self._read(device_batch, sites))
        except RuntimeError:  # also where memory runs out
            self.is_possible = False
            self._passes.clear()
            return False
        self._passes[key] = (device_batch, run)
        if len(self._passes) > _MOST_GRAPHS:
            self._passes.popitem(last=False)
        return True


def fitting_shape(counts: Sequence[int]) -> tuple[int, int] | None:
    """The number of tokens and of prompts of the row that these prompts are put into.

    Args:
        counts: The number of tokens of each prompt.

    Returns:
        None where there is no row so large; in a row there is always a token of padding.
    """
    tokens = next((n for n in _LENGTHS if n > sum(counts)), None)
    prompts = next((n for n in _PROMPTS if n >= len(counts)), None)
    return None if tokens is None or prompts is None else (tokens, prompts)


def pack_into(
    rows: Sequence[Ids], shape: tuple[int, int], device: torch.device, padding: int | None
) -> PackedBatch:
    """Pack prompts so that all tensors have the sizes of any other batch of this shape.

    After the prompts come prompts without tokens, and then one of padding.

    Args:
        rows: The token ids of each prompt.
        shape: The number of tokens, more than there are, and of prompts.
        device: Where it is read.
        padding: That of the `Packing`.
    """
    tokens, prompts = shape
    left = tokens - sum(len(row) for row in rows)
    empty = [np.zeros(0, dtype=np.int32)] * (prompts - len(rows))
    batch = pack([*rows, *empty, np.zeros(left, dtype=np.int32)], device, padding)
    batch.positions[:, -left:] = batch.positions[:, -left : tokens - left + 1]  # any is valid
    spare = tokens // PIECE + prompts + 1 - len(batch.pieces)
    batch.piece_counts[-1] += spare
    pieces = functional.pad(batch.pieces, (0, spare))
    return replace(batch, pieces=pieces, longest=tokens)
