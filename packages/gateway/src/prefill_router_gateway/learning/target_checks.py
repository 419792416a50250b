"""Looks for changes of targets, prices and traffic, records them, and lets a version follow.

What was noticed is written to the database first, and a step of the versions names the changes that
it answers. So an interruption loses none, and no step is repeated.
"""

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, final

import numpy as np

from prefill_router.data import CUT
from prefill_router.database import Database
from prefill_router.endpoints import cost_of, reported_cost
from prefill_router.router import VersionRegistry, read_light
from prefill_router.targets import PRICES, Pool, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning.anchors import (
    LEARNED,
    AnchorQuestion,
    AnswerGrades,
    FirstJudgment,
    Observation,
    anchor_observations,
)
from prefill_router_gateway.learning.labelling import receipts_of
from prefill_router_gateway.learning.target_changes import (
    ChangeSettings,
    QualityWatch,
    mix_change,
    price_change,
)
from prefill_router_gateway.receipts import (
    ChangeKind,
    RecordedChange,
    read_learning,
    read_receipts,
    write_learning,
)

_AT_ONCE = 10
"""The anchors of a target that are asked at a time."""
_SUSPICIOUS, _OFTEN = 0.4, 5
"""The share of the evidence from which on anchors are asked so many times as often."""
_SETTINGS: Final = ChangeSettings(false_alarms=0.025)
"""Worse and better are tested apart, and share 5 %."""
_REFERENCE, _LATEST = 1000, 10_000
"""The requests that later ones are compared with, and how many are looked at."""
_TIME = attrgetter("at")
_Watch = tuple[str, QualityWatch, Sequence[Observation]]


class _TargetRequest(NamedTuple):
    """A request, as far as changes show in it; what its target billed, and by the list."""

    at: float
    router: str
    target: str | None
    correctness: Mapping[str, float]
    billed: float | None
    listed: float | None


@final
class TargetChecks:
    """One look of a learner at its targets and traffic.

    Args:
        url: The database of receipts, as for `open_store`.
        store: The same, open to write.
        pool: The targets at list prices.
        registry: The versions.
        every: After how many requests of a target its anchors are asked again; 0 for never.
        is_graded: Whether labels say that an answer is right; if not, quality isn't looked at.
        clock: Returns the time in seconds since 1970.

    Attributes:
        changes: All changes so far, in order of time.
    """

    def __init__(
        self,
        url: str,
        store: Database,
        pool: Pool,
        registry: VersionRegistry,
        *,
        every: int,
        is_graded: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._store, self._registry, self._clock = url, store, registry, clock
        self._pool, self._listed = pool, pool.at_first()
        self._every, self._is_graded = every, is_graded
        self.changes = tuple(read_learning(url, RecordedChange))
        state = registry.state()
        self._version = None if state.current is None else state[state.current]
        latest = read_receipts(url, limit=_LATEST, newest_first=True)
        self._traffic = [self._summarise(receipt) for receipt in latest][::-1]
        fingerprints = (request.router for request in reversed(self._traffic) if request.router)
        self._router = (
            next(fingerprints, "") if self._version is None else self._version.fingerprint
        )

    def _summarise(self, receipt: Receipt) -> _TargetRequest:
        name, usage = receipt.outcome.target, receipt.outcome.usage
        billed = None if usage is None else reported_cost(usage)
        listed = None
        if name in self._pool.names and usage is not None and billed is not None:
            target = self._pool[name]
            listed = None if target.endpoints else cost_of(usage, target)
        return _TargetRequest(
            receipt.at, receipt.router, name, receipt.choice.correctness, billed, listed
        )

    def _read_grades(self) -> None:
        """Read the grades so far, and what the router that serves predicted of them."""
        self._grades = AnswerGrades.read(self._url)
        ids = {name for some in self._grades.grades.values() for name in some}
        self._predicted = {
            name: receipt.choice.correctness
            for name, receipt in receipts_of(self._url, sorted(ids)).items()
            if receipt.router and receipt.router == self._router
        }

    def _changes_of(self, kind: str, target: str = "") -> list[RecordedChange]:
        return [change for change in self.changes if (change.kind, change.target) == (kind, target)]

    def _last_noticed(self, kind: str, target: str = "") -> float:
        """The time after which nothing was noticed yet."""
        return max((change.seen for change in self._changes_of(kind, target)), default=-math.inf)

    @property
    def since(self) -> Mapping[str, float]:
        """By target that is another now, the time from which on its answers are its own."""
        return {change.target: change.since for change in self.changes if change.kind == "quality"}

    @property
    def pool(self) -> Pool:
        """The targets at the prices that their providers charge."""
        targets = tuple(
            _scale_prices(target, self._price_factor(target.name)) for target in self._listed
        )
        return replace(self._listed, targets=targets)

    @property
    def repriced_targets(self) -> tuple[str, ...]:
        """The targets whose providers charge other prices than listed."""
        return tuple(name for name in self._listed.names if self._price_factor(name) != 1)

    def _price_factor(self, name: str) -> float:
        """What a target's provider charges, relative to the list as it is now."""
        changes = self._changes_of("price", name)
        if not changes or changes[-1].evidence["listed"] != _list_prices(self._listed[name]):
            return 1.0
        return float(changes[-1].evidence["times the list"])

    def due_anchors(
        self, askable: Collection[str], attempted: Collection[tuple[str, str]]
    ) -> list[AnchorQuestion]:
        """The anchors to ask now.

        Args:
            askable: The requests that can be asked again.
            attempted: The requests and names of answers that were asked for.
        """
        if not self._every or not self._is_graded:
            return []
        self._read_grades()
        anchors = []
        for target in self._listed:
            for name in self._next_anchors(target.name, askable) if target.has_price else ():
                questions = (AnchorQuestion(name, target.name, n) for n in itertools.count(2))
                anchors.append(
                    next(
                        question for question in questions if (name, question.name) not in attempted
                    )
                )
        return anchors

    def _next_anchors(self, target: str, askable: Collection[str]) -> list[str]:
        """The next anchors: those that were asked least, and of these the oldest."""
        start, times = self._last_noticed("quality", target), self._grades.repeated.get(target, {})
        times_asked = {name: sum(at > start for at in some) for name, some in times.items()}
        right = sorted(
            (times_asked.get(name, 0), some[0].at, name)
            for name, some in self._grades.since(target, start).items()
            if name in askable and some[0].score >= CUT
        )
        new = LEARNED - sum(times_asked.values())
        last = max((at for some in times.values() for at in some), default=-math.inf)
        requests = sum(request.target == target and request.at > last for request in self._traffic)
        suspicion = self._watch_answers(target)[0][1].suspicion
        every = self._every / (_OFTEN if suspicion > _SUSPICIOUS else 1)
        if new > 0:
            return [name for count, _, name in right if not count][:new]
        return [name for _, _, name in right[: _AT_ONCE if requests >= every else 0]]

    def record_changes(self) -> tuple[RecordedChange, ...]:
        """Record what is noticed now, and return it."""
        self._read_grades()
        changes = (*self._quality_changes(), *self._price_changes(), *self._mix_changes())
        write_learning(self._store, changes)
        self.changes += changes
        return changes

    def _watch_answers(self, target: str) -> tuple[_Watch, _Watch]:
        """The watches of a target for worse and better answers, with what they saw."""
        grades = self._grades.since(target, self._last_noticed("quality", target))
        labels = sorted(self._observe_labels(target, grades), key=_TIME)
        with_anchors = sorted([*labels, *anchor_observations(grades.values())], key=_TIME)
        worse, better = QualityWatch(target, _SETTINGS), QualityWatch(target, _SETTINGS)
        for label in with_anchors:
            worse.add(label.score, label.expected, error=label.error)
        for label in labels:
            better.add(1 - label.score, 1 - label.expected, error=label.error)
        return ("worse", worse, with_anchors), ("better", better, labels)

    def _observe_labels(
        self, target: str, grades: Mapping[str, Sequence[FirstJudgment]]
    ) -> Iterator[Observation]:
        """First answers, with what the router that serves predicted, unless it knew another."""
        recorded = () if self._version is None else self._version.changes
        if any(change.id not in recorded for change in self._changes_of("quality", target)):
            return
        for name, (first, *_) in grades.items():
            expected = self._predicted.get(name, {}).get(target)
            if expected is not None and first.number == 1:
                yield Observation(first.at, first.score, expected, first.error)

    def _quality_changes(self) -> Iterator[RecordedChange]:
        for target in self._listed.names if self._is_graded else ():
            for direction, watch, observations in self._watch_answers(target):
                if watch.change is not None:
                    evidence = dict(watch.change.evidence)
                    if direction == "better":
                        evidence |= {name: 1 - evidence[name] for name in ("expected", "observed")}
                    times = observations[watch.change.since].at, observations[watch.change.alarm].at
                    yield self._make_change(
                        "quality", target, times, {"direction": direction, **evidence}
                    )
                    break

    def _price_changes(self) -> Iterator[RecordedChange]:
        """New list prices, and bills that differ from the list as it was corrected so far."""
        fitted = self._read_fitted_prices()
        for target in self._listed:
            name, prices = target.name, _list_prices(target)
            changes = self._changes_of("price", name)
            listed = changes[-1].evidence["listed"] if changes else fitted.get(name, prices)
            if not target.has_price:
                continue
            if listed != prices:
                evidence = {"times the list": 1.0, "listed": prices, "listed before": listed}
                yield self._make_change("price", name, (self._clock(), self._clock()), evidence)
                continue
            start, before = self._last_noticed("price", name), self._price_factor(name)
            rows = [
                (request.at, request.billed, request.listed * before)
                for request in self._traffic
                if request.target == name
                and request.at > start
                and request.billed is not None
                and request.listed
            ]
            at, *dollars = np.array(rows, dtype=np.float64).reshape(-1, 3).T
            change = price_change(name, *dollars)
            if change is not None:
                factor = before * change.evidence["times the list"]
                evidence = {**change.evidence, "times the list": factor, "listed": prices}
                times = float(at[change.since]), float(at[change.alarm])
                yield self._make_change("price", name, times, evidence)

    def _mix_changes(self) -> Iterator[RecordedChange]:
        """Whether requests differ from the first that the router decided on."""
        start, mine = self._last_noticed("mix"), self._router
        rows = [r for r in self._traffic if r.router == mine and r.at > start and r.correctness]
        if len(rows) <= _REFERENCE:
            return
        names = tuple(rows[0].correctness)
        table = np.array([[request.correctness[name] for name in names] for request in rows])
        change = mix_change(table[:_REFERENCE], table[_REFERENCE:], names=names)
        if change is not None:
            times = rows[_REFERENCE + change.since].at, rows[_REFERENCE + change.alarm].at
            yield self._make_change("mix", "", times, change.evidence)

    def _make_change(
        self, kind: ChangeKind, target: str, times: tuple[float, float], evidence: Mapping[str, Any]
    ) -> RecordedChange:
        """A change; `times` are those since when, and at which it was sure."""
        since, alarm = times
        return RecordedChange(
            id=f"{kind}:{target}:{alarm:.3f}",
            target=target,
            kind=kind,
            at=self._clock(),
            since=since,
            seen=alarm,
            evidence=evidence,
        )

    def _read_fitted_prices(self) -> dict[str, list[float | None]]:
        """The prices of the version that serves, by target; none without one."""
        version = self._version
        if version is None:
            return {}
        pool = read_light(self._registry.router(version.name)).pool
        return {target.name: _list_prices(target) for target in pool}


def _list_prices(target: Target) -> list[float | None]:
    return [getattr(target, name) for name in PRICES]


def _scale_prices(target: Target, times: float) -> Target:
    listed = zip(PRICES, _list_prices(target), strict=True)
    prices: dict[str, Any] = {name: price * times for name, price in listed if price is not None}
    return replace(target, **prices)
