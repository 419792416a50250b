"""Fixed mixes of targets: the accuracy available at each cost without reading a query.

Two targets can be mixed blindly to spend any amount between their costs. The best mixes are the
upper concave envelope of the single targets in the plane of cost and accuracy; a router that does
not beat them has learned nothing. If the domain of a query is known, each domain can have its own
mix: the best mixes then move one domain after another from a cheaper target to a more expensive
one, in order of accuracy gained per dollar.

`mix_of` gives the best mixes on the evaluated queries themselves. `FixedChoice` finds them on the
train part; their accuracy and cost are measured on the same queries as the router's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset, well_measured
from prefill_router.evaluation.accuracy_cost_plane import envelope_targets
from prefill_router.evaluation.bootstrap import PerResample, Weights, known_mean, ones, plain
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.judged_predictions import PerQuery, domains_of
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
        return cls((), np.array(_envelope(train), dtype=np.int64)[:, None])

    @classmethod
    def by_domain(cls, train: RoutingDataset) -> "FixedChoice":
        """The best mixes that know the domain."""
        names = domains_of(train)
        whole = _envelope(train)
        ids = np.array(train.query_ids, dtype=object)
        parts = {
            name: train.select(ids[[n == name for n in names]].tolist())
            for name in sorted(set(names))
        }
        own = {
            name: _envelope(part)
            for name, part in parts.items()
            if (~np.isnan(part.correct)).any(axis=1).sum() >= LEAST
        }
        return cls(tuple(own), _merged([*own.values(), whole], [*(parts[n] for n in own), train]))

    def columns(self, domains: Sequence[str]) -> Int[NDArray[np.int64], "corner query"]:
        """The target of each query at each corner."""
        place = {name: i for i, name in enumerate(self.groups)}
        columns: NDArray[np.int64] = self.corners[
            :, [place.get(name, len(self.groups)) for name in domains]
        ]
        return columns


@final
@dataclass(frozen=True, eq=False)
class FixedOutcome:
    """Labels and costs of a fixed choice on some queries, at each corner.

    Attributes:
        label: Labels; NaN where not measured.
        cost: Observed costs, US dollars; NaN where unknown.
    """

    label: Float[NDArray[np.float64], "query corner"]
    cost: Float[NDArray[np.float64], "query corner"]

    @classmethod
    def of(
        cls, fixed: FixedChoice, domains: Sequence[str], correct: PerCell, cost: PerCell
    ) -> "FixedOutcome":
        """Look up the labels and costs of the targets that the choice sends each query to."""
        columns = fixed.columns(domains).T
        rows = np.arange(len(correct))[:, None]
        return cls(correct[rows, columns], cost[rows, columns])

    @property
    def known(self) -> Bool[NDArray[np.bool_], " query"]:
        """The queries on which the outcomes of all corners are known.

        A cost counts as an outcome where any is known.
        """
        lacking = np.any(np.isnan(self.label), axis=1)
        if not np.isnan(self.cost).all():
            lacking = np.logical_or(lacking, np.any(np.isnan(self.cost), axis=1))
        known: NDArray[np.bool_] = np.logical_not(lacking)
        return known

    def at(self, weights: Weights, cost: PerResample) -> PerResample:
        """The accuracy of the mix with this mean cost, interpolated between the nearest corners.

        Args:
            weights: How often each query counts.
            cost: US dollars per query. Beyond the cheapest or most expensive corner that corner's
                accuracy counts; where the cost is unknown, that of the most expensive one.
        """
        costs, labels = known_mean(weights, self.cost), known_mean(weights, self.label)
        rows = zip(cost.tolist(), costs, labels, strict=True)
        return np.array([_between(*row) for row in rows])


def _envelope(train: RoutingDataset) -> list[int]:
    """The targets that the best fixed mixes are made of, by rising cost."""
    cost, accuracy = _singles(train)
    corners = envelope_targets(cost, accuracy)
    if not corners:
        return [int(np.nan_to_num(accuracy, nan=-1).argmax())]
    # A target on the line between its neighbours is no better than their mix.
    bends = zip(corners, corners[1:], corners[2:], strict=False)
    slope = partial(_slope, cost, accuracy)
    inner = [k for before, k, after in bends if slope(before, k) > slope(before, after)]
    return [corners[0], *inner, *corners[1:][-1:]]


def _merged(envelopes: Sequence[list[int]], parts: Sequence[RoutingDataset]) -> Corners:
    """The joint corners: all groups start at their cheapest target and step by gain per dollar."""
    steps = []
    for group, (corners, part) in enumerate(zip(envelopes, parts, strict=True)):
        cost, accuracy = _singles(part)
        steps += [(-_slope(cost, accuracy, a, b), group, b) for a, b in pairwise(corners)]
    now = [corners[0] for corners in envelopes]
    rows = [list(now)]
    for _, group, target in sorted(steps, key=lambda step: step[0]):
        now[group] = target
        rows.append(list(now))
    return np.array(rows, dtype=np.int64)


def _singles(train: RoutingDataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cost and accuracy of every target, on the queries that all of them have answered.

    Targets measured on very few queries are left out (NaN). Where too few queries have all the
    others' answers, each target's means are over its own measured queries.
    """
    weights, known = ones(len(train)), ~np.isnan(train.correct)
    judged = well_measured(train.correct)
    both = known[:, judged].all(axis=1)
    same = weights * both if both.sum() >= LEAST else weights
    tables = (np.where(judged, table, np.nan) for table in (train.observed_cost, train.correct))
    cost, accuracy = (known_mean(same, table)[0] for table in tables)
    return cost, accuracy


def _slope(
    cost: NDArray[np.float64], accuracy: NDArray[np.float64], first: int, second: int
) -> float:
    run = float(cost[second] - cost[first])
    return float(accuracy[second] - accuracy[first]) / run if run > 0 else np.inf


def _between(at: float, cost: Float[NDArray[np.float64], " corner"], accuracy: PerQuery) -> float:
    if np.isnan(at) or np.isnan(cost).any():
        return float(accuracy[-1])
    order = np.argsort(cost, kind="stable")
    return float(np.interp(at, cost[order], accuracy[order]))
