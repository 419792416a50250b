"""`encode`, `fit` and `evaluate`, stopped at random moments: what was there stays whole or is
replaced by something whole, and the same command ends as if nothing had happened.

`encoders/test_resume.py` kills many more encodings.
"""

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from packages.router.tests.forks import Run, forks
from prefill_router.activations import ActivationStore
from prefill_router.data import write_dataset
from prefill_router.reporting.evaluation_report import is_report
from prefill_router.router import Router
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

ROUNDS = {"encode": 6, "fit": 12, "evaluate": 6}
RECIPE = """
features: {kind: prefill, dim: 4}
predictor: {kind: logistic, c: 0.1, scaling: common}
"""
"""Fitted in a moment, so that much of the time is that of writing."""
SIGNALS = (signal.SIGKILL, signal.SIGINT)
Content = dict[str, bytes]


@dataclass(frozen=True)
class Stem:
    """Runs commands and stops them."""

    run: Run
    log: Path

    def __call__(
        self, *arguments: object, number: int = 0, seconds: float = 0
    ) -> tuple[int, float]:
        code, took = self.run([str(a) for a in arguments], number, seconds)
        expected = {
            0: (0,),
            signal.SIGKILL: (0, -signal.SIGKILL),
            signal.SIGINT: (0, 130, -signal.SIGINT),  # the last: before the command, or after it
        }
        assert code in expected[number], self.log.read_text()[-2000:]
        return code, took


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    write_dataset(make_routing_dataset(queries=40, targets=2), folder / "answers")
    save_tiny_encoder(folder / "tiny")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def command(folder: Path) -> Iterator[Stem]:
    with forks(folder / "log") as run:
        yield Stem(run, folder / "log")


@pytest.fixture(scope="module")
def states(command: Stem, folder: Path) -> Path:
    command("encode", folder / "answers", "--encoder", folder / "tiny", "--out", folder / "states")
    return folder / "states"


@pytest.fixture(scope="module")
def router(command: Stem, folder: Path, states: Path) -> Path:
    command(*fit_arguments(folder, states), "--out", folder / "router")
    return folder / "router"


def fit_arguments(folder: Path, states: Path) -> tuple[object, ...]:
    return (
        "fit",
        "--no-verdict",
        "--test=0.15",
        folder / "answers",
        "--store",
        states,
        "--recipe",
        folder / "recipe.yaml",
    )


def content(path: Path) -> Content:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def find_leftovers(path: Path) -> list[Path]:
    return [p for p in path.parent.iterdir() if p.name.startswith(f".{path.name}.")]


def moments(rounds: int, duration: float) -> Iterator[tuple[int, float]]:
    """Signals in turn, over the whole run and again near its end, where files are written."""
    chance = random.Random(0)
    for number in range(rounds):
        start = 0.0 if number % 4 < 2 else 0.7
        yield SIGNALS[number % 2], chance.uniform(start, 1.05) * duration


def test_encode_goes_on(command: Stem, folder: Path, states: Path) -> None:
    expected, unfinished = content(states), 0
    assert len(expected) > 10  # several shards
    encode = ("encode", folder / "answers", "--encoder", folder / "tiny", "--out")
    _, duration = command(*encode, folder / "again")
    assert content(folder / "again") == expected
    for turn, (number, seconds) in enumerate(moments(ROUNDS["encode"], duration)):
        out = folder / f"states-{turn}"
        command(*encode, out, number=number, seconds=seconds)
        if (out / "manifest.json").is_file():
            store = ActivationStore.open(out)
            store.verify()
            unfinished += len(store) < 40
        command(*encode, out)
        files = {k: v for k, v in content(out).items() if not k.startswith(".manifest")}
        assert files == expected
    assert unfinished  # else nothing was interrupted


def stop_at_random(
    command: Stem,
    out: Path,
    arguments: Callable[[int], tuple[object, ...]],
    rounds: int,
    check: Callable[[Path], object],
) -> float:
    """Stop the writing of one of two contents over the other, again and again.

    Returns:
        How many seconds it takes.
    """
    contents, took = [], []
    for seed in (0, 1):
        took.append(command(*arguments(seed))[1])
        contents.append(content(out))
    assert contents[0] != contents[1]
    current, outcomes = 1, set()
    for number, seconds in moments(rounds, min(took)):
        command(*arguments(1 - current), number=number, seconds=seconds)
        files = content(out)
        assert files in contents
        check(out)
        outcomes.add(files == contents[current])
        current = contents.index(files)
    assert True in outcomes  # else nothing was interrupted
    command(*arguments(0))
    assert content(out) == contents[0]
    return min(took)


def test_fit_leaves_the_old_router_or_the_new(command: Stem, folder: Path, states: Path) -> None:
    out = folder / "fits" / "router"

    def fit(seed: int) -> tuple[object, ...]:
        return (*fit_arguments(folder, states), "--out", out, "--overwrite", "--seed", seed)

    stop_at_random(command, out, fit, ROUNDS["fit"], Router.load)


def test_evaluate_leaves_the_old_report_or_the_new_and_cleans_up(
    command: Stem, folder: Path, states: Path, router: Path
) -> None:
    out = folder / "reports" / "report"

    def evaluate(seed: int) -> tuple[object, ...]:
        evaluate = ("evaluate", router, "--data", folder / "answers", "--store", states)
        return (*evaluate, "--out", out, "--resamples", 20, "--seed", seed)

    took = stop_at_random(command, out, evaluate, ROUNDS["evaluate"], is_report)
    for turn in range(40):  # a process that is killed while it writes leaves something
        if find_leftovers(out):
            break
        command(*evaluate(0), number=signal.SIGKILL, seconds=(0.3 + turn % 10 / 10) * took)
    assert find_leftovers(out)
    (out.parent / ".report.mine.tmp").mkdir()  # no name of ours
    command(*evaluate(1))
    assert find_leftovers(out) == [out.parent / ".report.mine.tmp"]
