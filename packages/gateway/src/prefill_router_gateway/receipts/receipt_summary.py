"""Sums over receipts, by target and by key, and the routed share compared with the rest.

Where only a share of the traffic is routed, it is compared with the rest. Conversations are
compared, since the share is one of conversations, and requests of the same conversation aren't
independent. Only the time from the first to the last request outside the share counts, since there
is nothing to compare with before and after.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from prefill_router.database import Database
from prefill_router.errors import DataError
from prefill_router_gateway.receipts.rows import Feedback
from prefill_router_gateway.receipts.store import RECEIPTS, open_store
from prefill_router_gateway.records import Receipt

_UNKNOWN = "sum(CASE WHEN cost IS NULL AND answered_by IS NOT NULL THEN 1 ELSE 0 END)"
_SUMS = ("cost", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@final
@dataclass(frozen=True, kw_only=True)
class TargetTotals:
    """The totals of one target.

    Attributes:
        requests: Requests that it answered, or was chosen for where no target answered.
        outcomes: The number of requests by outcome.
        cost: Observed US dollars where known; None where no answered request has a known cost.
        unknown: Answered requests whose cost is unknown.
        input_tokens: Input tokens, cached ones included.
        cached_tokens: Cached input tokens, as reported.
        output_tokens: Output tokens, reasoning included, as reported or estimated.
        reasoning_tokens: Reasoning tokens, as reported.
        probability: Mean predicted probability of a correct answer; None without forecasts.
    """

    requests: int
    outcomes: Mapping[str, int]
    cost: float | None
    unknown: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    probability: float | None


@final
@dataclass(frozen=True, kw_only=True)
class KeyTotals:
    """The totals of one client's key.

    Attributes:
        requests: The number of requests.
        cost: Observed US dollars, without requests of unknown cost; None where all are unknown.
    """

    requests: int
    cost: float | None


@final
@dataclass(frozen=True, kw_only=True)
class ReceiptsSummary:
    """The sums over receipts since a point in time.

    Attributes:
        requests: The number of requests.
        cost: Observed US dollars where known; None where no cost is known.
        unknown: Answered requests whose cost is unknown.
        by_target: The totals of each target, the most expensive first.
        by_key: The totals of each key, the most expensive first; None stands for no key.
    """

    requests: int
    cost: float | None
    unknown: int
    by_target: Mapping[str, TargetTotals]
    by_key: Mapping[str | None, KeyTotals]


def summary(url: str, since: float) -> ReceiptsSummary:
    """Sum up receipts.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.

    Raises:
        StoreError: The database can't be read, or has no receipts tables.
    """
    with closing(open_store(url, create=False)) as store:
        by_target, by_key = _sum_by_target(store, since), _sum_by_key(store, since)
    costs = {name: total.cost for name, total in by_target.items()}
    by_cost = sorted(by_target, key=lambda name: (-(costs[name] or 0.0), name))
    known_costs = [cost for cost in costs.values() if cost is not None]
    return ReceiptsSummary(
        requests=sum(t.requests for t in by_target.values()),
        cost=math.fsum(known_costs) if known_costs or not costs else None,
        unknown=sum(t.unknown for t in by_target.values()),
        by_target={name: by_target[name] for name in by_cost},
        by_key=by_key,
    )


def _sum_by_key(store: Database, since: float) -> dict[str | None, KeyTotals]:
    rows = store.select(
        "SELECT client_key, count(*), sum(CAST(cost AS DOUBLE PRECISION)) "
        f"FROM {RECEIPTS} WHERE at >= ? GROUP BY client_key",
        [since],
    )
    totals = {
        key: KeyTotals(requests=count, cost=None if cost is None else float(cost))
        for key, count, cost in rows
    }
    return dict(sorted(totals.items(), key=lambda item: (-(item[1].cost or 0.0), item[0] or "")))


def _sum_by_target(store: Database, since: float) -> dict[str, TargetTotals]:
    # as floats, since sums of absurd counts that a provider may report would overflow
    sums = ", ".join(f"sum(CAST({name} AS DOUBLE PRECISION))" for name in _SUMS)
    rows = store.select(
        f"SELECT target, outcome, count(*), {sums}, sum(probability), count(probability), "
        f"count(cost), {_UNKNOWN} "
        f"FROM {RECEIPTS} WHERE at >= ? GROUP BY target, outcome ORDER BY target, outcome",
        [since],
    )
    by_target: dict[str, list[tuple[Any, ...]]] = {}
    for target, *row in rows:
        by_target.setdefault(target, []).append(tuple(row))
    return {target: _add_rows(rows) for target, rows in by_target.items()}


def _add_rows(rows: list[tuple[Any, ...]]) -> TargetTotals:
    """The totals over a target's rows, one row per outcome."""
    requests, cost, read, cached, written, reasoning, probability, predicted, priced, unknown = (
        sum(column or 0 for column in columns) for columns in list(zip(*rows, strict=True))[1:]
    )
    return TargetTotals(
        requests=requests,
        outcomes={row[0]: row[1] for row in rows},
        cost=None if unknown and not priced else float(cost),
        unknown=int(unknown),
        input_tokens=int(read),
        cached_tokens=int(cached),
        output_tokens=int(written),
        reasoning_tokens=int(reasoning),
        probability=probability / predicted if predicted else None,
    )


ScoredReceipt = tuple[Receipt, Sequence[Feedback]]
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
        numbers = np.array([value for value in values if not math.isnan(value)])
        half = math.nan
        if len(numbers) > 1:
            half = _WIDE * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
        return cls(float(numbers.mean()) if len(numbers) else math.nan, half, len(numbers))

    def less(self, other: "Mean") -> "Mean":
        """The difference of two means over different conversations."""
        conversations = min(self.conversations, other.conversations)
        return Mean(self.value - other.value, math.hypot(self.half, other.half), conversations)

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


def compare_share(scored: Iterable[ScoredReceipt]) -> tuple[Arm, Arm]:
    """The results of the routed traffic and of the rest.

    Args:
        scored: Receipts in order of time, each with its feedback; they are read one by one.

    Raises:
        DataError: One of the two is empty; the message says why.
    """
    requests = [_ComparedRequest.of(*pair) for pair in scored if pair[0].outcome.kind in _TRIED]
    places = [n for n, request in enumerate(requests) if request.reason == "share"]
    if not places:
        raise DataError(
            "all of these requests were routed, so there is nothing to compare with; to route "
            "only a share, put this in the gateway's settings: traffic: {share: 0.1, "
            "otherwise: TARGET}"
        )
    groups: dict[str, list[_ComparedRequest]] = {}
    for request in requests[places[0] : places[-1] + 1]:
        groups.setdefault(request.conversation, []).append(request)
    rest = [group for group in groups.values() if _has_reason(group, ("share",))]
    routed = [
        g for g in groups.values() if _has_reason(g, _ROUTED) and not _has_reason(g, ("share",))
    ]
    if not routed:
        raise DataError(
            "no request was routed in that time, so there is nothing to compare; to see what "
            "the router would have chosen, run: prefill-router replay"
        )
    return _make_arm(routed), _make_arm(rest)


class _ComparedRequest(NamedTuple):
    """The values of one request that are compared, as far as known."""

    conversation: str
    reason: str
    cost: tuple[float, ...]
    failed: tuple[float, ...]
    seconds: tuple[float, ...]
    score: tuple[float, ...]

    @classmethod
    def of(cls, receipt: Receipt, feedback: Sequence[Feedback]) -> "_ComparedRequest":
        choice, outcome = receipt.choice, receipt.outcome
        return cls(
            conversation=choice.session or choice.id,
            reason=choice.reason,
            cost=() if receipt.cost is None else (receipt.cost,),
            failed=(float(outcome.kind in _FAILED),),
            seconds=(outcome.total_seconds,) if outcome.kind == "answered" else (),
            score=tuple(rating.score for rating in feedback),
        )


def _has_reason(group: Sequence[_ComparedRequest], reasons: Sequence[str]) -> bool:
    return any(request.reason in reasons for request in group)


def _make_arm(groups: Sequence[Sequence[_ComparedRequest]]) -> Arm:
    def mean(name: str, *, summed: bool = False) -> Mean:
        values_of_groups = (
            [value for request in group for value in getattr(request, name)] for group in groups
        )
        return Mean.of(
            sum(values) / (1 if summed else len(values)) for values in values_of_groups if values
        )

    return Arm(
        conversations=len(groups),
        requests=sum(map(len, groups)),
        cost=mean("cost", summed=True),
        failed=mean("failed"),
        seconds=mean("seconds"),
        score=mean("score"),
    )
