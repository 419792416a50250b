"""The records of one request: what is asked, the decision, the call, its end, and its receipt."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from prefill_router.client import Usage
from prefill_router.gateway.types import FallbackReason, OutcomeKind, Reason, Scored
from prefill_router.short_repr import short_repr
from prefill_router.targets import Ability, Endpoint

Header = tuple[bytes, bytes]
"""A name in lower case, and a value."""


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class RoutingRequest:
    """What deciding needs to know of a request.

    Attributes:
        endpoint: What is asked.
        at: When it came, seconds since 1970.
        text_bytes: Bytes of all its text, UTF-8.
        scored_bytes: Bytes of the part that the encoder reads.
        needs: What its target must be able to do.
        max_tokens: The most output tokens that the client allows; None for no limit.
        session: What names its conversation, `session_name`; None where nothing does.
        opening: Whether a conversation that is known by its first turns has no further ones yet.
            Others may begin alike, so it isn't held to their target.
        in_tool_loop: Whether it brings the results of tools that a target called.
        tool_call_ids: The calls whose results it brings.
        previous_response_id: The stored response that it goes on from.
        named: The target that the client named.
        lam_asked: The trade-off that the client asked for.
        max_cost: The most that it may cost, estimated, US dollars.
        allow: The targets that the client allows; None for all.
        exclude: The targets that the client rules out.
        key: The name of the client's key; None where none is asked for.
        key_targets: The targets that the key may use; None for all.
        to_call: Whether the target will be called, so that it needs an endpoint; False where the
            decision alone is asked for.
    """

    endpoint: Endpoint
    at: float
    text_bytes: int = 0
    scored_bytes: int = 0
    needs: frozenset[Ability] = frozenset()
    max_tokens: int | None = None
    session: str | None = None
    opening: bool = False
    in_tool_loop: bool = False
    tool_call_ids: tuple[str, ...] = ()
    previous_response_id: str | None = None
    named: str | None = None
    lam_asked: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    key: str | None = None
    key_targets: frozenset[str] | None = None
    to_call: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class RoutingDecision:
    """Which target is asked first, who is next if it fails, and why.

    Attributes:
        id: The decision's own name, `pr_` and 32 hexadecimal digits that grow with time.
        order: The targets that may answer, the chosen one first.
        reason: Why the first was chosen.
        fallback: Why there was no forecast to go by; None where there was one.
        lam: The trade-off that was used, after budgets; None where the client named the target.
        lam_asked: The trade-off that was asked for or set; None as `lam`.
        correctness: Every target's predicted probability; empty without a forecast.
        estimated_cost: Every target's estimated cost, US dollars; empty where prices are unknown.
        excluded: Targets that couldn't answer, and why in a few words.
        policy_target: Whom the policy alone would have chosen; None without a forecast. Differs
            from `order[0]` where a session, a share or a shadow run decided.
        novelty: As in `Forecast`.
        input_tokens: Estimated input tokens of the whole request.
        session: A hash that names the conversation; None where there is none.
        tool_loop: Whether the conversation waits for tool results; then nobody else is asked.
        opening: Whether it begins a conversation that others may begin alike (`RoutingRequest`).
        cached: What `estimated_cost` is lower by for what a target has in its cache, US dollars;
            of the one that holds the conversation alone.
        high_cost: What `order[0]` hardly costs more than, US dollars: budgets set it aside. None in
            receipts, and where prices are unknown or the router doesn't know the target.
    """

    id: str
    order: tuple[str, ...]
    reason: Reason
    fallback: FallbackReason | None = None
    lam: float | None = None
    lam_asked: float | None = None
    correctness: Mapping[str, float] = field(default_factory=dict)
    estimated_cost: Mapping[str, float] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    policy_target: str | None = None
    novelty: float | None = None
    input_tokens: int = 0
    session: str | None = None
    tool_loop: bool = False
    opening: bool = False
    cached: Mapping[str, float] = field(default_factory=dict)
    high_cost: float | None = None

    @property
    def target(self) -> str:
        """The target that is asked first."""
        return self.order[0]


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
class TargetAttempt:
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
class RequestOutcome:
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
    attempts: tuple[TargetAttempt, ...]
    usage: Usage | None = None
    usage_is_estimated: bool = False
    response_id: str | None = None
    tool_calls: tuple[str, ...] = ()
    first_byte_seconds: float | None = None
    total_seconds: float = 0.0


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class ForwardRequest:
    """One call, as it is to be forwarded.

    Attributes:
        endpoint: What is asked.
        method: The HTTP method.
        below: What follows the endpoint's path, percent-encoded, such as `/resp_1/cancel`.
        query: What the client's address has behind its question mark, percent-encoded.
        is_plain: Whether the answer is passed on as it is, and nothing is read of it.
        lacking: The statuses by which a target tells a plain call that it has no such call.
        bodies: The body for a target, by its name; made anew for each attempt.
        order: The targets that may be asked, the first one first.
        stream: Whether a stream is asked for.
        usage_added: Whether the body asks for token counts that the client didn't ask for; the one
            event that tells nothing else is then left out.
        headers: The client's headers, as far as targets get them; names in lower case.
        reply_headers: The gateway's own headers of the answer, given who answers (None for nobody)
            and what was tried.
        finished: Awaited once, just before the last byte goes to the client, or where it has left.
        stay: Whether nobody but the first target may answer.
        input_tokens: Of the request, estimated; used where a target reports none.
        began: When the request came, by the loop's clock; None for now.
        named: Called once a stream has told the answer's id: who answers, and the id.
        settled: Called once no target will be asked any more, so that bodies are needed no longer.
    """

    endpoint: Endpoint
    bodies: Callable[[str], bytes]
    order: tuple[str, ...]
    finished: Callable[[RequestOutcome], Awaitable[None]]
    reply_headers: Callable[[str | None, tuple[TargetAttempt, ...]], list[Header]]
    stream: bool = False
    usage_added: bool = False
    headers: list[Header] = field(default_factory=list)
    stay: bool = False
    input_tokens: int = 0
    began: float | None = None
    method: bytes = b"POST"
    below: bytes = b""
    query: bytes = b""
    is_plain: bool = False
    lacking: frozenset[int] = frozenset()
    named: Callable[[str, str], None] | None = None
    settled: Callable[[], object] = lambda: None


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What is kept of one request.

    Attributes:
        choice: What was decided.
        outcome: How it ended.
        at: When it came, seconds since 1970.
        router: The fingerprint of the router that decided; empty where none did.
        policy: The kind of its policy; empty where none decided.
        endpoint: What was asked.
        requested: The model that the client named.
        stream: Whether the answer was streamed.
        key: The name of the client's key; None where none is asked for.
        scored: What the encoder read of the request.
        cost: Observed cost at the target's prices, US dollars; None where unknown.
        cost_is_estimated: Whether it is by estimates: no counts came, or none that can be true.
        decision_seconds: From the whole request's arrival to the decision.
        forecast_seconds: Of it, waiting for the forecast; None where there was none.
        prompt: What the encoder read, where prompts are kept: a text, or messages as plain values.
        details: What else may be told, plain values.
    """

    choice: RoutingDecision
    outcome: RequestOutcome
    at: float
    router: str
    policy: str
    endpoint: Endpoint
    requested: str
    stream: bool
    key: str | None
    scored: Scored
    cost: float | None
    cost_is_estimated: bool
    decision_seconds: float
    forecast_seconds: float | None
    prompt: str | list[dict[str, str]] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
