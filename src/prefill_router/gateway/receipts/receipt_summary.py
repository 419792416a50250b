"""What the recorded requests cost and gave, and what they would have cost at one target alone."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.gateway.receipts.reader import Conditions, pages
from prefill_router.gateway.receipts.rows import named_values
from prefill_router.gateway.receipts.store import RECEIPTS, Store, open_store

_UNKNOWN = "sum(CASE WHEN cost IS NULL AND answered_by IS NOT NULL THEN 1 ELSE 0 END)"
_SUMS = ("cost", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@final
@dataclass(frozen=True, kw_only=True)
class TargetTotals:
    """What one target took.

    Attributes:
        requests: That it answered, or was asked first where nobody answered.
        outcomes: How many of them ended how.
        cost: Observed, US dollars, where it is known; None where it is of no answered request.
        unknown: Answered requests whose cost isn't known.
        input_tokens: Cached ones included; so are reasoning ones in `output_tokens`.
        cached_tokens: As reported.
        output_tokens: As reported, or estimated.
        reasoning_tokens: As reported.
        probability: Mean predicted probability; None without a forecast.
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
    """What one client's key asked for.

    Attributes:
        requests: How many.
        cost: Observed, US dollars; requests of unknown cost count as nothing.
    """

    requests: int
    cost: float | None


@final
@dataclass(frozen=True, kw_only=True)
class SingleTargetCosts:
    """What answered requests would have cost at one target alone: an estimate.

    A request that the target did answer counts at its observed cost; of the others, what was
    observed elsewhere is taken times the ratio of the two estimates. Whether the
    target could have answered plays no part.

    Attributes:
        requests: How many count: the latest of those that know every present target's cost.
        spent: What they did cost, US dollars; by the estimate where that isn't known.
        at: What all of them would have cost at each target.
        accuracy: Each target's mean probability on those with a forecast.
    """

    requests: int = 0
    spent: float = 0.0
    at: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The target with the greatest expected accuracy; None where that isn't known."""
        return max(self.accuracy, key=self.accuracy.__getitem__, default=None)

    @property
    def dearest(self) -> str | None:
        """The target at which all would have cost most; None where that isn't known."""
        return max(self.at, key=self.at.__getitem__, default=None)


@final
@dataclass(frozen=True, kw_only=True)
class ReceiptsSummary:
    """The requests since one moment.

    Attributes:
        requests: How many.
        cost: What they cost, as observed, US dollars, where it is known; None where it is of none.
        unknown: Answered requests whose cost isn't known.
        by_target: What each target took, the dearest first.
        by_key: What each client's key asked for, the dearest first; None stands for no key.
        instead: What one target alone would have cost.
    """

    requests: int
    cost: float | None
    unknown: int
    by_target: Mapping[str, TargetTotals]
    by_key: Mapping[str | None, KeyTotals]
    instead: SingleTargetCosts


def summary(url: str, since: float, *, most: int = 20_000) -> ReceiptsSummary:
    """Sum up the receipts since then.

    Args:
        url: See `open_store`.
        since: Seconds since 1970.
        most: For what one target alone would have cost, at most so many of the latest receipts are
            read; the other sums are of all.

    Raises:
        StoreError: The database can't be read, or isn't one of receipts.
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
    # as floats, since providers may report counts whose sum no integer holds
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
    """The totals of a target's rows, one for each outcome."""
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
    columns = ("at", "id", "answered_by", "cost", "correctness", "estimated_costs")
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
        if len(estimated) < 2:  # of a target that the router doesn't know: nothing to compare with
            continue
        at = at or dict.fromkeys(estimated, 0.0)  # the present targets are those of the latest
        if target not in at or not at.keys() <= estimated.keys():
            continue
        paid = estimated[target] if cost is None else cost
        count, spent = count + 1, spent + paid
        for name in at:
            # As much more or less as the estimates differ: an answer that was shorter than those of
            # the train rows was so for the request's sake, and would have been so there.
            here, there = estimated[target], estimated[name]
            at[name] += paid * there / here if here > 0 else there
        for name, probability in named_values(row[4], row[1]).items():
            right.setdefault(name, []).append(probability)
    accuracy = {name: math.fsum(p) / len(p) for name, p in right.items() if name in at}
    return SingleTargetCosts(requests=count, spent=spent, at=at if count else {}, accuracy=accuracy)
