"""The figure of the learning curves: each number against labels, both ways of having fewer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.rendering import INK
from prefill_router.studies.learning.numbers import NUMBERS, Number, better
from prefill_router.studies.learning.result import Curve, Learning, SizePoint

# Okabe and Ito's colours, told apart by readers with any colour vision, on white and on black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BEYOND = 2.0
"""How far beyond the largest size a law is drawn."""
_TICKS = 6
_EDGE = 1.15
"""Room beside the outermost sizes."""


def draw(found: Learning) -> Figure:
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


def rows(found: Learning) -> list[dict[str, Any]]:
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


def _repeated(found: Learning) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(len(found.curves))]


def _one(axes: Axes, curve: Curve, number: Number, colour: str) -> None:
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


def _frame(axes: Axes, number: Number, found: Learning) -> None:
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
