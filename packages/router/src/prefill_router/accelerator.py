"""The device that encoders and large array work run on: a GPU where there is one.

NumPy does the array work of fits and evaluations. Where it is large, and torch finds a GPU, that of
networks in training, neighbours and intervals runs there. `compute_on` chooses another device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefill_router.errors import ConfigError, name_option
from prefill_router.lazy_imports import optional_imports

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

AUTO = "auto"
LEAST_WORK = 1e11
"""Multiplications that take a processor about as long as torch takes to start."""
_NUMPY = "cpu"
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_chosen: "ContextVar[str | torch.device | None]" = ContextVar("device", default=None)


@contextmanager
def compute_on(device: "str | torch.device | None") -> Iterator[None]:
    """Let encoders and large array work of this thread run on a device meanwhile.

    Other threads and processes, such as the workers of an engine, choose for themselves.

    Args:
        device: `cpu` for the processor, and NumPy; `cuda:1`, or `cuda` for the current GPU; None or
            `auto` for a GPU where there is one and the work is large. A device of torch is used
            for all work.

    Raises:
        ConfigError: The device is unknown, not available, or of a kind that array work can't use.
        MissingExtraError: A GPU is named, and torch isn't installed.
    """
    chosen: str | torch.device | None = None if device == AUTO else device
    if isinstance(chosen, str) and chosen != _NUMPY:
        with optional_imports(f"--device {device}"):
            chosen = torch_device(chosen)
        if chosen.type != "cuda":  # others lack double precision, or compute nothing
            raise ConfigError(f"the device is {device!r}; use cpu, cuda or cuda:1")
    token = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(token)


def accelerator(work: float, *, least: float = LEAST_WORK) -> "torch.device | None":
    """The device of torch for some work; None where NumPy does it.

    Args:
        work: The multiplications.
        least: The work from which on a GPU is used that nobody named.
    """
    chosen = _chosen.get()
    if isinstance(chosen, str):
        return None
    if chosen is not None:
        return chosen
    if work < least or not _has_driver() or find_spec("torch") is None:
        return None
    device = torch_device(None)
    return None if device.type == "cpu" else device


def _has_driver() -> bool:
    """Whether the system has the driver of a GPU; torch needs seconds to say that it has none."""
    return any(Path(file).exists() for file in _DRIVERS)


def torch_device(name: str | None) -> "torch.device":
    """The requested device of torch, by default that of `compute_on`, or a GPU where there is one.

    Raises:
        ConfigError: The device is unknown or not available, or there are several.
    """
    import torch

    if name is not None and "," in name:
        raise ConfigError(
            f"the device is {name!r}, but this work runs on one device; name one of them"
        )
    chosen = _chosen.get()
    if not name and chosen is not None:
        return torch.device(chosen)
    name = None if name == AUTO else name
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"the device {name!r} is unknown; try cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"the device {name!r} isn't available; leave it out, or use cpu")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"the device {name!r} isn't there; the last is cuda:{count - 1}")
    return device


@contextmanager
def memory_errors() -> Iterator[None]:
    """Say what to do where a GPU's memory runs out.

    Raises:
        ConfigError: It ran out.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        processor = name_option("--device cpu", "compute_on('cpu')")
        raise ConfigError(
            f"the GPU has too little free memory for this; free some, or use {processor}"
        ) from error


def send(array: "NDArray[Any]", device: "torch.device") -> "Tensor":
    """A copy of an array on a device; on the processor it may share the array's memory."""
    import torch

    # torch warns of arrays that can't be written to, such as those of mapped files
    return torch.as_tensor(array if array.flags.writeable else array.copy(), device=device)
