"""What a choice of reasoning effort is worth: fixed efforts, and routing over models or efforts.

One router predicts every pair of model and effort. It is judged with several sets of choices: the
models at one fixed effort, the efforts of one model, and all pairs. Each set gets the same budgets:
the highest lam at which the mean *estimated* cost of the judged queries keeps to the budget. Labels
play no part in that, except that a budget is a share of what the most accurate pair costs. Accuracy
and cost are those that were observed.

All are judged on the queries whose outcomes are known for every pair. Differences are paired.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import (
    PER,
    Bootstrap,
    Estimate,
    LambdaSweep,
    Trial,
    Weights,
    ones,
    worded,
)
from prefill_router.money import dollars
from prefill_router.plotting import Figure
from prefill_router.policy import Predictions
from prefill_router.progress import Progress
from prefill_router.reporting import (
    BOLD,
    QUIET,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    legend_below,
    new_figure,
    significance,
    stroke,
    style,
)
from prefill_router.targets import Pool
from prefill_router_lab.studies.options import EffortOptions

SHARES: Final = (0.1, 0.25, 0.5, 1.0)
"""The budgets, as shares of the mean estimated cost of the most accurate pair."""
ChoiceKind = Literal["models", "efforts", "both"]
PerQuery = Float64[NDArray[np.float64], " query"]
Outcomes = Float64[NDArray[np.float64], "query column"]


@final
@dataclass(frozen=True)
class ChoiceSet:
    """Targets among which a router chooses.

    Attributes:
        name: Its name for the reader.
        kind: What differs between its targets.
        targets: The targets.
    """

    name: str
    kind: ChoiceKind
    targets: tuple[str, ...]


@final
@dataclass(frozen=True)
class ObservedPoint:
    """What a choice of targets gave.

    Attributes:
        accuracy: The mean label.
        cost: The mean observed cost of a query, US dollars.
        lam: The setting; None for a fixed target.
    """

    accuracy: Estimate
    cost: Estimate
    lam: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"lam": self.lam, "accuracy": self.accuracy.to_dict(), "cost": self.cost.to_dict()}


@final
@dataclass(frozen=True, eq=False)
class EffortStudy:
    """Fixed pairs and routed sets of choices on the same queries.

    Attributes:
        fixed: Each pair of model and effort alone, by name.
        sets: The sets of choices.
        points: The point of each set at each of `budgets`, by the set's name; None where even its
            cheapest target costs more.
        gains: What all pairs together gain over the best set of another kind at each budget, in
            accuracy. None where one of them has no point.
        rivals: The name of that set at each budget.
        budgets: Mean estimated costs of a query, US dollars.
        best: The most accurate pair.
        curves: Each set's observed cost and accuracy at every setting, by the set's name.
        queries: The number of queries.
        resamples: The number of resamples.
    """

    fixed: Mapping[str, ObservedPoint]
    sets: tuple[ChoiceSet, ...]
    points: Mapping[str, tuple[ObservedPoint | None, ...]]
    gains: Mapping[ChoiceKind, tuple[Estimate | None, ...]]
    rivals: Mapping[ChoiceKind, tuple[str | None, ...]]
    budgets: tuple[float, ...]
    best: str
    curves: Mapping[str, Outcomes]
    queries: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "queries": self.queries,
            "resamples": self.resamples,
            "best": self.best,
            "budgets": list(self.budgets),
            "fixed": {name: point.to_dict() for name, point in self.fixed.items()},
            "routed": {
                choices.name: [
                    None if p is None else p.to_dict() for p in self.points[choices.name]
                ]
                for choices in self.sets
            },
            "gains_of_both": {
                kind: [
                    None if gain is None else {"over": rival, **gain.to_dict()}
                    for gain, rival in zip(gains, self.rivals[kind], strict=True)
                ]
                for kind, gains in self.gains.items()
            },
        }

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        return Report(
            name="effort",
            title=title,
            summary=_summarise(self),
            facts=facts,
            parts=[
                ReportFigure("effort", _draw(self), _list_curve_rows(self), _CAPTION),
                Section("Fixed efforts", [_tabulate_fixed(self)]),
                Section("Routed, at the same budgets", [Note(_BUDGETS), _tabulate_routed(self)]),
                Section("What both gain", [Note(BOLD), _tabulate_gains(self)]),
                Section("How to read it", [_MEANINGS]),
            ],
            numbers=self.to_dict(),
            tables={"effort": _list_point_rows(self)},
            short=_tabulate_summary(self),
        )


def list_choice_sets(pool: Pool) -> tuple[ChoiceSet, ...]:
    """The sets of choices of a pool: models at each effort, efforts of each model, and all.

    Raises:
        ConfigError: No model has several efforts.
    """
    several = {base: own for base, own in pool.efforts_of.items() if len(own) > 1}
    if not several:
        raise ConfigError(
            "no model has several efforts, so there is nothing to compare; collect answers with "
            "--efforts, or import a table with a column of efforts"
        )
    without = [t.name for t in pool if t.effort is None]
    efforts = dict.fromkeys(t.effort for t in pool if t.effort is not None)
    sets = []
    for effort in efforts:
        at = [t.name for t in pool if t.effort == effort]
        if len(at) + len(without) > 1:
            sets.append(ChoiceSet(f"models, effort {effort}", "models", (*at, *without)))
    sets += [ChoiceSet(f"efforts of {base}", "efforts", own) for base, own in several.items()]
    return (*sets, ChoiceSet("models and efforts", "both", pool.names))


def study_efforts(
    predictions: Predictions,
    dataset: RoutingDataset,
    options: EffortOptions | None = None,
    *,
    progress: Progress | None = None,
) -> EffortStudy:
    """Judge fixed efforts, and one router's choices among models, efforts and both.

    Args:
        predictions: Of queries that the router wasn't fitted on.
        dataset: Their labels and observed costs.
        options: The resampling.
        progress: Shows the progress of the work.

    Raises:
        ConfigError: No model has several efforts.
        DataError: No query has the outcomes of all targets, or costs are unknown.
    """
    options = options or EffortOptions()
    data = dataset.select(predictions.query_ids, targets=predictions.targets)
    sets = list_choice_sets(data.pool)
    lacking = np.isnan(data.correct) | np.isnan(data.observed_cost)
    rows = np.flatnonzero(lacking.sum(axis=1) == 0)
    ids = [data.query_ids[row] for row in rows]
    if not ids:
        raise DataError(
            "no query has the label and the cost of every target, and efforts are compared on "
            "such queries; give prices, and the cost or the token counts of each answer"
        )
    judge = _EffortJudge(predictions.select(ids), data.select(ids))
    return judge.judge(sets, options, progress)


@final
class _EffortJudge:
    """Chooses targets for the judged queries, and looks up what they gave.

    Args:
        predictions: The predictions.
        data: The outcomes of the same queries and targets, all known.
    """

    def __init__(self, predictions: Predictions, data: RoutingDataset) -> None:
        self._predictions, self._data = predictions, data
        self._best = int(data.correct.mean(axis=0).argmax())
        full = float(predictions.estimated_cost[:, self._best].mean())
        self._budgets = tuple(share * full for share in SHARES)

    def judge(
        self, sets: Sequence[ChoiceSet], options: EffortOptions, progress: Progress | None
    ) -> EffortStudy:
        """Judge every pair and every set, with intervals from the same resamples."""
        data, names = self._data, self._predictions.targets
        labels = {name: data.correct[:, i] for i, name in enumerate(names)}
        costs = {name: data.observed_cost[:, i] for i, name in enumerate(names)}
        settings: dict[str, float] = {}
        for choices in sets:
            for key, lam, label, cost in self._route(choices):
                settings[key], labels[key], costs[key] = lam, label, cost
        estimates = _PairedEstimates(labels, costs, data.conversations, options, progress)
        points = {key: estimates.point(key, settings.get(key)) for key in labels}
        routed = {
            choices.name: tuple(
                points.get(_name_point(choices, place)) for place in range(len(SHARES))
            )
            for choices in sets
        }
        gains, rivals = _compare_kinds(sets, routed, estimates)
        return EffortStudy(
            fixed={name: points[name] for name in names},
            sets=tuple(sets),
            points=routed,
            gains=gains,
            rivals=rivals,
            budgets=self._budgets,
            best=names[self._best],
            curves={choices.name: self._trace_curve(choices) for choices in sets},
            queries=len(data),
            resamples=options.resamples,
        )

    def _route(self, choices: ChoiceSet) -> "list[tuple[str, float, PerQuery, PerQuery]]":
        """The setting, labels and costs of a set at each budget that it can keep to."""
        predictions = self._predictions.select(targets=choices.targets)
        data = self._data.select(targets=choices.targets)
        trial = Trial.join(predictions, data)
        rows, routed = np.arange(len(data)), []
        for place, budget in enumerate(self._budgets):
            lam = _find_highest_lam(trial, predictions, budget)
            if lam is not None:
                chosen = trial.path.at(lam)
                cost = data.observed_cost[rows, chosen]
                routed.append((_name_point(choices, place), lam, data.correct[rows, chosen], cost))
        return routed

    def _trace_curve(self, choices: ChoiceSet) -> Outcomes:
        """Observed cost and accuracy at every setting, by rising cost."""
        data = self._data.select(targets=choices.targets)
        trial = Trial.join(self._predictions.select(targets=choices.targets), data)
        points = LambdaSweep.of(trial).points(ones(len(trial)))
        curve: Outcomes = np.stack([points.cost[0], points.accuracy[0]], axis=1)
        return curve


def _name_point(choices: ChoiceSet, place: int) -> str:
    return f"{choices.name} at budget {place}"


def _find_highest_lam(trial: Trial, predictions: Predictions, budget: float) -> float | None:
    """The highest lam whose mean estimated cost keeps to a budget; None where none does."""
    sweep = LambdaSweep.of(replace(trial, observed_cost=predictions.estimated_cost))
    cost = sweep.points(ones(len(trial))).cost[0]
    within = np.flatnonzero(cost <= budget * (1 + 1e-9))
    if not len(within):
        return None
    ends = np.append(sweep.lam[1:], 1.0)
    place = int(within[-1])
    return 1.0 if place == len(cost) - 1 else float((sweep.lam[place] + ends[place]) / 2)


@final
class _PairedEstimates:
    """Means of labels and costs, and of their differences, on the same resamples.

    Args:
        labels: The label of each query, by choice.
        costs: The observed cost, by choice.
        conversations: That of each query, drawn whole; None where there are none.
        options: The resampling.
        progress: Shows its progress.
    """

    def __init__(
        self,
        labels: Mapping[str, PerQuery],
        costs: Mapping[str, PerQuery],
        conversations: Sequence[str] | None,
        options: EffortOptions,
        progress: Progress | None,
    ) -> None:
        self._place = {key: place for place, key in enumerate(labels)}
        table = np.stack([*labels.values(), *(costs[key] for key in labels)], axis=1)

        def measure(weights: Weights) -> dict[str, Float[NDArray[np.float64], "resample column"]]:
            return {"mean": weights @ table / weights.sum(axis=1, keepdims=True)}

        self._mean = measure(ones(len(table)))["mean"]
        bootstrap = Bootstrap(
            len(table), options.resamples, options.seed, len(table), groups=conversations
        )
        means = bootstrap.resample(measure, {"mean": self._mean}, progress)
        self._resampled = means["mean"]

    def point(self, key: str, lam: float | None) -> ObservedPoint:
        """The accuracy and cost of a choice."""
        place = self._place[key]
        cost = place + len(self._place)
        return ObservedPoint(self._estimate(place), self._estimate(cost), lam)

    def gain(self, key: str, other: str) -> Estimate:
        """The accuracy of a choice minus that of another."""
        a, b = self._place[key], self._place[other]
        return Estimate.of(
            float(self._mean[0, a] - self._mean[0, b]),
            self._resampled[:, a] - self._resampled[:, b],
        )

    def _estimate(self, column: int) -> Estimate:
        return Estimate.of(float(self._mean[0, column]), self._resampled[:, column])


def _compare_kinds(
    sets: Sequence[ChoiceSet],
    points: Mapping[str, Sequence[ObservedPoint | None]],
    estimates: _PairedEstimates,
) -> tuple[dict[ChoiceKind, tuple[Estimate | None, ...]], dict[ChoiceKind, tuple[str | None, ...]]]:
    """What all pairs gain over the best set of models and of efforts, at each budget."""
    (all_pairs,) = (choices for choices in sets if choices.kind == "both")
    gains: dict[ChoiceKind, tuple[Estimate | None, ...]] = {}
    rivals: dict[ChoiceKind, tuple[str | None, ...]] = {}
    for kind in ("models", "efforts"):
        own = [choices for choices in sets if choices.kind == kind]
        best = [_find_best(own, points, place) for place in range(len(SHARES))]
        rivals[kind] = tuple(None if choices is None else choices.name for choices in best)
        gains[kind] = tuple(
            None
            if choices is None or points[all_pairs.name][place] is None
            else estimates.gain(_name_point(all_pairs, place), _name_point(choices, place))
            for place, choices in enumerate(best)
        )
    return gains, rivals


def _find_best(
    sets: Sequence[ChoiceSet], points: Mapping[str, Sequence[ObservedPoint | None]], place: int
) -> ChoiceSet | None:
    """The set with the highest accuracy at a budget; None where none keeps to it."""
    within = {choices: p for choices in sets if (p := points[choices.name][place]) is not None}
    return max(within, key=lambda choices: within[choices].accuracy.value) if within else None


_CAPTION = (
    "Points are pairs of model and effort. A line is what one router gives at every setting, with "
    "the choices that the legend names."
)
_BUDGETS = (
    "A budget is a share of what the most accurate pair on these queries is estimated to cost. The "
    "setting keeps to it by estimated costs alone; what was really paid is below."
)
_MEANINGS = {
    "models, effort E": "The router chooses among the models, all at the effort E.",
    "efforts of M": "The router chooses how much the model M thinks.",
    "models and efforts": "The router chooses both.",
    "gain": "The accuracy of choosing both, minus that of the best other set of its kind at the "
    "same budget. That set is the best on these queries, which favours it.",
    "cost": f"US dollars for {PER:,} queries, as observed.",
}


def _summarise(study: EffortStudy) -> list[str]:
    """The result in a few sentences."""
    fixed = study.fixed[study.best]
    lines = [
        f"Fixed, {study.best} is the most accurate: {worded(fixed.accuracy.value, 'share')} of "
        f"{study.queries:,} queries, at {dollars(PER * fixed.cost.value)} for {PER:,}."
    ]
    rivals: tuple[tuple[ChoiceKind, str], ...] = (
        ("models", "one effort for all models"),
        ("efforts", "the efforts of one model"),
    )
    for kind, what in rivals:
        gains = list(zip(SHARES, study.gains[kind], strict=True))
        if not any(gain is not None for _, gain in gains):
            continue  # there is one model, or no model with several efforts
        better = _word_shares(share for share, gain in gains if gain and gain.lower > 0)
        worse = _word_shares(share for share, gain in gains if gain and gain.upper < 0)
        words = f"gains at budgets of {better}" if better else "shows no gain at any budget"
        words += f", and loses at {worse}" if worse else ""
        lines.append(f"Against the best choice of {what}, choosing both {words}.")
    return lines


def _word_shares(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:g} %" for share in shares)


def _tabulate_fixed(study: EffortStudy) -> Table:
    rows: list[Row] = [
        [name, estimate_cell(point.accuracy, "share"), _make_cost_cell(point)]
        for name, point in study.fixed.items()
    ]
    return Table(["Target", "accuracy", f"$ per {PER:,}"], rows)


def _make_cost_cell(point: ObservedPoint) -> Cell:
    low, high = (f"{PER * bound:.3g}" for bound in (point.cost.lower, point.cost.upper))
    return Cell(f"{PER * point.cost.value:.3g}", note=f"{low} to {high}")


def _tabulate_routed(study: EffortStudy) -> Table:
    heads = [f"{100 * share:g} %" for share in SHARES]
    rows: list[Row] = []
    for choices in study.sets:
        points = study.points[choices.name]
        rows.append([choices.name, *(_make_accuracy_cell(point) for point in points)])
        rows.append(
            [f"$ per {PER:,}", *(Cell("") if p is None else _make_cost_cell(p) for p in points)]
        )
    return Table(["Choice", *heads], rows)


def _make_accuracy_cell(point: ObservedPoint | None) -> Cell:
    if point is None:
        return Cell("", hint="even its cheapest target costs more")
    return estimate_cell(point.accuracy, "share")


def _tabulate_gains(study: EffortStudy) -> Table:
    heads = [f"{100 * share:g} %" for share in SHARES]
    rows: list[Row] = []
    for kind, gains in study.gains.items():
        cells = [
            Cell("")
            if gain is None
            else estimate_cell(gain, "points", signed=True, compared=significance(gain, "higher"))
            for gain in gains
        ]
        rows.append([f"over {kind} alone", *cells])
        rows.append(["the best of these", *(name or "" for name in study.rivals[kind])])
    return Table(["Both", *heads], rows)


def _tabulate_summary(study: EffortStudy) -> Table:
    rows: list[Row] = [
        [name, "", f"{100 * p.accuracy.value:.1f}", f"{PER * p.cost.value:.3g}"]
        for name, p in study.fixed.items()
    ]
    for choices in study.sets:
        for share, point in zip(SHARES, study.points[choices.name], strict=True):
            if point is not None:
                accuracy, cost = 100 * point.accuracy.value, PER * point.cost.value
                rows.append([choices.name, f"{100 * share:g} %", f"{accuracy:.1f}", f"{cost:.3g}"])
    return Table(["choice", "budget", "accuracy %", f"$ per {PER:,}"], rows)


def _draw(study: EffortStudy) -> Figure:
    """Draw each pair as a point and each set's settings as a line."""
    figure = new_figure(9.4, 5.8)
    axes = figure.add_subplot()
    kinds = ("both", "models", "efforts")
    for place, choices in enumerate(
        sorted(study.sets, key=lambda choices: kinds.index(choices.kind))
    ):
        colour, line, _ = stroke(place)
        cost, accuracy = study.curves[choices.name].T
        width = 2.2 if choices.kind == "both" else 1.3
        axes.plot(PER * cost, 100 * accuracy, color=colour, ls=line, lw=width, label=choices.name)
    for name, point in study.fixed.items():
        at = PER * point.cost.value, 100 * point.accuracy.value
        axes.plot(*at, "o", color=QUIET, ms=4, zorder=4)
        axes.annotate(name, at, xytext=(4, -9), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    style(
        axes,
        title=f"{study.queries:,} queries: models, efforts, and both",
        x=f"mean observed cost (US dollars per {PER:,} queries)",
        y="accuracy (%)",
    )
    legend_below(figure, columns=3)
    return figure


def _list_curve_rows(study: EffortStudy) -> Rows:
    fixed = [
        {"choice": name, "cost": point.cost.value, "accuracy": point.accuracy.value}
        for name, point in study.fixed.items()
    ]
    return fixed + [
        {"choice": name, "cost": float(cost), "accuracy": float(accuracy)}
        for name, curve in study.curves.items()
        for cost, accuracy in curve
    ]


def _list_point_rows(study: EffortStudy) -> Rows:
    rows = []
    for choices in study.sets:
        for share, budget, point in zip(
            SHARES, study.budgets, study.points[choices.name], strict=True
        ):
            if point is not None:
                rows.append(
                    {
                        "choice": choices.name,
                        "share": share,
                        "budget": budget,
                        "lam": point.lam,
                        "accuracy": point.accuracy.value,
                        "accuracy_lower": point.accuracy.lower,
                        "accuracy_upper": point.accuracy.upper,
                        "cost": point.cost.value,
                    }
                )
    return rows
