"""Evaluate one system's predictions against labels and observed costs, at several settings.

These settings are the operating points of the exact curve, those of the paper's lambda table, and
the points to report, which were chosen on train rows (`operating_points`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import LabelMeaning, Regime, RoutingDataset, regimes
from prefill_router.evaluation.bootstrap import (
    SAME,
    Band,
    Bootstrap,
    Estimate,
    Estimates,
    Weights,
    bootstrap_note,
    count_groups,
    estimates,
    estimates_to_dict,
    heights,
    ones,
    places,
    plain,
    warn_of_few,
)
from prefill_router.evaluation.curve import STEPS
from prefill_router.evaluation.fixed_mix import (
    Axis,
    MixPoint,
    mix_of,
    oracle_distance,
    padded_area,
)
from prefill_router.evaluation.judged_predictions import Coverage, Trial
from prefill_router.evaluation.metrics import REGIMES
from prefill_router.evaluation.off_policy import PolicyValues
from prefill_router.evaluation.quality_checks import QualityCheck
from prefill_router.evaluation.references import References
from prefill_router.evaluation.reliability import with_chance
from prefill_router.evaluation.scores import HEADLINE, Scorer, Scores, definitions
from prefill_router.evaluation.verdict import JudgedPart, PricePoint, Verdict, judge, trace_price
from prefill_router.policy import OperatingPoints, Policy, Predictions
from prefill_router.progress import Progress
from prefill_router.short_repr import html_table, short_repr

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
        _share_of_costliest(scorer.trial, scores.singles.cost[0], lam),
    )


def _share_of_costliest(
    trial: Trial, cost: Float[NDArray[np.float64], " target"], lam: PerPoint
) -> PerPoint:
    """The share of the queries that go to the most expensive target just above each lam."""
    if np.isnan(cost).all():
        return np.full(len(lam), np.nan)
    path, costliest = trial.path, int(np.nanargmax(cost))
    to = (path.target == costliest).astype(np.float64)
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
    return tuple(_measure_step(scorer, scores, curve, step) for step in (None, *STEPS))


def _measure_step(scorer: Scorer, scores: Scores, curve: Curve, step: float | None) -> Step:
    at = scorer.sweep.retained(step)
    points = scorer.sweep.points(ones(len(scorer.trial)), at=at)
    axes: tuple[Axis, Axis] = ("inverse", "linear")
    planes = [scores.anchors.place(points.cost, points.accuracy, axis=axis) for axis in axes]
    return Step(
        step,
        len(at),
        *_count_quarters(curve.mean_cost[at], curve.mean_cost),
        *(float(padded_area(x, y)[0]) for x, y in planes),
        *(float(oracle_distance(x, y, counted=points.distinct)[0]) for x, y in planes),
    )


def _count_quarters(
    cost: Float[NDArray[np.float64], " retained"], whole: PerPoint
) -> tuple[int, int, int, int]:
    low, high = np.fmin.reduce(whole), np.fmax.reduce(whole)
    edges = np.linspace(low, high, 5)[1:4]
    known_costs = cost[~np.isnan(cost)]
    counts = np.bincount(np.searchsorted(edges, known_costs, side="left"), minlength=4)
    return int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3])


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Every number of one system, each with its interval.

    Attributes:
        verdict: Whether the router is worth using; None where its references weren't given.
        chosen: The settings that were chosen on train rows; None if there are none.
        queries: How many queries were evaluated.
        labels: How many labels they have.
        coverage: Which of the queries are compared.
        targets: The targets' names.
        headline: The metrics of the system by name, see `scores.HEADLINE`.
        per_target: Metrics by target, then by name, see `scores.TARGET`.
        regimes: Metrics by consensus regime, then by name, see `scores.REGIME`.
        regime_sizes: How many of the compared queries each regime has; the others are `unmeasured`.
        anchors: `cost_low`, `cost_high` (US dollars), `floor`, `ceiling` of the normalised plane.
        curve: Every exact operating point.
        max_lam: The interval of lam on which the highest accuracy is reached at the lowest cost.
        steps: The paper's lambda table.
        frontier: The targets on the Pareto frontier of single targets, in the order of the pool.
        raw_band: Bootstrap band of accuracy over mean cost.
        normalised_band: Bootstrap band of normalised accuracy over normalised cost.
        mix: The targets whose fixed mixes are the best at each cost, by rising cost.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
        definitions: The variants of the metrics that were used, by subject.
        off_policy: The router's and the targets' values from labels that chance selected; else
            None.
        meaning: What the labels mean; an accuracy is a mean label.
        price_alone: The router's estimated costs with the targets' accuracies on train rows in the
            place of probabilities, by rising cost. Empty without references or costs.
        conversations: How many conversations the resamples draw from, a query by itself being one;
            None where they draw from queries.
    """

    verdict: Verdict | None
    chosen: OperatingPoints | None
    queries: int
    labels: int
    coverage: Coverage
    targets: tuple[str, ...]
    headline: Estimates
    per_target: Mapping[str, Estimates]
    regimes: Mapping[str, Estimates]
    regime_sizes: Mapping[str, int]
    anchors: Mapping[str, float]
    curve: Curve
    max_lam: tuple[float, float]
    steps: tuple[Step, ...]
    frontier: tuple[str, ...]
    raw_band: Band
    normalised_band: Band
    mix: tuple[MixPoint, ...]
    resamples: int
    seed: int
    definitions: Mapping[str, str]
    off_policy: PolicyValues | None = None
    meaning: LabelMeaning = LabelMeaning()  # noqa: RUF009
    price_alone: tuple[PricePoint, ...] = ()
    conversations: int | None = None

    @property
    def caution(self) -> str:
        """Which queries are compared, what labels mean, and if conversations are few."""
        few = warn_of_few(self.conversations)
        return "; ".join(filter(None, (self.coverage.note.rstrip("."), self.meaning.note, few)))

    def with_parts(
        self,
        parts: Sequence[JudgedPart],
        *,
        lam: float,
        resamples: int = 1000,
        choice_auc: Estimate | None = None,
    ) -> "Evaluation":
        """The same with the verdict on these parts; the arguments are those of `judge`."""
        verdict = judge(parts, lam=lam, resamples=resamples, choice_auc=choice_auc)
        return replace(self, verdict=verdict, price_alone=trace_price(parts))

    def _repr_html_(self) -> str:
        judgement = "" if self.verdict is None else f", {self.verdict.word}: {self.verdict.because}"
        rows = [
            (name, estimate.value, estimate.lower, estimate.upper, HEADLINE[name].meaning)
            for name, estimate in self.headline.items()
        ]
        caption = f"{self.queries:,} queries{judgement}"
        return html_table(caption, ("", "value", "lower", "upper", "what it means"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            **estimates_to_dict(self.headline),
            "per_target": {n: estimates_to_dict(values) for n, values in self.per_target.items()},
            "regimes": {
                name: {"queries": count, **estimates_to_dict(self.regimes.get(name, {}))}
                for name, count in self.regime_sizes.items()
            },
            "operating_points": {
                "count": len(self.curve),
                "max_lam": {"lam_from": self.max_lam[0], "lam_to": self.max_lam[1]},
                "chosen": None if self.chosen is None else self.chosen.to_dict(),
                "by_step": [step.to_dict() for step in self.steps],
            },
            "frontier": list(self.frontier),
            "mix": [point.to_dict() for point in self.mix],
            "price_alone": [point.to_dict() for point in self.price_alone],
            "anchors": {name: plain(value) for name, value in self.anchors.items()},
            "queries": self.queries,
            "labels": self.labels,
            "coverage": self.coverage.to_dict(),
            "caution": self.caution,
            "labels_mean": self.meaning.to_dict(),
            "targets": list(self.targets),
            "bootstrap": bootstrap_note(self.resamples, self.seed, self.conversations),
            "definitions": dict(self.definitions),
            **self._describe_off_policy(),
        }

    def _describe_off_policy(self) -> dict[str, Any]:
        if self.off_policy is None:
            return {}
        lams = {0.0, 1.0} if self.chosen is None else {0.0, self.chosen.setting, 1.0}
        return {"off_policy": self.off_policy.to_dict(sorted(lams))}


Tables: TypeAlias = Mapping[tuple[str, str, str], NDArray[np.float64]]


def evaluate(
    predictions: Predictions,
    dataset: RoutingDataset,
    *,
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    policy: Policy | None = None,
    check: QualityCheck | None = None,
    max_cost: float | None = None,
    chosen: OperatingPoints | None = None,
    references: References | None = None,
    fee: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Judge predictions by labels and observed costs, joined by query id and target.

    Args:
        predictions: The judged predictions; all their queries are evaluated.
        dataset: Has at least these queries and targets; missing labels are left out.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Random seed of the resampling.
        step: Step of a grid of lam on which to read the curve, as in the paper; else it is exact.
        axis: How cost is normalised.
        policy: How targets are chosen from the predictions; the paper's if not given.
        check: Scores the answers, for a cascade; the probabilities replace it if not given.
        max_cost: Largest cost of AIQ, US dollars per query; that of the curve if not given.
        chosen: The settings chosen on train rows; without them the numbers there aren't defined.
        references: What the verdict compares it with, learned from train rows; no verdict without.
        fee: What the decision itself costs by query id, US dollars: it is added to what is paid.
        progress: Reports the progress of the bootstrap.

    Raises:
        DataError: The dataset lacks some queries, or nothing was measured on them.
        ConfigError: The dataset lacks some targets, or an option is invalid.
    """
    trial = Trial.join(predictions, dataset, policy=policy, check=check, fee=fee)
    scorer = Scorer(trial, step, axis, max_cost, chosen)
    scores = scorer.score(ones(len(trial)))
    curve = curve_of(scorer, scores)
    resampled, bands = _resample(scorer, scores, curve, resamples, seed, progress)
    groups = _group_estimates(scores, resampled)
    choice_auc = groups["headline"][""]["choice_auc"]
    parts = () if references is None else (JudgedPart(trial, references, chosen),)
    return Evaluation(
        verdict=judge(parts, choice_auc=choice_auc) if parts else None,
        chosen=chosen,
        queries=len(trial),
        labels=int((~np.isnan(trial.observed)).sum()),
        coverage=Coverage.of(trial),
        targets=trial.targets,
        headline=with_chance(groups["headline"][""]),
        per_target=groups["targets"],
        regimes=groups["regimes"],
        regime_sizes=_count_regimes(trial),
        anchors={name: float(value[0]) for name, value in vars(scores.anchors).items()},
        curve=curve,
        max_lam=max_lam_interval(scorer, scores, curve),
        steps=steps_of(scorer, scores, curve),
        frontier=_list_frontier(trial, scores),
        raw_band=bands[0],
        normalised_band=bands[1],
        mix=mix_of(scores.singles, trial.targets),
        resamples=resamples,
        seed=seed,
        definitions=definitions(
            step=step,
            axis=axis,
            max_cost=max_cost,
            policy=trial.policy.summary(),
            check="" if check is None else check.description,
        ),
        off_policy=None if trial.overlap is None else PolicyValues.of(trial),
        conversations=count_groups(trial.conversations),
        meaning=dataset.meaning,
        price_alone=trace_price(parts),
    )


def _list_frontier(trial: Trial, scores: Scores) -> tuple[str, ...]:
    return tuple(name for name, on in zip(trial.targets, scores.frontier[0], strict=True) if on)


def _resample(
    scorer: Scorer,
    scores: Scores,
    curve: Curve,
    resamples: int,
    seed: int,
    progress: Progress | None,
) -> tuple[Tables, tuple[Band, Band]]:
    """All statistics of all resamples, and the bands of the curves."""
    at = places(curve.mean_cost, ratios=True), places(curve.normalised_cost)

    def statistics(weights: Weights) -> Tables:
        scores = scorer.score(weights)
        points = scores.points
        x, y = scores.anchors.place(points.cost, points.accuracy, axis=scorer.axis)
        raw = {("curve", "raw", ""): heights(points.cost, points.accuracy, at[0])}
        return {**scores.tables(), **raw, ("curve", "normalised", ""): heights(x, y, at[1])}

    like = {("curve", "raw", ""): at[0][None], ("curve", "normalised", ""): at[1][None]}
    trial = scorer.trial
    draws = Bootstrap(len(trial), resamples, seed, scorer.width, trial.conversations)
    resampled = draws.resample(statistics, {**scores.tables(), **like}, progress)
    bands = (Band.of(x, resampled[key]) for x, key in zip(at, like, strict=True))
    return resampled, (next(bands), next(bands))


def _group_estimates(
    scores: Scores, resampled: Tables
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Estimates by group, then column (target, regime, or the headline's only one), then name."""
    columns = ("",), scores.trial.targets, tuple(map(str, REGIMES))
    groups: dict[str, dict[str, dict[str, Estimate]]] = {
        group: {column: {} for column in names}
        for group, names in zip(("headline", "targets", "regimes"), columns, strict=True)
    }
    for key, estimate in estimates(scores.tables(), resampled, scores.why_undefined).items():
        groups[key[0]][key[2]][key[1]] = estimate
    return groups


def _count_regimes(trial: Trial) -> dict[str, int]:
    regime = np.where(trial.compared, regimes(trial.joint), str(Regime.UNMEASURED))
    counts = Counter(regime.tolist())
    return {str(regime): counts[str(regime)] for regime in Regime}
