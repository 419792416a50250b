"""Explains from its receipt why a request went to its target.

A receipt's `details` have what the explanation and a replay at another lam need: the policy that
decided, the cost scale of Equation 2, and the settings for keeping a conversation's target.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, final

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.money import dollars, list_price
from prefill_router.policy import Cascade, Policy, from_dict
from prefill_router.router import Decision, decide
from prefill_router_gateway.receipts.rows import Feedback
from prefill_router_gateway.receipts.savings import RequestSaving
from prefill_router_gateway.records import (
    Escalation,
    EscalationCause,
    FallbackReason,
    OutcomeKind,
    PredictedWaits,
    Reason,
    Receipt,
    RoutingDecision,
)

_REASONS: Mapping[Reason, str] = {
    "policy": "the policy chose it, by the router's forecast",
    "session": "the conversation's target was kept, since a switch would cost more than it gains",
    "turn": "the agent goes on with what the person asked, for which it keeps its target",
    "state": "the conversation has what only this target can read, such as its signed thinking",
    "tool_loop": "the conversation is in a tool loop, where it keeps its target",
    "named": "the client named it",
    "fallback": "there was no forecast that could be used",
    "share": "the request is outside the routed share of the traffic",
    "stored": "the request continues a response that this target keeps",
    "latency": "the policy's choice is predicted to be too slow",
    "headroom": "the rate limits of the policy's choice allow no further request",
    "escalation": "the task didn't get on at its target, so that a stronger one goes on with it",
}
_FALLBACKS: Mapping[FallbackReason, str] = {
    "deadline": "the forecast took longer than its deadline",
    "queue_full": "so many requests were queued that the forecast would have been too late",
    "encoder_down": "the encoder's process wasn't running, or failed",
    "unreadable": "the encoder can't read this prompt",
    "novel": "the request is unlike the router's train rows",
    "no_text": "there was no text to read",
    "no_router": "there was no router yet, so the default target came first",
}
_OUTCOMES: Mapping[OutcomeKind, str] = {
    "answered": "answered",
    "refused": "refused by the target as the client's error",
    "failed": "not answered by any target",
    "cut": "broken off after its first byte",
    "disconnected": "ended by the client's disconnect",
    "routed": "only decided, not forwarded",
}


_KINDS: Mapping[str, str] = {
    "main": "the person's task",
    "plan": "a plan of the person's task",
    "subagent": "a subagent's task",
    "compaction": "a summary of the conversation",
    "auxiliary": "a title, a topic or a suggestion",
}


@final
@dataclass(frozen=True, kw_only=True)
class TargetLine:
    """One target in a decision.

    Attributes:
        target: Its name.
        place: Its rank, 1 for the first; None where it couldn't answer.
        probability: Predicted probability of a correct answer; None without a forecast.
        estimated_cost: Estimated cost in US dollars; None where unknown.
        score: The score of Equation 2 at the decision's lam; None where it can't be computed.
        seconds: Predicted seconds of waiting; None where unknown.
        excluded: Why it couldn't answer; None where it could.
    """

    target: str
    place: int | None
    probability: float | None
    estimated_cost: float | None
    score: float | None
    seconds: float | None
    excluded: str | None


@final
@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A receipt and its explanation.

    Attributes:
        receipt: The receipt.
        targets: The targets in the decision's order, then those that couldn't answer.
        decision: The policy's decision, computed again with its path over lam; None where the
            receipt lacks the forecast, the policy or the cost scale.
        feedback: The latest score of each source.
        instead: What the request would have cost at a baseline; None where unknown.
    """

    receipt: Receipt
    targets: tuple[TargetLine, ...]
    decision: Decision | None
    feedback: tuple[Feedback, ...]
    instead: RequestSaving | None = None

    def sentences(self) -> list[str]:
        """Sentences on what happened and why."""
        receipt, choice, outcome = self.receipt, self.receipt.choice, self.receipt.outcome
        when = _format_time(receipt.at)
        request = f"{choice.id}: {receipt.endpoint} for {receipt.requested}, {when}"
        by = outcome.deployment or outcome.target
        who = f" by {by}" if by and outcome.kind == "answered" else ""
        end = f"{_OUTCOMES[outcome.kind]}{who}, status {outcome.status}"
        end += ", as was reported" if "reported" in receipt.details else ""
        why = f"{choice.target} was chosen: {_REASONS[choice.reason]}"
        if choice.fallback is not None:
            why += f"; {_FALLBACKS[choice.fallback]}"
        return [request, end, why, *self._explain_rest()]

    def _explain_rest(self) -> list[str]:
        choice, lines = self.receipt.choice, [*_describe_agent(self.receipt)]
        if (version := version_of(self.receipt)) is not None:
            lines.append(f"decided by {version}")
            lines += [step] if (step := version_step_of(self.receipt)) is not None else []
        if choice.lam is not None:
            by = "" if self.receipt.policy == "lambda" else f" by the policy {self.receipt.policy}"
            client_lam = choice.lam_asked
            lowered = client_lam is not None and client_lam != choice.lam
            less = f", lowered from {client_lam:g} by a budget" if lowered else ""
            lines.append(f"lam = {choice.lam:g}{by}{less}")
        if hints := self.receipt.details.get("left_out"):
            lines.append(f"left out, since a chat can't say it: {', '.join(hints)}")
        if sent := self.receipt.details.get("sent_hints"):
            lines.append(f"asked to think as the client said: {json.dumps(sent)}")
        for name, value in self.receipt.details.get("asked", {}).items():
            lines.append(f"asked for {name}: {_join_words(value)}")
        if choice.policy_target not in (None, choice.target):
            lines.append(f"the policy alone would have chosen {choice.policy_target}")
        lines += [
            *_explain_escalation(choice),
            *_explain_waits(choice),
            *_explain_replicas(self.receipt),
        ]
        if self.decision is not None:
            below, above = self.decision.changes_below, self.decision.changes_above
            if below is not None:
                lines.append(f"at lam = {below.lam_to:.4f} and below: {below.target}")
            if above is not None:
                lines.append(f"above lam = {above.lam_from:.4f}: {above.target}")
        lines += [] if self.instead is None else [self.instead.sentence()]
        lines += [f"feedback of {f.source}: {f.score:g}" for f in self.feedback]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the prompt."""
        hidden = {"choice", "outcome", "prompt", "details"}
        return {
            **{name: value for name, value in vars(self.receipt).items() if name not in hidden},
            "choice": {name: _to_plain(value) for name, value in vars(self.receipt.choice).items()},
            "outcome": asdict(self.receipt.outcome),
            "details": dict(self.receipt.details),
            "prompt_kept": self.receipt.prompt is not None,
            "in_words": self.sentences(),
            "targets": [asdict(line) for line in self.targets],
            "policy_alone": None if self.decision is None else self.decision.to_dict(),
            "instead": None if self.instead is None else asdict(self.instead),
            "feedback": [asdict(feedback) for feedback in self.feedback],
        }


def _describe_agent(receipt: Receipt) -> Iterator[str]:
    """Who asked, where that is known, and how its tools fare."""
    agent = receipt.details.get("agent")
    if isinstance(agent, Mapping):
        name = agent.get("agent") or "a client"
        yield f"asked by {name}: {_KINDS.get(agent.get('kind', ''), 'a request')}"
        if failing := agent.get("failing_steps"):
            yield f"results of tools that failed in a row before it: {failing}"


def _join_words(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="milliseconds")


def _to_plain(value: Any) -> Any:
    if isinstance(value, PredictedWaits | Escalation):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


_CAUSES: Mapping[EscalationCause, str] = {
    "failing_steps": "results of tools failed in a row",
    "repeated_calls": "repetitions of the same tool call in a row",
    "stalled_steps": "tool calls in a row that had been made before with the same result",
}


def _explain_escalation(choice: RoutingDecision) -> Iterator[str]:
    """Why a task goes to a stronger target."""
    escalation = choice.escalation
    if escalation is not None:
        would = "goes" if escalation.is_made else "would go, but escalation is only observed,"
        cause = f"{escalation.count} {_CAUSES[escalation.cause]}"
        yield f"{cause}: the task {would} to {escalation.target}"


def _explain_waits(choice: RoutingDecision) -> Iterator[str]:
    """What waiting and rate limits meant for the choice."""
    waits = choice.waits
    if waits is not None and waits.deadline_seconds is not None:
        late = [name for name in choice.order if waits.is_late(name)]
        outcome = f"predicted to take longer: {', '.join(late)}" if late else "all were in time"
        yield f"deadline of {waits.deadline_seconds:g} s: {outcome}"
    if waits is not None and waits.dollars_per_second:
        yield f"a second of waiting cost {list_price(waits.dollars_per_second)}"
    if choice.limited:
        yield f"left alone, since their rate limits are used up: {', '.join(choice.limited)}"


def _explain_replicas(receipt: Receipt) -> Iterator[str]:
    """What the gateway shared with other replicas at the end of the request."""
    match receipt.details.get("shared"):
        case [int() as replicas, leased, away_since]:
            yield f"shared by {replicas} replicas: budgets, limits of keys, conversations, breakers"
            if leased is not None:
                yield f"left of this replica's lease of the budget: {dollars(leased)}"
            if away_since is not None:
                yield f"cut off from the shared database since {_format_time(away_since)}"


def explain(
    receipt: Receipt, feedback: Sequence[Feedback] = (), *, instead: RequestSaving | None = None
) -> Explanation:
    """Explain why a request went to its target.

    Args:
        receipt: The request.
        feedback: The latest score of each source.
        instead: What it would have cost at a baseline; see `request_saving`.
    """
    choice = receipt.choice
    decision = decide_again(receipt)
    scores = {} if decision is None else decision.score
    others = [name for name in choice.correctness if name not in choice.order]
    names = dict.fromkeys([*choice.order, *choice.excluded, *others])
    lines = tuple(
        TargetLine(
            target=name,
            place=choice.order.index(name) + 1 if name in choice.order else None,
            probability=choice.correctness.get(name),
            estimated_cost=choice.estimated_cost.get(name),
            score=scores.get(name),
            seconds=None if choice.waits is None else choice.waits.seconds.get(name),
            excluded=choice.excluded.get(name),
        )
        for name in names
    )
    return Explanation(
        receipt=receipt,
        targets=lines,
        decision=decision,
        feedback=tuple(feedback),
        instead=instead,
    )


def decide_again(receipt: Receipt) -> Decision | None:
    """The policy's decision among the targets that could answer; None if it can't be computed."""
    choice = receipt.choice
    policy, scale = policy_of(receipt), scale_of(receipt)
    names = [name for name in choice.correctness if name in choice.order]
    costs = choice.estimated_cost or dict.fromkeys(names, 0.0)
    if policy is None or scale is None or choice.lam is None or not names:
        return None
    if not set(names) <= costs.keys():
        return None
    try:
        return decide(
            names,
            np.array([choice.correctness[name] for name in names], dtype=np.float64),
            np.array([costs[name] for name in names], dtype=np.float64),
            scale,
            policy=policy,
            lam=choice.lam,
            input_tokens=choice.input_tokens,
            truncated=False,
            priced=bool(choice.estimated_cost),
        )
    except ConfigError:  # the policy names targets that couldn't answer
        return None


_SCALE, _POLICY, _SESSIONS, _CACHE = "scale", "policy", "sessions", "cache"
_VERSION = "version"


def scale_details(scale: CostScale, policy: Policy) -> dict[str, Any]:
    """The `details` of a receipt: the cost scale of Equation 2, and the policy's options."""
    return {_SCALE: [scale.low, scale.high], _POLICY: policy.to_dict()}


def version_details(version: str | None, share: float | None, step: str = "") -> dict[str, Any]:
    """The `details` of a receipt: the version that decided, a candidate's share, and its step."""
    return {} if version is None else {_VERSION: [version, share, *([step] if step else [])]}


def version_of(receipt: Receipt) -> str | None:
    """The version that decided, for people; None where the receipt has none."""
    match receipt.details.get(_VERSION):
        case [str() as version, None, *_]:
            return f"version {version}"
        case [str() as version, int() | float() as share, *_]:
            return f"version {version} (candidate, {100 * share:g} % of conversations)"
    return None


def version_name_of(receipt: Receipt) -> str | None:
    """The name of the version that decided; None where the receipt has none."""
    match receipt.details.get(_VERSION):
        case [str() as version, *_]:
            return version
    return None


def version_step_of(receipt: Receipt) -> str | None:
    """When and why that version came to decide, for people; None where the receipt lacks it."""
    match receipt.details.get(_VERSION):
        case [str(), _, str() as step]:
            return step
    return None


@final
@dataclass(frozen=True, kw_only=True)
class AffinityRule:
    """The settings by which a conversation keeps its target.

    Attributes:
        seconds: The seconds without an answer after which it expires.
        margin: The gain in score that a switch must exceed.
        ratio: Tokens of each target per token of the encoder.
        saved: US dollars that a cached token saves, per target; where writing a token to the cache
            has a price, that is saved too.
        cache_seconds: The seconds for which its prompt is assumed to be cached, per target.
    """

    seconds: float
    margin: float
    ratio: Mapping[str, float]
    saved: Mapping[str, float]
    cache_seconds: Mapping[str, float]


def affinity_rule_details(keeping: AffinityRule) -> dict[str, Any]:
    """The `details` of a receipt with a session: the settings that keep its target."""
    return {
        _SESSIONS: [keeping.seconds, keeping.margin],
        _CACHE: {
            name: [ratio, keeping.saved[name], keeping.cache_seconds[name]]
            for name, ratio in keeping.ratio.items()
        },
    }


def affinity_rule_of(receipt: Receipt) -> AffinityRule | None:
    """The settings that kept its conversation's target; None where the receipt has none."""
    try:
        seconds, margin = map(float, receipt.details[_SESSIONS])
        cache = {
            name: (float(ratio), float(saved), float(lasts))
            for name, (ratio, saved, lasts) in receipt.details[_CACHE].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return AffinityRule(
        seconds=seconds,
        margin=margin,
        ratio={name: ratio for name, (ratio, _, _) in cache.items()},
        saved={name: saved for name, (_, saved, _) in cache.items()},
        cache_seconds={name: lasts for name, (_, _, lasts) in cache.items()},
    )


def scale_of(receipt: Receipt) -> CostScale | None:
    """The cost scale of the decision; None where the receipt has none."""
    match receipt.details.get(_SCALE):
        case [int() | float() as low, int() | float() as high]:
            return CostScale(float(low), float(high))
    return None


def policy_of(receipt: Receipt) -> Policy | None:
    """The policy that decided; None where there was none, or it needs answers to decide."""
    options = receipt.details.get(_POLICY, {"kind": receipt.policy})
    try:
        policy = from_dict(options) if isinstance(options, dict) else None
    except PrefillRouterError:
        return None
    return None if isinstance(policy, Cascade) else policy
