"""The settings at which a router is reported, chosen on train rows out of fold.

A maximum over lam on the judged queries is optimistic: it is picked where chance helped. So the lam
values are picked on predictions for train rows by fits that did not see them, and only measured on
the test part.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.accuracy_cost_plane import envelope
from prefill_router.evaluation.bootstrap import (
    PerResample,
    Weights,
    divide,
    known_mean,
    mean_over,
    ones,
)
from prefill_router.evaluation.curve import LambdaSweep
from prefill_router.evaluation.judged_predictions import PerQuery, Trial
from prefill_router.policy import OperatingPoints

_SAME = 1e-12
PerPoint = Float[NDArray[np.float64], " point"]


def choose_operating_points(trial: Trial) -> OperatingPoints | None:
    """The settings that are best on train rows.

    Args:
        trial: Predictions for train rows by fits that did not see these rows.

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
    gain, good = accuracy - _mix(price, label, cost), accuracy >= label[0, best] - _SAME
    return OperatingPoints(
        _lam(lam, accuracy, cost),
        _thrifty(lam, accuracy, cost, float(label[0, best]), float(price[0, best])),
        _lam(lam, np.where(good, gain, -np.inf) if good.any() else gain, cost),
        trial.targets[best],
    )


def chosen_numbers(
    trial: Trial, points: OperatingPoints | None, same: Weights, ceiling: PerResample
) -> dict[str, PerResample]:
    """What the chosen settings give; NaN where none was chosen.

    Args:
        trial: What is judged.
        points: The settings.
        same: How often each compared query counts.
        ceiling: The oracle's accuracy.
    """
    nothing = np.full(len(same), np.nan)
    if points is None or points.best not in trial.targets:
        return dict.fromkeys(CHOSEN, nothing)
    column = trial.targets.index(points.best)
    single = mean_over(same, trial.single_label[:, column])
    accuracy, cost = _at(trial, points.accurate, same)
    room = ceiling - single
    kept = _kept(trial, points, column, same)
    return {
        "chosen_accuracy": accuracy,
        "chosen_cost": cost,
        "chosen_gain": accuracy - single,
        "chosen_headroom": divide(accuracy - single, np.where(room > _SAME, room, 0)),
        "savings": kept[0],
        "savings_gain": kept[1],
    }


CHOSEN = (
    *("chosen_accuracy", "chosen_cost", "chosen_gain", "chosen_headroom"),
    *("savings", "savings_gain"),
)


def _kept(
    trial: Trial, points: OperatingPoints, column: int, same: Weights
) -> tuple[PerResample, PerResample]:
    """What is saved against the best single target, and the accuracy gained meanwhile.

    Where no setting was as accurate and cheaper one stays with that target, and saves nothing.
    """
    price = mean_over(same, trial.single_cost[:, column])
    if points.thrifty is None:
        return np.where(np.isnan(price), np.nan, 0.0), np.zeros(len(same))
    accuracy, cost = _at(trial, points.thrifty, same)
    single = mean_over(same, trial.single_label[:, column])
    return 1 - divide(cost, price), accuracy - single


def _at(trial: Trial, lam: float, same: Weights) -> tuple[PerResample, PerResample]:
    choice = trial.path.at(lam)
    label: PerQuery = trial.of_choice(trial.correct, choice)
    return mean_over(same, label), mean_over(same, trial.of_choice(trial.paid, choice))


def _lam(lam: PerPoint, height: PerPoint, cost: PerPoint) -> float:
    """The lam of the highest point, the cheapest of several."""
    top = height >= np.nanmax(height) - _SAME
    dear = np.where(np.isnan(cost), np.inf, cost)
    return float(lam[np.argmin(np.where(top, dear, np.inf))] if np.isfinite(dear[top]).any()
                 else lam[np.argmax(top)])  # fmt: skip


def _thrifty(
    lam: PerPoint, accuracy: PerPoint, cost: PerPoint, single: float, price: float
) -> float | None:
    good = (accuracy >= single - _SAME) & (cost < price)
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
