"""From votes to a router on the command line: fit, show, route, evaluate, and what refuses them."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from packages.router.tests.commands import Job, refused, run, succeeded
from prefill_router.router import Router

pytestmark = pytest.mark.slow

NAMES = ("adder", "speller", "both")


class Voted(NamedTuple):
    """Votes, and the router that was fitted on them."""

    table: Path
    data: Path
    states: Path
    router: Path
    told: str
    tiny: Path


def write_votes(path: Path, count: int) -> Path:
    """Sums, which one target adds, and words, which another spells; the third does half of each."""
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
def voted(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Voted:
    folder = tmp_path_factory.mktemp("votes")
    table = write_votes(folder / "votes.csv", 150)
    data, states, router = (folder / name for name in ("data", "states", "router"))
    succeeded("import", "votes", table, "--out", data)
    succeeded("encode", data, "--encoder", job.tiny, "--out", states)
    told = succeeded("fit", data, "--store", states, "--out", router)
    return Voted(table, data, states, router, " ".join(told.split()), job.tiny)


def test_fit_says_the_verdict_in_win_rate(voted: Voted) -> None:
    assert "worth it: its pick won" in voted.told
    assert "of 150 votes, a tie being half a win" in voted.told
    assert "setting: lam 1, the most probable winner" in voted.told
    assert "accuracy" not in voted.told
    assert Router.load(voted.router).record.labels == "vote"
    numbers = json.loads(
        succeeded("fit", voted.data, "--store", voted.states, "--out", voted.router, "--json")
    )
    assert set(numbers) == {"verdict", "win_rate", "ranking_win_rate", "win_gain"}
    assert numbers["verdict"]["word"] == "worth it"


def test_show_and_route_say_chances_to_win(voted: Voted) -> None:
    shown = " ".join(succeeded("show", voted.router).split())
    assert "no accuracy is claimed" in shown
    asked = ("route", voted.router, "What is 12 + 34?", "--encoder-folder", voted.tiny)
    text = succeeded(*asked)
    assert "P(win)" in text
    assert "P(correct)" not in text
    decided = json.loads(succeeded(*asked, "--json"))
    assert (decided["target"], decided["lam"]) == ("adder", 1)
    assert set(decided["targets"]["adder"]) == {"chance_to_win", "estimated_cost", "score"}


def test_evaluate_judges_in_win_rate(voted: Voted, tmp_path: Path) -> None:
    judged = ("evaluate", voted.router, "--data", voted.data, "--store", voted.states)
    text = " ".join(succeeded(*judged, "--out", tmp_path / "report").split())
    assert "worth it: its pick won" in text
    numbers = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert numbers["votes"]["votes"] == 150
    page = (tmp_path / "report" / "index.html").read_text()
    assert "win rate of its picks" in page
    out = ("--out", tmp_path / "report")
    assert json.loads(succeeded(*judged, *out, "--json"))["word"] == "worth it"
    refused("learned from some of these votes", *judged, *out, "--part", "train", "--overwrite")


def test_new_votes_are_judged_too(voted: Voted, tmp_path: Path) -> None:
    table = write_votes(tmp_path / "votes.csv", 400)
    succeeded("import", "votes", table, "--out", tmp_path / "new")
    out = ("--out", tmp_path / "report", "--encoder-folder", voted.tiny, "--json")
    out = (*out, "--part", "unseen")
    found = json.loads(succeeded("evaluate", voted.router, "--data", tmp_path / "new", *out))
    assert found["votes"] == 250  # the prompts of the others were learned from


def commands(voted: Voted, folder: Path) -> dict[str, Sequence[object]]:
    judged = (voted.router, "--data", voted.data, "--store", voted.states)
    return {
        "doctor": ("doctor", *judged),
        "guarantee": ("guarantee", *judged, "--keep", 0.9),
        "a list": ("compare", "all", "--data", voted.data, "--out", folder / "compared"),
        "two": ("compare", voted.router, voted.router, "--data", voted.data),
    }


@pytest.mark.parametrize("name", ["doctor", "guarantee", "a list", "two"])
def test_what_needs_accuracies_refuses_votes(voted: Voted, name: str, tmp_path: Path) -> None:
    refused("say which of two answers is better", *commands(voted, tmp_path)[name])


def test_labels_of_another_kind_than_the_routers_are_refused(
    job: Job, voted: Voted, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "report")
    refused("fit a router on votes", "evaluate", job.router, "--data", voted.data, *out)
    refused("judge it on votes", "evaluate", voted.router, "--data", job.answers, *out)


def test_a_limit_on_cost_is_refused(voted: Voted, tmp_path: Path) -> None:
    asked = ("fit", voted.data, "--store", voted.states, "--out", tmp_path / "router")
    refused("a limit on cost, or a goal other than accuracy", *asked, "--max-cost", 1)
    refused("a limit on cost, or a goal other than accuracy", *asked, "--goal", "savings")
    assert run(*asked, "--goal", "accuracy", "--no-verdict").code == 0
