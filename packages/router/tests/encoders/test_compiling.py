"""Compiled blocks: when, their progress, no compiler, and equal states."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from packages.router.tests.encoders.plain_attention import operator, plain_kernel
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, encode_dataset, load_encoder, packing
from prefill_router.encoders.compiling import BlockCompiler, least_tokens
from prefill_router.progress import Advance, Progress

pytestmark = pytest.mark.slow  # the compiler of torch takes seconds to begin

TEXTS = [Query(str(n), "x" * n) for n in (1, 9, 30, 4, 17)]


class RecordedProgress(Progress):
    """Records the labels and notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def task(self, label: str, *, total: float) -> Iterator[Advance]:
        del total
        self.lines.append(label)

        def advance(amount: float = 1, *, note: str = "") -> None:
            del amount
            self.lines.append(note)

        yield advance


class Block(nn.Module):
    """Doubles what it gets."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states * 2


@pytest.fixture
def compile_options(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each compilation; compiled functions triple their input."""
    calls: list[dict[str, Any]] = []

    def compile_function(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        del function
        calls.append(options)
        return lambda states: states * 3

    monkeypatch.setattr(torch, "compile", compile_function)
    return calls


def test_large_networks_pay_for_compilation_with_fewer_tokens() -> None:
    small, large = least_tokens(28, 1024), least_tokens(36, 4096)
    assert 1_000_000 < large < 2_000_000 < 5_000_000 < small < 10_000_000


def test_blocks_are_compiled_once_enough_tokens_are_read_or_expected(
    compile_options: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    blocks = nn.ModuleList([Block(), Block(), nn.Identity()])
    compiler, progress, attempts = BlockCompiler(blocks, least_tokens=100), RecordedProgress(), []
    compiler.expect(60, lambda: attempts.append(1), progress)
    compiler.count(60)
    assert (compile_options, progress.lines, attempts) == ([], [], [])
    compiler.expect(40, lambda: attempts.append(1), progress)
    compiler.expect(400, lambda: attempts.append(1), progress)
    assert progress.lines == ["compiling the encoder, about 15 s, once", ""]
    assert [call["dynamic"] for call in compile_options] == [True, True]
    assert attempts == [1]
    assert [float(block(torch.ones(1))) for block in blocks] == [3, 3, 1]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


@pytest.mark.usefixtures("compile_options")
def test_without_a_compiler_blocks_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    blocks = nn.ModuleList([Block()])
    compiler, progress = BlockCompiler(blocks, least_tokens=1), RecordedProgress()

    def fail() -> None:
        raise RuntimeError("Cannot find a working triton installation.")

    compiler.expect(5, fail, progress)
    assert progress.lines[1] == "left uncompiled: RuntimeError"
    assert float(blocks[0](torch.ones(1))) == 2
    assert compiler.is_settled
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"


def load(folder: Path, **options: Any) -> HubEncoder:
    with plain_kernel():
        encoder = load_encoder(folder, dtype="float32", device="cpu", **options)
    assert isinstance(encoder, HubEncoder)
    return encoder


def test_a_packed_encoder_is_told_what_a_plan_will_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    encoder = load(folder)
    assert encoder.compiler is not None
    assert load(folder, compile_blocks=False).compiler is None
    progress = RecordedProgress()
    compiler = BlockCompiler(encoder.blocks, least_tokens=25, backend="eager")
    least = replace(encoder, compiler=compiler)
    least.states(least.tokenize(TEXTS[:1]), [Site(2, "last")])
    assert not compiler.is_settled
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    encode_dataset(TEXTS, least, tmp_path / "states", sites=[Site(2, "last")], progress=progress)
    assert progress.lines[0] == "compiling the encoder, about 15 s, once"


def plain_operator(*rows: Any, window: tuple[int, int], **_: Any) -> torch.Tensor:
    output: torch.Tensor = operator(*rows, *window)
    return output


def test_compiled_blocks_give_the_same_states_at_any_layer_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "find_kernel", lambda *_: ("plain", plain_operator))
    encoder = load_encoder(save_tiny_encoder(tmp_path / "tiny"), dtype="float32", device="cpu")
    assert isinstance(encoder, HubEncoder)
    prompts = encoder.tokenize(TEXTS)
    last = [Site(1, "rest")]
    every = [Site(layer, pooling) for layer in encoder.layers for pooling in POOLINGS]
    expected = [encoder.states(prompts, sites) for sites in (every, last)]
    counter = CompileCounter()
    compiler = BlockCompiler(encoder.blocks, least_tokens=1, backend=counter)
    compiled_encoder = replace(encoder, compiler=compiler)
    actual = compiled_encoder.states(prompts, every)
    graphs = counter.frame_count
    assert graphs > 0
    # other lengths, other hooks
    more = replace(compiled_encoder, batch_tokens=40).states(prompts, last)
    assert counter.frame_count == graphs
    for states, same in zip((actual, more), expected, strict=True):
        for site, rows in same.items():
            np.testing.assert_allclose(states[site], rows, rtol=1e-4, atol=1e-5)
