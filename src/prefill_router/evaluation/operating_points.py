"""The settings at which a router is reported, chosen on train rows out of fold.

A maximum over lam on the judged queries is biased upwards by selection. So the lam values are
chosen on out-of-fold predictions for train rows and only measured on the test part.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.accuracy_cost_plane import envelope
from prefill_router.evaluation.bootstrap import (
    SAME,
    known_mean,
    ones,
)
from prefill_router.evaluation.curve import LambdaSweep
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.policy import OperatingPoints

PerPoint = Float[NDArray[np.float64], " point"]


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
