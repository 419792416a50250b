"""From votes to a router on the command line; commands that need accuracies refuse votes."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from packages.router.tests.commands import Job, check_refused, run, run_ok
from prefill_router.router import Router

pytestmark = pytest.mark.slow

NAMES = ("adder", "speller", "both")


class VoteFiles(NamedTuple):
    """Votes, and the router that was fitted on them."""

    table: Path
    data: Path
    states: Path
    router: Path
    printed: str
    tiny: Path


def write_votes(path: Path, count: int) -> Path:
    """Write votes on sums and words: one target adds, one spells, one does half of each."""
    rows = []
    for n in range(count):
        is_sum = n % 2 == 0
        prompt = f"What is {n} + {7 * n}?" if is_sum else f"Please spell the word number {n} aloud."
        skill = {"adder": 2 * is_sum, "speller": 2 * (not is_sum), "both": 1}
        a, b = NAMES[n % 3], NAMES[(n + 1 + n // 3 % 2) % 3]
        ahead = skill[a] - skill[b]
        winner = "tie" if n % 10 == 9 else ("model_a" if ahead > 0 else "model_b")
        rows.append({"prompt": prompt, "model_a": a, "model_b": b, "winner": winner})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def votes(job: Job, tmp_path_factory: pytest.TempPathFactory) -> VoteFiles:
    folder = tmp_path_factory.mktemp("votes")
    table = write_votes(folder / "votes.csv", 150)
    data, states, router = (folder / name for name in ("data", "states", "router"))
    run_ok("import", "votes", table, "--out", data)
    run_ok("encode", data, "--encoder", job.tiny, "--out", states)
    printed = run_ok("fit", data, "--store", states, "--out", router)
    return VoteFiles(table, data, states, router, " ".join(printed.split()), job.tiny)


def test_fit_says_the_verdict_in_win_rate(votes: VoteFiles) -> None:
    assert "worth it: its pick won" in votes.printed
    assert "of 150 votes, a tie being half a win" in votes.printed
    assert "setting: lam 1, the most probable winner" in votes.printed
    assert "accuracy" not in votes.printed
    assert Router.load(votes.router).record.labels == "vote"
    numbers = json.loads(
        run_ok("fit", votes.data, "--store", votes.states, "--out", votes.router, "--json")
    )
    assert set(numbers) == {"verdict", "win_rate", "ranking_win_rate", "win_gain"}
    assert numbers["verdict"]["word"] == "worth it"


def test_show_and_route_say_chances_to_win(votes: VoteFiles) -> None:
    printed = " ".join(run_ok("show", votes.router).split())
    assert "no accuracy is claimed" in printed
    arguments = ("route", votes.router, "What is 12 + 34?", "--encoder-folder", votes.tiny)
    text = run_ok(*arguments)
    assert "P(win)" in text
    assert "P(correct)" not in text
    decision = json.loads(run_ok(*arguments, "--json"))
    assert (decision["target"], decision["lam"]) == ("adder", 1)
    assert set(decision["targets"]["adder"]) == {"chance_to_win", "estimated_cost", "score"}


def test_evaluate_judges_in_win_rate(votes: VoteFiles, tmp_path: Path) -> None:
    arguments = ("evaluate", votes.router, "--data", votes.data, "--store", votes.states)
    text = " ".join(run_ok(*arguments, "--out", tmp_path / "report").split())
    assert "worth it: its pick won" in text
    numbers = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert numbers["votes"]["votes"] == 150
    page = (tmp_path / "report" / "index.html").read_text()
    assert "win rate of its picks" in page
    out = ("--out", tmp_path / "report")
    assert json.loads(run_ok(*arguments, *out, "--json"))["word"] == "worth it"
    check_refused(
        "learned from some of these votes", *arguments, *out, "--part", "train", "--overwrite"
    )


def test_new_votes_are_judged_too(votes: VoteFiles, tmp_path: Path) -> None:
    table = write_votes(tmp_path / "votes.csv", 400)
    run_ok("import", "votes", table, "--out", tmp_path / "new")
    out = ("--out", tmp_path / "report", "--encoder-folder", votes.tiny, "--json")
    out = (*out, "--part", "unseen")
    summary = json.loads(run_ok("evaluate", votes.router, "--data", tmp_path / "new", *out))
    assert summary["votes"] == 250  # the prompts of the others were learned from


def commands(votes: VoteFiles, folder: Path) -> dict[str, Sequence[object]]:
    arguments = (votes.router, "--data", votes.data, "--store", votes.states)
    return {
        "doctor": ("doctor", *arguments),
        "guarantee": ("guarantee", *arguments, "--keep", 0.9),
        "a list": ("compare", "all", "--data", votes.data, "--out", folder / "compared"),
        "two": ("compare", votes.router, votes.router, "--data", votes.data),
    }


@pytest.mark.parametrize("name", ["doctor", "guarantee", "a list", "two"])
def test_what_needs_accuracies_refuses_votes(votes: VoteFiles, name: str, tmp_path: Path) -> None:
    check_refused("say which of two answers is better", *commands(votes, tmp_path)[name])


def test_labels_of_another_kind_than_the_routers_are_refused(
    job: Job, votes: VoteFiles, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "report")
    check_refused("fit a router on votes", "evaluate", job.router, "--data", votes.data, *out)
    check_refused("judge it on votes", "evaluate", votes.router, "--data", job.answers, *out)


def test_a_limit_on_cost_is_refused(votes: VoteFiles, tmp_path: Path) -> None:
    arguments = ("fit", votes.data, "--store", votes.states, "--out", tmp_path / "router")
    check_refused("a limit on cost, or a goal other than accuracy", *arguments, "--max-cost", 1)
    check_refused("a limit on cost, or a goal other than accuracy", *arguments, "--goal", "savings")
    assert run(*arguments, "--goal", "accuracy", "--no-verdict").code == 0
