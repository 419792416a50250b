"""Encoding that is shared, interrupted and killed loses nothing and leaves nothing half-written."""

import multiprocessing
import random
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.encoders.interrupted_run import SITES, dataset, work, work_until
from prefill_router.activations import ActivationStore
from prefill_router.encoders import encode_dataset, plan_encoding, run as run_module, run_encoding
from prefill_router.errors import ConfigError, StoreError
from prefill_router.files import remove_stale_locks, writer_lock
from prefill_router.progress import Progress
from prefill_router.testing import FakeEncoder

pytestmark = pytest.mark.slow

ENCODER = FakeEncoder(num_layers=2, hidden_size=16)
KILLS = 30


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["packages.router.tests.encoders.interrupted_run"])
    return context


@pytest.fixture(scope="module")
def complete_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "s"
    encode_dataset(dataset(), ENCODER, path, sites=SITES, chunk_tokens=800)
    return content(path)


def content(path: Path) -> dict[str, bytes]:
    """Every file, temporary ones and locks included."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def start(context: ForkServerContext, path: Path, shard: tuple[int, int] = (0, 1)) -> Any:
    process = context.Process(target=work, args=(path, shard))
    process.start()
    return process


def run_until(context: ForkServerContext, path: Path, last_step: int) -> tuple[int | None, int]:
    """The exit code, and the number of steps if the process ended well."""
    steps = context.Value("q", 0)
    process = context.Process(target=work_until, args=(path, last_step, steps))
    process.start()
    process.join()
    return process.exitcode, steps.value


def test_killed_at_any_step_it_goes_on(
    context: ForkServerContext, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    code, steps = run_until(context, tmp_path / "first", -1)
    assert (code, content(tmp_path / "first")) == (0, complete_files)
    chance = random.Random(0)
    unfinished = 0
    for number in range(KILLS):
        path = tmp_path / str(number)
        code, _ = run_until(context, path, chance.randrange(1, int(0.99 * steps)))
        assert code == -signal.SIGKILL
        if (path / "manifest.json").is_file():
            store = ActivationStore.open(path)
            store.verify()
            unfinished += 0 < len(store) < 36
        encode_dataset(dataset(), ENCODER, path, sites=SITES, chunk_tokens=800)
        files = content(path)
        assert {k: v for k, v in files.items() if not k.startswith(".manifest")} == complete_files
    assert unfinished > KILLS // 4


def test_processes_share_the_work_without_touching_the_same_file(
    context: ForkServerContext, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    parts = [start(context, tmp_path / "s", (i, 3)) for i in range(3)]
    for process in parts:
        process.join()
    assert [process.exitcode for process in parts] == [0, 0, 0]
    assert content(tmp_path / "s") == complete_files


def test_each_shard_does_its_part_and_no_other(
    complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    names = []
    for i in range(3):
        path = tmp_path / str(i)
        encode_dataset(dataset(), ENCODER, path, sites=SITES, chunk_tokens=800, shard=(i, 3))
        names.append(set(content(path)) - {"manifest.json"})
        assert names[-1]
        assert all(content(path)[name] == complete_files[name] for name in names[-1])
    assert set.union(*names) == set(complete_files) - {"manifest.json"}
    assert sum(map(len, names)) == len(complete_files) - 1


def test_processes_that_were_given_the_same_work_do_it_once(
    context: ForkServerContext, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    twins = [start(context, tmp_path / "s") for _ in range(3)]
    for process in twins:
        process.join()
    assert [process.exitcode for process in twins] == [0, 0, 0]
    assert content(tmp_path / "s") == complete_files


def test_a_lock_is_held_by_one_and_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.safetensors.123.tmp").write_text("half")
    with writer_lock(tmp_path, "a", wait=False) as first:
        with writer_lock(tmp_path, "a", wait=False) as second:
            assert (first, second) == (True, False)
        with writer_lock(tmp_path, "b", wait=False) as other:
            assert other
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    for name in (".a.lock", ".a.json.1.tmp", ".b.lock", "c.json"):
        (tmp_path / name).touch()
    with writer_lock(tmp_path, "d", wait=False):
        (tmp_path / ".d.json.1.tmp").touch()
        remove_stale_locks(tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".d.json.1.tmp", ".d.lock", "c.json"]


class InterruptingProgress(Progress):
    """Raises KeyboardInterrupt after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def task(self, label: str, *, total: float):  # noqa: ANN201
        del label, total
        return self

    def __enter__(self):  # noqa: ANN204
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, amount: float = 1) -> None:
        del amount
        self.steps -= 1
        if self.steps < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("steps", range(3))
def test_interrupted_by_the_keyboard_it_goes_on(
    steps: int, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        encode_dataset(
            dataset(),
            ENCODER,
            tmp_path / "s",
            sites=SITES,
            chunk_tokens=800,
            progress=InterruptingProgress(steps),
        )
    assert content(tmp_path / "s").items() <= complete_files.items()
    plan = plan_encoding(dataset(), ENCODER, tmp_path / "s", sites=SITES, chunk_tokens=800)
    assert 0 < plan.in_store < plan.prompts == 36
    assert plan.left == plan.prompts - plan.in_store
    run_encoding(plan, ENCODER)
    assert content(tmp_path / "s") == complete_files


def test_nothing_is_encoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = dataset().queries
    encode_dataset(queries[:20], ENCODER, tmp_path / "s", sites=SITES)
    encode_dataset((*queries[14:], *queries[:5]), ENCODER, tmp_path / "s", sites=SITES)
    store = ActivationStore.open(tmp_path / "s")
    assert len(store) == len(set(store.keys)) == 36
    monkeypatch.setattr(run_module, "write_shard", None)
    encode_dataset(queries, ENCODER, tmp_path / "s", sites=SITES)


def test_the_plan_tells_the_disk_it_will_take(tmp_path: Path) -> None:
    plan = plan_encoding(dataset(), ENCODER, tmp_path / "s", sites=SITES)
    run_encoding(plan, ENCODER)
    size = sum(len(c) for name, c in content(tmp_path / "s").items() if name != "manifest.json")
    assert 0.8 * size < plan.bytes_left < 1.25 * size


class _Usage:
    free = 1000


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_encoding(dataset(), ENCODER, tmp_path / "s", sites=SITES)
    monkeypatch.setattr(run_module.shutil, "disk_usage", lambda _path: _Usage)
    with pytest.raises(StoreError, match=r"GB and the disk has 0\.00 GB free"):
        run_encoding(plan, ENCODER)


@pytest.mark.parametrize("shard", [(1, 1), (-1, 2), (0, 0)])
def test_a_shard_that_is_none_is_refused(shard: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0/n to n-1/n"):
        plan_encoding(dataset(), ENCODER, tmp_path, sites=SITES, shard=shard)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()
