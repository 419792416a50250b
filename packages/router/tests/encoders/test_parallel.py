"""Several batches at once: the same states, shared weights, and as many workers as cores."""

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders import TokenizedPrompt, default_threads, load_encoder, threads
from prefill_router.encoders.base import Batch, NetworkEncoder
from prefill_router.encoders.batching import batches
from prefill_router.encoders.parallel import ParallelEncoder
from prefill_router.errors import ConfigError, StoreError

SITES = [Site(2, "last"), Site(2, "mean"), Site(0, "rest")]
PROVENANCE = Provenance(
    encoder="sums",
    revision="sha256:0",
    template="plain",
    template_hash="0",
    max_tokens=4096,
    dtype="float32",
    num_layers=2,
    hidden_size=2,
)
PATIENCE = 20.0


@dataclass(eq=False)
class Sums(NetworkEncoder):
    """The sum and the number of a prompt's tokens; each copy is for one thread at a time."""

    meeting: threading.Barrier | None = None
    made_by: Provenance = PROVENANCE
    in_use: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        return (0, 1, 2)

    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        assert not self.in_use
        self.in_use = True
        if self.meeting is not None:
            self.meeting.wait(PATIENCE)  # fails unless all workers compute at the same time
        for numbers in batches([len(prompt.ids) for prompt in prompts], 1000):
            rows = [[prompts[i].ids.sum(), len(prompts[i].ids)] for i in numbers]
            yield numbers, np.stack([np.array(rows, np.float32) * (s.layer + 1) for s in sites])
        self.in_use = False


def prompts_of(lengths: Sequence[int]) -> list[TokenizedPrompt]:
    return [
        TokenizedPrompt(f"k{i}", f"q{i}", np.arange(i, i + length, dtype=np.int32), length)
        for i, length in enumerate(lengths)
    ]


def test_workers_compute_at_the_same_time_and_keep_the_order() -> None:
    prompts = prompts_of([3, 90, 14, 7, 55, 21, 8, 2])
    meeting = threading.Barrier(2)
    together = ParallelEncoder(Sums(), [Sums(meeting), Sums(meeting)], 1000)
    states = together.states(prompts[:2], SITES)
    expected = Sums().states(prompts[:2], SITES)
    assert all(np.array_equal(states[site], expected[site]) for site in SITES)
    apart = ParallelEncoder(Sums(), [Sums(), Sums()], 40)
    states, expected = apart.states(prompts, SITES), Sums().states(prompts, SITES)
    assert all(np.array_equal(states[site], expected[site]) for site in SITES)


def test_an_error_of_a_worker_is_the_callers_and_the_next_call_works() -> None:
    class FailingSums(Sums):
        def read_batches(
            self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
        ) -> Iterator[Batch]:
            if any(len(prompt.ids) == 13 for prompt in prompts):
                raise ConfigError("a prompt doesn't fit")
            yield from super().read_batches(prompts, sites)

    encoder = ParallelEncoder(FailingSums(), [FailingSums(), FailingSums()], 40)
    with pytest.raises(ConfigError, match="doesn't fit"):
        encoder.states(prompts_of([5, 13, 6, 30]), SITES)
    states = encoder.states(prompts_of([5, 6, 30]), SITES)
    assert states[SITES[0]][:, 1].tolist() == [15, 18, 90]


def test_states_that_are_not_finite_are_refused() -> None:
    class BrokenSums(Sums):
        def read_batches(
            self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
        ) -> Iterator[Batch]:
            for numbers, rows in super().read_batches(prompts, sites):
                yield numbers, rows * np.nan

    with pytest.raises(StoreError):
        ParallelEncoder(BrokenSums(), [BrokenSums(), BrokenSums()], 40).states(
            prompts_of([3, 4]), SITES
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5", "gemma3", "gpt2", "bert"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workers_of_a_network_share_its_weights_and_give_its_states(
    family: str, dtype: str, tmp_path: Path
) -> None:
    import torch
    import transformers as tf

    from packages.router.tests.encoders.families import FAMILIES, save_tokenizer
    from prefill_router.encoders import HubEncoder
    from prefill_router.encoders.load import Dtype

    assert dtype in ("float32", "bfloat16")
    kind: Dtype = "float32" if dtype == "float32" else "bfloat16"
    torch.manual_seed(0)
    tf.AutoModel.from_config(FAMILIES[family]()).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, chat=False)
    encoder = load_encoder(tmp_path, dtype=kind, device="cpu", layers=[2])
    assert isinstance(encoder, HubEncoder)
    assert encoder.with_workers(1) is encoder
    workers = encoder.with_workers(3)
    assert isinstance(workers, ParallelEncoder)
    copies = [workers._idle.get() for _ in range(3)]
    pointers = [
        {
            weight.data_ptr()
            for weight in copy.network.parameters()
            if weight.layout == torch.strided
        }
        for copy in copies
        if isinstance(copy, HubEncoder)
    ]
    assert len(pointers) == 3
    assert pointers[0] == pointers[1] == pointers[2]
    for copy in copies:
        workers._idle.put(copy)
    texts = ["a", "bb" * 9, "c" * 40, "one two three", "d" * 23, "ee", "f" * 31]
    prompts = encoder.tokenize([Query(f"q{i}", text) for i, text in enumerate(texts)])
    sites = [Site(1, "mean"), Site(2, "last")]
    expected, states = encoder.states(prompts, sites), workers.states(prompts, sites)
    tolerance = 1e-5 if kind == "float32" else 0.03
    for site in sites:
        size = np.linalg.norm(expected[site], axis=1)
        error = np.linalg.norm(states[site] - expected[site], axis=1)
        assert (error <= tolerance * size).all()


@pytest.mark.slow
def test_torch_keeps_its_number_of_threads_for_the_caller_and_for_new_threads() -> None:
    import torch

    numbers: list[int] = []

    class NotingSums(Sums):
        def read_batches(
            self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
        ) -> Iterator[Batch]:
            numbers.append(torch.get_num_threads())
            yield from super().read_batches(prompts, sites)

    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        encoder = ParallelEncoder(NotingSums(), [NotingSums() for _ in range(4)], 1000)
        encoder.states(prompts_of([5, 6, 7, 8]), SITES)
        assert numbers == [1, 1, 1, 1]
        encoder.states(prompts_of([5, 6]), SITES)
        encoder.states(prompts_of([9]), SITES)
        later = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert numbers[4:] == [2, 2, 3, 3]
    finally:
        torch.set_num_threads(usual)


def test_workers_of_minilm_give_its_states() -> None:
    encoder = load_encoder("minilm", layers=[1])
    texts = ["a", "a longer text than that", "one two three " * 6, "b" * 19]
    prompts = encoder.tokenize([Query(f"q{i}", text) for i, text in enumerate(texts)])
    site = Site(1, "mean")
    states = encoder.with_workers(2).states(prompts, [site])[site]
    np.testing.assert_allclose(states, encoder.states(prompts, [site])[site], rtol=0, atol=1e-5)


def test_threads_are_those_of_the_environment_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    for value in ("", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert default_threads() >= 1


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/not/here\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "max 100000"}, 6),
        ("0::/\n", {"cpu.max": "nonsense"}, 6),
        ("0::/\n", {"cpu.max": "900000 100000"}, 6),
        (
            "4:cpu,cpuacct:/a\n1:memory:/\n",
            {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "4:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            6,
        ),
        (None, {}, 6),
    ],
)
def test_a_quota_of_processor_time_limits_the_threads(
    own: str | None,
    files: dict[str, str],
    cores: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    if own is not None:
        (tmp_path / "own").write_text(own)
    monkeypatch.setattr(threads, "_GROUPS", groups)
    monkeypatch.setattr(threads, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(threads, "_physical_cores", lambda: set("abcdef"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads() == cores


@pytest.mark.slow
@pytest.mark.parametrize(("quota", "count"), [(1.5, 2), (0.5, 1), (3.0, 3), (math.inf, 3)])
def test_torch_has_no_more_threads_than_the_quota(
    quota: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    usual = torch.get_num_threads()
    monkeypatch.setattr(threads, "processor_quota", lambda: quota)
    torch.set_num_threads(3)
    try:
        threads.keep_torch_within_quota()
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(usual)
