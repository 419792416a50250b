"""Converts a receipt, or feedback on an answer, to one flat row of plain values and back.

Values that queries need have columns of their own. The rest is JSON in text columns, in ASCII, so
that a database can't reject any client's text.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, final

from prefill_router.data import Message, Prompt
from prefill_router.database import storable, storable_count
from prefill_router.endpoints import Usage
from prefill_router.errors import CorruptError, DataError
from prefill_router_gateway.records import (
    Escalation,
    PredictedWaits,
    Receipt,
    RequestOutcome,
    RoutingDecision,
    TargetAttempt,
)

Kind = Literal["text", "real", "integer", "flag", "json"]
"""What a column has: a short text, a number, 0 or 1, or JSON."""
Value = str | int | float | None
Row = tuple[Value, ...]
_MOST_TEXT = 1000
_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class ReceiptColumn(NamedTuple):
    """A column of a table.

    Each is named once: the tables of both databases, their INSERT, and the ways to a row and back
    are made from it. A pydantic model would name it no less, and check again what the gateway has
    made. What any database accepts of it (64 bits, 1,000 characters, JSON in ASCII) is here.

    Attributes:
        name: Its name.
        kind: What it has.
        field: The receipt's field; empty where it is computed, see `_COMPUTED`.
        optional: Whether it may be null.
    """

    name: str
    kind: Kind
    field: str = ""
    optional: bool = False

    def written(self, value: Any) -> Value:
        """A value as it is written; numbers that no database can hold become null or 0."""
        if value is None:
            return None
        if self.kind == "json":
            return _encode(dict(value) if isinstance(value, Mapping) else value)
        if self.kind == "text":
            return _clean_text(value)
        if self.kind == "real":
            return float(value) if math.isfinite(value) else None
        count = storable_count(int(value))  # a provider may report anything
        return count if self.optional else count or 0

    def read(self, value: Any) -> Any:
        """The value as it was before it was written."""
        if self.kind == "flag":
            return bool(value)
        return json.loads(value) if self.kind == "json" and value is not None else value


COLUMNS: tuple[ReceiptColumn, ...] = (
    ReceiptColumn("id", "text", "choice.id"),
    ReceiptColumn("at", "real", "at"),
    ReceiptColumn("router", "text", "router"),
    ReceiptColumn("policy", "text", "policy"),
    ReceiptColumn("endpoint", "text", "endpoint"),
    ReceiptColumn("requested", "text", "requested"),
    ReceiptColumn("target", "text"),
    ReceiptColumn("answered_by", "text", "outcome.target", optional=True),
    ReceiptColumn("outcome", "text", "outcome.kind"),
    ReceiptColumn("status", "integer", "outcome.status"),
    ReceiptColumn("reason", "text", "choice.reason"),
    ReceiptColumn("fallback", "text", "choice.fallback", optional=True),
    ReceiptColumn("session", "text", "choice.session", optional=True),
    ReceiptColumn("client_key", "text", "key", optional=True),
    ReceiptColumn("lam", "real", "choice.lam", optional=True),
    ReceiptColumn("lam_asked", "real", "choice.lam_asked", optional=True),
    ReceiptColumn("policy_target", "text", "choice.policy_target", optional=True),
    ReceiptColumn("probability", "real", optional=True),
    ReceiptColumn("estimated_cost", "real", optional=True),
    ReceiptColumn("cost", "real", "cost", optional=True),
    ReceiptColumn("cost_is_estimated", "flag", "cost_is_estimated"),
    ReceiptColumn("input_tokens", "integer", optional=True),
    ReceiptColumn("cached_tokens", "integer", optional=True),
    ReceiptColumn("output_tokens", "integer", optional=True),
    ReceiptColumn("reasoning_tokens", "integer", optional=True),
    ReceiptColumn("estimated_input_tokens", "integer", "choice.input_tokens"),
    ReceiptColumn("decision_seconds", "real", "decision_seconds"),
    ReceiptColumn("forecast_seconds", "real", "forecast_seconds", optional=True),
    ReceiptColumn("first_byte_seconds", "real", "outcome.first_byte_seconds", optional=True),
    ReceiptColumn("total_seconds", "real", "outcome.total_seconds"),
    ReceiptColumn("stream", "flag", "stream"),
    ReceiptColumn("tool_loop", "flag", "choice.tool_loop"),
    ReceiptColumn("scored", "text", "scored"),
    ReceiptColumn("novelty", "real", "choice.novelty", optional=True),
    ReceiptColumn("ranking", "json", "choice.order"),
    ReceiptColumn("correctness", "json", "choice.correctness"),
    ReceiptColumn("estimated_costs", "json", "choice.estimated_cost"),
    ReceiptColumn("excluded", "json", "choice.excluded"),
    ReceiptColumn("attempts", "json"),
    ReceiptColumn("answer", "json"),
    ReceiptColumn("details", "json"),
    ReceiptColumn("prompt", "json", "prompt", optional=True),
    ReceiptColumn("baseline", "text", "baseline", optional=True),
)
"""The columns of the table of receipts, in order."""
NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)


def _target_of(receipt: Receipt) -> str:
    return receipt.outcome.target or receipt.choice.target


def _token_count(name: str, receipt: Receipt) -> int | None:
    count: int | None = getattr(receipt.outcome.usage, name, None)
    return count


def _list_ends(attempts: Sequence[TargetAttempt]) -> dict[str, list[str | None]]:
    """The deployment of each attempt and why it failed, where one has such."""
    columns = {
        "deployments": [attempt.deployment for attempt in attempts],
        "failures": [attempt.failure for attempt in attempts],
    }
    return {name: values for name, values in columns.items() if any(values)}


_COMPUTED: Mapping[str, Callable[[Receipt], Any]] = {
    "target": _target_of,
    "probability": lambda receipt: receipt.choice.correctness.get(_target_of(receipt)),
    "estimated_cost": lambda receipt: receipt.choice.estimated_cost.get(_target_of(receipt)),
    "attempts": lambda receipt: [
        [a.target, a.end, a.status, a.seconds] for a in receipt.outcome.attempts
    ],
    "answer": lambda receipt: {  # `usage` is null where unknown, otherwise as reported
        "usage": None if receipt.outcome.usage is None else dict(receipt.outcome.usage.reported),
        "estimated": receipt.outcome.usage_is_estimated,
        "response_id": receipt.outcome.response_id,
        "tool_calls": receipt.outcome.tool_calls,
        **_list_ends(receipt.outcome.attempts),
    },
    "details": lambda receipt: {
        **receipt.details,
        **({"cached": dict(receipt.choice.cached)} if receipt.choice.cached else {}),
        **({"opening": True} if receipt.choice.opening else {}),
        **({"waits": vars(receipt.choice.waits)} if receipt.choice.waits is not None else {}),
        **({"limited": receipt.choice.limited} if receipt.choice.limited else {}),
        **(
            {"escalation": vars(receipt.choice.escalation)}
            if receipt.choice.escalation is not None
            else {}
        ),
    },
    **{name: partial(_token_count, name) for name in _COUNTS},
}
_VALUES = tuple((c, attrgetter(c.field) if c.field else _COMPUTED[c.name]) for c in COLUMNS)


def to_row(receipt: Receipt) -> Row:
    """The row of a receipt, in the order of `COLUMNS`.

    Numbers that no database can hold become null, and clients' long texts are cut.
    """
    return tuple(column.written(value(receipt)) for column, value in _VALUES)


def from_row(row: Sequence[Any]) -> Receipt:
    """The receipt of a row.

    Raises:
        CorruptError: The row is damaged.
    """
    fields: dict[str, dict[str, Any]] = {"": {}, "choice": {}, "outcome": {}}
    try:
        value = {c.name: c.read(v) for c, v in zip(COLUMNS, row, strict=True)}
        for column in COLUMNS:
            part, _, name = column.field.rpartition(".")
            if name:
                fields[part][name] = value[column.name]
        answer, details, choice = value["answer"], value["details"], fields["choice"]
        choice["order"] = tuple(choice["order"])
        choice |= {name: details.pop(name) for name in ("opening", "cached") if name in details}
        choice["limited"] = tuple(details.pop("limited", ()))
        waits = details.pop("waits", None)
        choice["waits"] = None if waits is None else PredictedWaits(**waits)
        escalation = details.pop("escalation", None)
        choice["escalation"] = None if escalation is None else Escalation(**escalation)
        attempts = _read_attempts(value["attempts"], answer)
        if attempts and fields["outcome"]["target"] is not None:
            fields["outcome"]["deployment"] = attempts[-1].deployment
        counts, reported = {name: value[name] for name in _COUNTS}, answer["usage"]
        outcome = RequestOutcome(
            **fields["outcome"],
            attempts=attempts,
            usage=None if reported is None else Usage(**counts, reported=reported),
            usage_is_estimated=answer["estimated"],
            response_id=answer["response_id"],
            tool_calls=tuple(answer["tool_calls"]),
        )
        return Receipt(
            choice=RoutingDecision(**choice), outcome=outcome, details=details, **fields[""]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _corrupt_error(row[0]) from None


def _read_attempts(
    attempts: Sequence[Sequence[Any]], answer: Mapping[str, Any]
) -> tuple[TargetAttempt, ...]:
    nothing = [None] * len(attempts)
    places, failures = answer.get("deployments", nothing), answer.get("failures", nothing)
    return tuple(
        TargetAttempt(
            target=target,
            end=end,
            status=status,
            seconds=seconds,
            deployment=place,
            failure=failure,
        )
        for (target, end, status, seconds), place, failure in zip(
            attempts, places, failures, strict=True
        )
    )


def named_values(text: str, identity: str) -> dict[str, Any]:
    """Read a JSON object from a column of a receipt.

    Args:
        text: The column.
        identity: The receipt's id, for the error.

    Raises:
        CorruptError: The column is damaged.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise _corrupt_error(identity) from None
    if not isinstance(values, dict):
        raise _corrupt_error(identity)
    return values


def _corrupt_error(identity: str) -> CorruptError:
    return CorruptError(
        f"the receipt {identity!r} is damaged; leave it out, or restore the database from a backup"
    )


def _clean_text(value: str) -> str:
    """A text that any database accepts: without zero bytes and lone surrogates."""
    return storable(value[:_MOST_TEXT]).replace("\0", "�")


FEEDBACK_COLUMNS: tuple[ReceiptColumn, ...] = (
    ReceiptColumn("id", "text"),
    ReceiptColumn("source", "text"),
    ReceiptColumn("at", "real"),
    ReceiptColumn("score", "real"),
    ReceiptColumn("conversation", "text", optional=True),
)
_LONGEST = 200


@final
@dataclass(frozen=True, kw_only=True)
class Feedback:
    """A score of one answer; the latest score of each source counts.

    Attributes:
        id: The decision's id.
        score: From 0 (wrong) to 1 (right).
        at: When it was given, in seconds since 1970.
        source: Who gave it, for example `user` or `judge`.
        conversation: The name of the conversation, a hash, where it is the outcome of all of its
            turns. None where it is of this answer or turn alone.

    Raises:
        DataError: The score isn't in [0, 1], or the id or source is empty, too long or not
            printable.
    """

    id: str
    score: float
    at: float
    source: str = "user"
    conversation: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise DataError(f"the score is {self.score}; it must be in [0, 1]: 0 wrong, 1 right")
        if not math.isfinite(self.at):
            raise DataError(f"the time is {self.at}; it must be seconds since 1970")
        for name, value in (("id", self.id), ("source", self.source)):
            if not 0 < len(value) <= _LONGEST or not value.isprintable():
                raise DataError(f"the {name} must have 1 to {_LONGEST} printable characters")

    def row(self) -> Row:
        """Its row, in the order of `FEEDBACK_COLUMNS`."""
        return (self.id, self.source, float(self.at), float(self.score), self.conversation)


def latest_scores(scores: Iterable[Feedback]) -> list[Feedback]:
    """The latest score of each source."""
    return list(
        {score.source: score for score in sorted(scores, key=lambda score: score.at)}.values()
    )


def prompt_of(stored: str | list[dict[str, str]]) -> Prompt:
    """The prompt of a receipt, from its text or its turns as they are stored."""
    if isinstance(stored, str):
        return stored
    return tuple(Message(turn["role"], turn["content"]) for turn in stored)
