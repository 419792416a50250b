"""Tasks and answers as JSON, and back, word for word."""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from prefill_router.data import Message, Prompt, Query
from prefill_router.harness.answer import Answer, Attempt
from prefill_router.harness.task import Task
from prefill_router.upstream import Reply, Usage

_SMALL = 4096
"""Longer texts are compressed."""
MOST_BYTES = 2**30
"""Of a text that was compressed; a small record of a stranger's could else fill the memory."""
_ENCODER = json.JSONEncoder(allow_nan=False, default=dict)


def pack(text: str) -> str | bytes:
    """A text as it is stored: compressed where it is long."""
    return text if len(text) < _SMALL else zlib.compress(text.encode(), 1)


def unpack(stored: object) -> str:
    """The text that was packed.

    Raises:
        ValueError: It isn't what was packed.
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
    """JSON in ASCII; numbers that JSON lacks, such as an endpoint's NaN, become their names."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json.dumps(_with_names(value), allow_nan=False)


def task_texts(task: Task) -> tuple[str, str]:
    """A task without its options, and its options, both as JSON."""
    query = task.query
    body = {
        "id": query.id,
        "prompt": _plain_prompt(query.prompt),
        "benchmark": query.benchmark,
        "domain": query.domain,
        "grader": task.grader,
        "answer": list(task.answer),
    }
    return dumps(body), dumps(task.options)


def digest(texts: tuple[str, str]) -> str:
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
        ValueError: It is none.
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


def _plain_prompt(prompt: Prompt) -> str | list[list[str]]:
    return prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]


def _with_names(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _with_names(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(v) for v in value]
    return value
