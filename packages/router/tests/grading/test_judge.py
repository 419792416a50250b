"""Judges: what becomes of their verdicts, and that none is paid twice."""

import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.commands import check_refused, run, run_ok
from packages.router.tests.grading.graded_runs import answer as answered, make_run, run_of, task
from packages.router.tests.grading.judges import (
    NO,
    UNREADABLE,
    YES,
    by_answer,
    court,
    find_answer,
    judge_pool,
)
from prefill_router.data.storage import is_dataset
from prefill_router.endpoints import Reply, bound
from prefill_router.errors import ConfigError, CorruptError, StoreError
from prefill_router.grading import GradingReport, Settings, grade_run
from prefill_router.grading.caches import JUDGMENTS_DATABASE, Judgments
from prefill_router.grading.judge_client import JudgeClient
from prefill_router.runs.run import Run
from prefill_router.targets import Pool, Target, write_pool
from prefill_router_minipool.server import Rule

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_of(
        tmp_path / "run",
        {
            task("a", grader="hle", answer="4"): {"small": "It is 4.", "large": "It is 5."},
            task("b", grader="judge", rubric="Polite?"): {"small": "4, if I may", "large": "Bah"},
        },
    )


def grade(folder: Path, pool: Pool, **options: Any) -> GradingReport:
    with Run.open(folder) as run:
        settings = Settings(judge=pool, **options)
        return grade_run(run, folder.parent / "out", settings=settings)


def rows(folder: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(folder / JUDGMENTS_DATABASE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_answers_are_judged_once_and_for_ever(folder: Path) -> None:
    with court(by_answer) as server:
        first = grade(folder, judge_pool(server))
        again = grade(folder, judge_pool(server))
        assert len(server.log) == 4
    assert [target.correct for target in first.targets] == [2, 0]
    assert again == first


def test_the_same_answer_of_two_targets_is_judged_once(tmp_path: Path) -> None:
    same = {
        task(f"q{n}", grader="hle", answer="4"): dict.fromkeys(("small", "large"), "4")
        for n in range(10)
    }
    folder = run_of(tmp_path / "run", same)
    numbers = iter(range(100))
    with court(lambda _: (YES, NO)[next(numbers) % 2]) as server:
        first = grade(folder, judge_pool(server))
        again = grade(folder, judge_pool(server))
        assert len(server.log) == 10
    assert first == again
    assert [target.correct for target in first.targets] == [5, 5]


def test_what_was_asked_and_replied_is_kept_whole(folder: Path) -> None:
    with court(by_answer) as server:
        grade(folder, judge_pool(server))
        bill = sum(r.prompt_tokens + 10 * r.completion_tokens for r in server.log) / 1e6
    judgments = rows(folder, "SELECT judge, request, prompt, text, reply, cost FROM judgments")
    assert len(judgments) == 4
    for judge, request, prompt, text, reply, _ in judgments:
        assert judge == "judge"
        assert json.loads(request) == {"max_tokens": 500}
        assert text == by_answer(prompt)
        assert json.loads(reply)["finish_reason"] == "stop"
    assert sum(cost for *_, cost in judgments) == pytest.approx(bill)
    connection = sqlite3.connect(folder / JUDGMENTS_DATABASE)
    for change in (
        "DELETE FROM judgments",
        "DELETE FROM calls",
        "UPDATE judgments SET text = 'yes'",
    ):
        with pytest.raises(sqlite3.DatabaseError, match="never changed"):
            connection.execute(change)
    connection.close()


def test_another_judge_or_request_is_asked_anew(folder: Path) -> None:
    with court(by_answer) as server:
        grade(folder, judge_pool(server))
        grade(folder, judge_pool(server, max_tokens=600))
        assert len(server.log) == 8
        grade(folder, judge_pool(server), soft=True)
        assert len(server.log) == 12


def test_scores(folder: Path) -> None:
    with court(lambda prompt: f'{{"score": {0.75 if "4" in find_answer(prompt) else 0.5}}}') as s:
        report = grade(folder, judge_pool(s), soft=True)
    assert [target.correct for target in report.targets] == [1.5, 1.0]


def test_the_mean_of_several_replies(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", {task("a", grader="hle", answer="4"): {"small": "4"}})
    replies = iter([YES, NO, YES, YES])
    lock = threading.Lock()

    def next_one(prompt: str) -> str:
        del prompt
        with lock:
            return next(replies)

    with court(next_one) as server:
        report = grade(folder, judge_pool(server), judge_samples=4)
        again = grade(folder, judge_pool(server), judge_samples=4)
        fewer = grade(folder, judge_pool(server), judge_samples=2)
        assert len(server.log) == 4
    assert report.targets[0].correct == again.targets[0].correct == 0.75
    assert fewer.targets[0].correct == 0.5


def test_a_reply_that_cannot_be_read_is_asked_for_again_only_where_that_is_wanted(
    folder: Path,
) -> None:
    with court(lambda _: UNREADABLE) as server:
        first = grade(folder, judge_pool(server))
        assert grade(folder, judge_pool(server)) == first
        assert len(server.log) == 4
    assert [target.missing for target in first.targets] == [{"judge_unreadable": 2}] * 2
    with court(by_answer) as server:
        second = grade(folder, judge_pool(server), judge_again=True)
        assert grade(folder, judge_pool(server), judge_again=True) == second
        assert len(server.log) == 4
    assert [target.correct for target in second.targets] == [2, 0]
    assert len(rows(folder, "SELECT * FROM judgments")) == 8


def test_the_same_answer_of_two_targets_is_asked_again_but_once(tmp_path: Path) -> None:
    question = task("a", grader="hle", answer="4")
    folder = run_of(tmp_path / "run", {question: dict.fromkeys(("small", "large"), "4")})
    with court(lambda _: UNREADABLE) as server:
        for calls in (1, 2):
            grade(folder, judge_pool(server), judge_again=True)
            assert len(server.log) == calls


def test_a_judge_that_fails_for_a_while_is_asked_again(folder: Path) -> None:
    rule = Rule(kind="rate_limit", attempts=2, retry_after=0.02, form="ms")
    with court(by_answer, rule) as server:
        report = grade(folder, judge_pool(server))
        assert len(server.log) == 12
    assert [target.correct for target in report.targets] == [2, 0]
    assert rows(folder, "SELECT DISTINCT failure, charged FROM failures") == [("rate_limited", 0.0)]


def test_what_a_judge_does_not_answer_is_missing_until_the_next_time(folder: Path) -> None:
    rule = Rule(kind="context_length", contains="Polite?")
    with court(by_answer, rule) as server:
        first = grade(folder, judge_pool(server))
    assert first.targets[0].missing == {"judge_context_too_long": 1}
    assert first.targets[0].graded == 1
    with court(by_answer) as server:
        second = grade(folder, judge_pool(server))
        assert len(server.log) == 2
    assert second.targets[0].graded == 2


def test_a_judge_that_refuses_the_key_is_left_in_peace(tmp_path: Path) -> None:
    tasks = {
        task(f"q{n}", grader="hle", answer="4"): {"small": "4", "large": "4"} for n in range(20)
    }
    folder = run_of(tmp_path / "run", tasks)
    with court(by_answer, Rule(kind="unauthorized")) as server:
        report = grade(folder, judge_pool(server, concurrency=2))
        assert len(server.log) <= 4
    assert [target.missing for target in report.targets] == [{"judge_unauthorised": 20}] * 2


@pytest.mark.parametrize(
    ("say", "rules", "reason", "fix"),
    [
        (YES, [Rule(kind="unauthorized")], "judge_unauthorised", "check the judge's key"),
        (UNREADABLE, [], "4 judge_unreadable", "raise max_tokens"),
        (YES, [Rule(kind="context_length")], "4 judge_context_too_long", "longer prompts"),
    ],
)
def test_a_judge_that_gives_no_verdict_is_warned_of(
    folder: Path, tmp_path: Path, say: str, rules: list[Rule], reason: str, fix: str
) -> None:
    with court(lambda _: say, *rules) as server:
        write_pool(judge_pool(server, concurrency=1), tmp_path / "judge.yaml")
        result = run(
            "grade", folder, "--out", tmp_path / "out", "--judge", tmp_path / "judge.yaml", "--json"
        )
    assert result.code == 1
    warning = result.err.splitlines()[-1]
    assert warning.startswith("warning: the judge gave no verdict")
    assert reason in warning
    assert fix in warning
    assert sum(json.loads(result.out)["judge_failed"].values()) == 4
    assert is_dataset(tmp_path / "out")


def test_one_verdict_is_no_useless_judge(folder: Path, tmp_path: Path) -> None:
    with court(lambda p: YES if "Polite?" in p else UNREADABLE) as server:
        write_pool(judge_pool(server), tmp_path / "judge.yaml")
        grade = ("grade", folder, "--out", tmp_path / "out", "--judge", tmp_path / "judge.yaml")
        result = run(*grade)
    assert result.code == 0
    assert "warning: the judge gave no verdict" not in result.err


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.05])
def test_the_limit_is_never_passed(tmp_path: Path, limit: float) -> None:
    tasks = {task(f"q{n}", grader="hle", answer="4"): {"small": f"4 {n}"} for n in range(30)}
    folder = run_of(tmp_path / "run", tasks)
    lies = Rule(kind="usage", usage="zero", share=0.3)
    cuts = Rule(kind="break", after=1, share=0.3)
    with court(by_answer, lies, cuts) as server:
        pool = judge_pool(server)
        report = grade(folder, pool, judge_limit=limit)
        report = grade(folder, pool, judge_limit=limit)
        bill = sum(r.prompt_tokens + 10 * r.completion_tokens for r in server.log) / 1e6
    assert bill <= limit
    assert report.targets[0].missing.get("judge_limit", 0) + report.targets[0].graded <= 30
    assert report.targets[0].missing.get("judge_limit", 0) > 0
    assert bool(server.log) == (limit > 0)


def test_a_limit_needs_prices(folder: Path) -> None:
    pool = Pool((Target(name="judge", base_url="http://127.0.0.1:9/v1"),))
    with pytest.raises(ConfigError, match="give them in the judge"):
        grade(folder, pool, judge_limit=1.0)
    with pytest.raises(ConfigError, match="one target"):
        grade(folder, Pool((*pool.targets, Target(name="two", base_url="http://127.0.0.1:9/v1"))))


def test_damaged_judgments_are_told(folder: Path) -> None:
    (folder / JUDGMENTS_DATABASE).write_bytes(b"nonsense" * 1000)
    with court(by_answer) as server, pytest.raises(CorruptError, match="move it away"):
        grade(folder, judge_pool(server))


def test_judgments_of_a_newer_version_are_left_as_they_are(folder: Path) -> None:
    Judgments(folder).close()
    with sqlite3.connect(folder / JUDGMENTS_DATABASE) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match="upgrade this one"):
        Judgments(folder)
    assert rows(folder, "PRAGMA user_version") == [(2,)]


def test_an_interruption_ends_calls_and_counts_what_they_may_have_cost(tmp_path: Path) -> None:
    with court(lambda _: YES, Rule(kind="stall", seconds=60.0)) as server:
        judgments = Judgments(tmp_path)
        pool = judge_pool(server)
        line = JudgeClient(pool, judgments, limit=None)
        asking = threading.Thread(target=lambda: _quietly(line))
        asking.start()
        while not server.stats().in_flight:
            pass
        line.stop()
        asking.join()
        assert line.ask("more", 0).failure == "interrupted"
        while server.stats().in_flight:  # it notices a little later
            pass
        assert len(server.log) == 1
        line.close()
        assert judgments.charged > 0
        judgments.close()
    assert rows(tmp_path, "SELECT failure FROM failures") == [("interrupted",)]


def _quietly(line: JudgeClient) -> None:
    from concurrent.futures import CancelledError

    with pytest.raises(CancelledError):
        line.ask("a question", 0)


def test_calls_under_way_when_a_process_was_killed_count(tmp_path: Path) -> None:
    judgments = Judgments(tmp_path)
    judgments.begin(0.25)
    judge, reply = Target(name="judge"), Reply(text=YES)
    for cost in (0.125, None):
        call = judgments.begin(0.5)
        judgments.add_reply(
            call, "k", 0, judge, prompt="?", reply=reply, cost=cost, charged=cost or 0.5
        )
    call = judgments.begin(1.0)
    judgments.add_failure(call, "k", 0, judge, failure="connect", detail="", charged=0.0)
    assert judgments.charged == 0.25 + 0.125 + 0.5
    judgments.close()


def test_the_command(folder: Path, tmp_path: Path) -> None:
    with court(by_answer) as server:
        write_pool(judge_pool(server), tmp_path / "judge.yaml")
        options = ("--judge", tmp_path / "judge.yaml", "--judge-max-cost", "1", "--json")
        report = json.loads(run_ok("grade", folder, "--out", tmp_path / "out", *options))
    assert [target["correct"] for target in report["targets"]] == [2, 0]
    check_refused("--judge", "grade", folder, "--out", tmp_path / "out")


def test_tasks_that_cannot_be_judged(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        [task("a", grader="hle"), task("b", grader="judge"), task("c", grader="judge", rubric=" ")],
        [answered("small", name, "x") for name in "abc"],
    )
    with court(by_answer) as server:
        report = grade(folder, judge_pool(server))
        assert not server.log
    assert report.targets[0].missing == {"unfit_task": 3}


def test_what_the_limit_holds_back_is_told(tmp_path: Path) -> None:
    with court(lambda _: YES) as server:
        judgments = Judgments(tmp_path)
        line = JudgeClient(judge_pool(server), judgments, limit=0.001)
        reply = line.ask("a question", 0)
        assert reply.failure == "limit"
        assert "of the limit of $0.001 are spent; raise --judge-max-cost" in reply.detail
        assert line.held_back > 0.001
        line.stop()
        line.close()
        judgments.close()
        assert not server.log


def test_a_judge_is_asked_no_faster_than_its_provider_allows(tmp_path: Path) -> None:
    with court(lambda _: YES) as server:
        judgments, pool = Judgments(tmp_path), judge_pool(server)
        provider = replace(pool.providers[0], requests_per_minute=6)  # the second comes in 10 s
        line = JudgeClient(replace(pool, providers=(provider,)), judgments, limit=None)
        assert line.ask("one", 0).text == YES
        asking = threading.Thread(target=lambda: _quietly(line))
        asking.start()
        asking.join(0.3)
        assert asking.is_alive()
        line.stop()
        asking.join()
        line.close()
        judgments.close()
        assert len(server.log) == 1
    assert rows(tmp_path, "SELECT COUNT(*) FROM calls") == [(1,)]  # the other never began


def test_counts_that_are_too_small_for_what_was_read_leave_the_rest_at_risk(
    tmp_path: Path,
) -> None:
    with court(lambda _: YES, Rule(kind="usage", usage="zero")) as server:
        judgments, pool = Judgments(tmp_path), judge_pool(server)
        line = JudgeClient(pool, judgments, limit=None)
        prompt = "Is it so? " * 40
        assert line.ask(prompt, 0).text == YES
        assert judgments.charged == pytest.approx(bound(pool["judge"], prompt).dollars)
        line.stop()
        line.close()
        judgments.close()
