"""Fixed mixes of targets: the accuracy available at each cost without reading a query.

Two targets can be mixed blindly to spend any amount between their costs. The best mixes are the
upper concave envelope of the single targets in the plane of cost and accuracy; a router that does
not beat them has learned nothing. If the domain of a query is known, each domain can have its own
mix: the best mixes then move one domain after another from a cheaper target to a more expensive
one, in order of accuracy gained per dollar.

`mix_of` gives the best mixes on the evaluated queries themselves. `FixedChoice` finds them on the
train part; their accuracy and cost are measured on the same queries as the router's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset, well_measured
from prefill_router.evaluation.accuracy_cost_plane import envelope_targets
from prefill_router.evaluation.bootstrap import (
    KnownTable,
    PerResample,
    Weights,
    known_mean,
    ones,
    plain,
)
from prefill_router.evaluation.chance_labels import ChanceLabels, Choice, weighted_means
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.judged_predictions import PerQuery
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.short_repr import short_repr


@final
@dataclass(frozen=True)
class MixPoint:
    """A corner of the best mixes: one target alone. Between two corners lie mixes of both.

    Attributes:
        target: The target's name.
        mean_cost: Mean observed cost, US dollars per query.
        accuracy: Mean label.
    """

    target: str
    mean_cost: float
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "target": self.target,
            "mean_cost": plain(self.mean_cost),
            "accuracy": plain(self.accuracy),
        }


def mix_of(singles: Points, targets: tuple[str, ...]) -> tuple[MixPoint, ...]:
    """The corners of the best mixes of these single targets, by rising cost.

    Args:
        singles: The single targets, in one resample.
        targets: Their names.

    Returns:
        The corners, empty where no cost is known; of targets equal in both the first.
    """
    cost, accuracy = singles.cost[0], singles.accuracy[0]
    return tuple(
        MixPoint(targets[k], float(cost[k]), float(accuracy[k]))
        for k in envelope_targets(cost, accuracy)
    )


Corners = Int[NDArray[np.int64], "corner group"]
LEAST = 20
"""A domain with fewer labelled train queries takes the mix of the whole train part."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class FixedChoice:
    """The best mixes of targets that know nothing about a query but its group.

    Attributes:
        groups: The groups that have mixes of their own; every other query belongs to the last
            column of `corners`.
        corners: The target of each group at each corner of the mixes, columns of the dataset, by
            rising cost on the train part; between two corners lie mixes of both.
    """

    groups: tuple[str, ...]
    corners: Corners

    @classmethod
    def mix(cls, train: RoutingDataset) -> "FixedChoice":
        """The best fixed mixes; where no cost is known, the most accurate target alone."""
        return cls(
            (), np.array(_envelope(*_CorrectedLabels.of(train).singles(slice(None))))[:, None]
        )

    @classmethod
    def by_domain(cls, train: RoutingDataset) -> "FixedChoice":
        """The best mixes that know the domain."""
        names = train.domains
        place = {name: i for i, name in enumerate(sorted(set(names)))}
        row_places = np.array([place[name] for name in names])
        own, labels = {}, _CorrectedLabels.of(train)
        for name, i in place.items():
            rows = row_places == i
            if (~np.isnan(train.correct[rows])).any(axis=1).sum() >= LEAST:
                found = labels.singles(rows)
                if not np.isnan(found[1]).all():
                    own[name] = found
        return cls(tuple(own), _merged([*own.values(), labels.singles(slice(None))]))

    def choices(self, domains: Sequence[str]) -> Iterator[Choice]:
        """The target of each query, at one corner after another."""
        place = {name: i for i, name in enumerate(self.groups)}
        places = np.array([place.get(name, len(self.groups)) for name in domains])
        for targets in self.corners:
            yield targets[places]

    def chosen(self, table: PerCell, domains: Sequence[str]) -> KnownTable:
        """The values of the targets that each query is sent to, [query, corner]."""
        rows = np.arange(len(table))
        values = np.empty((len(table), len(self.corners)))  # of hundreds of corners, perhaps
        for corner, choice in enumerate(self.choices(domains)):
            values[:, corner] = table[rows, choice]
        known = ~np.isnan(values)
        values[~known] = 0
        return KnownTable(values, known)


@final
@dataclass(frozen=True, eq=False)
class FixedOutcome:
    """Labels and costs of a fixed choice on some queries, at each corner.

    Attributes:
        label: Labels, [query, corner].
        cost: Observed costs, US dollars.
    """

    label: KnownTable
    cost: KnownTable

    @classmethod
    def of(
        cls, fixed: FixedChoice, domains: Sequence[str], correct: PerCell, cost: PerCell
    ) -> "FixedOutcome":
        """Look up the labels and costs of the targets that the choice sends each query to."""
        return cls(fixed.chosen(correct, domains), fixed.chosen(cost, domains))

    @property
    def known(self) -> Bool[NDArray[np.bool_], " query"]:
        """The queries on which the outcomes of all corners are known.

        A cost counts as an outcome where any is known.
        """
        known: NDArray[np.bool_] = np.asarray(self.label.known.all(axis=1))
        if self.cost.known.any():
            known &= self.cost.known.all(axis=1)
        return known

    def at(self, weights: Weights, cost: PerResample) -> PerResample:
        """The accuracy of the mix with this mean cost, interpolated between the nearest corners.

        Args:
            weights: How often each query counts.
            cost: US dollars per query. Beyond the cheapest or most expensive corner that corner's
                accuracy counts; where the cost is unknown, that of the most expensive one.
        """
        costs, labels = (known_mean(weights, table) for table in (self.cost, self.label))
        rows = zip(cost.tolist(), costs, labels, strict=True)
        return np.array([_between(*row) for row in rows])


_PerTarget = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class _CorrectedLabels:
    """The labels of the train part, corrected for their errors."""

    correct: PerCell
    cost: PerCell
    weight: PerCell | None

    @classmethod
    def of(cls, train: RoutingDataset) -> "_CorrectedLabels":
        chance = ChanceLabels.of(train, np.zeros(train.correct.shape))
        if chance is None:
            return cls(train.correct, train.observed_cost, None)
        weight = chance.weight if chance.selected else None
        return cls(chance.corrected, train.observed_cost, weight)

    def singles(self, rows: NDArray[np.bool_] | slice) -> tuple[_PerTarget, _PerTarget]:
        """Mean cost and accuracy of every target; by propensity where chance selected labels."""
        if self.weight is not None:
            return weighted_means(self.weight[rows], self.correct[rows], self.cost[rows])
        return _singles(self.correct[rows], self.cost[rows])


def _envelope(cost: _PerTarget, accuracy: _PerTarget) -> list[int]:
    """The targets that the best fixed mixes are made of, by rising cost."""
    corners = envelope_targets(cost, accuracy)
    if not corners:
        return [int(np.nan_to_num(accuracy, nan=-1).argmax())]
    # A target on the line between its neighbours is no better than their mix.
    bends = zip(corners, corners[1:], corners[2:], strict=False)
    slope = partial(_slope, cost, accuracy)
    inner = [k for before, k, after in bends if slope(before, k) > slope(before, after)]
    return [corners[0], *inner, *corners[1:][-1:]]


def _merged(singles: Sequence[tuple[_PerTarget, _PerTarget]]) -> Corners:
    """The joint corners: all groups start at their cheapest target and step by gain per dollar."""
    steps, envelopes = [], [_envelope(*one) for one in singles]
    for group, (corners, (cost, accuracy)) in enumerate(zip(envelopes, singles, strict=True)):
        steps += [(-_slope(cost, accuracy, a, b), group, b) for a, b in pairwise(corners)]
    now = [corners[0] for corners in envelopes]
    rows = [list(now)]
    for _, group, target in sorted(steps, key=lambda step: step[0]):
        now[group] = target
        rows.append(list(now))
    return np.array(rows, dtype=np.int64)


def _singles(correct: PerCell, observed_cost: PerCell) -> tuple[_PerTarget, _PerTarget]:
    """Mean cost and accuracy of every target, on the queries that all of them have answered.

    Targets measured on very few queries are left out (NaN). Where too few queries have all the
    others' answers, each target's means are over its own measured queries.
    """
    weights, known = ones(len(correct)), ~np.isnan(correct)
    judged = well_measured(correct)
    both = known[:, judged].all(axis=1)
    same = weights * both if both.sum() >= LEAST else weights
    tables = (np.where(judged, table, np.nan) for table in (observed_cost, correct))
    cost, accuracy = (known_mean(same, table)[0] for table in tables)
    return cost, accuracy


def _slope(cost: _PerTarget, accuracy: _PerTarget, first: int, second: int) -> float:
    run = float(cost[second] - cost[first])
    return float(accuracy[second] - accuracy[first]) / run if run > 0 else np.inf


def _between(at: float, cost: Float[NDArray[np.float64], " corner"], accuracy: PerQuery) -> float:
    if np.isnan(at) or np.isnan(cost).any():
        return float(accuracy[-1])
    order = np.argsort(cost, kind="stable")
    return float(np.interp(at, cost[order], accuracy[order]))
