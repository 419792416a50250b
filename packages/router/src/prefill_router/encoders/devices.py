"""The device, type and batch size that a torch network runs with: requested, or the hardware's."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from prefill_router.accelerator import AUTO, torch_device
from prefill_router.encoders.provenance import CPU_BATCH_TOKENS, check_dtype
from prefill_router.errors import ConfigError

GPU_BATCH_TOKENS = 65_536
MOST_GPU_BATCH_TOKENS = 131_072
"""More wouldn't be faster, and kernels that count a tensor's numbers in 32 bits would fail."""
GPU_SMALL_BATCH = 2048
"""Tokens of a batch in which padding costs nothing: a GPU's host queues its kernels as long."""
_SHARE_OF_FREE = 0.5
_SHARE_FOR_WEIGHTS = 0.8
"""Of the free memory of each of several GPUs; the rest is for states."""
_HIDDEN_ROWS, _INNER_ROWS = 16, 4
"""How many rows of a network's two widths a block needs for one token at its widest moment."""


def devices_of(names: str | None) -> tuple[torch.device, ...]:
    """The requested devices, the first of which gets the prompts.

    Args:
        names: A device, several with commas between them, or `auto`: all GPUs, or the processor.

    Raises:
        ConfigError: A device is unknown or not available, or named twice, or one of several isn't
            a GPU.
    """
    if names == AUTO and torch.cuda.is_available():
        return tuple(torch.device("cuda", n) for n in range(torch.cuda.device_count()))
    devices = tuple(map(torch_device, (names or "").split(",")))
    several = len(devices) > 1
    if several and (len(set(devices)) < len(devices) or any(d.index is None for d in devices)):
        raise ConfigError(
            f"the device is {names!r}; give one device, or several different GPUs, like "
            "cuda:0,cuda:1"
        )
    return devices


def weights_map(devices: tuple[torch.device, ...], names: str | None) -> dict[str, Any]:
    """The options by which `transformers` loads weights to devices, shard by shard.

    Args:
        devices: Those of `devices_of`.
        names: What was requested: several devices share the blocks evenly, and with `auto` the
            first is filled first, so that a small network has one of them.

    Returns:
        Nothing where weights are loaded to the host first: without a GPU, or without the package
        that loads them to one.
    """
    if devices[0].type != "cuda" or find_spec("accelerate") is None:
        return {}
    if len(devices) == 1:
        return {"device_map": {"": devices[0]}}
    free: dict[int | str, int] = dict.fromkeys(range(torch.cuda.device_count()), 0)
    for device in devices:
        free[device.index] = int(_SHARE_FOR_WEIGHTS * torch.cuda.mem_get_info(device)[0])
    strategy = "sequential" if names == AUTO else "balanced"
    return {"device_map": strategy, "max_memory": {**free, "cpu": 0}}


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; to a GPU it is copied without waiting."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def dtype_of(name: str | None, device: torch.device) -> torch.dtype:
    """The type of computation; by default the fastest that the processor supports.

    Raises:
        ConfigError: There is no type of that name.
    """
    check_dtype(name)
    if name is not None:
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    abilities = torch.cpu.get_capabilities()
    is_fast = abilities.get("avx512_bf16") or abilities.get("amx_bf16")
    return torch.bfloat16 if is_fast else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type, as in a provenance, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def batch_tokens_on(
    device: torch.device, config: Any = None, dtype: torch.dtype = torch.float32
) -> int:
    """The default limit on tokens per batch, padding included.

    Args:
        device: Where the batches are computed; a network on a GPU must already be there.
        config: The network's configuration, by whose widths a GPU's free memory is divided.
        dtype: The type of computation.
    """
    if device.type != "cuda" or config is None:
        return GPU_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    token_bytes = (_HIDDEN_ROWS * hidden + _INNER_ROWS * inner) * dtype.itemsize
    tokens = int(_SHARE_OF_FREE * free / token_bytes)
    return min(max(tokens, CPU_BATCH_TOKENS), MOST_GPU_BATCH_TOKENS)
