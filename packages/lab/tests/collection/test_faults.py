"""Asking a server that fails, stalls, breaks off, lies about usage and limits rates at random.

Every question ends answered or missing with the reason that the server's own log gives, or is left
unasked for the limit's sake; and what the server's owner bills never passes the limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import (
    answer_to,
    answers,
    ask,
    bill,
    models,
    pool_of,
    rows,
    tasks,
)
from prefill_router.endpoints import Reply, Usage
from prefill_router.endpoints.bills import bill_of
from prefill_router.endpoints.prices import bound
from prefill_router.runs import Answer, Run
from prefill_router_minipool.server import Faults, Record, Rule, Server, serve

pytestmark = pytest.mark.slow

STALL = 4.0
LATE = {"first_token_timeout", "answer_timeout"}
LIES = ("omit", "zero", "huge", "negative", "null", "text")
RULES = [
    *(Rule(kind="usage", usage=lie, share=0.08) for lie in LIES),
    Rule(kind="status", status=500, share=0.1),
    Rule(kind="status", status=503, share=0.05),
    Rule(kind="rate_limit", retry_after=0.02, form="ms", share=0.1),
    Rule(kind="context_length", share=0.03),
    Rule(kind="break", after=1, share=0.1),
    Rule(kind="truncate", after=2, share=0.05),
    Rule(kind="error_event", after=1, share=0.05),
    Rule(kind="bad_json", after=1, share=0.05),
    Rule(kind="hang", after=1, share=0.03),
    Rule(kind="stall", seconds=STALL, share=0.03),
]
REASONS = {
    "rate_limit": {"rate_limited"},
    "context_length": {"context_too_long"},
    "break": {"broken_off"},
    "truncate": {"broken_off"},
    "error_event": {"server_error"},
    "bad_json": {"malformed"},
    "hang": LATE,
    "stall": {"first_token_timeout"},
}


def whole_log(server: Server, calls: int) -> list[Record]:
    """Once the requests that were given up have been noticed."""
    until = time.monotonic() + STALL + 20
    while len(server.log) < calls and time.monotonic() < until:
        time.sleep(0.05)
    return server.log


def reasons_of(record: Record) -> set[str]:
    """What the client may truly say of a request; empty for an answer."""
    if record.status in (500, 503):
        return {"server_error" if record.status == 500 else "overloaded"}
    reasons = [REASONS[fault] for fault in record.faults if fault in REASONS]
    return set().union(*reasons)


def explains(record: Record, failure: str | None) -> bool:
    """Whether a request can have ended so; on a busy machine any can be late."""
    if failure in LATE and record.seconds > 1.0:
        return True
    reasons = reasons_of(record)
    return failure in reasons if failure else not reasons


def check_reasons(all_answers: Sequence[Answer], log: Sequence[Record]) -> None:
    records: dict[tuple[str, str], list[Record]] = {}
    for record in log:
        records.setdefault((record.model, record.prompt), []).append(record)
    for answer in all_answers:
        prompt = f"What is question {answer.query_id[1:]}?"
        records_left = records.pop((answer.target, prompt), [])
        failures = [attempt.failure for attempt in answer.attempts]
        assert len(failures) == len(records_left)
        for failure in failures:
            match = next((record for record in records_left if explains(record, failure)), None)
            assert match is not None, (failures, records_left)
            records_left.remove(match)
        assert answer.missing == failures[-1]
        assert (answer.reply is None) == (answer.missing is not None)
    assert not records  # every request is in a record


@pytest.mark.parametrize(
    ("seed", "limit"), [(0, None), (1, 1.0), (2, 0.2), (3, 0.06), (4, 0.02), (5, 0.004), (6, 0.0)]
)
def test_every_question_ends_with_a_true_reason(
    tmp_path: Path, seed: int, limit: float | None
) -> None:
    questions = tasks(30)
    with serve(models(), faults=Faults(rules=RULES, seed=seed)) as server:
        pool = pool_of(server, first_token_seconds=1.5, answer_seconds=3.0, concurrency=16)
        summary = ask(tmp_path / "run", pool, questions, limit=limit, attempts=3, seed=seed)
        log = whole_log(server, summary.calls)
    all_answers = list(answers(tmp_path / "run").values())
    check_reasons(all_answers, log)
    assert len(log) == summary.calls
    assert len(all_answers) + sum(summary.not_asked.values()) == 60
    assert Counter(a.missing for a in all_answers if a.missing) == Counter(summary.missing)
    assert bill(log) <= summary.spent + summary.at_risk
    if limit is None:
        assert not summary.not_asked
    else:
        assert summary.spent + summary.at_risk <= limit
        assert bill(log) <= limit
    for answer in all_answers:
        if answer.reply is not None:
            prompt = f"What is question {answer.query_id[1:]}?"
            assert answer.reply.text == answer_to(answer.target)(prompt)


@pytest.mark.parametrize("limit", [0.03, 0.1])
def test_the_limit_holds_over_many_times(tmp_path: Path, limit: float) -> None:
    calls = 0
    with serve(models(), faults=Faults(rules=RULES[:-2], seed=7)) as server:
        pool = pool_of(server, concurrency=16)
        for turn in range(6):
            questions = tasks(10 + 10 * turn)
            summary = ask(tmp_path / "run", pool, questions, limit=limit, attempts=2, seed=turn)
            calls += summary.calls
            assert bill(whole_log(server, calls)) <= summary.spent + summary.at_risk <= limit
    assert summary.not_asked  # else the limit had nothing to do
    assert summary.limit_that_would_do is not None
    assert summary.limit_that_would_do > limit


@pytest.mark.parametrize("lie", LIES)
def test_usage_that_cannot_be_true_is_kept_and_not_believed(tmp_path: Path, lie: str) -> None:
    with serve(models(["small"]), faults=Faults(rules=[Rule(kind="usage", usage=lie)])) as server:
        pool = pool_of(server, ["small"])
        summary = ask(tmp_path / "run", pool, tasks(1))
        (record,) = server.log
    (answer,) = answers(tmp_path / "run").values()
    assert answer.reply is not None
    most = (len(record.prompt) + 64 + 1024 + 2) * 1.0 + 50 * 4.0
    assert answer.cost is not None
    assert answer.cost_source == "estimate"
    assert answer.note
    assert bill([record]) <= answer.charged == pytest.approx(most / 1e6, rel=0.01)
    assert 0 < answer.cost < answer.charged
    assert summary.at_risk == pytest.approx(answer.charged - answer.cost)
    reported = answer.reply.usage.reported
    if lie == "huge":
        assert reported["completion_tokens"] >= 1000 * record.completion_tokens
    elif lie != "omit":
        assert reported


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens"), [(1, 500), (1000, 3), (1000, 0), (0, 500)]
)
def test_counts_too_small_for_the_texts_are_not_believed(
    input_tokens: int, output_tokens: int
) -> None:
    target = pool_of("http://127.0.0.1:1/v1", ["small"], max_tokens=1000).targets[0]
    prompt, most = "What? " * 600, bound(target, "What? " * 600)
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    reply = Reply(text="No. " * 100, reasoning="Hm. " * 400, usage=usage)
    charge = bill_of(target, prompt, most, reply)
    assert charge.source == "estimate"
    assert charge.note.startswith("input_tokens" if input_tokens < 1000 else "output_tokens")
    assert charge.charged >= (most.dollars or 0.0)
    honest = replace(reply, usage=Usage(input_tokens=1000, output_tokens=500))
    assert bill_of(target, prompt, most, honest).source == "usage"


def test_a_broken_answer_stays_at_risk(tmp_path: Path) -> None:
    with serve(models(["small"]), faults=Faults(rules=[Rule(kind="break", times=1)])) as server:
        summary = ask(tmp_path / "run", pool_of(server, ["small"]), tasks(1))
    (answer,) = answers(tmp_path / "run").values()
    broken, answered = answer.attempts
    assert (broken.failure, answered.failure) == ("broken_off", None)
    assert broken.cost > 0  # for what came of it
    assert broken.at_risk > broken.cost
    assert answer.cost == pytest.approx(broken.cost + answered.cost)
    assert answer.cost_source == "estimate"
    assert summary.at_risk == pytest.approx(broken.at_risk)
    with Run.open(tmp_path / "run") as run:
        assert run.attempts_total == 2


@pytest.mark.parametrize(
    ("form", "seconds", "least"), [("seconds", 1.0, 1.0), ("ms", 0.3, 0.3), ("date", 1.5, 0.5)]
)
def test_a_provider_that_asks_to_wait_is_left_alone(
    tmp_path: Path, form: str, seconds: float, least: float
) -> None:
    rule = Rule(kind="rate_limit", requests=(3,), retry_after=seconds, form=form)  # type: ignore[arg-type]
    with serve(models(["small"]), faults=Faults(rules=[rule])) as server:
        ask(tmp_path / "run", pool_of(server, ["small"], concurrency=1), tasks(12))
        assert len(server.log) == 13
    found = answers(tmp_path / "run").values()
    calls = sorted(attempt.began for answer in found for attempt in answer.attempts)
    (refused,) = [a for answer in found for a in answer.attempts if a.failure]
    after = [began for began in calls if began > refused.began]
    assert len(after) == 9
    assert seconds_between(refused.began, after[0]) >= least  # none of the others went before


def seconds_between(first: str, second: str) -> float:
    from datetime import datetime

    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def test_a_provider_that_asks_for_too_long_is_left(tmp_path: Path) -> None:
    rule = Rule(kind="rate_limit", requests=(2,), retry_after=3600.0)
    with serve(models(["small"]), faults=Faults(rules=[rule])) as server:
        pool = pool_of(server, ["small"], concurrency=1)
        summary = ask(tmp_path / "run", pool, tasks(9))
        assert (summary.answered, summary.missing) == (2, {"rate_limited": 1})
        ((why, number),) = summary.not_asked.items()
        assert number == 6
        assert "3,600 s" in why
        assert summary.limit_that_would_do is None
        assert ask(tmp_path / "run", pool, tasks(9)).answered == 7


@pytest.mark.parametrize("reason", ["unauthorised", "unknown_model"])
def test_what_every_call_would_meet_ends_a_target_at_once(tmp_path: Path, reason: str) -> None:
    rules, served = [Rule(kind="unauthorized")], ["small", "large"]
    if reason == "unknown_model":
        rules, served = [], ["large"]
    questions = tasks(150)
    with serve(models(served), faults=Faults(rules=rules)) as server:
        pool = pool_of(server, ["small", "large"], concurrency=4)
        summary = ask(tmp_path / "run", pool, questions)
        refused = len(server.log) - summary.answered
        if reason == "unknown_model":
            assert summary.answered == 150  # the other target of the provider goes on
            assert summary.missing == {reason: 150}
        else:
            assert summary.missing == {reason: 300}
        assert summary.calls - summary.answered <= 3 + 2 * 4
        assert refused <= 3 + 2 * 4
        recorded = rows(tmp_path / "run", "SELECT COUNT(*) FROM answers")
        ask(tmp_path / "run", pool, questions)  # says the same and adds little
        more = rows(tmp_path / "run", "SELECT COUNT(*) FROM answers")
        assert more[0][0] - recorded[0][0] <= 3 + 2 * 4


def test_one_refusal_of_many_ends_nothing(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="unauthorized", share=0.2)])
    with serve(models(["small"]), faults=faults) as server:
        pool = replace(pool_of(server, ["small"], concurrency=1))
        summary = ask(tmp_path / "run", pool, tasks(20))
    assert summary.calls == 20
    assert summary.answered + summary.missing["unauthorised"] == 20
