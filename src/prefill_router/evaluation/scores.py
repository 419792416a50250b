"""Every number of an evaluation, as one function of the queries' weights.

The quality of the probabilities (AUC, Brier, calibration) is measured on every label. Comparisons
of router, single targets, mixes and oracle use the queries where the outcomes of all sides are
known (`Trial.compared`): a missing label helps none of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation import metrics
from prefill_router.evaluation.accuracy_cost_plane import Anchors, Axis, PerPoint, frontier
from prefill_router.evaluation.binning import Bins, BinSums, PerColumn
from prefill_router.evaluation.bootstrap import SAME, PerResample, Weights, known_mean, mean_over
from prefill_router.evaluation.catalogue import (
    HEADLINE,
    NEEDS_ALL_LABELS,
    NOT_KNOWN,
    REGIME,
    TARGET,
    MetricTable,
)
from prefill_router.evaluation.curve import ComparedSystems, CurveReading, LambdaSweep, Points
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.reliability import decomposition
from prefill_router.evaluation.strong_weak import CPT, StrongWeak
from prefill_router.policy import OperatingPoints
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Scorer:
    """A trial with all sorted data that the metrics need, each computed on first use.

    Attributes:
        trial: The judged system.
        step: Step of a grid of lam; None for every operating point of the exact path.
        axis: How cost is normalised.
        max_cost: Largest cost of AIQ, US dollars per query; None for the largest compared cost.
        chosen: The settings that were chosen on train rows; None if there are none.

    Raises:
        ConfigError: `max_cost` isn't positive.
    """

    trial: Trial
    step: float | None = None
    axis: Axis = "inverse"
    max_cost: float | None = None
    chosen: OperatingPoints | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and not 0 < self.max_cost < np.inf:
            raise ConfigError(
                f"max_cost is {self.max_cost}; it must be US dollars per query, above 0"
            )

    @cached_property
    def sweep(self) -> LambdaSweep:
        """The changes of the chosen target along lam."""
        return LambdaSweep.of(self.trial)

    @cached_property
    def retained(self) -> Int[NDArray[np.int64], " point"]:
        """Indices of the operating points that P-AUCCC, oracle distance and max-lam accuracy use.

        Raises:
            ConfigError: The step isn't one over a whole number.
        """
        return self.sweep.retained(self.step)

    @cached_property
    def ranking(self) -> tuple[metrics.Ranking, ...]:
        """Each target's probabilities, sorted."""
        return metrics.rankings(self.trial)

    @cached_property
    def pairs(self) -> metrics.PairRankings:
        """The log-odds differences of each pair of targets, sorted."""
        return metrics.PairRankings.of(self.trial.correctness, self.trial.joint)

    @cached_property
    def bins(self) -> Bins:
        """The predictions in bins of equal width."""
        return Bins.of(self.trial)

    @cached_property
    def pair(self) -> StrongWeak | None:
        """The changes between a strong and a weak target; None where there aren't two."""
        return StrongWeak.of(self.trial)

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that scoring makes."""
        return len(self.trial) + len(self.sweep.sums.query) + self.bins.width

    def read(self, weights: Weights) -> CurveReading:
        """The retained operating points in each resample."""
        return CurveReading.of(self.sweep.points(weights, at=self.retained))

    def score(
        self,
        weights: Weights,
        *,
        reading: CurveReading | None = None,
        among: Sequence[CurveReading] = (),
    ) -> "Scores":
        """All statistics in each resample, each computed on first use.

        Args:
            weights: How often each query counts.
            reading: The result of `read` for these weights, where it is known already.
            among: The results of `read` for all compared systems, including this one; only this one
                if not given.
        """
        return Scores(self, weights, reading, tuple(among))


@final
@dataclass(frozen=True, eq=False)
class MetricValues(Mapping[str, NDArray[np.float64]]):
    """The metrics of one table by name, each computed on first use.

    Attributes:
        table: The metrics.
        scores: The statistics that they are computed from.
    """

    table: MetricTable
    scores: "Scores"

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        known, entry = self.scores.known, self.table[name]
        if entry.compute not in known:
            found = entry.compute(self.scores)
            hidden = self.scores.trial.chance is not None and name in NEEDS_ALL_LABELS
            known[entry.compute] = np.full_like(found, np.nan) if hidden else found
        value: NDArray[np.float64] = known[entry.compute]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """A system's statistics, one row per resample, and the data that they are computed from.

    Attributes:
        scorer: The system.
        weights: How often each query counts.
        reading: Its operating points, where they are known already.
        systems: The operating points of all compared systems; empty for this system alone.
        known: Metrics computed so far.
    """

    scorer: Scorer
    weights: Weights
    reading: CurveReading | None = None
    systems: tuple[CurveReading, ...] = ()
    known: dict[object, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def headline(self) -> MetricValues:
        """The metrics of the whole system by name."""
        return MetricValues(HEADLINE, self)

    @property
    def targets(self) -> MetricValues:
        """Metrics by name, with a column for each target."""
        return MetricValues(TARGET, self)

    @property
    def regimes(self) -> MetricValues:
        """Metrics by name, with a column for each of `metrics.REGIMES`."""
        return MetricValues(REGIME, self)

    def tables(self) -> dict[tuple[str, str, str], PerResample]:
        """All numbers by group (`headline`, `targets`, `regimes`), name, and target or regime."""
        groups = (
            ("headline", self.headline, ("",)),
            ("targets", self.targets, self.trial.targets),
            ("regimes", self.regimes, tuple(map(str, metrics.REGIMES))),
        )
        return {
            (group, name, column): table.reshape(len(table), -1)[:, k]
            for group, values, columns in groups
            for name, table in values.items()
            for k, column in enumerate(columns)
        }

    def why_undefined(self, key: tuple[str, str, str]) -> str:
        """The reason why a number of `tables` isn't defined, where it isn't."""
        group, name, _ = key
        trial = self.trial
        if trial.overlap is not None and trial.overlap.refusal:
            return trial.overlap.refusal
        if trial.chance is not None and (name in NEEDS_ALL_LABELS or group == "regimes"):
            return NOT_KNOWN
        entry = {"headline": HEADLINE, "targets": TARGET, "regimes": REGIME}[group][name]
        if group == "headline" and entry.compares and np.isnan(self.singles.accuracy).all():
            return "no query has the outcomes of all targets, so nothing can be compared"
        return entry.undefined if isinstance(entry.undefined, str) else entry.undefined(self)

    @property
    def trial(self) -> Trial:
        """The judged system."""
        return self.scorer.trial

    @cached_property
    def same(self) -> Weights:
        """The weights restricted to the queries on which the outcomes of all sides are known."""
        return self.weights * self.trial.compared

    @cached_property
    def singles(self) -> Points:
        """The single targets, as points."""
        accuracy, cost = (known_mean(self.same, table) for table in self.trial.single_tables)
        return single_points(accuracy, cost)

    @cached_property
    def anchors(self) -> Anchors:
        """The anchors of the normalised plane."""
        oracle = mean_over(self.same, self.trial.best_label)
        return Anchors.of(self.singles.cost, self.singles.accuracy, oracle)

    @cached_property
    def own(self) -> CurveReading:
        """The retained operating points."""
        return self.scorer.read(self.weights) if self.reading is None else self.reading

    @property
    def points(self) -> Points:
        """The retained operating points, by rising lam."""
        return self.own.points

    @cached_property
    def among(self) -> ComparedSystems:
        """The points of all compared systems."""
        systems = self.systems or (self.own,)
        return ComparedSystems.of(self.singles, systems, max_cost=self.scorer.max_cost)

    @cached_property
    def best(self) -> tuple[PerResample, PerResample]:
        """The highest accuracy along the path, and the lowest cost at which it is reached."""
        return best_point(self.own.points)

    @cached_property
    def curve(self) -> tuple[PerPoint, PerPoint]:
        """The points by rising cost, in the normalised plane."""
        points = self.own.rising
        return self.anchors.place(points.cost, points.accuracy, axis=self.scorer.axis)

    @cached_property
    def frontier(self) -> Bool[NDArray[np.bool_], "resample target"]:
        """Which single targets are on their Pareto frontier."""
        return frontier(self.singles.cost, self.singles.accuracy)

    @cached_property
    def frontier_points(self) -> tuple[PerPoint, PerPoint]:
        """The targets of the frontier in the normalised plane; NaN for the others."""
        x, y = self.anchors.place(self.singles.cost, self.singles.accuracy, axis=self.scorer.axis)
        return np.where(self.frontier, x, np.nan), y

    def at(self, lam: float | None) -> tuple[PerResample, PerResample]:
        """Accuracy and mean cost (US dollars per query) at a lam; NaN for None."""
        if lam is None:
            return (np.full(len(self.weights), np.nan),) * 2
        if lam not in self.known:
            choice = self.trial.path.at(lam)
            tables = (self.trial.correct, self.trial.paid)
            self.known[lam] = np.stack(
                [mean_over(self.same, self.trial.of_choice(table, choice)) for table in tables]
            )
        accuracy, cost = self.known[lam]
        return accuracy, cost

    @property
    def chosen(self) -> OperatingPoints | None:
        """The settings that were chosen on train rows; None if their target isn't judged."""
        chosen = self.scorer.chosen
        return chosen if chosen is not None and chosen.best in self.trial.targets else None

    @cached_property
    def chosen_single(self) -> tuple[PerResample, PerResample]:
        """Accuracy and mean cost of the best single target of the train rows; NaN without one."""
        if self.chosen is None:
            return self.at(None)
        column = self.trial.targets.index(self.chosen.best)
        tables = self.trial.single_label, self.trial.single_cost
        accuracy, cost = (mean_over(self.same, table[:, column]) for table in tables)
        return accuracy, cost

    @cached_property
    def choice(self) -> dict[str, PerResample]:
        """Choice AUC, over all pairs of targets and over those of the most accurate."""
        return self.scorer.pairs.scores(self.weights)

    @cached_property
    def sums(self) -> BinSums:
        """The statistics of the bins under the weights."""
        return self.scorer.bins.sums(self.weights)

    @cached_property
    def brier_parts(self) -> dict[str, PerColumn]:
        """The decomposed Brier score; the last column is for all targets together."""
        return decomposition(self.sums)

    @cached_property
    def routing(self) -> dict[str, metrics.PerTarget]:
        """Accuracy and cost of each target on the queries routed to it and on the others."""
        return metrics.routing_by_target(self.trial, self.same)

    @cached_property
    def by_regime(self) -> dict[str, metrics.PerRegime]:
        """Share and accuracy of the consensus regimes at lam = 1."""
        return metrics.by_regime(self.trial, self.same)

    @cached_property
    def selection(self) -> dict[str, PerResample]:
        """How often a right target is found at lam = 1."""
        return metrics.selection(self.trial, self.same)

    @cached_property
    def strong_weak(self) -> dict[str, PerResample]:
        """APGR and CPT; NaN where there aren't two targets."""
        if self.scorer.pair is None:
            return dict.fromkeys(("apgr", *CPT), np.full(len(self.weights), np.nan))
        return self.scorer.pair.scores(self.same)


def single_points(
    accuracy: Float[NDArray[np.float64], "resample target"],
    cost: Float[NDArray[np.float64], "resample target"],
) -> Points:
    """Single targets as operating points."""
    return Points(accuracy, cost, np.ones(accuracy.shape, dtype=np.bool_))


def best_point(points: Points) -> tuple[PerResample, PerResample]:
    """The highest accuracy along the path, and the lowest cost at which it is reached."""
    top = np.fmax.reduce(points.accuracy, axis=1)
    reached = points.accuracy >= (top - SAME)[:, None]
    return top, np.fmin.reduce(np.where(reached, points.cost, np.nan), axis=1)
