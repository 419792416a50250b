"""Why a request went where it went, from its receipt.

For that, and to try another lam on it, a receipt's `details` hold beside its fixed parts the policy
that decided, the scale of costs in Equation 2, and by what a conversation kept its target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, final

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.receipts.rows import Feedback
from prefill_router.gateway.records import Receipt
from prefill_router.gateway.types import FallbackReason, OutcomeKind, Reason
from prefill_router.policy import Cascade, Policy, from_dict
from prefill_router.router import Decision, decide

_REASONS: Mapping[Reason, str] = {
    "policy": "the policy chose it, on the router's forecast",
    "session": "the conversation's target was kept, since a switch would cost more than it gains",
    "tool_loop": "the conversation waits for tool results, and never changes its target there",
    "named": "the client named it",
    "fallback": "there was no forecast to go by",
    "share": "the request is outside the share of traffic that is routed",
    "stored": "the request goes on from a response that this target keeps",
}
_FALLBACKS: Mapping[FallbackReason, str] = {
    "deadline": "the forecast took longer than its deadline",
    "queue_full": "so many requests were waiting that the forecast would have come too late",
    "encoder_down": "the encoder's process wasn't running, or failed",
    "unreadable": "the encoder can't read this prompt",
    "novel": "the request is unlike anything the router learned from",
    "no_text": "there was no text to read",
}
_OUTCOMES: Mapping[OutcomeKind, str] = {
    "answered": "answered",
    "refused": "refused by the target as the client's own error",
    "failed": "not answered by anybody",
    "cut": "broken off after its first byte",
    "disconnected": "left by the client before its end",
    "routed": "only decided, not asked",
}


@final
@dataclass(frozen=True, kw_only=True)
class TargetLine:
    """What a decision held of one target.

    Attributes:
        target: Its name.
        place: 1 for who was asked first; None for one that couldn't answer.
        probability: Of a correct answer; None without a forecast.
        estimated_cost: US dollars; None where unknown.
        score: Equation 2 at the decision's lam; None where that can't be computed.
        excluded: Why it couldn't answer; None where it could.
    """

    target: str
    place: int | None
    probability: float | None
    estimated_cost: float | None
    score: float | None
    excluded: str | None


@final
@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A receipt, and what follows from it.

    Attributes:
        receipt: It.
        targets: The order that they would be asked in, then those that couldn't answer.
        decision: The policy's decision computed again, with its path over lam; None where the
            receipt doesn't hold a forecast, the policy or the scale of costs.
        feedback: The latest score of each source.
    """

    receipt: Receipt
    targets: tuple[TargetLine, ...]
    decision: Decision | None
    feedback: tuple[Feedback, ...]

    def sentences(self) -> list[str]:
        """What happened and why, in words."""
        receipt, choice, outcome = self.receipt, self.receipt.choice, self.receipt.outcome
        when = datetime.fromtimestamp(receipt.at, UTC).isoformat(sep=" ", timespec="milliseconds")
        asked = f"{choice.id}: {receipt.endpoint} for {receipt.requested}, {when}"
        who = f" by {outcome.target}" if outcome.target and outcome.kind == "answered" else ""
        end = f"{_OUTCOMES[outcome.kind]}{who}, status {outcome.status}"
        why = f"{choice.target} was chosen: {_REASONS[choice.reason]}"
        if choice.fallback is not None:
            why += f"; {_FALLBACKS[choice.fallback]}"
        return [asked, end, why, *self._more()]

    def _more(self) -> list[str]:
        choice, told = self.receipt.choice, []
        if choice.lam is not None:
            by = "" if self.receipt.policy == "lambda" else f" by the policy {self.receipt.policy}"
            asked = choice.lam_asked
            lowered = asked is not None and asked != choice.lam
            less = f", lowered from {asked:g} by a budget" if lowered else ""
            told.append(f"lam = {choice.lam:g}{by}{less}")
        if choice.policy_target not in (None, choice.target):
            told.append(f"the policy alone would have chosen {choice.policy_target}")
        if self.decision is not None:
            below, above = self.decision.changes_below, self.decision.changes_above
            if below is not None:
                told.append(f"at lam = {below.lam_to:.4f} and below: {below.target}")
            if above is not None:
                told.append(f"above lam = {above.lam_from:.4f}: {above.target}")
        told += [f"feedback of {f.source}: {f.score:g}" for f in self.feedback]
        return told

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the prompt isn't among them."""
        hidden = {"choice", "outcome", "prompt", "details"}
        return {
            **{name: value for name, value in vars(self.receipt).items() if name not in hidden},
            "choice": {
                name: dict(value)
                if isinstance(value, Mapping)
                else list(value)
                if isinstance(value, tuple)
                else value
                for name, value in vars(self.receipt.choice).items()
            },
            "outcome": asdict(self.receipt.outcome),
            "details": dict(self.receipt.details),
            "prompt_kept": self.receipt.prompt is not None,
            "in_words": self.sentences(),
            "targets": [asdict(line) for line in self.targets],
            "policy_alone": None if self.decision is None else self.decision.to_dict(),
            "feedback": [asdict(feedback) for feedback in self.feedback],
        }


def explain(receipt: Receipt, feedback: Sequence[Feedback] = ()) -> Explanation:
    """Work out why a request went where it went."""
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
            excluded=choice.excluded.get(name),
        )
        for name in names
    )
    return Explanation(receipt=receipt, targets=lines, decision=decision, feedback=tuple(feedback))


def decide_again(receipt: Receipt) -> Decision | None:
    """The policy's decision among those who could answer; None where too little is recorded."""
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


def scale_details(scale: CostScale, policy: Policy) -> dict[str, Any]:
    """For a receipt's `details`: the scale of costs in Equation 2, and the policy's options."""
    return {_SCALE: [scale.low, scale.high], _POLICY: policy.to_dict()}


@final
@dataclass(frozen=True, kw_only=True)
class AffinityRule:
    """By what a conversation kept its target.

    Attributes:
        seconds: Silent for longer, it was forgotten.
        cache_seconds: So long its prompt was taken to be cached.
        margin: What a switch had to gain in score.
        ratio: Every target's own tokens for each of the encoder's.
        saved: What a cached token saves at each target, US dollars.
    """

    seconds: float
    cache_seconds: float
    margin: float
    ratio: Mapping[str, float]
    saved: Mapping[str, float]


def affinity_rule_details(keeping: AffinityRule) -> dict[str, Any]:
    """For the `details` of a receipt with a session: by what conversations keep their target."""
    return {
        _SESSIONS: [keeping.seconds, keeping.cache_seconds, keeping.margin],
        _CACHE: {name: [ratio, keeping.saved[name]] for name, ratio in keeping.ratio.items()},
    }


def affinity_rule_of(receipt: Receipt) -> AffinityRule | None:
    """By what its conversation kept its target; None where the receipt doesn't hold that."""
    try:
        seconds, cache_seconds, margin = map(float, receipt.details[_SESSIONS])
        cache = {name: (float(a), float(b)) for name, (a, b) in receipt.details[_CACHE].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return AffinityRule(
        seconds=seconds,
        cache_seconds=cache_seconds,
        margin=margin,
        ratio={name: ratio for name, (ratio, _) in cache.items()},
        saved={name: saved for name, (_, saved) in cache.items()},
    )


def scale_of(receipt: Receipt) -> CostScale | None:
    """The scale of costs that was decided by; None where the receipt doesn't hold it."""
    match receipt.details.get(_SCALE):
        case [int() | float() as low, int() | float() as high]:
            return CostScale(float(low), float(high))
    return None


def policy_of(receipt: Receipt) -> Policy | None:
    """The policy that decided; None where there was none, or it can't choose beforehand."""
    told = receipt.details.get(_POLICY, {"kind": receipt.policy})
    try:
        policy = from_dict(told) if isinstance(told, dict) else None
    except PrefillRouterError:
        return None
    return None if isinstance(policy, Cascade) else policy
