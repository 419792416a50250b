"""Batches on a device: how large, copied without waiting, and halved where memory runs out.

On a GPU the host only queues work, so while one batch is computed the next is prepared and sent
from pinned memory, and the states of the one before are copied back. Memory that runs out is known
when a batch is queued: the limit is halved, and the prompts that are left are batched again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prefill_router.encoders.base import batches
from prefill_router.errors import ConfigError

Launch = Callable[[list[int]], Tensor]
"""Computes the states of these prompts, [site, query, hidden], in float32 on the device."""
_NO_WORKSPACE = "CUBLAS_STATUS_ALLOC_FAILED"
"""What cuBLAS says, instead of torch, where memory runs out."""


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; to a GPU it is copied without waiting."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def on_device(network: nn.Module, device: torch.device, source: str) -> nn.Module:
    """The network, moved to the device.

    Raises:
        ConfigError: The device's memory is too small for it.
    """
    try:
        return network.to(device)
    except torch.OutOfMemoryError:
        fix = "choose another --device, or read fewer blocks (--layers)"
    raise ConfigError(f"the weights of {source} don't fit into {_memory(device)}; {fix}")


@final
class DeviceBatches:
    """Reads prompts in batches on one device.

    Attributes:
        tokens: The most tokens, padding included, in one batch; it only falls.
    """

    def __init__(self, device: torch.device, tokens: int) -> None:
        self.tokens = tokens
        self._device = device

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
        waiting = deque(batches(lengths, self.tokens))
        launched: deque[tuple[list[int], Callable[[], NDArray[np.float32]]]] = deque()
        while waiting:
            numbers = waiting.popleft()
            rows = self._launched(numbers, launch)
            if rows is None:
                self._halve([lengths[i] for i in numbers])
                left = [*numbers, *chain.from_iterable(waiting)]
                again = batches([lengths[i] for i in left], self.tokens)
                waiting = deque([left[i] for i in part] for part in again)
                continue
            launched.append((numbers, rows))
            if len(launched) > 1:
                done, found = launched.popleft()
                yield done, found()
        for done, found in launched:
            yield done, found()

    def _launched(
        self, numbers: list[int], launch: Launch
    ) -> Callable[[], NDArray[np.float32]] | None:
        """Begin a batch; None where memory ran out, once the error holds no tensor any more."""
        try:
            with self._current():
                return _copied(launch(numbers))
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not (isinstance(error, torch.OutOfMemoryError) or _NO_WORKSPACE in str(error)):
                raise
        return None

    def _current(self) -> AbstractContextManager[Any]:
        """Makes a GPU the current one, where kernels and events of other libraries go."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _halve(self, lengths: list[int]) -> None:
        """Lower the limit to half of the batch that was too large."""
        if len(lengths) == 1:
            raise ConfigError(
                f"a prompt of {lengths[0]:,} tokens doesn't fit into {_memory(self._device)}; "
                "lower --max-tokens, read fewer blocks (--layers), choose another --device, or end "
                "other programs that use its memory"
            )
        self.tokens = len(lengths) // 2 * max(lengths)
        torch.cuda.empty_cache()


def _copied(rows: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Begin to copy states to the host; the function that is returned waits for them."""
    if rows.device.type != "cuda":
        here: NDArray[np.float32] = rows.cpu().numpy()
        return lambda: here
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    host.copy_(rows, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(rows.device))

    def waited() -> NDArray[np.float32]:
        done.synchronize()
        found: NDArray[np.float32] = host.numpy()
        return found

    return waited


def _memory(device: torch.device) -> str:
    """The memory of a device, in words."""
    if device.type != "cuda":
        return f"the memory of {device}"
    free, total = torch.cuda.mem_get_info(device)
    return f"the memory of {device}, of which {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
