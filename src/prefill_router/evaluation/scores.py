"""Every number of an evaluation, as one function of the queries' weights.

What the probabilities are worth (AUC, Brier, calibration) is measured on every label. Whatever
holds router, single targets, mixes and oracle against each other is measured on the queries where
the outcomes of all sides are known (`Trial.compared`): a missing label helps none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation import strong_weak
from prefill_router.evaluation.accuracy_cost_plane import (
    Anchors,
    Axis,
    frontier,
    oracle_distance,
    padded_area,
)
from prefill_router.evaluation.binning import Bins
from prefill_router.evaluation.bootstrap import PerResample, Weights, divide, known_mean, mean_over
from prefill_router.evaluation.curve import LambdaSweep, Points
from prefill_router.evaluation.external_metrics import (
    ComparedSystems,
    CurveReading,
    ExternalInputs,
    external_metrics,
)
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.metrics import (
    PairRankings,
    Ranking,
    auc_by_target,
    brier_by_target,
    by_regime,
    macro_mean,
    rankings,
    routing_by_target,
    selection,
)
from prefill_router.evaluation.operating_points import chosen_numbers
from prefill_router.evaluation.reliability import calibration_error, chance_error, decomposition
from prefill_router.evaluation.strong_weak import StrongWeak
from prefill_router.policy import OperatingPoints

Headline = Literal[
    "auc_mean",
    "choice_auc",
    "choice_auc_best",
    "brier_mean",
    "ece_mean",
    "ece_by_chance",
    "brier_reliability",
    "brier_resolution",
    "argmax_accuracy",
    "argmax_cost",
    "chosen_accuracy",
    "chosen_cost",
    "chosen_gain",
    "chosen_headroom",
    "savings",
    "savings_gain",
    "max_lam_accuracy",
    "max_lam_cost",
    "best_single_accuracy",
    "oracle_accuracy",
    "oracle_held_out",
    "accuracy_gain",
    "headroom_captured",
    "cost_savings",
    "p_auccc",
    "mdp_auccc",
    "model_only_p_auccc",
    "oracle_distance",
    "oracle_distance_reduction",
    "model_only_oracle_distance",
    "solvable_share",
    "solvable_accuracy",
    "optimal_selection",
    "random_accuracy",
    "random_cost",
    "mix_gain",
    "aiq",
    "apgr",
    "cpt_20",
    "cpt_50",
    "cpt_80",
    "gain_random",
    "gain_best",
    "gap_oracle",
    "perf_gain",
    "cost_save",
    "pareto_dist",
    "router_arena",
    "blueprint_area",
]
"""The names of the numbers that sum up a system."""
_SAME = 1e-12


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """All statistics, one row per resample.

    Attributes:
        headline: By name.
        targets: By name, for each target.
        regimes: By name, for each of `metrics.REGIMES`.
        anchors: What 0 and 1 mean in the normalised plane.
        points: The curve's retained operating points.
        singles: Each single target, as a point.
    """

    headline: dict[str, PerResample]
    targets: dict[str, Float[NDArray[np.float64], "resample target"]]
    regimes: dict[str, Float[NDArray[np.float64], "resample regime"]]
    anchors: Anchors
    points: Points
    singles: Points

    def tables(self) -> dict[tuple[str, str], Float[NDArray[np.float64], "resample _column"]]:
        """All numbers by group (`headline`, `targets`, `regimes`) and name."""
        headline = {("headline", name): row[:, None] for name, row in self.headline.items()}
        targets = {("targets", name): table for name, table in self.targets.items()}
        return headline | targets | {("regimes", n): table for n, table in self.regimes.items()}


@final
@dataclass(frozen=True, eq=False)
class Scorer:
    """A trial with everything sorted that needs sorting.

    Attributes:
        trial: What is scored.
        sweep: Its changes of winner.
        ranking: Each target's scores.
        pairs: The scores of each pair of targets.
        retained: The operating points that P-AUCCC, oracle distance and max-lam accuracy see.
        axis: How cost is normalised.
        bins: Its predictions, in bins of equal width.
        max_cost: Where AIQ ends, US dollars per query; None for the largest cost compared.
        pair: The changes between a strong and a weak target; None where there aren't two.
        chosen: The settings that were chosen on train rows; None if there are none.
    """

    trial: Trial
    sweep: LambdaSweep
    ranking: tuple[Ranking, ...]
    pairs: PairRankings
    retained: Int[NDArray[np.int64], " point"]
    axis: Axis
    bins: Bins
    max_cost: float | None = None
    pair: StrongWeak | None = None
    chosen: OperatingPoints | None = None

    @classmethod
    def of(
        cls,
        trial: Trial,
        *,
        step: float | None = None,
        axis: Axis = "inverse",
        max_cost: float | None = None,
        chosen: OperatingPoints | None = None,
    ) -> "Scorer":
        """Sort a trial.

        Args:
            trial: What is scored.
            step: A grid of lam with this step; every operating point if not given.
            axis: How cost is normalised.
            max_cost: Where AIQ ends, US dollars per query; the largest cost compared if not given.
            chosen: The settings that were chosen on train rows, if any were.

        Raises:
            ConfigError: The step isn't one over a whole number, or the cost isn't positive.
        """
        if max_cost is not None and not 0 < max_cost < np.inf:
            raise ConfigError(f"max_cost is {max_cost}; it must be US dollars per query, above 0")
        sweep = LambdaSweep.of(trial)
        return cls(
            trial,
            sweep,
            rankings(trial),
            PairRankings.of(trial.correctness, trial.correct),
            sweep.retained(step),
            axis,
            Bins.of(trial),
            max_cost,
            StrongWeak.of(trial),
            chosen,
        )

    def read(self, weights: Weights) -> CurveReading:
        """The retained operating points in each resample."""
        return CurveReading.of(self.sweep.points(weights, at=self.retained))

    def score(
        self,
        weights: Weights,
        *,
        reading: CurveReading | None = None,
        among: Sequence[CurveReading] = (),
    ) -> Scores:
        """All statistics in each resample.

        Args:
            weights: How often each query counts.
            reading: `read` of these weights, where it is known already.
            among: `read` of everything that the system is compared with, itself included; alone
                if not given.
        """
        trial = self.trial
        own = self.read(weights) if reading is None else reading
        same = weights * trial.compared
        targets = {
            "auc": auc_by_target(self.ranking, weights),
            "brier": brier_by_target(trial, weights),
            "accuracy": known_mean(same, trial.single_label),
            "mean_cost": known_mean(same, trial.single_cost),
            **routing_by_target(trial, same),
        }
        singles = single_points(targets["accuracy"], targets["mean_cost"])
        anchors = Anchors.of(singles.cost, singles.accuracy, mean_over(same, trial.best_label))
        targets["normalised_cost"] = anchors.cheapness(singles.cost, axis=self.axis)
        targets["normalised_accuracy"] = anchors.height(singles.accuracy)
        end = _argmax(trial, same)
        compared = ComparedSystems.of(singles, among or (own,), max_cost=self.max_cost)
        headline: dict[str, PerResample] = {
            "auc_mean": macro_mean(targets["auc"]),
            **self.pairs.scores(weights),
            "brier_mean": macro_mean(targets["brier"]),
            **_reliability(self.bins, weights),
            **end,
            **chosen_numbers(trial, self.chosen, same, anchors.ceiling),
            "oracle_held_out": mean_over(same, trial.held_out_label),
            **_best_point(own.points, targets["accuracy"], anchors),
            **plane(own.rising, singles, anchors, axis=self.axis),
            **selection(trial, same),
            **external_metrics(ExternalInputs(own, singles, anchors, compared, *end.values())),
            **self._strong_weak(same),
        }
        ordered = {name: headline[name] for name in get_args(Headline)}
        return Scores(ordered, targets, by_regime(trial, same), anchors, own.points, singles)

    def _strong_weak(self, weights: Weights) -> dict[str, PerResample]:
        if self.pair is None:
            return {name: np.full(len(weights), np.nan) for name in strong_weak.NAMES}
        return self.pair.scores(weights)

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that scoring makes."""
        return len(self.trial) + len(self.sweep.query) + self.bins.width


def _reliability(bins: Bins, weights: Weights) -> dict[str, PerResample]:
    """Means over the targets; the last column is of all of them together."""
    sums = bins.sums(weights)
    parts = decomposition(sums)
    return {
        "ece_mean": macro_mean(calibration_error(sums)[:, :-1]),
        "ece_by_chance": macro_mean(chance_error(sums)[:, :-1]),
        "brier_reliability": macro_mean(parts["reliability"][:, :-1]),
        "brier_resolution": macro_mean(parts["resolution"][:, :-1]),
    }


def plane(
    points: Points,
    singles: Points,
    anchors: Anchors,
    *,
    axis: Axis,
) -> dict[str, PerResample]:
    """Areas and oracle distances in the normalised plane, against the single targets' frontier.

    Args:
        points: The router's operating points.
        singles: Each single target, as a point.
        anchors: What 0 and 1 mean.
        axis: How cost is normalised.
    """
    x, y = anchors.cheapness(points.cost, axis=axis), anchors.height(points.accuracy)
    on = frontier(singles.cost, singles.accuracy)
    single_x = np.where(on, anchors.cheapness(singles.cost, axis=axis), np.nan)
    single_y = anchors.height(singles.accuracy)
    area, single_area = padded_area(x, y), padded_area(single_x, single_y)
    distance = oracle_distance(x, y, counted=points.distinct)
    single_distance = oracle_distance(single_x, single_y, counted=on)
    return {
        "p_auccc": area,
        "mdp_auccc": area - single_area,
        "model_only_p_auccc": single_area,
        "oracle_distance": distance,
        "oracle_distance_reduction": single_distance - distance,
        "model_only_oracle_distance": single_distance,
    }


def _argmax(trial: Trial, weights: Weights) -> dict[str, PerResample]:
    choice = trial.most_probable
    return {
        "argmax_accuracy": mean_over(weights, trial.of_choice(trial.correct, choice)),
        "argmax_cost": mean_over(weights, trial.of_choice(trial.paid, choice)),
    }


def single_points(
    accuracy: Float[NDArray[np.float64], "resample target"],
    cost: Float[NDArray[np.float64], "resample target"],
) -> Points:
    """Single targets as operating points."""
    return Points(accuracy, cost, np.ones(accuracy.shape, dtype=np.bool_))


def best_point(points: Points) -> tuple[PerResample, PerResample]:
    """The highest accuracy along the path, and the lowest cost at which it is reached."""
    top = np.fmax.reduce(points.accuracy, axis=1)
    reached = points.accuracy >= (top - _SAME)[:, None]
    return top, np.fmin.reduce(np.where(reached, points.cost, np.nan), axis=1)


def _best_point(
    points: Points, accuracy: Float[NDArray[np.float64], "resample target"], anchors: Anchors
) -> dict[str, PerResample]:
    top, cost = best_point(points)
    single = np.fmax.reduce(accuracy, axis=1)
    room = anchors.ceiling - single
    return {
        "max_lam_accuracy": top,
        "max_lam_cost": cost,
        "best_single_accuracy": single,
        "oracle_accuracy": anchors.ceiling,
        "accuracy_gain": top - single,
        "headroom_captured": divide(top - single, np.where(room > _SAME, room, 0)),
        "cost_savings": 1 - divide(cost, anchors.cost_high),
    }
