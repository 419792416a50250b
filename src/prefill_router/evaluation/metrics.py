"""The metrics of a system that don't need its curve: by target, by regime, and overall at lam = 1.

Each takes weights and gives one row per resample. Missing labels and costs are left out of every
mean; a mean over nothing is NaN.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.data import Regime, binary, regimes
from prefill_router.evaluation.auc import Ranking
from prefill_router.evaluation.trial import Trial
from prefill_router.evaluation.weighted import (
    PerResample,
    Weights,
    divide,
    known_mean,
    mean_over,
)

PerTarget: TypeAlias = Float[NDArray[np.float64], "resample target"]
PerRegime: TypeAlias = Float[NDArray[np.float64], "resample regime"]
REGIMES = (Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.DISAGREEMENT)


def rankings(trial: Trial) -> tuple[Ranking, ...]:
    """Each target's scores, sorted once."""
    columns = zip(trial.correctness.T, trial.correct.T, strict=True)
    return tuple(Ranking.of(scores, labels) for scores, labels in columns)


def auc_by_target(ranking: tuple[Ranking, ...], weights: Weights) -> PerTarget:
    """ROC-AUC of each target's predicted probabilities; NaN where one class is measured."""
    return np.stack([target.auc(weights) for target in ranking], axis=1)


def brier_by_target(trial: Trial, weights: Weights) -> PerTarget:
    """Mean squared difference of probability and label (soft labels as they are)."""
    return known_mean(weights, (trial.correctness - trial.correct) ** 2)


def macro_mean(values: PerTarget) -> PerResample:
    """The mean over the targets where the metric is defined."""
    known = ~np.isnan(values)
    return divide(np.where(known, values, 0).sum(axis=1), known.sum(axis=1).astype(np.float64))


def routed(trial: Trial) -> Bool[NDArray[np.bool_], "query target"]:
    """Which target argmax routing (lam = 1) sends each query to."""
    to: NDArray[np.bool_] = trial.most_probable[:, None] == np.arange(len(trial.targets))
    return to


def routing_by_target(trial: Trial, weights: Weights) -> dict[str, PerTarget]:
    """Routing delta: each target on the queries routed to it at lam = 1, and on all the others.

    Returns:
        `share_routed`; `accuracy_routed`, `accuracy_away` and their difference `accuracy_delta`;
        the same of mean observed `cost`, in US dollars.
    """
    to = routed(trial)
    result = {"share_routed": divide(weights @ to.astype(np.float64), _total(weights))}
    for name, table in (("accuracy", trial.correct), ("cost", trial.observed_cost)):
        inside = known_mean(weights, np.where(to, table, np.nan))
        outside = known_mean(weights, np.where(to, np.nan, table))
        result |= {
            f"{name}_routed": inside,
            f"{name}_away": outside,
            f"{name}_delta": inside - outside,
        }
    return result


def selection(trial: Trial, weights: Weights) -> dict[str, PerResample]:
    """How often argmax routing finds a right target where there is one.

    Returns:
        `solvable_share`: queries that some target answers correctly; `solvable_accuracy`: of
        those, where the chosen target was measured, the share it answers correctly;
        `optimal_selection`: the share where it does at the lowest observed cost of any.
    """
    labels = binary(trial.correct)
    chosen = trial.of_choice(labels, trial.most_probable)
    cost = trial.of_choice(trial.paid, trial.most_probable)
    solvable = np.fmax.reduce(labels, axis=1)
    right = np.where(solvable == 1, chosen, np.nan)
    priced = ~np.isnan(trial.best_cost) & (~np.isnan(cost) | (chosen == 0))
    cheapest = np.where(priced, (chosen == 1) & (cost <= trial.best_cost), np.nan)
    return {
        "solvable_share": mean_over(weights, solvable),
        "solvable_accuracy": mean_over(weights, right),
        "optimal_selection": mean_over(weights, np.where(np.isnan(right), np.nan, cheapest)),
    }


def by_regime(trial: Trial, weights: Weights) -> dict[str, PerRegime]:
    """The consensus regimes: their share of the queries, and accuracy in each at lam = 1.

    Returns:
        `share`, of the queries that count; `accuracy` of argmax routing; `best_single`, the
        accuracy there of the target that is best overall.
    """
    regime = regimes(trial.correct)
    member = np.stack([regime == str(name) for name in REGIMES], axis=1)
    measured = weights @ member.astype(np.float64)
    answer = trial.of_choice(trial.correct, trial.most_probable)
    best = _best_single(trial, weights)
    singles = [
        known_mean(weights, np.where(inside[:, None], trial.correct, np.nan)) for inside in member.T
    ]
    rows = np.arange(len(weights))
    return {
        "share": divide(measured, measured.sum(axis=1, keepdims=True)),
        "accuracy": known_mean(weights, np.where(member, answer[:, None], np.nan)),
        "best_single": np.stack([single[rows, best] for single in singles], axis=1),
    }


def _best_single(trial: Trial, weights: Weights) -> NDArray[np.int64]:
    accuracy = known_mean(weights, trial.single_label)
    best: NDArray[np.int64] = np.nan_to_num(accuracy, nan=-1.0).argmax(axis=1)
    return best


def _total(weights: Weights) -> Float[NDArray[np.float64], "resample 1"]:
    total: NDArray[np.float64] = weights.sum(axis=1, keepdims=True)
    return total
