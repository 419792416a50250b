"""Asking: what is kept of an answer, what is asked again, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import (
    answer_to,
    answers,
    ask,
    bill,
    expected_texts,
    models,
    pool_of,
    rows,
    tasks,
    texts,
)
from prefill_router.data import Query
from prefill_router.errors import ConfigError, CorruptError, DataError, FormatError
from prefill_router.runs import Run, Task
from prefill_router.targets import Pool
from prefill_router_lab.collection.job import estimate_collection
from prefill_router_lab.collection.plan import CollectOptions
from prefill_router_minipool.server import Faults, Persona, Rule, ScriptedModel, Server, serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():  # noqa: ANN201
    with serve(models()) as running:
        yield running


def test_everything_is_kept(tmp_path: Path) -> None:
    faults = Faults(
        rules=[Rule(kind="status", status=503, attempts=1)],
        personas={"small": Persona(style="deepseek", reasoning=5)},
    )
    with serve(models(), faults=faults) as server:
        pool = pool_of(server, ["small"], dialect="deepseek")
        before = datetime.now(UTC).isoformat()
        summary = ask(tmp_path / "run", pool, tasks(1))
        (record,) = [r for r in server.log if r.status == 200]
    answer = answers(tmp_path / "run")["small", "q0"]
    reply = answer.reply
    assert reply is not None
    assert reply.text == answer_to("small")("What is question 0?")
    assert reply.reasoning
    assert reply.finish_reason == "stop"
    assert reply.served_by == "small"
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (
        record.prompt_tokens,
        record.completion_tokens,
    )
    assert usage.reasoning_tokens == record.reasoning_tokens > 0
    assert usage.cached_tokens == 0
    assert usage.reported["total_tokens"]
    assert reply.response
    first, answered = reply.first_token_seconds, reply.first_answer_seconds
    assert first is not None
    assert answered is not None
    assert 0 < first <= answered <= reply.seconds
    failed, success = answer.attempts
    assert (failed.failure, failed.cost) == ("overloaded", 0.0)
    assert "503" in failed.detail
    assert (success.failure, success.detail, success.at_risk) == (None, "", 0.0)
    assert before[:19] <= failed.began < success.began <= datetime.now(UTC).isoformat()
    assert answer.request["dialect"] == "deepseek"
    assert answer.request["body"]["model"] == "small"
    assert answer.request["body"]["max_tokens"] == 50
    assert "messages" not in answer.request["body"]
    assert answer.prices == {"input_price": 1.0, "output_price": 4.0}
    assert answer.cost == pytest.approx(bill([record]))
    assert (answer.cost_source, answer.note, answer.missing) == ("usage", "", None)
    assert (summary.calls, summary.answered, summary.spent) == (2, 1, answer.cost)


def test_only_what_is_not_on_the_disk_is_asked(server: Server, tmp_path: Path) -> None:
    run, pool = tmp_path / "run", pool_of(server)

    def count_questions(*arguments: object) -> int:
        before = len(server.log)
        ask(run, *arguments)  # type: ignore[arg-type]
        return len(server.log) - before

    assert count_questions(pool.select(["small"]), tasks(10)) == 10
    assert count_questions(pool.select(["small"]), tasks(10)) == 0
    assert count_questions(pool, tasks(10)) == 10  # a target more
    assert count_questions(pool, tasks(6, start=8)) == 8  # four tasks more
    assert texts(run) == expected_texts(tasks(14))
    with Run.open(run) as held:
        assert [task.query.id for task in held.tasks()] == [f"q{i}" for i in range(14)]
        assert held.pool == pool


def test_an_earlier_target_stays_in_the_pool(server: Server, tmp_path: Path) -> None:
    run, pool = tmp_path / "run", pool_of(server)
    ask(run, pool.select(["large"]), tasks(1))
    ask(run, pool.select(["small"]), tasks(1))
    with Run.open(run) as held:
        assert held.pool.names == ("small", "large")
        assert held.pool["large"].input_price == 10.0


def test_prices_may_change_and_each_answer_keeps_its_own(server: Server, tmp_path: Path) -> None:
    run, pool = tmp_path / "run", pool_of(server, ["small"])
    ask(run, pool, tasks(1))
    ask(run, pool.with_prices({"small": (100.0, 400.0)}), tasks(2))
    by_question = answers(run)
    assert by_question["small", "q0"].prices["input_price"] == 1.0
    assert by_question["small", "q1"].prices["input_price"] == 100.0
    assert by_question["small", "q1"].cost == pytest.approx(
        100 * (by_question["small", "q0"].cost or 0)
    )


def test_a_target_that_is_asked_otherwise_is_refused(server: Server, tmp_path: Path) -> None:
    run, pool = tmp_path / "run", pool_of(server, ["small"])
    ask(run, pool, tasks(1))
    target = pool["small"]
    for what, changed in (
        ("request", replace(target, request=replace(target.request, temperature=0.5))),
        ("model", replace(target, model="large")),
    ):
        with pytest.raises(ConfigError, match=f"but {what} is now .*give the target another name"):
            ask(run, replace(pool, targets=(changed,)), tasks(1))
    with pytest.raises(ConfigError, match="but dialect is now 'vllm'"):
        ask(run, pool_of(server, ["small"], dialect="vllm"), tasks(1))
    assert ask(run, pool_of(server, ["small"], concurrency=1), tasks(1)).calls == 0


def test_tasks_that_cannot_be_asked_are_refused(server: Server, tmp_path: Path) -> None:
    pool = pool_of(server, ["small"])
    with pytest.raises(ConfigError, match="no tasks"):
        ask(tmp_path / "none", pool, [])
    assert not (tmp_path / "none").exists()
    with pytest.raises(DataError, match="two tasks have the id"):
        ask(tmp_path / "twice", pool, [*tasks(2), *tasks(1)])
    ask(tmp_path / "run", pool, tasks(1))
    with pytest.raises(ConfigError, match="task 'q0' differs"):
        ask(tmp_path / "run", pool, [Task(query=Query("q0", "Other?"), grader="exact")])


def test_targets_that_cannot_be_asked_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        ask(tmp_path / "run", pool_of(server, api_key_env="NO_SUCH_KEY"), tasks(1))
    pool = pool_of(server)
    bare = Pool(tuple(replace(target, provider=None) for target in pool))
    with pytest.raises(ConfigError, match="no endpoint"):
        estimate_collection(tmp_path / "run", bare, tasks(1))
    unpriced = pool_of(server, priced=False)
    with pytest.raises(ConfigError, match=r"no prices.*--assume-free"):
        ask(tmp_path / "run", unpriced, tasks(1), limit=1.0)
    assert not (tmp_path / "run").exists()
    summary = ask(tmp_path / "run", unpriced, tasks(1), limit=0.0, assume_free=True)
    assert (summary.answered, summary.spent, summary.at_risk) == (2, 0.0, 0.0)
    found = answers(tmp_path / "run")["small", "q0"]
    assert (found.cost, found.cost_source) == (None, "none")


@pytest.mark.parametrize(
    "wrong",
    [{"limit": -1.0}, {"limit": float("nan")}, {"attempts": 0}, {"backoff_seconds": float("inf")}],
)
def test_options_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        CollectOptions(**wrong)  # type: ignore[arg-type]


def test_places_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    pool = pool_of(server, ["small"])
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for place in ("file", "file/run", "full"):
        with pytest.raises(ConfigError):
            ask(tmp_path / place, pool, tasks(1))
    ask(tmp_path / "run", pool, tasks(1))
    (tmp_path / "run" / "run.sqlite").write_bytes(b"x" * 9000)
    with pytest.raises(CorruptError):
        ask(tmp_path / "run", pool, tasks(1))
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises((CorruptError, FormatError)):
        ask(tmp_path / "run", pool, tasks(1))


def test_missing_answers_are_asked_again_where_they_may_come(tmp_path: Path) -> None:
    faults = Faults(
        rules=[
            Rule(kind="status", status=500, attempts=2, contains="question 0"),
            Rule(kind="context_length", attempts=1, contains="question 1"),
        ]
    )
    run = tmp_path / "run"
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"])
        first = ask(run, pool, tasks(3), attempts=2)
        assert first.missing == {"server_error": 1, "context_too_long": 1}
        assert ask(run, pool, tasks(3), retry="none").calls == 0
        assert ask(run, pool, tasks(3)).answered == 1  # question 0 alone
        assert texts(run).keys() == {("small", "q0"), ("small", "q2")}
        assert ask(run, pool, tasks(3), retry="all").answered == 1
    assert texts(run) == expected_texts(tasks(3), ["small"])
    assert [a.missing for a in answers(run).values()] == [None] * 3


def test_estimate_knows_what_is_recorded_and_writes_nothing(server: Server, tmp_path: Path) -> None:
    run, pool = tmp_path / "run", pool_of(server, requests_per_minute=600.0)
    asked_before = len(server.log)
    options = CollectOptions(assume_output_tokens=30)
    estimate = estimate_collection(run, pool, tasks(10), options=options)
    assert not run.exists()
    assert len(server.log) == asked_before
    small, large = estimate.targets
    assert (small.calls, small.output_tokens) == (10, 300)
    assert small.input_tokens == 10 * 5  # 19 bytes each
    assert small.dollars == pytest.approx((50 * 1 + 300 * 4) / 1e6)
    assert large.dollars == pytest.approx(10 * (small.dollars or 0))
    assert (small.most_dollars or 0) > 10 * 50 * 4 / 1e6  # max_tokens is 50
    assert estimate.seconds == pytest.approx(2.0)  # 20 calls at 600 a minute
    ask(run, pool_of(server), tasks(4))
    after = estimate_collection(run, pool, tasks(10), options=options)
    assert after.calls == 12
    written = rows(run, "SELECT output_tokens FROM answers WHERE target = 'small'")[0][0]
    assert after.targets[0].output_tokens == 6 * written
    assert estimate.to_dict()["calls"] == 20


def test_a_target_that_only_failed_may_be_mended(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="unsupported_field", field="seed")])
    run = tmp_path / "run"
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"])
        good = pool.targets[0]
        wrong = replace(good, model="smal")
        assert ask(run, replace(pool, targets=(wrong,)), tasks(2)).missing == {"unknown_model": 2}
        odd = replace(good, request=replace(good.request, seed=1))
        assert ask(run, replace(pool, targets=(odd,)), tasks(2)).missing == {"unsupported": 2}
        assert ask(run, pool, tasks(2)).calls == 0  # the same request would be refused again
        assert ask(run, pool, tasks(2), retry="all").answered == 2
        with pytest.raises(ConfigError, match=r"has answers in .* but model is now"):
            ask(run, replace(pool, targets=(wrong,)), tasks(2))


def test_chats_and_odd_texts_go_through(tmp_path: Path) -> None:
    odd = "\u0000 \u2028 \U0001f600 ﬃ 'quoted' \\"
    asked = [Task(query=Query("id with spaces / é", odd), grader="exact")]
    with serve([ScriptedModel("small", lambda text: text)]) as server:
        ask(tmp_path / "run", pool_of(server, ["small"]), asked)
    assert list(texts(tmp_path / "run").values()) == [odd]


def test_no_prompt_and_no_key_is_written_elsewhere_than_in_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "sk-secret-words")
    faults = Faults(rules=[Rule(kind="context_length")])
    with serve(models(["small"]), faults=faults, api_key="sk-secret-words") as server:
        pool = pool_of(server, ["small"], api_key_env="A_KEY")
        ask(tmp_path / "run", pool, tasks(1))
    body = rows(tmp_path / "run", "SELECT body FROM records")[0][0]
    assert "context_too_long" in body
    assert "What is question" not in body
    for path in (tmp_path / "run").iterdir():
        assert b"sk-secret-words" not in path.read_bytes()
