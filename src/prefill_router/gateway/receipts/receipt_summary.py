"""Sums over receipts, and what the requests would have cost at one target alone."""

import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.gateway.receipts.reader import Conditions, pages
from prefill_router.gateway.receipts.rows import named_values
from prefill_router.gateway.receipts.store import RECEIPTS, Store, open_store
from prefill_router.gateway.records import cost_elsewhere

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
class SingleTargetCosts:
    """The estimated cost of answered requests at one target alone.

    A request that the target did answer counts at its observed cost; for the others, the observed
    cost elsewhere is multiplied by the ratio of the two estimates. Whether the target could have
    answered is ignored.

    Attributes:
        requests: The number of requests: the latest with an estimate for every current target.
        spent: Their cost in US dollars, estimated where it wasn't observed.
        at: The cost of all of them at each target, in US dollars.
        accuracy: Each target's mean predicted probability on those with a forecast.
    """

    requests: int = 0
    spent: float = 0.0
    at: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The target with the highest expected accuracy; None where unknown."""
        return max(self.accuracy, key=self.accuracy.__getitem__, default=None)

    @property
    def dearest(self) -> str | None:
        """The most expensive target; None where unknown."""
        return max(self.at, key=self.at.__getitem__, default=None)


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
        instead: The costs at one target alone.
    """

    requests: int
    cost: float | None
    unknown: int
    by_target: Mapping[str, TargetTotals]
    by_key: Mapping[str | None, KeyTotals]
    instead: SingleTargetCosts


def summary(url: str, since: float, *, most: int = 20_000) -> ReceiptsSummary:
    """Sum up receipts.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.
        most: The most receipts, the latest, that are read for the costs at one target alone; the
            other sums are over all.

    Raises:
        StoreError: The database can't be read, or has no receipts tables.
    """
    with closing(open_store(url, create=False)) as store:
        by_target, by_key = _totals(store, since), _by_key(store, since)
        instead = _instead(store, since, most)
    costs = {name: total.cost for name, total in by_target.items()}
    dearest_first = sorted(by_target, key=lambda name: (-(costs[name] or 0.0), name))
    known = [cost for cost in costs.values() if cost is not None]
    return ReceiptsSummary(
        requests=sum(t.requests for t in by_target.values()),
        cost=math.fsum(known) if known or not costs else None,
        unknown=sum(t.unknown for t in by_target.values()),
        by_target={name: by_target[name] for name in dearest_first},
        by_key=by_key,
        instead=instead,
    )


def _by_key(store: Store, since: float) -> dict[str | None, KeyTotals]:
    rows = store.select(
        "SELECT client_key, count(*), sum(CAST(cost AS DOUBLE PRECISION)) "
        f"FROM {RECEIPTS} WHERE at >= ? GROUP BY client_key",
        [since],
    )
    found = {
        key: KeyTotals(requests=count, cost=None if cost is None else float(cost))
        for key, count, cost in rows
    }
    return dict(sorted(found.items(), key=lambda item: (-(item[1].cost or 0.0), item[0] or "")))


def _totals(store: Store, since: float) -> dict[str, TargetTotals]:
    # as floats, since sums of absurd counts that a provider may report would overflow
    sums = ", ".join(f"sum(CAST({name} AS DOUBLE PRECISION))" for name in _SUMS)
    rows = store.select(
        f"SELECT target, outcome, count(*), {sums}, sum(probability), count(probability), "
        f"count(cost), {_UNKNOWN} "
        f"FROM {RECEIPTS} WHERE at >= ? GROUP BY target, outcome ORDER BY target, outcome",
        [since],
    )
    found: dict[str, list[tuple[Any, ...]]] = {}
    for target, *row in rows:
        found.setdefault(target, []).append(tuple(row))
    return {target: _of_rows(rows) for target, rows in found.items()}


def _of_rows(rows: list[tuple[Any, ...]]) -> TargetTotals:
    """The totals over a target's rows, one row per outcome."""
    requests, cost, given, cached, written, reasoning, probability, known, priced, unknown = (
        sum(column or 0 for column in columns) for columns in list(zip(*rows, strict=True))[1:]
    )
    return TargetTotals(
        requests=requests,
        outcomes={row[0]: row[1] for row in rows},
        cost=None if unknown and not priced else float(cost),
        unknown=int(unknown),
        input_tokens=int(given),
        cached_tokens=int(cached),
        output_tokens=int(written),
        reasoning_tokens=int(reasoning),
        probability=probability / known if known else None,
    )


def _instead(store: Store, since: float, most: int) -> SingleTargetCosts:
    columns = (
        *("at", "id", "answered_by", "cost", "correctness", "estimated_costs"),
        *("cached_tokens", "details"),
    )
    given: Conditions = [
        ("at >= ?", [since]),
        ("answered_by IS NOT NULL", []),
        ("estimated_costs <> '{}'", []),
    ]
    at: dict[str, float] = {}
    right: dict[str, list[float]] = {}
    count, spent = 0, 0.0
    for row in pages(store, columns, given, limit=most, newest_first=True):
        target, cost, estimated = row[2], row[3], named_values(row[5], row[1])
        if len(estimated) < 2:  # a target that the router doesn't know: nothing to compare with
            continue
        at = at or dict.fromkeys(estimated, 0.0)  # the latest receipt has the current targets
        if target not in at or not at.keys() <= estimated.keys():
            continue
        paid = estimated[target] if cost is None else cost
        count, spent = count + 1, spent + paid
        cached = row[6] if cost is not None else None
        cache = json.loads(row[7]).get("cache", {}) if cached else {}
        for name in at:
            at[name] += cost_elsewhere(paid, target, name, estimated, cached=cached, cache=cache)
        for name, probability in named_values(row[4], row[1]).items():
            right.setdefault(name, []).append(probability)
    accuracy = {name: math.fsum(p) / len(p) for name, p in right.items() if name in at}
    return SingleTargetCosts(requests=count, spent=spent, at=at if count else {}, accuracy=accuracy)
