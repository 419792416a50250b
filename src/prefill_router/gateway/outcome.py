"""How a request ended."""

from dataclasses import dataclass
from typing import Literal, final

from prefill_router.gateway.words import OutcomeKind
from prefill_router.upstream import Usage

AttemptEnd = Literal[
    "answered",
    "refused",
    "connect",
    "first_token_timeout",
    "silence",
    "answer_timeout",
    "rate_limited",
    "overloaded",
    "server_error",
    "unauthorised",
    "unknown_model",
    "context_too_long",
    "unknown_call",
    "broken_off",
    "malformed",
    "breaker_open",
    "disconnected",
]


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One call of one target.

    Attributes:
        target: Whom.
        end: How it ended.
        status: The HTTP status of its reply; None where none came.
        seconds: How long it took.
    """

    target: str
    end: AttemptEnd
    status: int | None
    seconds: float


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a request ended.

    Attributes:
        kind: How.
        target: Who answered; None where nobody did.
        status: The HTTP status that the client got.
        attempts: Every call, in order.
        usage: Token counts; None where nothing is known.
        usage_is_estimated: Whether they were estimated from the bytes, since none were reported.
        response_id: The answer's own id, where it has one.
        tool_calls: Ids of the tool calls in the answer, as far as they were seen.
        first_byte_seconds: From the request to the first byte of the answer; None without one.
        total_seconds: From the request to the end.
    """

    kind: OutcomeKind
    target: str | None
    status: int
    attempts: tuple[Attempt, ...]
    usage: Usage | None = None
    usage_is_estimated: bool = False
    response_id: str | None = None
    tool_calls: tuple[str, ...] = ()
    first_byte_seconds: float | None = None
    total_seconds: float = 0.0
