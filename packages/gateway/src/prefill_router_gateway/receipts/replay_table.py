"""Recorded requests that can be decided again: at another lam, at other prices, by another router.

Only the parts of a receipt that deciding again needs are kept, a few hundred bytes per request.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, DataError
from prefill_router.policy import LambdaPath, Policy
from prefill_router_gateway.decide import order_ready, policy_order
from prefill_router_gateway.receipts.explanation import policy_of, scale_of
from prefill_router_gateway.records import PredictedWaits, Receipt
from prefill_router_gateway.settings import LatencySettings

PerCell = Float[NDArray[np.float64], "request target"]
PerRequest = Float[NDArray[np.float64], " request"]
PerTarget = Float[NDArray[np.float64], " target"]
TargetColumns = Int[NDArray[np.int64], " request"]


@final
@dataclass(frozen=True)
class ReplayPoint:
    """The expected result of the requests at one setting.

    Attributes:
        accuracy: Mean predicted probability of the chosen targets.
        cost: Mean estimated US dollars per request.
    """

    accuracy: float
    cost: float


@final
@dataclass(frozen=True, eq=False)
class ExpectedCurve:
    """The exact curve: point i holds above lam[i] and up to lam[i + 1]; the first from 0 on.

    Attributes:
        lam: The lam at which each point begins; shape (point,).
        accuracy: As in `ReplayPoint`; shape (point,).
        cost: As in `ReplayPoint`; shape (point,).
    """

    lam: Float[NDArray[np.float64], " point"]
    accuracy: Float[NDArray[np.float64], " point"]
    cost: Float[NDArray[np.float64], " point"]

    def thin(self, most: int = 200) -> "ExpectedCurve":
        """At most `most` of the points, evenly selected and including both ends."""
        at = np.unique(np.linspace(0, len(self.lam) - 1, min(most, len(self.lam))).round())
        some = at.astype(np.int64)
        return ExpectedCurve(self.lam[some], self.accuracy[some], self.cost[some])


@final
@dataclass(frozen=True, eq=False)
class Recorded:
    """Requests that were decided by a forecast, with the data to decide them again.

    Each is decided by itself: conversations that keep their target, and failures, are ignored.

    Attributes:
        ids: The ids of the decisions.
        targets: The targets, one per column.
        correctness: Predicted probabilities; NaN where a request has none for a target.
        estimated_cost: US dollars with nothing cached; NaN as in `correctness`, 0 where no prices
            were known.
        priced: Whether prices were known, per request.
        may_answer: Whether a target could answer a request.
        policies: The policy of each request; one object for all requests that it decided.
        scales: The low and the high end of each request's cost scale, US dollars.
        lam: The trade-off of each request.
        chosen: The column of the target that was chosen.
        alone: The column of the target that the policy alone chose.
        observed: Observed US dollars where `chosen` answered; NaN where unknown.
        input_tokens: Estimated input tokens of the whole request.
        waits: The predicted waiting of each request; None where it didn't count.
        path: The winners over lam.
        left_out: The number of receipts that can't be decided again, by reason.
    """

    ids: tuple[str, ...]
    targets: tuple[str, ...]
    correctness: PerCell
    estimated_cost: PerCell
    priced: Bool[NDArray[np.bool_], " request"]
    may_answer: Bool[NDArray[np.bool_], "request target"]
    policies: tuple[Policy, ...]
    scales: Float[NDArray[np.float64], "request 2"]
    lam: PerRequest
    chosen: TargetColumns
    alone: TargetColumns
    observed: PerRequest
    input_tokens: PerRequest
    waits: tuple[PredictedWaits | None, ...]
    path: LambdaPath
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, receipts: Iterable[Receipt]) -> "Recorded":
        """Collect the requests that can be decided again from receipts, read one by one."""
        rows = _TableBuilder()
        for receipt in receipts:
            rows.add(receipt)
        return rows.table()._with_path()

    def __len__(self) -> int:
        return len(self.ids)

    def again(
        self,
        *,
        correctness: PerCell | None = None,
        estimated_cost: PerCell | None = None,
        priced: bool = True,
        scale: CostScale | None = None,
        policy: Policy | None = None,
    ) -> "Recorded":
        """The requests with other forecasts, other costs (known if `priced`) or another policy."""
        ends = (scale.low, scale.high) if scale is not None else None
        scales = self.scales if ends is None else np.tile(np.array(ends), (len(self), 1))
        return replace(
            self,
            correctness=self.correctness if correctness is None else correctness,
            estimated_cost=self.estimated_cost if estimated_cost is None else estimated_cost,
            priced=self.priced if estimated_cost is None else np.full(len(self), priced),
            scales=scales,
            policies=self.policies if policy is None else (policy,) * len(self),
        )._with_path()

    def select(self, rows: NDArray[np.int64]) -> "Recorded":
        """Only these requests; `left_out` stays the same."""
        tables = ("correctness", "estimated_cost", "priced", "may_answer", "scales", "lam")
        more = ("chosen", "alone", "observed", "input_tokens")
        part = {name: getattr(self, name)[rows] for name in (*tables, *more)}
        ids = tuple(self.ids[i] for i in rows)
        objects: dict[str, Any] = {
            name: tuple(getattr(self, name)[i] for i in rows) for name in ("policies", "waits")
        }
        return replace(self, ids=ids, **objects, **part)

    def with_latency(self, settings: LatencySettings) -> "Recorded":
        """The requests with another effect of their predicted waiting, in seconds as recorded.

        Raises:
            DataError: No request has any.
        """
        if not any(self.waits):
            raise DataError(
                "no receipt has predicted waiting times; set routing.latency (the value {} "
                "only records them), and replay the receipts that follow"
            )
        effect = {name: getattr(settings, name) for name in _EFFECT}
        waits = (None if w is None else replace(w, **effect) for w in self.waits)
        return replace(self, waits=tuple(waits))

    def at(self, lam: float) -> TargetColumns:
        """The columns of the targets that are chosen at one lam."""
        return self._choose_with_waits(self.path.at(lam), np.full(len(self), lam))

    def at_own_lam(self) -> TargetColumns:
        """The columns of the targets that are chosen at each request's own lam."""
        path, lam = self.path, np.repeat(self.lam, np.diff(self.path.start))
        has_begun = (path.lam < lam) | (path.lam == 0) | (lam == 1)
        before = np.concatenate([[0], np.cumsum(has_begun)])
        count = before[path.start[1:]] - before[path.start[:-1]]
        return self._choose_with_waits(path.target[path.start[:-1] + count - 1], self.lam)

    def _choose_with_waits(self, policy_columns: TargetColumns, lam: PerRequest) -> TargetColumns:
        """The choices where waiting counts, by the gateway's own rule."""
        columns: TargetColumns = policy_columns.copy()
        has_forecast = self.may_answer & ~np.isnan(self.correctness + self.estimated_cost)
        for row, waits in enumerate(self.waits):
            if waits is None or (waits.deadline_seconds is None and not waits.dollars_per_second):
                continue
            order = sorted(
                np.flatnonzero(has_forecast[row]).tolist(), key=int(policy_columns[row]).__ne__
            )
            p, rank = self.correctness[row], partial(self._rank, row, float(lam[row]))
            columns[row] = order_ready(order, p, self.targets, waits, (), rank)[0]
        return columns

    def _rank(
        self, row: int, lam: float, p: PerTarget, dollars: PerTarget, among: list[int]
    ) -> list[int]:
        cost = CostScale(*self.scales[row].tolist()).normalise(self.estimated_cost[row] + dollars)
        return policy_order(self.policies[row], p, cost, lam, names=self.targets, among=among)

    def point(self, columns: TargetColumns) -> ReplayPoint:
        """The expected result of a choice, over known values; NaN where there are none."""
        rows = np.arange(len(self))
        return ReplayPoint(
            _mean(self.correctness[rows, columns]), _mean(self._known_cost[rows, columns])
        )

    def moves(self, before: TargetColumns, after: TargetColumns) -> list[tuple[str, str, int]]:
        """The changes of target, from, to and how many, the most frequent first."""
        changed = np.flatnonzero(before != after)
        pairs = Counter(zip(before[changed].tolist(), after[changed].tolist(), strict=True))
        return [(self.targets[a], self.targets[b], n) for (a, b), n in pairs.most_common()]

    def curve(self) -> ExpectedCurve:
        """Expected accuracy and cost over lam, exactly."""
        if not len(self):
            return ExpectedCurve(np.zeros(0), np.zeros(0), np.zeros(0))
        later = np.flatnonzero(self.path.lam > 0)
        later = later[np.argsort(self.path.lam[later], kind="stable")]
        query, target = self.path.query, self.path.target
        lam, first = np.unique(self.path.lam[later], return_index=True)
        ends = np.append(first[1:], len(later))[: len(first)]
        start = self.point(self.at(0.0))

        def running(table: PerCell, begin: float) -> NDArray[np.float64]:
            value = table[query, target]
            gained = np.cumsum(value[later] - value[later - 1]) / len(self)
            return np.concatenate([[begin], begin + gained[ends - 1]])

        return ExpectedCurve(
            np.concatenate([[0.0], lam]),
            running(self.correctness, start.accuracy),
            running(self._known_cost, start.cost),
        )

    def singles(self) -> dict[str, ReplayPoint]:
        """The expected result of each target alone, on the requests that have it."""
        return {
            name: ReplayPoint(_mean(self.correctness[:, k]), _mean(self._known_cost[:, k]))
            for k, name in enumerate(self.targets)
        }

    @property
    def _known_cost(self) -> PerCell:
        """Estimated costs; all NaN if any request's prices were unknown."""
        return (
            self.estimated_cost if self.priced.all() else np.full_like(self.estimated_cost, np.nan)
        )

    def _with_path(self) -> "Recorded":
        """The requests with their path; those that the policy can't decide are left out."""
        has_forecast = ~np.isnan(self.correctness + self.estimated_cost)
        may = self.may_answer & has_forecast
        low, high = self.scales[:, :1], self.scales[:, 1:]
        wide = np.where(high > low, high - low, 1.0)
        cost = np.where(high > low, (self.estimated_cost - low) / wide, 0.0)
        groups: dict[tuple[int, bytes], list[int]] = {}
        for i, policy in enumerate(self.policies):
            groups.setdefault((id(policy), may[i].tobytes()), []).append(i)
        parts: list[tuple[NDArray[Any], ...]] = []
        for members in groups.values():
            rows, columns = np.array(members), np.flatnonzero(may[members[0]])
            names, cells = tuple(self.targets[k] for k in columns), np.ix_(rows, columns)
            policy = self.policies[members[0]]
            try:
                path = policy.path(self.correctness[cells], cost[cells], targets=names)
            except ConfigError:  # no target may answer, or none that the policy names
                continue
            parts.append((rows[path.query], path.lam, columns[path.target]))
        return self._join_paths(parts)

    def _join_paths(self, parts: Sequence[tuple[NDArray[Any], ...]]) -> "Recorded":
        empty = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        query, lam, target = (np.concatenate(part) for part in zip(empty, *parts, strict=True))
        order = np.argsort(query, kind="stable")
        rows, place = np.unique(query, return_inverse=True)
        start = np.searchsorted(place[order], np.arange(len(rows) + 1)).astype(np.int64)
        path = LambdaPath(start, lam[order], target[order].astype(np.int64))
        undecided = len(self) - len(rows)
        more = {"the policy can't decide among the targets that could answer": undecided}
        left_out = {**self.left_out, **(more if undecided else {})}
        return replace(self.select(rows), path=path, left_out=left_out)


def _mean(column: NDArray[np.float64]) -> float:
    numbers = column[~np.isnan(column)]
    return float(numbers.mean()) if len(numbers) else float("nan")


_EFFECT = ("deadline_seconds", "dollars_per_second", "keep")
_AGAIN = ("policy", "session", "share", "latency", "headroom")
_WITHOUT: Mapping[str, str] = {
    "named": "the client named the target",
    "turn": "went on with what a person had asked",
    "state": "had what only its target could read",
    "tool_loop": "was in a tool loop",
    "stored": "continued a stored response",
    "escalation": "went to a stronger target, since the task didn't get on",
    "fallback": "had no forecast",
}


class _TableBuilder:
    """Requests that can be decided again, a few hundred bytes each."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._policy_rows: list[Policy] = []
        self._waits: list[PredictedWaits | None] = []
        self._columns: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()
        self._policies: dict[str, Policy] = {}
        self._numbers, self._cells = array("d"), array("d")

    def add(self, receipt: Receipt) -> None:
        """Add a request, or count the reason why it can't be decided again."""
        policy, scale, why = policy_of(receipt), scale_of(receipt), _why_not(receipt)
        if why or policy is None or scale is None:
            self._left_out[why or "lacks the policy or the cost scale"] += 1
            return
        choice, outcome, costs = receipt.choice, receipt.outcome, _uncached_costs(receipt)
        for name, probability in choice.correctness.items():
            column = self._columns.setdefault(name, len(self._columns))
            may = name in choice.order and name not in choice.limited
            self._cells.extend((len(self._ids), column, probability, costs[name], may))
        observed = receipt.cost if outcome.target == choice.target else None
        self._numbers.extend(
            (
                *(scale.low, scale.high),
                np.nan if choice.lam is None else choice.lam,
                np.nan if observed is None else observed,
                *(choice.input_tokens, bool(choice.estimated_cost)),
                self._columns[choice.target],
                self._columns[choice.policy_target or choice.target],
            )
        )
        self._ids.append(choice.id)
        self._policy_rows.append(self._policies.setdefault(repr(policy), policy))
        self._waits.append(choice.waits)

    def table(self) -> Recorded:
        """The requests as tables, without their path."""
        numbers = np.array(self._numbers).reshape(-1, 8)
        lam, observed, tokens, priced, chosen, alone = numbers[:, 2:].T
        cells = np.array(self._cells).reshape(-1, 5)
        tables = np.full((3, len(self._ids), len(self._columns)), np.nan)
        rows, columns = cells[:, :2].astype(np.int64).T
        tables[:, rows, columns] = cells[:, 2:].T
        return Recorded(
            ids=tuple(self._ids),
            targets=tuple(self._columns),
            correctness=tables[0],
            estimated_cost=tables[1],
            priced=priced == 1,
            may_answer=tables[2] == 1,
            policies=tuple(self._policy_rows),
            scales=numbers[:, :2],
            lam=lam,
            chosen=chosen.astype(np.int64),
            alone=alone.astype(np.int64),
            observed=observed,
            input_tokens=tokens,
            waits=tuple(self._waits),
            path=LambdaPath(np.zeros(1, np.int64), np.zeros(0), np.zeros(0, np.int64)),
            left_out=self._left_out,
        )


def _why_not(receipt: Receipt) -> str:
    """Why a request can't be decided again; empty where it can."""
    choice = receipt.choice
    if choice.reason not in _AGAIN or choice.fallback is not None:
        return _WITHOUT.get(choice.reason, _WITHOUT["fallback"])
    needed = {*choice.order, choice.policy_target or choice.target}
    costs = choice.estimated_cost
    has_prices = not costs or choice.correctness.keys() <= costs.keys()
    if not needed <= choice.correctness.keys() or not has_prices or choice.lam is None:
        return "lacks a target's probability or cost"
    return ""


def _uncached_costs(receipt: Receipt) -> Mapping[str, float]:
    """Estimated costs with nothing cached; zero where no prices were known, as in the decision."""
    choice = receipt.choice
    if not choice.estimated_cost:
        return dict.fromkeys(choice.correctness, 0.0)
    return {
        name: cost + choice.cached.get(name, 0.0) for name, cost in choice.estimated_cost.items()
    }
