"""Recorded passes of few prompts; in place of a CUDA graph, the pass runs again on its memory."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from packages.router.tests.encoders.plain_attention import plain_kernel
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, load_encoder
from prefill_router.encoders.graphs import Pass, RecordedPasses, fitting_shape, pack_into
from prefill_router.encoders.hub import read_batch
from prefill_router.encoders.packing import PackedBatch, Packing, pack

CPU = torch.device("cpu")
SITES = [Site(layer, pooling) for layer in range(3) for pooling in POOLINGS]


class Recorder:
    """Records the passes."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def __call__(self, run: Pass) -> Pass:
        self.passes.append(run)
        return run


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> HubEncoder:
    with plain_kernel():
        encoder = load_encoder(
            save_tiny_encoder(tmp_path_factory.mktemp("tiny")), dtype="float32", device="cpu"
        )
    assert isinstance(encoder, HubEncoder)
    assert encoder.passes is None  # there is nothing to record on a processor
    return encoder


def with_recorder(encoder: HubEncoder, recorder: Recorder) -> HubEncoder:
    assert encoder.packing is not None
    read = partial(read_batch, encoder.network, encoder.blocks)
    return replace(encoder, passes=RecordedPasses(encoder.packing, read, recorder))


@pytest.mark.parametrize("counts", [[1], [5], [63], [9, 1, 30], [1] * 8])
def test_a_recorded_pass_gives_the_states_of_each_prompt(
    encoder: HubEncoder, counts: Sequence[int]
) -> None:
    texts = ["abcdefghij"[i] * n for i, n in enumerate(counts)]
    prompts = encoder.tokenize([Query(text, text) for text in texts])
    recorder = Recorder()
    states = with_recorder(encoder, recorder).states(prompts, SITES)
    assert len(recorder.passes) == 1
    expected = encoder.states(prompts, SITES)
    for site in SITES:
        np.testing.assert_allclose(states[site], expected[site], rtol=1e-4, atol=1e-6)


def test_a_pass_is_recorded_once_for_each_length_and_choice_of_sites(encoder: HubEncoder) -> None:
    recorder = Recorder()
    graphed = with_recorder(encoder, recorder)
    for n, recorded in ((5, 1), (40, 1), (3, 1), (70, 2), (100, 2)):
        prompts = encoder.tokenize([Query("q", "x" * n)])
        states = graphed.states(prompts, SITES)
        assert len(recorder.passes) == recorded
        expected = encoder.states(prompts, SITES)
        for site in SITES:
            np.testing.assert_allclose(states[site], expected[site], rtol=1e-4, atol=1e-6)
    graphed.states(encoder.tokenize([Query("q", "short")]), SITES[:1])
    assert len(recorder.passes) == 3


def test_many_prompts_or_tokens_are_read_in_batches(encoder: HubEncoder) -> None:
    recorder = Recorder()
    graphed = with_recorder(encoder, recorder)
    prompts = encoder.tokenize([Query(str(i), "x" * (1 + i)) for i in range(9)])
    assert graphed.states(prompts, SITES)[SITES[0]].shape == (9, 16)
    assert recorder.passes == []


def test_a_network_that_cannot_be_recorded_is_read_in_batches(encoder: HubEncoder) -> None:
    attempts = []

    def fail(run: Pass) -> Pass:
        attempts.append(run)
        raise RuntimeError("operation not permitted when stream is capturing")

    assert encoder.packing is not None
    read = partial(read_batch, encoder.network, encoder.blocks)
    graphed = replace(encoder, passes=RecordedPasses(encoder.packing, read, fail))
    prompts = encoder.tokenize([Query("q", "Why is the sky blue?")])
    expected = encoder.states(prompts, SITES)
    for _ in range(2):
        states = graphed.states(prompts, SITES)
        assert all(np.array_equal(states[site], expected[site]) for site in SITES)
    assert len(attempts) == 1


def test_the_passes_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_router.encoders.graphs._MOST_GRAPHS", 2)
    recorder = Recorder()

    def read(batch: PackedBatch, _sites: Sequence[Site]) -> torch.Tensor:
        return batch.ids[None, :, :1].float()

    passes = RecordedPasses(Packing("plain", None), read, recorder)
    row = [np.array([7, 8], dtype=np.int32)]
    first, second, third = ((Site(n, "last"),) for n in (1, 2, 3))
    for sites, recorded in (
        (first, 1),
        (second, 2),
        (first, 2),
        (third, 3),
        (first, 3),
        (second, 4),
    ):
        states = passes.read(row, sites, CPU)
        assert states is not None
        assert states.tolist() == [[[7.0]]]
        assert len(recorder.passes) == recorded


@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        ([1], (64, 1)),
        ([63], (64, 1)),
        ([64], (128, 1)),
        ([30, 30], (64, 8)),
        ([2047], (2048, 1)),
        ([2048], None),
        ([1] * 9, None),
    ],
)
def test_a_row_has_room_for_the_prompts_and_a_token_of_padding(
    counts: list[int], shape: tuple[int, int] | None
) -> None:
    assert fitting_shape(counts) == shape


@pytest.mark.parametrize("counts", [[1], [63], [20, 1, 30], [7] * 8])
def test_batches_of_one_shape_have_tensors_of_one_size(counts: list[int]) -> None:
    rows = [np.full(n, 5, dtype=np.int32) for n in counts]
    shape = (64, 8)
    batch = pack_into(rows, shape, CPU, None)
    assert [tuple(tensor.shape) for tensor in batch.tensors] == [
        (1, 64),
        (1, 64),
        (10,),
        (10,),
        (9,),
    ]
    plain = pack(rows, CPU, None)
    used = sum(counts)
    assert torch.equal(batch.ids[:, :used], plain.ids)
    assert torch.equal(batch.positions[:, :used], plain.positions)
    assert int(batch.positions.max()) < max(counts)
    assert int(batch.pieces.sum()) == int(batch.starts[-1]) == batch.longest == 64
    assert int(batch.piece_counts.sum()) == len(batch.pieces)
