"""The best fixed mix: targets drawn by lot, at the router's own mean cost.

Who knows nothing of a query can still mix two targets so as to spend any amount between theirs. The
best mixes are the upper concave envelope of the single targets in the plane of cost and accuracy.
It is found on the train part; what its corners cost and answer is measured on the same queries as
the router.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.evaluation import Estimate
from prefill_router.evaluation.weighted import PerResample, Weights, known_mean, mean_over, ones
from prefill_router.studies.doctor.finding import Finding, Sign, points
from prefill_router.studies.doctor.subject import Subject

WORTH = 0.01
"""A gain of accuracy that can't be reached is counted as none: one percentage point."""
Corners = Int[NDArray[np.int64], " corner"]
PerCorner = Float[NDArray[np.float64], " corner"]


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """The best fixed mixes, and the one at the router's cost.

    Attributes:
        corners: The targets that are mixed, columns, by rising cost on the train part.
        cost: Their mean observed costs on the examined queries, US dollars; NaN if unknown.
        accuracy: Their accuracies there.
        at: The router's mean cost.
        mixed: The accuracy of the mix at that cost.
        gain: The router's accuracy minus the mix's.
    """

    corners: Corners
    cost: PerCorner
    accuracy: PerCorner
    at: float
    mixed: float
    gain: Estimate


def mix(subject: Subject, *, resamples: int, seed: int) -> Mixture:
    """Compare the router with the best fixed mix at its cost."""
    corners = envelope(subject.train)
    correct = subject.trial.correct[:, corners]
    cost = subject.trial.observed_cost[:, corners]

    def mixed(weights: Weights) -> PerResample:
        at = mean_over(weights, subject.cost)
        tables = known_mean(weights, cost), known_mean(weights, correct)
        return np.array([_between(*row) for row in zip(at, *tables, strict=True)])

    def gain(weights: Weights) -> PerResample:
        return mean_over(weights, subject.label) - mixed(weights)

    one = ones(len(subject))
    return Mixture(
        corners,
        known_mean(one, cost)[0],
        known_mean(one, correct)[0],
        float(mean_over(one, subject.cost)[0]),
        float(mixed(one)[0]),
        subject.estimate(gain, resamples=resamples, seed=seed),
    )


def envelope(train: RoutingDataset) -> Corners:
    """The targets that the best fixed mixes are made of, by rising cost on the train part.

    Where no cost is known, the most accurate target alone.
    """
    one = ones(len(train))
    cost = known_mean(one, train.observed_cost)[0]
    accuracy = known_mean(one, train.correct)[0]
    known = np.flatnonzero(np.isfinite(cost) & np.isfinite(accuracy))
    if not len(known):
        return np.array([int(np.nan_to_num(accuracy, nan=-1).argmax())], dtype=np.int64)
    order = known[np.lexsort((-accuracy[known], cost[known]))]
    corners: list[int] = []
    for k in order.tolist():
        if corners and accuracy[k] <= accuracy[corners[-1]]:
            continue
        while len(corners) > 1 and _slope(cost, accuracy, corners[-2], k) >= _slope(
            cost, accuracy, corners[-2], corners[-1]
        ):
            corners.pop()
        corners.append(k)
    return np.array(corners, dtype=np.int64)


def finding(found: Mixture) -> Finding:
    """What the comparison with the mix says."""
    gain = found.gain
    sign: Sign = "good" if gain.lower > 0 else "bad" if gain.upper < WORTH else "unclear"
    cost = "where no cost is known" if np.isnan(found.at) else "for the same money"
    said = (
        f"the best fixed mix of targets answers {100 * found.mixed:.1f} % correctly {cost}; the "
        f"router answers {points(gain)} more"
    )
    numbers = {
        "mix_accuracy": found.mixed,
        "gain": gain.to_dict(),
        "mean_cost": None if np.isnan(found.at) else found.at,
        "worth": WORTH,
    }
    return Finding("mix", "Against the best fixed mix at equal cost", sign, said, numbers)


def _slope(cost: PerCorner, accuracy: PerCorner, first: int, second: int) -> float:
    run = float(cost[second] - cost[first])
    return float(accuracy[second] - accuracy[first]) / run if run > 0 else np.inf


def _between(at: float, cost: PerCorner, accuracy: PerCorner) -> float:
    """The mix's accuracy at one cost: on the line between its neighbours, the end beyond them."""
    if np.isnan(at) or np.isnan(cost).any():
        return float(accuracy[-1])
    order = np.argsort(cost, kind="stable")
    return float(np.interp(at, cost[order], accuracy[order]))
