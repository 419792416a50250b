"""Compares the routed share of the traffic with the rest.

Conversations are compared, since the share is one of conversations, and requests of the same
conversation aren't independent. Only the time from the first to the last request outside the share
counts, since there is nothing to compare with before and after.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from prefill_router.errors import DataError
from prefill_router.gateway.receipts.rows import Feedback
from prefill_router.gateway.records import Receipt

Scored = tuple[Receipt, Sequence[Feedback]]
_ROUTED = ("policy", "session", "fallback")
_TRIED = ("answered", "cut", "failed", "refused", "disconnected")
_FAILED = ("cut", "failed")
_WIDE = 1.96  # 95 % of a normal distribution


@final
@dataclass(frozen=True)
class Mean:
    """A mean over conversations.

    Attributes:
        value: The mean; NaN without conversations.
        half: Half the width of its 95 % confidence interval, by the normal distribution; NaN with
            fewer than two conversations.
        conversations: The number of conversations.
    """

    value: float
    half: float
    conversations: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Mean":
        """The mean of numbers, one per conversation; NaN is left out."""
        known = np.array([value for value in values if not math.isnan(value)])
        half = math.nan
        if len(known) > 1:
            half = _WIDE * float(known.std(ddof=1)) / math.sqrt(len(known))
        return cls(float(known.mean()) if len(known) else math.nan, half, len(known))

    def less(self, other: "Mean") -> "Mean":
        """The difference of two means over different conversations."""
        both = min(self.conversations, other.conversations)
        return Mean(self.value - other.value, math.hypot(self.half, other.half), both)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            n: None if isinstance(v, float) and math.isnan(v) else v for n, v in vars(self).items()
        }


@final
@dataclass(frozen=True, kw_only=True)
class Arm:
    """The results of one part of the traffic.

    Attributes:
        conversations: The number of conversations; a request without one counts as one.
        requests: The number of requests.
        cost: Observed US dollars per conversation.
        failed: The share of a conversation's requests without a complete answer.
        seconds: Mean seconds from the request to the end of an answer.
        score: Mean feedback score of its answers, from 0 to 1.
    """

    conversations: int
    requests: int
    cost: Mean
    failed: Mean
    seconds: Mean
    score: Mean

    def means(self) -> Mapping[str, Mean]:
        """All means, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Mean)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {name: mean.to_dict() for name, mean in self.means().items()}


def compare_share(scored: Iterable[Scored]) -> tuple[Arm, Arm]:
    """The results of the routed traffic and of the rest.

    Args:
        scored: Receipts in order of time, each with its feedback; they are read one by one.

    Raises:
        DataError: One of the two is empty; the message says why.
    """
    every = [_One.of(*one) for one in scored if one[0].outcome.kind in _TRIED]
    apart = [n for n, one in enumerate(every) if one.reason == "share"]
    if not apart:
        raise DataError(
            "no receipt is of a request outside the routed share; to have some, put this in the "
            "gateway's settings: traffic: {share: 0.1, otherwise: TARGET}"
        )
    groups: dict[str, list[_One]] = {}
    for one in every[apart[0] : apart[-1] + 1]:
        groups.setdefault(one.conversation, []).append(one)
    rest = [group for group in groups.values() if _has(group, ("share",))]
    routed = [g for g in groups.values() if _has(g, _ROUTED) and not _has(g, ("share",))]
    if not routed:
        raise DataError(
            "no request was routed in that time, so there is nothing to compare; for what the "
            "router would have chosen, and its cost, run: prefill-router replay"
        )
    return _arm(routed), _arm(rest)


class _One(NamedTuple):
    """The values of one request that are compared, as far as known."""

    conversation: str
    reason: str
    cost: tuple[float, ...]
    failed: tuple[float, ...]
    seconds: tuple[float, ...]
    score: tuple[float, ...]

    @classmethod
    def of(cls, receipt: Receipt, said: Sequence[Feedback]) -> "_One":
        choice, outcome = receipt.choice, receipt.outcome
        return cls(
            conversation=choice.session or choice.id,
            reason=choice.reason,
            cost=() if receipt.cost is None else (receipt.cost,),
            failed=(float(outcome.kind in _FAILED),),
            seconds=(outcome.total_seconds,) if outcome.kind == "answered" else (),
            score=tuple(feedback.score for feedback in said),
        )


def _has(group: Sequence[_One], reasons: Sequence[str]) -> bool:
    return any(one.reason in reasons for one in group)


def _arm(groups: Sequence[Sequence[_One]]) -> Arm:
    def mean(name: str, *, summed: bool = False) -> Mean:
        found = ([value for one in group for value in getattr(one, name)] for group in groups)
        return Mean.of(sum(known) / (1 if summed else len(known)) for known in found if known)

    return Arm(
        conversations=len(groups),
        requests=sum(map(len, groups)),
        cost=mean("cost", summed=True),
        failed=mean("failed"),
        seconds=mean("seconds"),
        score=mean("score"),
    )
