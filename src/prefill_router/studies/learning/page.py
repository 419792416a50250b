"""The study of learning curves as tables, a figure and a page.

The figure shows each number against labels, for both ways of having fewer.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.formatting import NOTHING
from prefill_router.plotting import Axes, Figure, LogLocator, NullLocator, PercentFormatter
from prefill_router.reporting.figures import INK
from prefill_router.reporting.pages import estimate_cell, facts, paragraph, plain_cell, table, wide
from prefill_router.reporting.study_report import Rows, StudyFigure, StudyReport
from prefill_router.studies.learning.advice import rounded, said
from prefill_router.studies.learning.result import (
    NUMBERS,
    STEP,
    LearningCurve,
    LearningStudy,
    Number,
    SizePoint,
    better,
)

NAME = "learning"
_CAPTION = (
    "Filled dots: fewer labelled queries, every target measured. Open squares: all queries, fewer "
    "targets measured of each. At the same place on the horizontal axis both cost the same number "
    "of answers to collect and grade. A dotted line, where there is one, is the power law through "
    "the dots, drawn to twice the labels there are (grey line). Shades join the 95 % intervals of "
    "each size, over draws and test queries."
)
_ABOUT = (
    "Every row is the mean over the draws; the small print is the 95 % interval over draws and "
    "test queries together. The test queries are the same everywhere, so differences between rows "
    "are surer than their intervals look."
)
_LAW = (
    "The error (1 minus the number, or the Brier score itself) is fitted as a + b n^-c, n the "
    "labels. Rises are improvements, whatever their direction. A law is not to be trusted where "
    "the last column says why."
)


def sheet(found: LearningStudy, *, title: str, known: Mapping[str, str]) -> StudyReport:
    """Everything that the study says.

    Args:
        found: It.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    sections: list[tuple[str, Sequence[str]]] = []
    for curve in found.curves.values():
        sections += [
            (f"{curve.name}: each size", [_small(_ABOUT), wide(_sizes(curve)), *_failed(curve)]),
            (f"{curve.name}: how it goes on", [_small(_LAW), wide(_trends(curve))]),
        ]
    meanings = {HEADLINE[n].label: HEADLINE[n].meaning for n in NUMBERS}
    return StudyReport(
        name=NAME,
        title=title,
        said=said(found),
        known={
            **known,
            "draws of each size": str(found.draws),
            "intervals": f"95 %, {found.resamples:,} resamples of test queries and draws",
        },
        sections=[*sections, ("What the numbers mean", [facts(meanings)])],
        numbers=found.to_dict(),
        tables={"sizes": rows(found), "trends": trend_rows(found)},
        figures={"learning": StudyFigure(draw(found), rows(found), _CAPTION)},
    )


def trend_rows(found: LearningStudy) -> Rows:
    """The trends as rows; labels without end are missing."""
    return [
        {
            "router": name,
            "number": number,
            **_flat("per_doubling", trend.per_doubling),
            **_flat("next_doubling", trend.next_doubling),
            **_flat("labels_for_step", trend.labels_for_step),
            **_flat("spread", curve.spread[number]),
            "a": math.nan if trend.law is None else trend.law.floor,
            "b": math.nan if trend.law is None else trend.law.scale,
            "c": math.nan if trend.law is None else trend.law.exponent,
            "explained": trend.explained,
            "why_poor": trend.why_poor,
        }
        for name, curve in found.curves.items()
        for number, trend in curve.trends.items()
    ]


def _flat(name: str, one: Estimate) -> dict[str, Any]:
    ends = {name: one.value, f"{name}_lower": one.lower, f"{name}_upper": one.upper}
    return {key: value if math.isfinite(value) else math.nan for key, value in ends.items()}


def _sizes(curve: LearningCurve) -> str:
    head = ["Learned from", "labels", *(escape(HEADLINE[n].label) for n in NUMBERS)]
    body = [
        [
            _named(point),
            plain_cell(f"{point.labels:,.0f}"),
            *(estimate_cell(point.numbers[n], HEADLINE[n].unit) for n in NUMBERS),
        ]
        for point in curve.points
    ]
    return table(head, body)


def _named(point: SizePoint) -> str:
    if point.size.measured is not None:
        return f"{point.queries:,} queries, {point.size.words}"
    return f"{point.queries:,} queries ({100 * point.size.share:.3g} %)"


def _trends(curve: LearningCurve) -> str:
    head = [
        "Number",
        "rise per doubling, measured",
        "rise of the next doubling, by the law",
        f"labels in all for {STEP:g} more",
        "few targets of all queries against all targets of few",
        "R²",
        "not to be trusted because",
    ]
    return table(head, [_trend(curve, number) for number in NUMBERS])


def _trend(curve: LearningCurve, number: Number) -> list[str]:
    trend = curve.trends[number]
    return [
        escape(HEADLINE[number].label),
        _signed(trend.per_doubling),
        _signed(trend.next_doubling),
        _counted(trend.labels_for_step),
        _signed(curve.spread[number]),
        plain_cell(f"{trend.explained:.2f}" if math.isfinite(trend.explained) else NOTHING),
        f'<td class="text">{escape(trend.why_poor)}</td>',
    ]


def _signed(one: Estimate) -> str:
    values = [_four(value) for value in (one.value, one.lower, one.upper)]
    return plain_cell(values[0], note="" if NOTHING in values else f"{values[1]} to {values[2]}")


def _four(value: float) -> str:
    return f"{value:+.4f}" if math.isfinite(value) else NOTHING


def _counted(one: Estimate) -> str:
    values = [
        NOTHING if math.isnan(value) else "never" if math.isinf(value) else rounded(value)
        for value in (one.value, one.lower, one.upper)
    ]
    return plain_cell(values[0], note="" if NOTHING in values else f"{values[1]} to {values[2]}")


def _failed(curve: LearningCurve) -> list[str]:
    if not curve.failed:
        return []
    return [
        paragraph("These fits had too little to learn from:"),
        facts({one.name: one.why for one in curve.failed}),
    ]


def _small(text: str) -> str:
    return paragraph(text, soft=True)


# Okabe and Ito's colours, told apart by readers with any colour vision, on white and on black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BEYOND = 2.0
"""How far beyond the largest size a law is drawn."""
_TICKS = 6
_EDGE = 1.15
"""Room beside the outermost sizes."""


def draw(found: LearningStudy) -> Figure:
    """Draw every number against the measured outcomes that were learned from."""
    figure = Figure(figsize=(9.8, 7.4), layout="constrained")
    panels = figure.subplots(2, 2)
    for axes, number in zip(panels.flat, NUMBERS, strict=True):
        for curve, colour in zip(found.curves.values(), _repeated(found), strict=True):
            _one(axes, curve, number, colour)
        _frame(axes, number, found)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return figure


def rows(found: LearningStudy) -> list[dict[str, Any]]:
    """The data of the figure: a row per router, size and number."""
    return [
        {
            "router": name,
            "share": point.size.share,
            "measured": point.size.measured,
            "queries": point.queries,
            "labels": point.labels,
            "number": number,
            "value": point.numbers[number].value,
            "lower": point.numbers[number].lower,
            "upper": point.numbers[number].upper,
            "draws": " ".join(f"{value:.6g}" for value in point.draws[number]),
        }
        for name, curve in found.curves.items()
        for point in curve.points
        for number in NUMBERS
    ]


def _repeated(found: LearningStudy) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(len(found.curves))]


def _one(axes: Axes, curve: LearningCurve, number: Number, colour: str) -> None:
    x, value, lower, upper = _columns(curve.queries_axis, number)
    axes.fill_between(x, lower, upper, color=colour, alpha=0.15, lw=0)
    axes.plot(x, value, "o-", color=colour, ms=4, lw=1.6, label=f"{curve.name}: fewer queries")
    few, wide, *_ = _columns(curve.targets_axis, number)
    if len(few) > 1:
        label = f"{curve.name}: fewer targets each"
        axes.plot(few, wide, "s--", color=colour, ms=5, lw=1.0, mfc="none", label=label)
    law = curve.trends[number].law
    if law is not None:
        at = np.geomspace(x.min(), _BEYOND * x.max(), 60)
        error = law.at(at)
        drawn = error if better(number) < 0 else 1 - error
        axes.plot(at, drawn, ":", color=colour, lw=1.2, label=f"{curve.name}: power law")


def _columns(points: Sequence[SizePoint], number: Number) -> tuple[Any, ...]:
    estimates = [point.numbers[number] for point in points]
    return (
        np.array([point.labels for point in points]),
        np.array([one.value for one in estimates]),
        np.array([one.lower for one in estimates]),
        np.array([one.upper for one in estimates]),
    )


def _frame(axes: Axes, number: Number, found: LearningStudy) -> None:
    arrow = "↑" if better(number) > 0 else "↓"
    axes.set_title(f"{HEADLINE[number].label} {arrow}", fontsize=10, color=INK, loc="left")
    axes.set_xscale("log")
    labels = [point.labels for curve in found.curves.values() for point in curve.points]
    low, high = max(min(labels), 1) / _EDGE, _BEYOND * max(max(labels), 1) * _EDGE
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if HEADLINE[number].unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.axvline(found.labels, color="#888888", lw=0.8, ls="-", alpha=0.6)
    axes.set_xlabel("measured outcomes learned from", color=INK, fontsize=8)
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")
