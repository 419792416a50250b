"""Runs whose answers are known, for the tests of grading."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prefill_router.data import Query
from prefill_router.endpoints import Reply, Usage
from prefill_router.runs import Answer, Task
from prefill_router.runs.run import Run
from prefill_router.targets import Pool, Target
from prefill_router_lab.collection.journal import Journal

POOL = Pool(
    (
        Target(name="small", input_price=1.0, output_price=2.0),
        Target(name="large", input_price=10.0, output_price=20.0),
    ),
    prices_date="2026-11-01",
)


def task(
    name: str = "q", *, grader: str = "exact", answer: str | tuple[str, ...] = (), **options: Any
) -> Task:
    right = (answer,) if isinstance(answer, str) else answer
    query = Query(name, f"What is {name}?", "made", "up")
    return Task(query=query, grader=grader, answer=right, options=options)


def answer(target: str, name: str, text: str | None, **changes: Any) -> Answer:
    """An answer; without a text it is missing."""
    costs: dict[str, Any] = {"cost": 0.25, "cost_source": "usage"}
    if text is None:
        return Answer(target=target, query_id=name, reply=None, missing="rate_limited")
    reply = Reply(
        text=text,
        finish_reason=changes.pop("finish_reason", "stop"),
        usage=changes.pop("usage", Usage(input_tokens=7, output_tokens=3)),
        first_token_seconds=0.5,
        first_answer_seconds=0.75,
        seconds=changes.pop("seconds", 2.0),
    )
    return Answer(target=target, query_id=name, reply=reply, **{**costs, **changes})


def make_run(
    folder: Path, tasks: Iterable[Task], answers: Iterable[Answer], *, pool: Pool = POOL
) -> Path:
    with Run.create(folder, pool) as run, Journal(run) as journal:
        journal.add_tasks(tasks)
        for item in answers:
            journal.record(item, str)
    return folder


def run_of(folder: Path, tasks: Mapping[Task, Mapping[str, str | None]]) -> Path:
    """A run of tasks, each with the text of each target's answer."""
    answers = [answer(t, q.query.id, text) for q, by in tasks.items() for t, text in by.items()]
    return make_run(folder, tasks, answers)


def every_kind(folder: Path) -> Path:
    """Six tasks of several graders, and answers of every kind."""
    tasks = [
        task("a", answer="4"),
        task("b", grader="number", answer="12"),
        task("c", grader="mmlu_pro", answer="C"),
        task("d", grader="normalised", answer="A half!"),
        task("e", answer="unasked"),
        task("f"),
    ]
    answers = [
        answer("small", "a", "5"),
        answer("small", "a", "4", seconds=1.0),  # the later one counts
        answer("large", "a", None),
        answer("large", "b", "It is 12.0", usage=Usage(), cost=0.5, cost_source="estimate"),
        answer("small", "b", "It is 13", finish_reason="length", seconds=4.0),
        answer("small", "c", "The answer is (C)"),
        answer("large", "c", "The answer is (B)", cost=None, cost_source="none"),
        answer("small", "d", "half"),
        answer("large", "f", "anything"),
    ]
    return make_run(folder, tasks, answers)
