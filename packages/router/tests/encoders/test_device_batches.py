"""Batches on a device: memory that runs out, their size, and copies. The GPU is simulated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.accelerator import torch_device
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, hub, load_encoder, pretrained
from prefill_router.encoders.devices import (
    GPU_BATCH_TOKENS,
    MOST_GPU_BATCH_TOKENS,
    batch_tokens_on,
    devices_of,
    dtype_of,
    send,
    weights_map,
)
from prefill_router.encoders.hub import DeviceBatches, move_to_device
from prefill_router.encoders.provenance import CPU_BATCH_TOKENS
from prefill_router.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")
LENGTHS = [47, 50, 49, 48, 46, 50, 47, 50]
Launch = Callable[[list[int]], torch.Tensor]


def memory_for(tokens: int, lengths: Sequence[int], attempts: list[list[int]]) -> Launch:
    """A device with memory for so many tokens with padding; states are the prompts' numbers."""

    def launch(numbers: list[int]) -> torch.Tensor:
        attempts.append(numbers)
        if len(numbers) * max(lengths[i] for i in numbers) > tokens:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return torch.tensor(numbers, dtype=torch.float32)[None, :, None]

    return launch


def test_every_prompt_is_read_once_however_little_memory_there_is() -> None:
    for memory in range(50, 500, 7):
        attempts: list[list[int]] = []
        device = DeviceBatches(CPU, 400)
        results = list(device.read(LENGTHS, memory_for(memory, LENGTHS, attempts)))
        assert sorted(i for numbers, _ in results for i in numbers) == list(range(len(LENGTHS)))
        for numbers, rows in results:
            assert rows[0, :, 0].tolist() == numbers
        assert device.tokens <= max(memory, 50)
        again: list[list[int]] = []
        list(device.read(LENGTHS, memory_for(memory, LENGTHS, again)))
        # the limit is remembered
        assert len(again) < len(attempts) or len(attempts) == len(results)


def test_a_prompt_that_does_not_fit_alone_is_an_error_that_says_what_would_do() -> None:
    device = DeviceBatches(CPU, 400)
    with pytest.raises(ConfigError, match=r"a prompt of 50 tokens doesn't fit .* --max-tokens"):
        list(device.read(LENGTHS, memory_for(49, LENGTHS, [])))


def test_cublas_without_memory_for_its_workspace_counts_and_other_errors_do_not() -> None:
    def fail_with(reason: str) -> Launch:
        def launch(numbers: list[int]) -> torch.Tensor:
            if len(numbers) > 1:
                raise RuntimeError(reason)
            return torch.zeros(1, 1, 1)

        return launch

    results = DeviceBatches(CPU, 400).read(
        LENGTHS,
        fail_with("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    )
    assert len(list(results)) == len(LENGTHS)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        list(DeviceBatches(CPU, 400).read(LENGTHS, fail_with("CUDA error: illegal memory access")))


def test_the_next_batch_is_launched_before_the_last_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    def begin_copy(rows: torch.Tensor) -> Callable[[], Any]:
        name = str(int(rows[0, 0, 0]))
        events.append(f"launch {name}")
        return lambda: events.append(f"wait {name}")

    monkeypatch.setattr(hub, "_begin_copy", begin_copy)
    list(DeviceBatches(CPU, 1).read([4, 3, 2], memory_for(9, [4, 3, 2], [])))
    assert events == ["launch 0", "launch 1", "wait 0", "launch 2", "wait 1", "wait 2"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> HubEncoder:
    folder = save_tiny_encoder(tmp_path_factory.mktemp("tiny"))
    encoder = load_encoder(folder, dtype="float32", device="cpu")
    assert isinstance(encoder, HubEncoder)
    return encoder


def test_states_after_memory_ran_out_are_those_of_smaller_batches(
    encoder: HubEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = encoder.tokenize([Query(f"q{i}", f"{i:04}") for i in range(24)])
    longest = max(len(prompt.ids) for prompt in prompts)
    sites = [Site(2, "last"), Site(1, "mean")]
    expected = replace(encoder, batch_tokens=6 * longest).states(prompts, sites)
    read_batch = hub.read_batch

    def little_memory(network: Any, blocks: Any, batch: hub.TokenBatch, sites: Any) -> Any:
        if batch.ids.numel() > 6 * longest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read_batch(network, blocks, batch, sites)

    monkeypatch.setattr(hub, "read_batch", little_memory)
    states = replace(encoder, batch_tokens=24 * longest).states(prompts, sites)
    for site in sites:
        assert states[site].tobytes() == expected[site].tobytes()


class FakeTensor:
    """A tensor that remembers how it was moved."""

    def __init__(self, moves: tuple[object, ...] = ()) -> None:
        self.moves = moves

    def pin_memory(self) -> "FakeTensor":
        return FakeTensor((*self.moves, "pinned"))

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "FakeTensor":
        return FakeTensor((*self.moves, device, non_blocking))


def test_only_what_goes_to_a_gpu_is_pinned() -> None:
    plain = send.__wrapped__ if hasattr(send, "__wrapped__") else send
    assert plain(FakeTensor(), CUDA).moves == ("pinned", CUDA, True)  # type: ignore[arg-type]
    assert plain(FakeTensor(), CPU).moves == (CPU, False)  # type: ignore[arg-type]


QWEN3_8B = SimpleNamespace(hidden_size=4096, intermediate_size=12_288)
SMALL = SimpleNamespace(hidden_size=768)


@pytest.mark.parametrize(
    ("free", "config", "least", "most"),
    [
        (80 << 30, QWEN3_8B, 100_000, MOST_GPU_BATCH_TOKENS),
        (80 << 30, SMALL, MOST_GPU_BATCH_TOKENS, MOST_GPU_BATCH_TOKENS),
        (7 << 30, QWEN3_8B, 8_000, 20_000),
        (1 << 20, QWEN3_8B, CPU_BATCH_TOKENS, CPU_BATCH_TOKENS),
        (0, None, GPU_BATCH_TOKENS, GPU_BATCH_TOKENS),
    ],
)
def test_batches_on_a_gpu_are_as_large_as_its_free_memory_allows(
    free: int, config: Any, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 80 << 30))
    assert least <= batch_tokens_on(CUDA, config, torch.bfloat16) <= most
    assert batch_tokens_on(CPU, config, torch.bfloat16) == CPU_BATCH_TOKENS


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (3 << 30, 80 << 30))


@pytest.mark.usefixtures("two_gpus")
def test_the_second_gpu_can_be_named_and_the_third_of_two_cannot() -> None:
    assert torch_device("cuda:1") == CUDA
    assert torch_device(None).type == "cuda"
    with pytest.raises(ConfigError, match=r"'cuda:2' isn't there; the last is cuda:1"):
        torch_device("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_several_gpus_are_named_or_all_are_taken() -> None:
    gpus = (torch.device("cuda:0"), CUDA)
    assert devices_of("cuda:0,cuda:1") == devices_of("auto") == gpus
    assert devices_of("cuda:1,cuda:0") == gpus[::-1]
    assert devices_of("cpu") == (CPU,)
    for devices in ("cuda:0,cuda:0", "cuda,cuda:1", "cpu,cuda:1"):
        with pytest.raises(ConfigError, match="several different GPUs"):
            devices_of(devices)
    with pytest.raises(ConfigError, match=r"'cuda:0,cuda:1', but this work runs on one"):
        torch_device("cuda:0,cuda:1")


def test_without_a_gpu_auto_is_the_processor() -> None:
    assert devices_of("auto") == devices_of(None) == (CPU,)
    assert weights_map((CPU,), "auto") == {}


@pytest.mark.usefixtures("two_gpus")
def test_weights_go_to_the_devices_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights_map((CUDA,), "cuda:1") == {"device_map": {"": CUDA}}
    gpus = (torch.device("cuda:0"), CUDA)
    share = int(0.8 * (3 << 30))
    expected = {"device_map": "balanced", "max_memory": {0: share, 1: share, "cpu": 0}}
    assert weights_map(gpus, "cuda:0,cuda:1") == expected
    assert weights_map(gpus, "auto") == expected | {"device_map": "sequential"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert weights_map(gpus, "cuda:0,cuda:1")["max_memory"][3] == 0
    monkeypatch.setattr("prefill_router.encoders.devices.find_spec", lambda _name: None)
    assert weights_map((CUDA,), "cuda:1") == {}


def test_weights_that_are_loaded_to_their_device_give_the_same_states(
    encoder: HubEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    monkeypatch.setattr(pretrained, "weights_map", lambda *_: {"device_map": {"": CPU}})
    maps, load = [], pretrained.AutoModel.from_pretrained

    def load_recorded(*arguments: Any, **options: Any) -> Any:
        maps.append(options["device_map"])
        return load(*arguments, **options)

    monkeypatch.setattr(pretrained.AutoModel, "from_pretrained", load_recorded)
    direct = load_encoder(folder, dtype="float32", device="cpu")
    assert maps == [{"": CPU}]
    prompts = encoder.tokenize([Query("q", "Why is the sky blue?")])
    site = Site(2, "mean")
    assert np.array_equal(
        direct.states(prompts, [site])[site], encoder.states(prompts, [site])[site]
    )


def test_weights_that_would_be_left_on_the_disk_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    load_network = pretrained.load_network

    def load_offloaded(*arguments: Any, **options: Any) -> torch.nn.Module:
        network: Any = load_network(*arguments, **options)
        network.hf_device_map = {"embeddings": 0, "encoder": "disk"}
        return network

    monkeypatch.setattr(pretrained, "load_network", load_offloaded)
    with pytest.raises(ConfigError, match=r"don't fit into the memory of cpu; .* cuda:0,cuda:1"):
        load_encoder(folder, device="cpu")


@pytest.mark.usefixtures("two_gpus")
def test_the_arithmetic_is_that_of_the_gpu_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []

    class Current:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            current.append(self.device)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: current == [CUDA])
    assert dtype_of(None, CUDA) is torch.bfloat16
    assert dtype_of(None, torch.device("cuda:0")) is torch.float16


@pytest.mark.usefixtures("two_gpus")
def test_weights_that_do_not_fit_are_an_error_with_the_memory_that_is_free() -> None:
    class TooLarge(torch.nn.Module):
        def to(self, *_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ConfigError, match=r"weights of big .* cuda:1, of which 3\.2 of 85\.9 GB"):
        move_to_device(TooLarge(), CUDA, "big")


def test_attention_is_that_of_torch_in_one_operation(encoder: HubEncoder) -> None:
    assert encoder.network.config._attn_implementation == "sdpa"
