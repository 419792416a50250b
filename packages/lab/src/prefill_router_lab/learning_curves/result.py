"""The result of a learning-curve study: its numbers, tables, figure and page.

The figure shows each metric against the number of labels, for both ways of using fewer labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from prefill_router.comparison import failures
from prefill_router.evaluation import HEADLINE, LEVEL, NOTHING, Estimate, digits, plain
from prefill_router.plotting import Axes, Figure, LogLocator, NullLocator, PercentFormatter
from prefill_router.reporting import (
    QUIET,
    STROKES,
    Cell,
    Note,
    Part,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    ends,
    estimate_cell,
    flat,
    legend_below,
    new_figure,
    style,
)
from prefill_router_lab.learning_curves.advice import format_count, format_metric, summary
from prefill_router_lab.learning_curves.curves import (
    NUMBERS,
    STEP,
    LearningCurve,
    Number,
    SizePoint,
    Trend,
    direction,
)

NAME = "learning"
_CAPTION = (
    "Filled dots: fewer labelled queries, every target measured. Open squares: all queries, fewer "
    "targets measured of each. At the same horizontal position both need the same number of "
    "answers to be collected and graded. A dotted line, where there is one, is the power law "
    "through the dots, drawn to twice the available labels (grey line). Shaded areas are the 95 % "
    "intervals of the sizes, over draws and test queries."
)
_ABOUT = (
    "Every row is the mean over the draws; the small print is the 95 % interval over draws and "
    "test queries together. The test queries are the same everywhere, so differences between rows "
    "are more certain than their intervals suggest."
)
_LAW = (
    "The error (1 minus the metric, or the Brier score itself) is fitted as a + b n^-c, where n is "
    "the number of labels. Gains are improvements, also where lower is better. Don't trust a power "
    "law where the last column gives a reason."
)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LearningStudy:
    """Learning curves of several recipes on the same test queries.

    Attributes:
        curves: The learning curves by recipe.
        queries: Number of labelled queries available for training.
        labels: Number of their measured outcomes.
        targets: The targets' names.
        tested: How many queries were judged.
        label_cost: The mean observed cost of one outcome, US dollars; NaN where unknown.
        draws: How often each size was drawn.
        resamples: How many resamples the intervals come from.
        seed: Random seed of draws, fits and resamples.
    """

    curves: Mapping[str, LearningCurve]
    queries: int
    labels: int
    targets: tuple[str, ...]
    tested: int
    label_cost: float
    draws: int
    resamples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "routers": {name: curve.to_dict() for name, curve in self.curves.items()},
            "numbers": list(NUMBERS),
            "queries": self.queries,
            "labels": self.labels,
            "targets": list(self.targets),
            "tested": self.tested,
            "label_cost": plain(self.label_cost),
            "draws": self.draws,
            "bootstrap": {
                "resamples": self.resamples,
                "seed": self.seed,
                "level": LEVEL,
                "unit": "query and draw",
                "interval": "percentile",
            },
        }

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study.

        Args:
            title: Title of the page.
            facts: Facts about the data, by name.
        """
        parts: list[Part] = [ReportFigure("learning", draw(self), rows(self), _CAPTION)]
        for name, curve in self.curves.items():
            lost = failures(curve.failures, intro="These fits had too little to learn from:")
            parts += [
                Section(f"{name}: each size", [Note(_ABOUT), _tabulate_sizes(curve), *lost]),
                Section(f"{name}: trends", [Note(_LAW), _tabulate_trends(curve)]),
            ]
        meanings = {HEADLINE[n].label: HEADLINE[n].meaning for n in NUMBERS}
        return Report(
            name=NAME,
            title=title,
            summary=summary(self),
            facts={
                **facts,
                "draws of each size": str(self.draws),
                "intervals": f"95 %, {self.resamples:,} resamples of test queries and draws",
            },
            parts=[*parts, Section("What the numbers mean", [meanings])],
            numbers=self.to_dict(),
            tables={"sizes": rows(self), "trends": trend_rows(self)},
            short=_tabulate_summary(self),
            warnings=[
                f"{name}, {failure.name}: {failure.why}"
                for name, curve in self.curves.items()
                for failure in curve.failures
            ],
        )


def trend_rows(study: LearningStudy) -> Rows:
    """The trends as rows; infinite numbers of labels are missing."""
    return [
        {
            "router": name,
            "number": number,
            **{key: value if math.isfinite(value) else math.nan for key, value in gains.items()},
            "a": math.nan if trend.law is None else trend.law.floor,
            "b": math.nan if trend.law is None else trend.law.scale,
            "c": math.nan if trend.law is None else trend.law.exponent,
            "explained": trend.explained,
            "why_poor": trend.why_poor,
        }
        for name, curve in study.curves.items()
        for number, trend in curve.trends.items()
        for gains in [flat({**_list_gains(trend), "spread": curve.spread[number]})]
    ]


def _list_gains(trend: Trend) -> dict[str, Estimate]:
    return {
        "per_doubling": trend.per_doubling,
        "next_doubling": trend.next_doubling,
        "labels_for_step": trend.labels_for_step,
    }


def _tabulate_sizes(curve: LearningCurve) -> Table:
    head = ["Learned from", "labels", *(HEADLINE[n].label for n in NUMBERS)]
    body: list[Row] = [
        [
            _name_point(point),
            f"{point.labels:,.0f}",
            *(estimate_cell(point.numbers[n], HEADLINE[n].unit) for n in NUMBERS),
        ]
        for point in curve.points
    ]
    return Table(head, body)


def _tabulate_summary(study: LearningStudy) -> Table:
    head = ["router", "queries", "targets each", "labels"]
    body = []
    for name, curve in study.curves.items():
        for point in curve.points:
            each = "all" if point.size.measured is None else str(point.size.measured)
            cells = [format_metric(number, point.numbers[number]) for number in NUMBERS]
            body.append([name, f"{point.queries:,}", each, f"{point.labels:,.0f}", *cells])
    numbers = (HEADLINE[number].label for number in NUMBERS)
    return Table([*head, *numbers], body, right_from=3)


def _name_point(point: SizePoint) -> str:
    if point.size.measured is not None:
        return f"{point.queries:,} queries, {point.size.words}"
    return f"{point.queries:,} queries ({100 * point.size.share:.3g} %)"


def _tabulate_trends(curve: LearningCurve) -> Table:
    head = [
        "Number",
        "gain per doubling, measured",
        "gain of the next doubling, by the power law",
        f"total labels for {STEP:g} more",
        "few targets of all queries minus all targets of few",
        "R²",
        "unreliable because",
    ]
    body: list[Row] = []
    for number in NUMBERS:
        trend = curve.trends[number]
        cells = [
            _make_signed_cell(estimate) for estimate in (trend.per_doubling, trend.next_doubling)
        ]
        cells += [_make_count_cell(trend.labels_for_step), _make_signed_cell(curve.spread[number])]
        why = Cell(trend.why_poor, words=True)
        body.append([HEADLINE[number].label, *cells, digits(trend.explained, ".2f"), why])
    return Table(head, body)


def _make_signed_cell(estimate: Estimate) -> Cell:
    return _make_range_cell(
        [digits(value, "+.4f") for value in (estimate.value, estimate.lower, estimate.upper)]
    )


def _make_count_cell(estimate: Estimate) -> Cell:
    return _make_range_cell(
        [
            NOTHING if math.isnan(value) else "never" if math.isinf(value) else format_count(value)
            for value in (estimate.value, estimate.lower, estimate.upper)
        ]
    )


def _make_range_cell(values: Sequence[str]) -> Cell:
    """A cell with a number and the bounds of its interval, where all are known."""
    return Cell(values[0], note="" if NOTHING in values else f"{values[1]} to {values[2]}")


_BEYOND = 2.0
"""How far beyond the largest size a power law is drawn, as a factor."""
_TICKS = 6
_EDGE = 1.15
"""Margin beside the outermost sizes, as a factor."""


def draw(study: LearningStudy) -> Figure:
    """Draw every metric against the number of measured outcomes in training."""
    figure = new_figure(9.8, 7.4)
    panels = figure.subplots(2, 2)
    for axes, number in zip(panels.flat, NUMBERS, strict=True):
        for place, curve in enumerate(study.curves.values()):
            _draw_curve(axes, curve, number, STROKES[place % len(STROKES)][0])
        _style_panel(axes, number, study)
    legend_below(figure, columns=3)
    return figure


def rows(study: LearningStudy) -> list[dict[str, Any]]:
    """The data of the figure: a row per router, size and metric."""
    return [
        {
            "router": name,
            "share": point.size.share,
            "measured": point.size.measured,
            "queries": point.queries,
            "labels": point.labels,
            "number": number,
            **ends(point.numbers[number]),
            "draws": " ".join(f"{value:.6g}" for value in point.draws[number]),
        }
        for name, curve in study.curves.items()
        for point in curve.points
        for number in NUMBERS
    ]


def _draw_curve(axes: Axes, curve: LearningCurve, number: Number, colour: str) -> None:
    x, value, lower, upper = _stack_columns(curve.queries_axis, number)
    axes.fill_between(x, lower, upper, color=colour, alpha=0.15, lw=0)
    axes.plot(x, value, "o-", color=colour, ms=4, lw=1.6, label=f"{curve.name}: fewer queries")
    few, wide, *_ = _stack_columns(curve.targets_axis, number)
    if len(few) > 1:
        label = f"{curve.name}: fewer targets each"
        axes.plot(few, wide, "s--", color=colour, ms=5, lw=1.0, mfc="none", label=label)
    law = curve.trends[number].law
    if law is not None:
        at = np.geomspace(x.min(), _BEYOND * x.max(), 60)
        error = law.at(at)
        values = error if direction(number) < 0 else 1 - error
        axes.plot(at, values, ":", color=colour, lw=1.2, label=f"{curve.name}: power law")


def _stack_columns(points: Sequence[SizePoint], number: Number) -> tuple[Any, ...]:
    estimates = [point.numbers[number] for point in points]
    labels = [point.labels for point in points]
    columns = zip(
        *((estimate.value, estimate.lower, estimate.upper) for estimate in estimates), strict=True
    )
    return (np.array(labels), *map(np.array, columns if estimates else ((), (), ())))


def _style_panel(axes: Axes, number: Number, study: LearningStudy) -> None:
    arrow = "↑" if direction(number) > 0 else "↓"
    title = f"{HEADLINE[number].label} {arrow}"
    style(axes, title=title, x="measured outcomes learned from", label_size=8)
    axes.set_xscale("log")
    labels = [point.labels for curve in study.curves.values() for point in curve.points]
    low, high = max(min(labels), 1) / _EDGE, _BEYOND * max(max(labels), 1) * _EDGE
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if HEADLINE[number].unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.axvline(study.labels, color=QUIET, lw=0.8, ls="-", alpha=0.6)
