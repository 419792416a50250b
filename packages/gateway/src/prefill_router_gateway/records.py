"""The records of one request: `RoutingRequest`, `RoutingDecision`, `RequestOutcome`, `Receipt`.

Before them are the words and headers that the gateway's parts share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final, get_args

from prefill_router.agents import RequestKind
from prefill_router.endpoints import Usage
from prefill_router.errors import EndpointFailure
from prefill_router.short_repr import short_repr
from prefill_router.targets import Ability, Endpoint

Scored = Literal[
    "ask", "last_user", "last_user_with_system", "conversation", "conversation_with_system"
]
"""The part of a request that the encoder reads. It is the person's newest text without what an
agent wrote around it, the last user turn as it is, or all turns. The last two are with or without
system prompts."""
SCORED: tuple[Scored, ...] = get_args(Scored)

Reason = Literal[
    "policy",
    "session",
    "turn",
    "state",
    "tool_loop",
    "named",
    "fallback",
    "share",
    "stored",
    "latency",
    "headroom",
    "escalation",
]
"""Why a target was chosen.

- `policy`: the router's policy chose it, by its forecast;
- `session`: the conversation's target was kept, since a switch would cost more than it gains;
- `turn`: an agent goes on with what the person asked, for which it keeps its target;
- `state`: the conversation has what only this target can read: its signed thinking, encrypted
  reasoning or ids of files;
- `tool_loop`: the conversation is in a tool loop, where it keeps its target;
- `named`: the client named the target;
- `fallback`: there was no forecast that could be used, see `FallbackReason`;
- `share`: the request is outside the share of traffic that is routed;
- `stored`: the request continues a response that this target keeps (`previous_response_id`);
- `latency`: the policy's choice is predicted to be too slow, see `settings.LatencySettings`;
- `headroom`: the rate limits of the policy's choice allow no further request;
- `escalation`: the task didn't get on at its target, so that a stronger one goes on with it.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)

FallbackReason = Literal[
    "deadline", "queue_full", "encoder_down", "unreadable", "novel", "no_text", "no_router"
]
"""Why there was no forecast, or why it wasn't trusted.

- `deadline`: it took longer than the deadline;
- `queue_full`: so many requests were queued that it would have missed the deadline;
- `encoder_down`: the encoder's process isn't running, or failed;
- `unreadable`: the encoder can't read this prompt; `no_text`: there is no text to read;
- `novel`: the request is unlike the router's train rows;
- `no_router`: no router has been fitted yet, so the default target answers.
"""
FALLBACK_REASONS: tuple[FallbackReason, ...] = get_args(FallbackReason)

FALLBACKS = ("prior", "best", "cheapest")
"""The fallbacks without a forecast, besides a target's name; see `settings.RoutingSettings`."""

EscalationCause = Literal["failing_steps", "repeated_calls", "stalled_steps"]
"""Why a task counts as one that doesn't get on, see `settings.EscalationSettings`."""
CacheMark = Literal["minutes", "hour"]
"""For how long a request asks that its text is cached, where it marks what is to be cached."""

OutcomeKind = Literal["answered", "refused", "failed", "cut", "disconnected", "routed"]
"""How a request ended.

- `answered`: the client got the whole answer;
- `refused`: a target answered with the client's own error (400, say), which was forwarded;
- `failed`: no target answered, and the client got only an error;
- `cut`: the answer broke off after its first byte; the client got an error event at its end;
- `disconnected`: the client disconnected first;
- `routed`: only the decision was requested (a dry run).
"""
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)

HEADER = "x-prefill-router-"
"""The prefix of the gateway's own headers, in requests and responses."""
SESSION_HEADER = "x-session-id"

Header = tuple[bytes, bytes]
"""A name in lower case, and a value."""


ASIDE: Final[tuple[RequestKind, ...]] = ("auxiliary", "compaction")
"""The kinds of requests by which an agent answers no person: they belong to no turn."""


@final
@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """What is known of the agent that sent a request.

    Attributes:
        agent: The agent, for example `claude-code`; None where no agent's marks fit.
        kind: What the request is for.
        turn: The agent's name of the person's turn; None where it gives none.
        type: Its name of the kind of subagent that asks; None where it gives none.
        parent: The name of the conversation that started this one, a hash; None for none.
        is_ongoing: Whether it has begun to answer the person, so that the target is kept.
        failing_steps: How many tools' results in a row have failed, up to the last.
        repeated_calls: How often in a row the newest tool call was made right before it.
        stalled_steps: How many of the newest tool calls in a row had been made before, with the
            same result.
        expected_requests: How many requests it is expected to send for the ask, of which this is
            the first. 1 where it goes on with it.
    """

    agent: str | None = None
    kind: RequestKind = "main"
    turn: str | None = None
    type: str | None = None
    parent: str | None = None
    is_ongoing: bool = False
    failing_steps: int = 0
    repeated_calls: int = 0
    stalled_steps: int = 0
    expected_requests: float = 1.0


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class RoutingRequest:
    """The properties of a request that a decision needs.

    Attributes:
        endpoint: The endpoint.
        at: When it arrived, in seconds since 1970.
        text_bytes: Bytes of all its text in UTF-8.
        scored_bytes: Bytes of the part that the encoder reads.
        needs: The abilities that its target needs.
        max_tokens: The most output tokens that the client allows; None for no limit.
        session: The name of its conversation, from `session_name`; None where it has none.
        opening: Whether it is the first request of a conversation recognised by its first turns.
            Other conversations may begin alike, so it doesn't keep their target.
        in_tool_loop: Whether it ends with results of tool calls.
        tool_call_ids: The ids of these calls.
        previous_response_id: The stored response that it continues.
        named: The target that the client named.
        lam_asked: The trade-off that the client requested.
        floor: The least predicted probability of a correct answer, where a target has it.
        max_cost: The most that it may cost, estimated, in US dollars.
        allow: The targets that the client allows; None for all.
        exclude: The targets that the client excludes.
        fallbacks: The only targets to call if the first fails, in order; empty for all others.
        key: The name of the client's key; None where the gateway has no keys.
        key_targets: The targets that the key may use; None for all.
        to_call: Whether the target will be called, and so needs an endpoint; False for a dry run.
        untranslatable: What a chat can't say of a message or response, by name. Empty where it can
            be translated, None where it isn't to be.
        hints: The hints that a chat doesn't have where it is translated, by name.
        agent: What is known of the agent that sent it.
        holds_state: Whether its history has what only the target that wrote it can read.
        cache_mark: For how long its text is to be cached; None where it marks nothing.
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
    floor: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    fallbacks: tuple[str, ...] = ()
    key: str | None = None
    key_targets: frozenset[str] | None = None
    to_call: bool = True
    untranslatable: str | None = None
    hints: tuple[str, ...] = ()
    agent: AgentRequest = AgentRequest()
    holds_state: bool = False
    cache_mark: CacheMark | None = None


@final
@dataclass(frozen=True, kw_only=True)
class PredictedWaits:
    """What was predicted of the waiting for each target, and how it enters the choice.

    Attributes:
        seconds: Predicted seconds of the targets that were measured.
        deadline_seconds: As in `settings.LatencySettings`.
        dollars_per_second: As in `settings.LatencySettings`.
        keep: As in `settings.LatencySettings`.
    """

    seconds: Mapping[str, float]
    deadline_seconds: float | None = None
    dollars_per_second: float = 0.0
    keep: float = 1.0

    def is_late(self, target: str) -> bool:
        """Whether a target is predicted to take longer than the deadline."""
        most = self.deadline_seconds
        return most is not None and self.seconds.get(target, 0.0) > most


@final
@dataclass(frozen=True, kw_only=True)
class Escalation:
    """A stronger target for a task that doesn't get on.

    Attributes:
        target: The stronger target.
        cause: What was seen of the task.
        count: How often it was seen.
        is_made: Whether the target goes on with the task; otherwise this is only recorded.
    """

    target: str
    cause: EscalationCause
    count: int
    is_made: bool


@final
@dataclass(frozen=True, kw_only=True)
class RoutingDecision:
    """The order in which targets are called, and why.

    Attributes:
        id: The decision's id, `pr_` and 32 hexadecimal digits that grow with time.
        order: The targets that may answer, the chosen one first.
        reason: Why the first was chosen.
        fallback: Why no forecast was used; None where one was.
        lam: The trade-off that was used, after budgets; None where the client named the target.
        lam_asked: The trade-off before budgets; None where the client named the target.
        correctness: Every target's predicted probability of a correct answer; empty without a
            forecast.
        estimated_cost: Every target's estimated US dollars; empty where prices are unknown. Where
            an agent begins with an ask, it is the mean of the requests that are expected for it.
        excluded: Targets that couldn't answer, and why in a few words.
        policy_target: The target that the policy alone would have chosen; None without a forecast.
            It differs from `order[0]` where a session or the routed share decided.
        novelty: As in `Forecast`.
        input_tokens: Estimated input tokens of the whole request.
        session: The name of the conversation, a hash; None where there is none.
        tool_loop: Whether it is in a tool loop, so that no other target is called.
        opening: As in `RoutingRequest`.
        cached: US dollars by which a cache lowers `estimated_cost`, by target; only the
            conversation's target has an entry.
        high_cost: The 90th percentile of the cost of `order[0]` in US dollars, which budgets
            reserve. None in receipts, and where prices are unknown or the router doesn't know the
            target.
        deployment: The endpoint of `order[0]` that must answer, such as `large@east`, since it
            keeps the response or called the tools. None for any of them. None in receipts.
        waits: The predicted waiting; None where it didn't count.
        limited: The targets that came last since their rate limits allow no further request.
        escalation: The stronger target for a task that doesn't get on; None for none.
        is_escalated: Whether the task was escalated, by this request or one before. False in
            receipts.
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
    deployment: str | None = None
    waits: PredictedWaits | None = None
    limited: tuple[str, ...] = ()
    escalation: Escalation | None = None
    is_escalated: bool = False

    @property
    def target(self) -> str:
        """The chosen target, which is called first."""
        return self.order[0]


AttemptEnd = Literal[
    EndpointFailure, "answered", "silence", "unknown_call", "breaker_open", "disconnected"
]
"""How a call of a target ended: an endpoint's failure, or what only a proxy sees.

- `silence`: a stream sent nothing for too long;
- `unknown_call`: the target doesn't support a passthrough call;
- `breaker_open`: it wasn't called, since it fails;
- `disconnected`: the client left first, or the gateway stopped.
"""


@final
@dataclass(frozen=True, kw_only=True)
class TargetAttempt:
    """One call of one target.

    Attributes:
        target: The target.
        end: How it ended.
        status: The HTTP status of the response; None without one.
        seconds: Its duration in seconds.
        deployment: Which of its endpoints, such as `large@east`; None where it has only one.
        failure: Why it failed and what to do, in one sentence; None where it didn't.
    """

    target: str
    end: AttemptEnd
    status: int | None
    seconds: float
    deployment: str | None = None
    failure: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """How a request ended.

    Attributes:
        kind: The kind of end.
        target: The target that answered; None where none did.
        status: The HTTP status that the client got.
        attempts: Every call, in order.
        usage: Token counts; None where unknown.
        usage_is_estimated: Whether counts were estimated from bytes, since they weren't reported.
        response_id: The answer's own id, where it has one.
        tool_calls: The ids of the tool calls in the answer, as far as known.
        first_byte_seconds: From the request to the first byte of the answer; None without one.
        total_seconds: From the request to the end.
        deployment: Which of the target's endpoints answered; None where it has only one.
        sent_hints: The fields by which a chat got what the request says of thinking.
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
    deployment: str | None = None
    sent_hints: Mapping[str, Any] = field(default_factory=dict)


APART: Mapping[str, str] = {
    "named": "for a target that the client named",
    "turn": "going on with what a person asked, where the target is kept",
    "state": "with what only the target that wrote it can read",
    "tool_loop": "in a tool loop, where the target is kept",
    "stored": "continuing a stored response",
    "escalation": "sent to a stronger target, since the task didn't get on",
    "share": "outside the routed share",
    "fallback": "decided without a forecast",
    "dry_run": "only decided, not forwarded",
    "unanswered": "not answered by any target",
}
"""Requests that the router didn't decide or no target answered; they are in no sum."""


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The record that is kept of one request.

    Attributes:
        choice: The decision.
        outcome: The outcome.
        at: When it arrived, in seconds since 1970.
        router: The fingerprint of the router that decided; empty where none did.
        policy: The kind of its policy; empty where no router decided.
        endpoint: The endpoint.
        requested: The model that the client named.
        stream: Whether the answer was streamed.
        key: The name of the client's key; None where the gateway has no keys.
        scored: The part of the request that the encoder read.
        cost: Observed US dollars at the target's prices; None where unknown.
        cost_is_estimated: Whether the cost is from estimated token counts, since none were reported
            or they can't be true.
        decision_seconds: From the arrival of the whole request to the decision.
        forecast_seconds: The part of it spent waiting for the forecast; None where there was none.
        baseline: The target that its cost is compared with; None where none was chosen.
        prompt: The text or messages that the encoder read, as plain values; None where prompts
            aren't kept.
        details: Further plain values.
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
    baseline: str | None = None
    prompt: str | list[dict[str, str]] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def apart(self) -> str | None:
        """Why it isn't compared with a baseline, a name in `APART`; None if the router decided."""
        choice, outcome = self.choice, self.outcome
        if outcome.kind == "routed" or outcome.target is None:
            return "dry_run" if outcome.kind == "routed" else "unanswered"
        if choice.reason in APART:
            return choice.reason
        return "tool_loop" if choice.tool_loop else "fallback" if choice.fallback else None

    def cost_at(self, baseline: str | None) -> float | None:
        """What it would have cost at the baseline, in US dollars; None if not compared."""
        target, estimated, paid = self.outcome.target, self.choice.estimated_cost, self.cost
        if self.apart is not None or target is None or baseline is None or paid is None:
            return None
        if target == baseline:
            return paid
        if not {target, baseline} <= estimated.keys():
            return None
        usage, cache = self.outcome.usage, self.details.get("cache", {})
        cached = None if usage is None else usage.cached_tokens
        return cost_elsewhere(paid, target, baseline, estimated, cached=cached, cache=cache)


def cost_elsewhere(
    paid: float,
    target: str,
    other: str,
    estimated: Mapping[str, float],
    *,
    cached: int | None,
    cache: Mapping[str, Sequence[float]],
) -> float:
    """What a request would have cost at another target, scaled by the ratio of the estimates.

    An answer shorter than those of the train rows is assumed to be short because of the request,
    and so at the other target too. The tokens that were cached are assumed to be cached there, and
    cost what its price of cached tokens says.

    Args:
        paid: What it cost, in US dollars.
        target: The target that answered.
        other: The other target.
        estimated: The estimates with nothing cached, by target.
        cached: The input tokens that were cached.
        cache: By target, as far as known, its tokens per token of the encoder, the US dollars that
            a cached token saves, and the seconds for which it is cached.
    """
    here, there = estimated[target], estimated[other]
    if cached and {target, other} <= cache.keys() and cache[target][0] > 0:
        (own, saved), (others, saved_there) = cache[target][:2], cache[other][:2]
        less, less_there = cached * saved, cached * others / own * saved_there
        if less < here and less_there < there:
            here, there = here - less, there - less_there
    return paid * there / here if here > 0 else there
