"""Batches on all cores of a processor: as many at once as there are cores, each by one thread.

Threads that share one matrix product wait for each other in every layer, so that a single core that
another program keeps busy delays them all. A batch of its own for each thread has nothing to wait
for. The threads share the weights. Fewer batches than cores share the cores out among them.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any, TypeVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders.base import Batch, BatchEncoder, Encoder
from prefill_router.encoders.batching import batches
from prefill_router.encoders.tokenisation import TokenizedPrompt

Item = TypeVar("Item")
Result = TypeVar("Result")
_Rows = Float32[NDArray[np.float32], "site query hidden"]


@final
class ParallelEncoder(BatchEncoder):
    """An encoder whose batches are computed at the same time, on the cores of a processor.

    Args:
        encoder: Reads what is one batch, with the threads of its own.
        copies: An encoder for each worker, which no other thread uses meanwhile; they share their
            weights.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    def __init__(
        self, encoder: BatchEncoder, copies: Sequence[BatchEncoder], batch_tokens: int
    ) -> None:
        self.made_by = encoder.made_by
        self._workers = len(copies)
        self._encoder = encoder
        self._batch_tokens = batch_tokens
        self._idle: SimpleQueue[BatchEncoder] = SimpleQueue()
        for each in copies:
            self._idle.put(each)
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="encoder")

    @property
    def workers(self) -> int:
        """The most batches that are computed at once."""
        return self._workers

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return self._encoder.layers

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that can be read."""
        return self._encoder.sites

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit."""
        return self._encoder.tokenize(queries)

    def with_prefix_cache(self, *, most_bytes: int) -> Encoder:
        """The encoder with a cache of shared prefixes, or itself if it doesn't support one."""
        cached = self._encoder.with_prefix_cache(most_bytes=most_bytes)
        return cached.with_workers(self.workers)

    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of prompts of similar length, in the order in which batches are done."""
        parts = self._divide([len(prompt.ids) for prompt in prompts])

        def read(encoder: BatchEncoder, numbers: list[int]) -> _Rows:
            part = [prompts[i] for i in numbers]
            rows = np.empty((len(sites), len(part), self.made_by.hidden_size), dtype=np.float32)
            for places, batch in encoder.read_batches(part, sites):
                rows[:, places] = batch
            return rows

        for place, rows in self.map(read, parts):
            yield parts[place], rows

    def map(
        self, function: Callable[[BatchEncoder, Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """The number of each item and the function's result, as they are done.

        Args:
            function: Called with an encoder that no other thread uses meanwhile.
            items: What it is called with; a single item has all threads of the encoder.
        """
        if len(items) < 2:
            yield from ((place, function(self._encoder, item)) for place, item in enumerate(items))
            return
        threads = max(1, self.workers // len(items))
        own = _get_threads()
        running: dict[Future[Result], int] = {
            self._pool.submit(self._call, function, item, threads): place
            for place, item in enumerate(items)
        }
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            for future in running:
                future.cancel()
            _use_threads(own)  # torch gives new threads the number that any thread set last

    def _divide(self, lengths: Sequence[int]) -> list[list[int]]:
        """Batches of similar length, at least as many as there are workers if prompts allow it."""
        share = -(-sum(lengths) // self.workers)
        return list(batches(lengths, max(1, min(self._batch_tokens, share))))

    def _call(
        self, function: Callable[[BatchEncoder, Item], Result], item: Item, threads: int
    ) -> Result:
        if _get_threads() != threads:
            _use_threads(threads)
        encoder = self._idle.get()
        try:
            return function(encoder, item)
        finally:
            self._idle.put(encoder)


def share_weights(module: Any) -> Any:
    """A copy of a network with the same weights, for another thread: hooks are each network's own.

    Args:
        module: The network, or a tuple of networks with parts in common.
    """
    networks = module if isinstance(module, tuple) else (module,)
    weights = {id(weight): weight for network in networks for weight in network.parameters()}
    return copy.deepcopy(module, weights)


def _get_threads() -> int | None:
    """The number of threads that torch computes with for this one; None where it isn't loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def _use_threads(count: int | None) -> None:
    """Let torch compute with so many threads for the calling thread; others keep their number."""
    torch = sys.modules.get("torch")
    if torch is not None and count is not None:
        torch.set_num_threads(count)
