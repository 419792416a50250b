"""The metrics of a system that don't need its curve: AUC, choice AUC, Brier, accuracy, selection.

They are computed by target, by regime, and overall at lam = 1. Each takes weights and gives one row
per resample. Missing labels and costs are left out of every mean; a mean over nothing is NaN.

The AUC is how often a correctly answered query has a higher score than a wrongly answered one, ties
counting half; 0.5 is chance. `statistics.auc_by_target` is for rows without weights.

Choice AUC measures whether the probabilities identify which of two targets is right. Most of a
target's AUC comes from the difficulty of the queries, which all targets share and which does not
help to choose. The difference between two targets does. So for each pair, over the queries that
exactly one of the two answers correctly, choice AUC is the AUC of the difference of their predicted
log-odds; 0.5 is chance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.accelerator import accelerator
from prefill_router.data import Regime, binary, regimes
from prefill_router.evaluation.bootstrap import (
    KnownTable,
    PerResample,
    Weights,
    divide,
    known_mean,
)
from prefill_router.evaluation.judged_predictions import Trial, once_per_trial
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_odds

_LONG = 20_000
"""With more queries, resamples are computed one by one, so that each fits the processor's cache."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Scores sorted once, so that the AUC of any weights needs no sorting.

    Attributes:
        right: The queries answered correctly.
        wrong: The queries answered wrongly, by rising score. Where labels err or chance selected
            them, both are all labelled queries, and each counts for as much as it is probably so.
        below: For each of `right`, how many of `wrong` have a lower score.
        upto: For each of `right`, how many of `wrong` have a lower or equal score.
        share: For how much each of `right` and of `wrong` counts; None for one each.
    """

    right: Int[NDArray[np.int64], " right"]
    wrong: Int[NDArray[np.int64], " wrong"]
    below: Int[NDArray[np.int64], " right"]
    upto: Int[NDArray[np.int64], " right"]
    share: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @classmethod
    def of(
        cls,
        scores: Float[NDArray[np.float64], " query"],
        labels: Float[NDArray[np.float64], " query"],
        weight: Float[NDArray[np.float64], " query"] | None = None,
    ) -> "Ranking":
        """Sort the scores of the measured queries.

        Args:
            scores: One per query.
            labels: Labels, NaN where missing; cut at 0.5 unless there are weights.
            weight: The weight of each label, where these are estimates of labels.
        """
        if weight is not None:
            return cls._rank_weighted(scores, labels, weight)
        cut = binary(labels[:, None])[:, 0]
        right = np.flatnonzero(cut == 1)
        right = right[np.argsort(scores[right], kind="stable")]
        wrong = np.flatnonzero(cut == 0)
        wrong = wrong[np.argsort(scores[wrong], kind="stable")]
        below = np.searchsorted(scores[wrong], scores[right], side="left")
        upto = np.searchsorted(scores[wrong], scores[right], side="right")
        return cls(right, wrong, below.astype(np.int64), upto.astype(np.int64))

    @classmethod
    def _rank_weighted(
        cls,
        scores: Float[NDArray[np.float64], " query"],
        labels: Float[NDArray[np.float64], " query"],
        weight: Float[NDArray[np.float64], " query"],
    ) -> "Ranking":
        rows = np.flatnonzero(weight > 0)
        rows = rows[np.argsort(scores[rows], kind="stable")]
        below, upto = (
            np.searchsorted(scores[rows], scores[rows], side=side).astype(np.int64)
            for side in ("left", "right")
        )
        share = weight[rows] * labels[rows], weight[rows] * (1 - labels[rows])
        return cls(rows, rows, below, upto, share)

    def auc(self, weights: Weights) -> PerResample:
        """The AUC in each resample; NaN where one class has no weight."""
        if len(weights) > 1 and weights.shape[1] > _LONG:
            return np.concatenate([self.auc(row[None]) for row in weights])
        wrong, right = weights[:, self.wrong], weights[:, self.right]
        if self.share is not None:
            right, wrong = right * self.share[0], wrong * self.share[1]
        heap = np.zeros((len(weights), len(self.wrong) + 1))
        np.cumsum(wrong, axis=1, out=heap[:, 1:])
        wins = (right * (heap[:, self.below] + heap[:, self.upto])).sum(axis=1) / 2
        return divide(wins, right.sum(axis=1) * heap[:, -1])


def compute_aucs(
    rankings: Sequence[Ranking], weights: Weights
) -> Float[NDArray[np.float64], "resample ranking"]:
    """The AUC of each ranking in each resample, on a GPU where it is worth it."""
    cells = sum(len(ranking.right) + len(ranking.wrong) for ranking in rankings)
    device = accelerator(_AUC_WORK * cells * len(weights), least=_LEAST_AUC_WORK)
    if device is None:
        return np.stack([ranking.auc(weights) for ranking in rankings], axis=1)
    from prefill_router.evaluation.accelerated_auc import compute_aucs_on

    return compute_aucs_on(device, rankings, weights)


_AUC_WORK = 1e3
"""What a query of a ranking takes in each resample, in multiplications of a matrix product."""
_LEAST_AUC_WORK = 2e10
"""Of the few resamples that are computed at once; there are some hundred times more."""
BEST = 6
"""The number of most accurate targets that `choice_auc_best` covers."""
NO_PAIR = "no query was answered correctly by exactly one of two targets"
_LEAST = 1e-6
"""Probabilities are clipped to this distance from 0 and 1, so that their log-odds are finite."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PairRankings:
    """The differences of log-odds of every pair of targets, sorted once.

    Attributes:
        rankings: One for each pair of which exactly one is right on some query.
        best: Which of these pairs are among the most accurate targets.
    """

    rankings: tuple[Ranking, ...]
    best: Bool[NDArray[np.bool_], " pair"]

    @classmethod
    def of(cls, correctness: PerCell, correct: PerCell) -> "PairRankings":
        """Sort the pairs; the most accurate targets are determined on all labels.

        Args:
            correctness: Predicted probabilities.
            correct: Labels in [0, 1]; NaN where missing.
        """
        is_known = ~np.isnan(correct)
        accuracy = divide(np.where(is_known, correct, 0).sum(axis=0), is_known.sum(axis=0) * 1.0)
        order = np.argsort(-np.nan_to_num(accuracy, nan=-1.0), kind="stable")
        leading = set(order[:BEST].tolist())
        pairs = list(_rank_pairs(correctness, correct))
        best = [first in leading and second in leading for first, second, _ in pairs]
        return cls(tuple(ranking for _, _, ranking in pairs), np.array(best, dtype=np.bool_))

    def scores(self, weights: Weights) -> dict[str, PerResample]:
        """The mean over all pairs, and over those of the most accurate targets."""
        if not self.rankings:
            nothing = np.full(len(weights), np.nan)
            return {"choice_auc": nothing, "choice_auc_best": nothing}
        each = compute_aucs(self.rankings, weights)
        return {"choice_auc": macro_mean(each), "choice_auc_best": macro_mean(each[:, self.best])}

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that scoring makes."""
        sizes = (len(ranking.right) + len(ranking.wrong) for ranking in self.rankings)
        return max(sizes, default=0)


def _rank_pairs(correctness: PerCell, correct: PerCell) -> Iterator[tuple[int, int, Ranking]]:
    chance = np.clip(correctness, _LEAST, 1 - _LEAST)
    odds = log_odds(chance)
    labels = binary(correct)
    for first, second in combinations(range(correct.shape[1]), 2):
        apart = labels[:, first] + labels[:, second] == 1
        if apart.any():
            label = np.where(apart, labels[:, first], np.nan)
            yield first, second, Ranking.of(odds[:, first] - odds[:, second], label)


PerTarget: TypeAlias = Float[NDArray[np.float64], "resample target"]
PerRegime: TypeAlias = Float[NDArray[np.float64], "resample regime"]
REGIMES = (Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.DISAGREEMENT)


def rankings(trial: Trial) -> tuple[Ranking, ...]:
    """Each target's probabilities, sorted once."""
    chance = trial.chance
    if chance is None:
        columns = zip(trial.correctness.T, trial.correct.T, strict=True)
        return tuple(Ranking.of(scores, labels) for scores, labels in columns)
    weighted = zip(trial.correctness.T, chance.corrected.T, chance.weight.T, strict=True)
    return tuple(Ranking.of(*column) for column in weighted)


def auc_by_target(ranking: tuple[Ranking, ...], weights: Weights) -> PerTarget:
    """ROC-AUC of each target's predicted probabilities; NaN where only one class is measured."""
    return compute_aucs(ranking, weights)


def brier_by_target(trial: Trial, weights: Weights) -> PerTarget:
    """Mean squared difference of probability and label (soft labels as they are)."""
    return known_mean(weights, _tabulate_squared_errors(trial))


@once_per_trial
def _tabulate_squared_errors(trial: Trial) -> KnownTable:
    return KnownTable.of(trial.squared_error(trial.correctness))


def macro_mean(values: PerTarget) -> PerResample:
    """The mean over the targets, or pairs of targets, where the metric is defined."""
    is_defined = ~np.isnan(values)
    count = is_defined.sum(axis=1).astype(np.float64)
    return divide(np.where(is_defined, values, 0).sum(axis=1), count)


def route_by_argmax(trial: Trial) -> Bool[NDArray[np.bool_], "query target"]:
    """The target that argmax routing (lam = 1) sends each query to, one-hot."""
    to: NDArray[np.bool_] = trial.most_probable[:, None] == np.arange(len(trial.targets))
    return to


def routing_by_target(trial: Trial, weights: Weights) -> dict[str, PerTarget]:
    """Routing delta: each target's accuracy and cost on the queries routed to it and on the others.

    Returns:
        `share_routed`; `accuracy_routed`, `accuracy_away` and their difference `accuracy_delta`;
        the same for mean observed `cost`, in US dollars; all at lam = 1.
    """
    to, tables = _tabulate_routing(trial)
    result = {
        "share_routed": divide(weights @ to.astype(np.float64), weights.sum(axis=1, keepdims=True))
    }
    for name, pair in tables.items():
        inside, outside = (known_mean(weights, table) for table in pair)
        result |= {
            f"{name}_routed": inside,
            f"{name}_away": outside,
            f"{name}_delta": inside - outside,
        }
    return result


@once_per_trial
def _tabulate_routing(
    trial: Trial,
) -> tuple[Bool[NDArray[np.bool_], "query target"], dict[str, tuple[KnownTable, KnownTable]]]:
    """Where each query is routed; labels and costs there and elsewhere."""
    to = route_by_argmax(trial)
    tables = {"accuracy": trial.correct, "cost": trial.observed_cost}
    known_tables = {name: KnownTable.of(table) for name, table in tables.items()}
    return to, {name: (table.only(to), table.only(~to)) for name, table in known_tables.items()}


def selection(trial: Trial, weights: Weights) -> dict[str, PerResample]:
    """How often argmax routing finds a right target where there is one.

    Returns:
        `solvable_share`: the share of queries that some target answers correctly;
        `solvable_accuracy`: of those where the chosen target was measured, the share that it
        answers correctly; `optimal_selection`: the share where it is also the cheapest right one.
    """
    names = "solvable_share", "solvable_accuracy", "optimal_selection"
    return dict(zip(names, known_mean(weights, _tabulate_selection(trial)).T, strict=True))


@once_per_trial
def _tabulate_selection(trial: Trial) -> KnownTable:
    labels = binary(trial.joint)
    label = trial.of_choice(labels, trial.most_probable)
    cost = trial.of_choice(trial.paid, trial.most_probable)
    solvable = np.fmax.reduce(labels, axis=1)
    right = np.where(solvable == 1, label, np.nan)
    priced = ~np.isnan(trial.best_cost) & (~np.isnan(cost) | (label == 0))
    is_cheapest = np.where(priced, (label == 1) & (cost <= trial.best_cost), np.nan)
    optimal = np.where(np.isnan(right), np.nan, is_cheapest)
    return KnownTable.of(np.stack([solvable, right, optimal], axis=1))


def by_regime(trial: Trial, weights: Weights) -> dict[str, PerRegime]:
    """The consensus regimes: their share of the queries, and accuracy in each at lam = 1.

    Returns:
        `share` of the compared queries; `accuracy` of argmax routing; `best_single`, the accuracy
        in the regime of the target that is best overall.
    """
    member, answer, labels = _tabulate_regimes(trial)
    sizes = weights @ member.astype(np.float64)
    best = np.nan_to_num(known_mean(weights, trial.single_tables[0]), nan=-1.0).argmax(axis=1)
    singles = [known_mean(weights * inside, labels) for inside in member.T]
    rows = np.arange(len(weights))
    return {
        "share": divide(sizes, sizes.sum(axis=1, keepdims=True)),
        "accuracy": known_mean(weights, answer),
        "best_single": np.stack([single[rows, best] for single in singles], axis=1),
    }


@once_per_trial
def _tabulate_regimes(
    trial: Trial,
) -> tuple[Bool[NDArray[np.bool_], "query regime"], KnownTable, KnownTable]:
    """The regime of each query; the chosen target's label in its column; all labels."""
    regime = regimes(trial.joint)
    member = np.stack([regime == str(name) for name in REGIMES], axis=1)
    answer = trial.of_choice(trial.correct, trial.most_probable)
    chosen = KnownTable.of(np.where(member, answer[:, None], np.nan))
    return member, chosen, KnownTable.of(trial.correct)
