"""A receipt, and feedback on an answer, as one flat row of plain values, and back.

What is asked for in queries has a column of its own; the rest is JSON in text columns, in ASCII, so
that no text of a client's can be refused by a database. Feedback is how good somebody found an
answer.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

from prefill_router.client import Usage
from prefill_router.data import Message, Prompt
from prefill_router.errors import CorruptError, DataError
from prefill_router.gateway.records import Receipt, RequestOutcome, RoutingDecision, TargetAttempt

Kind = Literal["text", "real", "integer"]
Value = str | int | float | None
Row = tuple[Value, ...]
_MOST_INTEGER = 2**63 - 1
_MOST_TEXT = 1000
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Column(NamedTuple):
    """A column: its name, what it holds, and whether it may be null."""

    name: str
    kind: Kind
    optional: bool = False


COLUMNS: tuple[Column, ...] = (
    Column("id", "text"),
    Column("at", "real"),
    Column("router", "text"),
    Column("policy", "text"),
    Column("endpoint", "text"),
    Column("requested", "text"),
    Column("target", "text"),
    Column("answered_by", "text", optional=True),
    Column("outcome", "text"),
    Column("status", "integer"),
    Column("reason", "text"),
    Column("fallback", "text", optional=True),
    Column("session", "text", optional=True),
    Column("client_key", "text", optional=True),
    Column("lam", "real", optional=True),
    Column("lam_asked", "real", optional=True),
    Column("policy_target", "text", optional=True),
    Column("probability", "real", optional=True),
    Column("estimated_cost", "real", optional=True),
    Column("cost", "real", optional=True),
    Column("cost_is_estimated", "integer"),
    Column("input_tokens", "integer", optional=True),
    Column("cached_tokens", "integer", optional=True),
    Column("output_tokens", "integer", optional=True),
    Column("reasoning_tokens", "integer", optional=True),
    Column("estimated_input_tokens", "integer"),
    Column("decision_seconds", "real"),
    Column("forecast_seconds", "real", optional=True),
    Column("first_byte_seconds", "real", optional=True),
    Column("total_seconds", "real"),
    Column("stream", "integer"),
    Column("tool_loop", "integer"),
    Column("scored", "text"),
    Column("novelty", "real", optional=True),
    Column("ranking", "text"),
    Column("correctness", "text"),
    Column("estimated_costs", "text"),
    Column("excluded", "text"),
    Column("attempts", "text"),
    Column("answer", "text"),
    Column("details", "text"),
    Column("prompt", "text", optional=True),
)
"""Of the table of receipts, in order; `ranking` to `prompt` are JSON."""
NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)
_PLACE = {name: place for place, name in enumerate(NAMES)}


def to_row(receipt: Receipt) -> Row:
    """The row of a receipt, in the order of `COLUMNS`.

    Numbers that no database holds become null, and long texts of a client's are cut.
    """
    choice, outcome = receipt.choice, receipt.outcome
    usage = outcome.usage or Usage()
    target = outcome.target or choice.target
    return (
        _text(choice.id),
        float(receipt.at),
        _text(receipt.router),
        _text(receipt.policy),
        receipt.endpoint,
        _text(receipt.requested),
        _text(target),
        None if outcome.target is None else _text(outcome.target),
        outcome.kind,
        outcome.status,
        choice.reason,
        choice.fallback,
        None if choice.session is None else _text(choice.session),
        None if receipt.key is None else _text(receipt.key),
        _real(choice.lam),
        _real(choice.lam_asked),
        None if choice.policy_target is None else _text(choice.policy_target),
        _real(choice.correctness.get(target)),
        _real(choice.estimated_cost.get(target)),
        _real(receipt.cost),
        int(receipt.cost_is_estimated),
        _whole(usage.input_tokens),
        _whole(usage.cached_tokens),
        _whole(usage.output_tokens),
        _whole(usage.reasoning_tokens),
        _whole(choice.input_tokens) or 0,
        float(receipt.decision_seconds),
        _real(receipt.forecast_seconds),
        _real(outcome.first_byte_seconds),
        float(outcome.total_seconds),
        int(receipt.stream),
        int(choice.tool_loop),
        receipt.scored,
        _real(choice.novelty),
        _encode(choice.order),
        _encode(dict(choice.correctness)),
        _encode(dict(choice.estimated_cost)),
        _encode(dict(choice.excluded)),
        _encode([[a.target, a.end, a.status, a.seconds] for a in outcome.attempts]),
        _encode(_answer(outcome)),
        _encode({**receipt.details, **_of_session(choice)}),
        None if receipt.prompt is None else _encode(receipt.prompt),
    )


def from_row(row: Sequence[Any]) -> Receipt:
    """The receipt of a row.

    Raises:
        CorruptError: The row isn't what was written.
    """
    value = dict(zip(NAMES, row, strict=True))
    try:
        answer, details = json.loads(value["answer"]), json.loads(value["details"])
        return Receipt(
            choice=_choice(
                value, opening=details.pop("opening", False), cached=details.pop("cached", {})
            ),
            outcome=_outcome(value, answer),
            at=value["at"],
            router=value["router"],
            policy=value["policy"],
            endpoint=value["endpoint"],
            requested=value["requested"],
            stream=bool(value["stream"]),
            key=value["client_key"],
            scored=value["scored"],
            cost=value["cost"],
            cost_is_estimated=bool(value["cost_is_estimated"]),
            decision_seconds=value["decision_seconds"],
            forecast_seconds=value["forecast_seconds"],
            prompt=None if value["prompt"] is None else json.loads(value["prompt"]),
            details=details,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _corrupt(value["id"]) from None


def named_values(text: str, identity: str) -> dict[str, Any]:
    """What one column of a receipt holds as JSON, an object.

    Args:
        text: The column.
        identity: The receipt's id, for the error.

    Raises:
        CorruptError: It isn't what was written.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _corrupt(identity) from None
    if not isinstance(found, dict):
        raise _corrupt(identity)
    return found


def _corrupt(identity: str) -> CorruptError:
    return CorruptError(
        f"the receipt {identity!r} isn't what was written; leave it out, or take the database "
        "from a backup"
    )


def _answer(outcome: RequestOutcome) -> dict[str, Any]:
    """What else is known of an answer; `usage` is null where nothing is, else as reported."""
    return {
        "usage": None if outcome.usage is None else dict(outcome.usage.reported),
        "estimated": outcome.usage_is_estimated,
        "response_id": outcome.response_id,
        "tool_calls": outcome.tool_calls,
    }


def _of_session(choice: RoutingDecision) -> dict[str, Any]:
    """What else is known of a request's conversation; it stands among the details."""
    cached = {"cached": dict(choice.cached)} if choice.cached else {}
    return {**cached, "opening": True} if choice.opening else cached


def _choice(value: dict[str, Any], *, opening: bool, cached: dict[str, float]) -> RoutingDecision:
    return RoutingDecision(
        id=value["id"],
        order=tuple(json.loads(value["ranking"])),
        reason=value["reason"],
        fallback=value["fallback"],
        lam=value["lam"],
        lam_asked=value["lam_asked"],
        correctness=json.loads(value["correctness"]),
        estimated_cost=json.loads(value["estimated_costs"]),
        excluded=json.loads(value["excluded"]),
        policy_target=value["policy_target"],
        novelty=value["novelty"],
        input_tokens=value["estimated_input_tokens"],
        session=value["session"],
        tool_loop=bool(value["tool_loop"]),
        opening=opening,
        cached=cached,
    )


def _outcome(value: dict[str, Any], answer: dict[str, Any]) -> RequestOutcome:
    counts = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    reported = answer["usage"]
    return RequestOutcome(
        kind=value["outcome"],
        target=value["answered_by"],
        status=value["status"],
        attempts=tuple(
            TargetAttempt(target=target, end=end, status=status, seconds=seconds)
            for target, end, status, seconds in json.loads(value["attempts"])
        ),
        usage=None
        if reported is None
        else Usage(**{name: value[name] for name in counts}, reported=reported),
        usage_is_estimated=answer["estimated"],
        response_id=answer["response_id"],
        tool_calls=tuple(answer["tool_calls"]),
        first_byte_seconds=value["first_byte_seconds"],
        total_seconds=value["total_seconds"],
    )


def _text(value: str) -> str:
    """A text that any database takes: without zero bytes and lone surrogates."""
    value = value[:_MOST_TEXT]
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    return value.replace("\0", "�")


def _real(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _whole(value: int | None) -> int | None:
    """A count, as a provider gave it, which may be absurd."""
    return None if value is None or abs(value) > _MOST_INTEGER else int(value)


FEEDBACK_COLUMNS: tuple[Column, ...] = (
    Column("id", "text"),
    Column("source", "text"),
    Column("at", "real"),
    Column("score", "real"),
)
_LONGEST = 200


@final
@dataclass(frozen=True, kw_only=True)
class Feedback:
    """How good somebody found one answer; of each source, the latest score counts.

    Attributes:
        id: The decision's.
        score: From 0, wrong, to 1, right.
        at: When, seconds since 1970.
        source: Who says so, such as `user` or `judge`.

    Raises:
        DataError: The score isn't in [0, 1], or an id or a source is empty, long or no plain text.
    """

    id: str
    score: float
    at: float
    source: str = "user"

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise DataError(f"the score is {self.score}; it must be in [0, 1]: 0 wrong, 1 right")
        if not math.isfinite(self.at):
            raise DataError(f"the time is {self.at}; it must be seconds since 1970")
        for name, value in (("id", self.id), ("source", self.source)):
            if not 0 < len(value) <= _LONGEST or not value.isprintable():
                raise DataError(f"the {name} must be printable, of 1 to {_LONGEST} characters")

    def row(self) -> Row:
        """In the order of `FEEDBACK_COLUMNS`."""
        return (self.id, self.source, float(self.at), float(self.score))


def prompt_of(kept: str | list[dict[str, str]]) -> Prompt:
    """The prompt that was kept."""
    return kept if isinstance(kept, str) else tuple(Message(t["role"], t["content"]) for t in kept)


def as_kept(prompt: Prompt) -> str | list[dict[str, str]]:
    """A prompt as a receipt keeps it."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": turn.role, "content": turn.content} for turn in prompt]
