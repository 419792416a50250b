"""Every number of an evaluation, by name, as one function of the queries' weights.

The quality of the probabilities (AUC, Brier, calibration) is measured on every label. Comparisons
of router, single targets, mixes and oracle use the queries where the outcomes of all sides are
known (`Trial.compared`): a missing label helps none of them.

The metrics are listed by name, each with what it means, how it is computed, and which variant was
used. A metric is one function of `Scores`, registered where it is written, in a module that
`MODULES` names:

    @metric("Mean AUC", "number", "higher")
    def _auc_mean(scores: Scores) -> PerResample:
        \"\"\"How often a question that a target answers correctly is given ...\"\"\"
        return macro_mean(scores.targets["auc"])

The function's name is the metric's name. Its docstring is the description shown to readers; after
`Reading:` it says which variant is used where several definitions exist. Tables, pages,
`metrics.json` and the documentation take these texts from here. The unit says how its numbers and
intervals are printed: as percentages, points, or dollars per thousand queries.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, TypeAlias, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation import metrics
from prefill_router.evaluation.bootstrap import (
    SAME,
    Estimate,
    PerPoint,
    PerResample,
    Weights,
    known_mean,
    mean_over,
)
from prefill_router.evaluation.curve import (
    CPT,
    ComparedSystems,
    CurveReading,
    LambdaSweep,
    Points,
    StrongWeak,
)
from prefill_router.evaluation.fixed_mix import Anchors, Axis, frontier
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.reliability import Bins, BinSums, PerColumn, decomposition
from prefill_router.money import dollars
from prefill_router.policy import OperatingPoints
from prefill_router.short_repr import short_repr

Unit = Literal["share", "points", "usd", "number"]
Better = Literal["higher", "lower", "neither"]


NOTHING = "\u2013"
UNKNOWN = "?"
PER = 1000
"""Costs are shown per this many queries; files hold the cost per query."""


def digits(value: float, form: str) -> str:
    """A number in a format like `.4f`; a dash where it isn't defined."""
    return format(value, form) if math.isfinite(value) else NOTHING


def worded(value: float, unit: Unit, *, signed: bool = False) -> str:
    """A number with its unit; where it isn't defined, a dash, or a question mark for a cost."""
    if not math.isfinite(value):
        return UNKNOWN if unit == "usd" else NOTHING
    sign = "+" if signed or unit == "points" else ""
    match unit:
        case "share":
            return f"{100 * value:{sign}.1f} %"
        case "points":
            return f"{100 * value:{sign}.1f} pp"
        case "usd":
            return dollars(PER * value)
        case "number":
            return f"{value:{sign}.3f}"


def interval(estimate: Estimate, unit: Unit) -> str:
    """The 95 % interval of a number with its unit given once; empty where there is none."""
    if not (math.isfinite(estimate.lower) and math.isfinite(estimate.upper)):
        return ""
    lower, upper = (worded(end, unit) for end in (estimate.lower, estimate.upper))
    return f"{lower.removesuffix(' %').removesuffix(' pp')} to {upper.removeprefix('$')}"


MODULES = (
    "routing_metrics",
    "external_metrics",
)
"""The modules with metrics, in the order of the tables."""
Compute: TypeAlias = Callable[["Scores"], NDArray[np.float64]]
NOTHING_MEASURED = "no label or cost that it is computed from was measured"
NO_COST = "no cost is known, or every target is free"
NEEDS_ALL_LABELS = frozenset(
    (
        *("choice_auc", "choice_auc_best", "ece_mean", "ece_by_chance"),
        *("oracle_accuracy", "oracle_held_out", "headroom_captured", "chosen_headroom"),
        *("p_auccc", "mdp_auccc", "model_only_p_auccc", "normalised_accuracy", "pareto_dist"),
        *("oracle_distance", "oracle_distance_reduction", "model_only_oracle_distance"),
        *("solvable_share", "solvable_accuracy", "optimal_selection", "gap_oracle"),
    )
)
"""Metrics that aren't linear in the labels, so that estimates of labels don't give them."""
NOT_KNOWN = (
    "it depends on what several labels of one query say together, or on exact labels, which isn't "
    "known where chance selected the labels or they err; score every target on some queries"
)


@final
@dataclass(frozen=True)
class MetricEntry:
    """One metric.

    Attributes:
        label: Its name in tables, with its source in brackets where the name doesn't say that.
        unit: `share` of 1, a difference of shares (`points`), US dollars, or a plain number.
        better: Which direction is better.
        meaning: A description for somebody who hasn't read the paper.
        compute: Computes it in each resample; for targets or regimes, one column each.
        readings: The variant used where there are several, by subject; `{max_cost}` stands for the
            largest cost of AIQ.
        undefined: The reason where it isn't defined, as a text or a function of the scores.
        compares: Whether it compares systems, so that it uses only queries on which all outcomes
            are known.
    """

    label: str
    unit: Unit
    better: Better
    meaning: str
    compute: Compute
    readings: Mapping[str, str]
    undefined: "str | Callable[[Scores], str]"
    compares: bool


@final
@dataclass(eq=False)
class MetricTable(Mapping[str, MetricEntry]):
    """The metrics of a system, of its targets, or of the consensus regimes, by name.

    One line over a function registers it, and its docstring is what reports say of it. Without that
    each of 65 metrics would need an entry of five lines more.
    """

    _registered: dict[str, dict[str, MetricEntry]] = field(default_factory=dict)

    def metric(
        self,
        label: str,
        unit: Unit,
        better: Better,
        *,
        name: str = "",
        quoted: str = "",
        subject: str = "",
        undefined: "str | Callable[[Scores], str]" = NOTHING_MEASURED,
        compares: bool = True,
    ) -> Callable[[Compute], Compute]:
        """Register the decorated function as a metric; see `MetricEntry`.

        Args:
            label: Its name in tables.
            unit: Its unit.
            better: Which direction is better.
            name: The metric's name; the function's if not given.
            quoted: Its source, if the label alone doesn't say.
            subject: The key of its reading; the metric's name if not given.
            undefined: The reason where it isn't defined.
            compares: Whether it compares systems.

        Raises:
            ValueError: A metric of that name exists.
        """

        def register(compute: Compute) -> Compute:
            own = name or compute.__name__.removeprefix("_")
            description = " ".join((compute.__doc__ or "").split())
            meaning, _, reading = description.partition(" Reading: ")
            if any(own in entries for entries in self._registered.values()):
                raise ValueError(f"there are two metrics {own}; each needs a name of its own")
            self._registered.setdefault(compute.__module__, {})[own] = MetricEntry(
                f"{label} ({quoted})" if quoted else label,
                unit,
                better,
                meaning,
                compute,
                {subject or own: reading} if reading else {},
                undefined,
                compares,
            )
            return compute

        return register

    @cached_property
    def _entries(self) -> dict[str, MetricEntry]:
        homes = [import_module(f"prefill_router.evaluation.{home}").__name__ for home in MODULES]
        tables = (self._registered.get(home, {}) for home in homes)
        return {name: entry for table in tables for name, entry in table.items()}

    def __getitem__(self, name: str) -> MetricEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


HEADLINE, TARGET, REGIME = MetricTable(), MetricTable(), MetricTable()
metric, target_metric, regime_metric = HEADLINE.metric, TARGET.metric, REGIME.metric


def definitions(
    *,
    step: float | None,
    axis: Axis,
    max_cost: float | None = None,
    policy: Mapping[str, Any] | None = None,
    check: str = "",
) -> dict[str, str]:
    """The variants used where a metric has several, by subject.

    Args:
        step: Step of the grid of lam that the curve was read on; None for the exact path.
        axis: How cost was normalised.
        max_cost: The largest cost of AIQ, US dollars per query, if it was given.
        policy: The policy's kind and options; the paper's if not given.
        check: The quality check of a cascade, in words.
    """
    points = (
        "every operating point of the exact lambda path"
        if step is None
        else f"the distinct operating points on a grid of lam with the step {step:g}"
    )
    cost = {
        "inverse": "(1/C - 1/C_high) / (1/C_low - 1/C_high)",
        "linear": "(C_high - C) / (C_high - C_low)",
    }[axis]
    largest = "the largest cost of any setting of the compared systems (of its own if alone)"
    ends = largest if max_cost is None else f"{max_cost:g} US dollars per query"
    options = {"kind": "lambda"} if policy is None else policy
    words = ", ".join(f"{name}: {value}" for name, value in options.items())
    return {
        "policy": words + (f"; quality check: {check}" if check else ""),
        "points": points,
        "cost_axis": f"{axis}: {cost}, C the mean observed cost in US dollars",
        "cost_anchors": "lowest and highest mean observed cost of a single target, these queries",
        "accuracy_anchors": "floor: lowest single-target accuracy; ceiling: the oracle's",
        "compared": "router, single targets, mixes and oracle are compared on the queries where "
        "the labels of all targets are known, and the costs where a target has any; targets "
        "measured on less than a tenth of the labelled queries are left out",
        **{
            subject: text.replace("{max_cost}", ends)
            for table in (HEADLINE, TARGET, REGIME)
            for entry in table.values()
            for subject, text in entry.readings.items()
        },
        "quartiles": "Q1 to Q4 are four equal parts of the range of mean observed cost along the "
        "exact curve",
        "intervals": "95 % percentile bootstrap over queries, all targets of a query together; "
        "anchors, best single target and max-lam point found anew in each resample; the interval "
        "of the calibration error reaches lower by what chance may have added",
    }


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
        cache, entry = self.scores.cache, self.table[name]
        if entry.compute not in cache:
            values = entry.compute(self.scores)
            hidden = self.scores.trial.chance is not None and name in NEEDS_ALL_LABELS
            cache[entry.compute] = np.full_like(values, np.nan) if hidden else values
        value: NDArray[np.float64] = cache[entry.compute]
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
        cache: Metrics computed so far.
    """

    scorer: Scorer
    weights: Weights
    reading: CurveReading | None = None
    systems: tuple[CurveReading, ...] = ()
    cache: dict[object, NDArray[np.float64]] = field(default_factory=dict)

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
        if lam not in self.cache:
            choice = self.trial.path.at(lam)
            tables = (self.trial.correct, self.trial.paid)
            self.cache[lam] = np.stack(
                [mean_over(self.same, self.trial.of_choice(table, choice)) for table in tables]
            )
        accuracy, cost = self.cache[lam]
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
    """Each single target as an operating point, in the order of the targets; all are distinct."""
    return Points(accuracy, cost, np.ones(accuracy.shape, dtype=np.bool_))


def best_point(points: Points) -> tuple[PerResample, PerResample]:
    """The highest accuracy along the path, and the lowest cost at which it is reached."""
    top = np.fmax.reduce(points.accuracy, axis=1)
    reached = points.accuracy >= (top - SAME)[:, None]
    return top, np.fmin.reduce(np.where(reached, points.cost, np.nan), axis=1)
