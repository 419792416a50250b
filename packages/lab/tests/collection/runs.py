"""Collects from servers on loopback, for tests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefill_router.data import Prompt, Query
from prefill_router.endpoints import Reply, Usage
from prefill_router.endpoints.client import Upstream
from prefill_router.errors import UpstreamError
from prefill_router.runs import Answer, Run, Task
from prefill_router.targets import Pool, Provider, RequestOptions, Target
from prefill_router_lab.collection.job import CollectionSummary, collect
from prefill_router_lab.collection.plan import CollectOptions
from prefill_router_minipool.server import Record, ScriptedModel, Server

PRICES = {"small": (1.0, 4.0), "large": (10.0, 40.0)}
QUICK = CollectOptions(backoff_seconds=0.01)


def answer_to(name: str) -> Callable[[str], str]:
    """What a model says: its own name, and the question backwards."""
    return lambda question: f"{name}: {question[::-1]}"


def models(names: Sequence[str] = ("small", "large")) -> list[ScriptedModel]:
    return [ScriptedModel(name, answer_to(name)) for name in names]


def tasks(count: int, *, start: int = 0) -> list[Task]:
    return [
        Task(query=Query(f"q{i}", f"What is question {i}?"), grader="exact", answer=(str(i),))
        for i in range(start, start + count)
    ]


def pool_of(
    server: Server | str,
    names: Sequence[str] = ("small", "large"),
    *,
    max_tokens: int = 50,
    priced: bool = True,
    **provider: Any,
) -> Pool:
    url = server if isinstance(server, str) else server.base_url
    options: dict[str, Any] = {"concurrency": 8, "connect_seconds": 5.0, **provider}
    targets = [
        Target(
            name=name,
            provider="p",
            request=RequestOptions(max_tokens=max_tokens),
            **(
                dict(zip(("input_price", "output_price"), PRICES[name], strict=True))
                if priced
                else {}
            ),
        )
        for name in names
    ]
    return Pool(tuple(targets), "2026-11-01", (Provider(name="p", base_url=url, **options),))


def two_providers(**second: Any) -> Pool:
    return Pool(
        tuple(
            Target(name=f"{name}{i}", provider=name, input_price=1.0, output_price=1.0)
            for name in ("a", "b")
            for i in range(2)
        ),
        None,
        (
            Provider(name="a", base_url="http://127.0.0.1:1/v1", concurrency=3),
            Provider(name="b", base_url="http://127.0.0.1:1/v1", **second),
        ),
    )


def ask(folder: Path, pool: Pool, questions: Sequence[Task], **options: Any) -> CollectionSummary:
    chosen = replace(QUICK, **options)
    return collect(folder, pool, questions, asker=Upstream(pool), options=chosen)


def answers(folder: Path) -> dict[tuple[str, str], Answer]:
    with Run.open(folder) as run:
        return {(answer.target, answer.query_id): answer for answer in run.answers()}


def texts(folder: Path) -> dict[tuple[str, str], str]:
    found = answers(folder).items()
    return {place: answer.reply.text for place, answer in found if answer.reply is not None}


def expected_texts(
    questions: Sequence[Task], names: Sequence[str] = ("small", "large")
) -> dict[Any, str]:
    return {(n, t.query.id): answer_to(n)(str(t.query.prompt)) for t in questions for n in names}


def bill(log: Sequence[Record]) -> float:
    """What a server's owner bills: every token read and generated, answered or not."""
    return sum(
        (r.prompt_tokens * PRICES[r.model][0] + r.completion_tokens * PRICES[r.model][1]) / 1e6
        for r in log
    )


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """The rows that a query gives of a run's database."""
    database = sqlite3.connect(folder / "run.sqlite")
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def write_tasks_file(path: Path, count: int) -> None:
    """The same tasks as JSON Lines."""
    lines = [
        {"id": t.query.id, "prompt": t.query.prompt, "answer": t.answer[0]} for t in tasks(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Canned:
    """An asker that answers as the models do, without a server; it refuses the last question."""

    async def __aenter__(self) -> Canned:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        if "question 3" in str(prompt):
            raise UpstreamError("too long", failure="context_too_long", billed="no")
        usage = Usage(input_tokens=8, output_tokens=9)
        return Reply(
            text=answer_to(target)(str(prompt)), finish_reason="stop", usage=usage, seconds=0.5
        )


def make_run(folder: Path, pool: Pool, count: int) -> None:
    """A run of this many tasks, without a server."""
    collect(folder, pool, tasks(count), asker=Canned())
