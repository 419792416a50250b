"""Did what the router decides do better than the rest, where a share of traffic is routed?

The share is of conversations, so conversations are what is compared: requests of one aren't
independent of each other. Only the time from the first to the last request outside the share
counts, since before and after it there was no rest.
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
        value: The mean; NaN of none.
        half: Half of its 95 % interval, by the normal distribution; NaN of fewer than two.
        conversations: How many it is over.
    """

    value: float
    half: float
    conversations: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Mean":
        """That of numbers, one a conversation, of which NaN are left out."""
        known = np.array([value for value in values if not math.isnan(value)])
        half = math.nan
        if len(known) > 1:
            half = _WIDE * float(known.std(ddof=1)) / math.sqrt(len(known))
        return cls(float(known.mean()) if len(known) else math.nan, half, len(known))

    def less(self, other: "Mean") -> "Mean":
        """The difference of two means of different conversations."""
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
    """How one part of the traffic went.

    Attributes:
        conversations: How many; a request that belongs to none is one.
        requests: How many requests they are.
        cost: Of a conversation, observed, US dollars.
        failed: The share of its requests without an answer, or with one that broke off.
        seconds: Of its answers, from the request to the end.
        score: Of its answers, from 0 to 1, as feedback says.
    """

    conversations: int
    requests: int
    cost: Mean
    failed: Mean
    seconds: Mean
    score: Mean

    def means(self) -> Mapping[str, Mean]:
        """All that can be compared, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Mean)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {name: mean.to_dict() for name, mean in self.means().items()}


def compare_share(scored: Iterable[Scored]) -> tuple[Arm, Arm]:
    """What was routed, and the rest.

    Args:
        scored: Receipts by their time, each with its feedback; they are read one after another.

    Raises:
        DataError: One of the two is empty; the message says why.
    """
    every = [_One.of(*one) for one in scored if one[0].outcome.kind in _TRIED]
    apart = [n for n, one in enumerate(every) if one.reason == "share"]
    if not apart:
        raise DataError(
            "no receipt is of a request outside a share of routed traffic; there are such where "
            "the gateway's settings have traffic: {share: 0.1, otherwise: TARGET}"
        )
    groups: dict[str, list[_One]] = {}
    for one in every[apart[0] : apart[-1] + 1]:
        groups.setdefault(one.conversation, []).append(one)
    rest = [group for group in groups.values() if _has(group, ("share",))]
    routed = [g for g in groups.values() if _has(g, _ROUTED) and not _has(g, ("share",))]
    if not routed:
        raise DataError(
            "nothing was routed in that time, so there is nothing to compare; what the router "
            "would have chosen, and its cost, is told by: prefill-router replay"
        )
    return _arm(routed), _arm(rest)


class _One(NamedTuple):
    """What is compared of one request, as far as known; no more of it is held on to."""

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
