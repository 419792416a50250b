"""Operating points: the exact curve and the paper's lambda table, and the points to report.

A maximum over lam on the judged queries is biased upwards by selection. So the lam values at which
a router is reported are chosen on out-of-fold predictions for train rows, and only measured on the
test part.
"""

from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.accuracy_cost_plane import (
    Axis,
    envelope,
    oracle_distance,
    padded_area,
)
from prefill_router.evaluation.bootstrap import (
    SAME,
    known_mean,
    ones,
    plain,
)
from prefill_router.evaluation.curve import STEPS, LambdaSweep
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.policy import OperatingPoints
from prefill_router.short_repr import short_repr

PerPoint = Float[NDArray[np.float64], " point"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Curve:
    """Every exact operating point by rising lam; NaN where a number isn't defined.

    Attributes:
        lam_from: Lower end of each point's interval of lam, excluded except at 0.
        lam_to: Upper end of that interval, included.
        accuracy: Mean label.
        mean_cost: Mean observed cost, US dollars.
        normalised_cost: 1 at the cheapest single target, 0 at the most expensive.
        normalised_accuracy: 1 at the oracle, 0 at the worst single target.
        dearest_share: The share of the queries that go to the target with the highest mean cost,
            just above `lam_from`.
    """

    lam_from: PerPoint
    lam_to: PerPoint
    accuracy: PerPoint
    mean_cost: PerPoint
    normalised_cost: PerPoint
    normalised_accuracy: PerPoint
    dearest_share: PerPoint

    def __len__(self) -> int:
        return len(self.lam_from)

    def columns(self) -> dict[str, PerPoint]:
        """The curve as a table."""
        return dict(vars(self))


@final
@dataclass(frozen=True)
class Step:
    """One row of the paper's lambda table, and the curve's metrics on that grid of lam.

    Attributes:
        step: The step of the grid of lam; None for the exact path.
        points: Distinct operating points.
        q1: Points in the lowest quarter of the curve's range of mean cost.
        q2: Points in the second quarter.
        q3: Points in the third quarter.
        q4: Points in the highest quarter; points of unknown cost are in none.
        p_auccc: P-AUCCC with inverse cost.
        p_auccc_linear: P-AUCCC with linear cost.
        oracle_distance: Oracle distance with inverse cost.
        oracle_distance_linear: Oracle distance with linear cost.
    """

    step: float | None
    points: int
    q1: int
    q2: int
    q3: int
    q4: int
    p_auccc: float
    p_auccc_linear: float
    oracle_distance: float
    oracle_distance_linear: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row = asdict(self)
        return {k: plain(v) if isinstance(v, float) else v for k, v in row.items()}


def curve_of(scorer: Scorer, scores: Scores) -> Curve:
    """The exact curve, regardless of the grid that the metrics are read on."""
    points = scorer.sweep.points(ones(len(scorer.trial)))
    lam = scorer.sweep.lam
    return Curve(
        lam,
        np.append(lam[1:], 1.0),
        points.accuracy[0],
        points.cost[0],
        scores.anchors.cheapness(points.cost, axis=scorer.axis)[0],
        scores.anchors.height(points.accuracy)[0],
        _share(scorer.trial, scores.singles.cost[0], lam),
    )


def _share(trial: Trial, cost: Float[NDArray[np.float64], " target"], lam: PerPoint) -> PerPoint:
    """The share of the queries that go to the most expensive target just above each lam."""
    if np.isnan(cost).all():
        return np.full(len(lam), np.nan)
    path, dearest = trial.path, int(np.nanargmax(cost))
    to = (path.target == dearest).astype(np.float64)
    change = np.where(path.lam > 0, np.diff(to, prepend=0.0), to)
    order = np.argsort(path.lam, kind="stable")
    place = np.searchsorted(path.lam[order], lam, side="right") - 1
    share: PerPoint = np.cumsum(change[order])[place] / len(trial)
    return share


def max_lam_interval(scorer: Scorer, scores: Scores, curve: Curve) -> tuple[float, float]:
    """The interval of lam with the highest accuracy at the lowest cost; the lowest of several."""
    top, cost = scores.best
    best = scores.points.accuracy[0] >= top[0] - SAME
    if not np.isnan(cost[0]):
        best &= scores.points.cost[0] <= cost[0]
    place = scorer.retained[np.argmax(best)]
    return float(curve.lam_from[place]), float(curve.lam_to[place])


def steps_of(scorer: Scorer, scores: Scores, curve: Curve) -> tuple[Step, ...]:
    """The paper's lambda table, the exact path first."""
    return tuple(_step(scorer, scores, curve, step) for step in (None, *STEPS))


def _step(scorer: Scorer, scores: Scores, curve: Curve, step: float | None) -> Step:
    at = scorer.sweep.retained(step)
    points = scorer.sweep.points(ones(len(scorer.trial)), at=at)
    axes: tuple[Axis, Axis] = ("inverse", "linear")
    placed = [scores.anchors.place(points.cost, points.accuracy, axis=axis) for axis in axes]
    return Step(
        step,
        len(at),
        *_quarters(curve.mean_cost[at], curve.mean_cost),
        *(float(padded_area(x, y)[0]) for x, y in placed),
        *(float(oracle_distance(x, y, counted=points.distinct)[0]) for x, y in placed),
    )


def _quarters(
    cost: Float[NDArray[np.float64], " retained"], whole: PerPoint
) -> tuple[int, int, int, int]:
    low, high = np.fmin.reduce(whole), np.fmax.reduce(whole)
    edges = np.linspace(low, high, 5)[1:4]
    known = cost[~np.isnan(cost)]
    counts = np.bincount(np.searchsorted(edges, known, side="left"), minlength=4)
    return int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3])


def choose_operating_points(trial: Trial) -> OperatingPoints | None:
    """The settings that are best on train rows.

    Args:
        trial: Out-of-fold predictions for train rows, with their labels.

    Returns:
        None where no row has the outcomes of all targets.
    """
    if not trial.compared.any():
        return None
    sweep, same = LambdaSweep.of(trial), ones(len(trial)) * trial.compared
    points = sweep.points(ones(len(trial)))
    accuracy, cost = points.accuracy[0], points.cost[0]
    label, price = known_mean(same, trial.single_label), known_mean(same, trial.single_cost)
    best = int(np.nan_to_num(label[0], nan=-1.0).argmax())
    lam = (sweep.lam + np.append(sweep.lam[1:], 1.0)) / 2
    lam[-1] = 1.0
    gain, good = accuracy - _mix(price, label, cost), accuracy >= label[0, best] - SAME
    return OperatingPoints(
        _lam(lam, accuracy, cost),
        _thrifty(lam, accuracy, cost, float(label[0, best]), float(price[0, best])),
        _lam(lam, np.where(good, gain, -np.inf) if good.any() else gain, cost),
        trial.targets[best],
    )


def _lam(lam: PerPoint, height: PerPoint, cost: PerPoint) -> float:
    """The lam of the highest point; of several, the cheapest."""
    top = height >= np.nanmax(height) - SAME
    dear = np.where(np.isnan(cost), np.inf, cost)
    return float(lam[np.argmin(np.where(top, dear, np.inf))] if np.isfinite(dear[top]).any()
                 else lam[np.argmax(top)])  # fmt: skip


def _thrifty(
    lam: PerPoint, accuracy: PerPoint, cost: PerPoint, single: float, price: float
) -> float | None:
    good = (accuracy >= single - SAME) & (cost < price)
    return float(lam[np.argmin(np.where(good, cost, np.inf))]) if good.any() else None


def _mix(
    price: Float[NDArray[np.float64], "1 target"],
    label: Float[NDArray[np.float64], "1 target"],
    cost: PerPoint,
) -> PerPoint:
    """The best fixed mix's accuracy at each cost; the best single target's where unknown."""
    corners = envelope(price, label)
    if np.isnan(corners[0]).all():
        return np.full(len(cost), float(np.nanmax(label)))
    mixed = np.interp(cost, corners[0][0], corners[1][0])
    return np.where(np.isnan(cost), float(np.nanmax(label)), mixed)
