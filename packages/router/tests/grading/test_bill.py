"""The cost of judging is reported, and the limit that would have been enough."""

import json
from pathlib import Path

import pytest

from packages.router.tests.commands import run_ok
from packages.router.tests.grading.graded_runs import answer, make_run, run_of, task
from packages.router.tests.grading.judges import YES, court, judge_pool
from prefill_router.cli.application import format_count, round_up
from prefill_router.endpoints import Reply
from prefill_router.grading.caches import Judgments
from prefill_router.money import dollars
from prefill_router.targets import Target, write_pool
from prefill_router_minipool.server import Rule

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tasks = {task(f"q{n}", grader="hle", answer="4"): {"small": f"4 {n}"} for n in range(4)}
    return run_of(tmp_path / "run", tasks)


def test_what_judging_cost_is_told_again_and_again(folder: Path, tmp_path: Path) -> None:
    command = ("grade", folder, "--out", tmp_path / "out", "--judge", tmp_path / "judge.yaml")
    with court(lambda _: YES, Rule(kind="break", after=1, attempts=1, contains="q0?")) as server:
        write_pool(judge_pool(server), tmp_path / "judge.yaml")
        output = run_ok(*command)
        calls = len(server.log)
    bill = json.loads((tmp_path / "out" / "grading.json").read_bytes())["judging"]
    assert bill["calls"] == calls == 5
    assert bill["cost"] > 0
    assert bill["at_risk"] > 0
    assert bill["limit_that_would_do"] is None
    assert f"{calls} judge calls in all gradings of this run: {dollars(bill['cost'])}" in output
    assert f"up to {dollars(bill['at_risk'])} more may have been billed" in output
    assert json.loads(run_ok(*command, "--json"))["judging"] == bill  # nobody is asked again


@pytest.mark.parametrize("samples", [1, 3])
def test_the_limit_that_would_do_does(folder: Path, tmp_path: Path, samples: int) -> None:
    judge = ("--judge", tmp_path / "judge.yaml", "--judge-samples", samples, "--judge-max-cost")
    command = ("grade", folder, "--out", tmp_path / "out", *judge)
    with court(lambda _: YES) as server:
        write_pool(judge_pool(server), tmp_path / "judge.yaml")
        output = run_ok(*command, "0.0075")
        assert "judge_limit" in output
        enough = output.partition("about --judge-max-cost ")[2].split()[0]
        assert float(enough) > 0.0075
        after = json.loads(run_ok(*command, enough, "--json"))
    assert after["targets"][0]["graded"] == 4
    assert after["judging"]["limit_that_would_do"] is None


def test_without_a_judge_there_is_no_bill(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", {task("a", answer="4"): {"small": "4"}})
    assert "judge call" not in run_ok("grade", folder, "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "grading.json").read_bytes())["judging"] is None


def test_the_bill_adds_up(tmp_path: Path) -> None:
    judgments, judge, reply = Judgments(tmp_path), Target(name="judge"), Reply(text=YES)
    judgments.begin(0.25)  # its process was killed
    for most, cost in ((0.5, 0.125), (0.5, None), (0.0, None)):
        call = judgments.begin(most)
        charged = most if cost is None else cost
        judgments.add_reply(
            call, "k", 0, judge, prompt="?", reply=reply, cost=cost, charged=charged
        )
    for charged in (1.0, 0.0):
        call = judgments.begin(1.0)
        judgments.add_failure(call, "k", 0, judge, failure="connect", detail="", charged=charged)
    bill = judgments.bill(held_back=2.0)
    assert (bill.calls, bill.cost, bill.at_risk, bill.unpriced) == (6, 0.125, 1.75, 1)
    assert bill.cost + bill.at_risk == judgments.charged
    assert bill.limit_that_would_do == judgments.charged + 2.0
    judgments.close()


def test_limits_and_counts() -> None:
    assert [round_up(value) for value in (0.000123, 0.0301, 12.001)] == [
        "0.00013",
        "0.031",
        "12.01",
    ]
    assert format_count(1, "judge call") == "1 judge call"
    assert format_count(2, "judge reply", "judge replies") == "2 judge replies"


def test_small_costs_are_told_in_a_tidy_column(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        [task("a", answer="4")],
        [answer("small", "a", "4", cost=0.00000123), answer("large", "a", "4", cost=0.25)],
    )
    lines = run_ok("grade", folder, "--out", tmp_path / "out").splitlines()
    small, large = (next(li for li in lines if li.startswith(name)) for name in ("small", "large"))
    assert "$0.00000123" in small
    assert "$0.25000000" in large
    assert small.index("$") == large.index("$")


def test_one_verdict_was_kept(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the package math-verify isn't installed")
    tasks = {task("a", grader="math", answer="1"): {"small": "1"}}
    command = ("grade", run_of(tmp_path / "run", tasks), "--out", tmp_path / "out")
    assert "kept from an earlier grading" not in run_ok(*command)
    assert "\n1 verdict was kept from an earlier grading\n" in run_ok(*command)
