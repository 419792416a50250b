"""Tasks and answers, and their form as JSON, which loses nothing.

A task is a query together with how its answers are graded.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.client import CostSource, Reply, Usage
from prefill_router.data import Message, Query
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """One question of a benchmark.

    Attributes:
        query: The query, as the targets get it.
        grader: The name of the grader of its answers, such as `exact`, `mmlu_pro` or `judge`.
        answer: The right answers, of which any one counts; empty where the grader needs none.
        options: What else the grader needs, such as tests or a rubric; JSON values.
    """

    query: Query
    grader: str
    answer: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One call to a target.

    Attributes:
        began: The time when it began, as ISO 8601 in UTC.
        seconds: How long it took.
        failure: Why it gave no answer, such as `rate_limited`; None where it gave one.
        detail: The error, without prompt and key.
        cost: Its cost in US dollars, as far as known.
        at_risk: Most US dollars that it may have cost beyond that.
    """

    began: str
    seconds: float
    failure: str | None = None
    detail: str = ""
    cost: float = 0.0
    at_risk: float = 0.0


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """One target's answer to one task, or the reason why there is none.

    Attributes:
        target: The name of the target.
        query_id: The id of the task's query.
        reply: The target's reply; None where it is missing.
        missing: Why it is missing; None where it isn't.
        request: The request's parameters, without the prompt.
        attempts: Every call that was made for it.
        prices: US dollars per million tokens at the time, as in the pool file.
        cost: US dollars of all attempts together.
        cost_source: Where the cost comes from: the provider's report, its usage counts, an estimate
            where those are missing or impossible, or none where prices are unknown.
        note: A remark on the cost, such as impossible usage.
    """

    target: str
    query_id: str
    reply: Reply | None
    missing: str | None = None
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    attempts: tuple[Attempt, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    cost: float | None = None
    cost_source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that count against a spending limit: the cost, and what is at risk."""
        return (self.cost or 0.0) + sum(attempt.at_risk for attempt in self.attempts)


_SMALL = 4096
"""Longer texts are compressed."""
MOST_BYTES = 2**30
"""Limit of an unpacked text, so that a small hostile record can't fill the memory."""
_ENCODER = json.JSONEncoder(allow_nan=False, default=dict)


def pack_text(text: str) -> str | bytes:
    """A text in its stored form: compressed where it is long."""
    return text if len(text) < _SMALL else zlib.compress(text.encode(), 1)


def unpack_text(stored: object) -> str:
    """The text in a stored form.

    Raises:
        ValueError: It isn't what `pack_text` made.
    """
    if isinstance(stored, str):
        return stored
    if not isinstance(stored, bytes):  # SQLite keeps numbers in any column
        raise ValueError(f"it is a {type(stored).__name__}")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(stored, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError(f"it is cut short, or longer than {MOST_BYTES:,} bytes")
    return text.decode()


def dumps(value: Any) -> str:
    """JSON in ASCII; numbers that JSON lacks, such as NaN from an endpoint, become strings."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json.dumps(_with_names(value), allow_nan=False)


def task_texts(task: Task) -> tuple[str, str]:
    """A task without its options, and its options, both as JSON."""
    query, prompt = task.query, task.query.prompt
    body = {
        "id": query.id,
        "prompt": prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt],
        "benchmark": query.benchmark,
        "domain": query.domain,
        "grader": task.grader,
        "answer": list(task.answer),
    }
    return dumps(body), dumps(task.options)


def task_digest(texts: tuple[str, str]) -> str:
    """SHA-256 of a task's content, in hexadecimal."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def task_from_texts(body: str, options: str) -> Task:
    """The task that `task_texts` wrote."""
    value, needs = json.loads(body), json.loads(options)
    if not isinstance(needs, dict):
        raise TypeError(f"the options are a {type(needs).__name__}")
    return Task(
        query=_query(value),
        grader=value["grader"],
        answer=tuple(value["answer"]),
        options=needs,
    )


def answer_text(answer: Answer) -> str:
    """An answer as JSON."""
    reply = answer.reply
    value = {
        **vars(answer),
        "reply": None if reply is None else {**vars(reply), "usage": vars(reply.usage)},
        "attempts": [vars(attempt) for attempt in answer.attempts],
    }
    return dumps(value)


def answer_from_text(text: str) -> Answer:
    """The answer that `answer_text` wrote.

    Raises:
        ValueError: The text isn't one.
    """
    try:
        value = json.loads(text)
        reply = value.pop("reply")
        attempts = tuple(Attempt(**attempt) for attempt in value.pop("attempts"))
        if reply is not None:
            reply = Reply(**{**reply, "usage": Usage(**reply["usage"])})
        return Answer(**value, reply=reply, attempts=attempts)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no answer: {error}") from None


def _query(value: Mapping[str, Any]) -> Query:
    prompt = value["prompt"]
    if not isinstance(prompt, str):
        prompt = tuple(Message(role, content) for role, content in prompt)
    return Query(value["id"], prompt, value["benchmark"], value["domain"])


def _with_names(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _with_names(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(v) for v in value]
    return value
