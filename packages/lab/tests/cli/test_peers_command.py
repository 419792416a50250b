"""`study peers` on the command line: what it writes and refuses."""

import json
import sys
from pathlib import Path

import pytest

from packages.router.tests.commands import Job, check_malformed, check_refused, run_ok
from prefill_router_lab.studies import CLASSIFIERS

pytestmark = pytest.mark.slow


def command(job: Job, to: Path, *more: object) -> tuple[object, ...]:
    arguments = ("study", "peers", job.router, "--data", job.answers, "--store", job.states)
    return (*arguments, "--out", to, *more)


def test_every_peer_is_on_the_page(job: Job, tmp_path: Path) -> None:
    to = tmp_path / "peers"
    text = run_ok(*command(job, to))
    assert f"report: {to / 'index.html'}" in text
    written = json.loads((to / "peers.json").read_text())
    classifiers = [f"LiteLLM {name}" for name in CLASSIFIERS]
    systems = ["best fixed mix", "price alone", *classifiers, job.router.name]
    assert list(written["systems"]) == systems
    assert all(f"\n{name}: at 20 % of its price " in text for name in systems[1:])
    assert f"{job.router.name} at its setting" in written["setups"]
    assert written["known"]["judged on"].endswith("queries, test part")
    rows = (to / "peers.csv").read_text().splitlines()
    points = sum(map(len, written["systems"].values())) + len(written["setups"])
    assert len(rows) == 1 + points
    assert (to / "figures" / "peers.png").stat().st_size > 1000


def test_the_numbers_are_printed_as_json_and_come_again(job: Job, tmp_path: Path) -> None:
    first, again = (json.loads(run_ok(*command(job, tmp_path / "p", "--json"))) for _ in "12")
    assert first == again
    assert first.items() <= json.loads((tmp_path / "p" / "peers.json").read_text()).items()


def test_peers_refuses(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = tmp_path / "out"
    check_malformed("--part is 'exam'", *command(job, to, "--part", "exam"))
    check_refused("is no study 'peers'", *command(job, job.answers))
    monkeypatch.setitem(sys.modules, "litellm", None)
    check_refused(r"the study of peers needs .*prefill-router-lab\[peers\]", *command(job, to))
    assert not (to / "index.html").exists()
