"""The figures of a comparison: all curves among the single targets, and each number's interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.accuracy_cost_figures import (
    draw_singles,
    drawing,
    frame,
    name_targets,
)
from prefill_router.reporting.figures import INK
from prefill_router.studies.comparison.comparison import ComparedRouter, ComparisonResult

# Okabe and Ito's colours that the targets and the oracle leave free, and strokes beside them.
_STROKES = (
    ("#0072B2", "-"),
    ("#CC79A7", "--"),
    (INK, "-."),
    ("#56B4E9", ":"),
    ("#E69F00", (0, (5, 1, 1, 1))),
)
_GREY = "#9a9a9a"
_DOT = "#0072B2"
_REFERENCE = "#CC79A7"
SHOWN = ("auc_mean", "choice_auc", "brier_mean", "argmax_accuracy", "p_auccc")
"""The numbers whose intervals are drawn."""


def highlighted(result: ComparisonResult) -> list[ComparedRouter]:
    """The routers whose curves have a colour: the reference, and those of the largest P-AUCCC."""
    reference = result.by_name[result.plan.reference]
    others = [one for one in result.routers if one is not reference]
    others.sort(key=lambda one: -_finite(one.headline["p_auccc"].value))
    return [reference, *others[: len(_STROKES) - 1]]


def draw_curves(result: ComparisonResult) -> Figure:
    """All accuracy-cost curves; the best have colours, the others are grey."""
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    axes = figure.add_subplot()
    chosen = highlighted(result)
    others = [one for one in result.routers if one not in chosen]
    for place, one in enumerate(others):
        _draw(axes, one, _GREY, "-", width=0.8, label="" if place else "the other routers")
    for one, (colour, style) in zip(chosen, _STROKES, strict=False):
        _draw(axes, one, colour, style, width=1.8, label=one.name)
    first = drawing(chosen[0].evaluation, "raw")
    draw_singles(axes, first)
    frame(axes, first)
    axes.set_title("Accuracy against cost, all routers", color=INK, fontsize=11, loc="left")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    name_targets(axes, *(drawing(one.evaluation, "raw") for one in chosen))
    return figure


def _draw(
    axes: Axes, one: ComparedRouter, colour: str, style: Any, *, width: float, label: str
) -> None:
    x, y = drawing(one.evaluation, "raw").curve
    order = np.argsort(x, kind="stable")
    axes.plot(x[order], y[order], linestyle=style, color=colour, lw=width, label=label, zorder=3)


def curve_rows(result: ComparisonResult) -> list[dict[str, Any]]:
    """The data of the curves: one row per operating point and single target."""
    rows: list[dict[str, Any]] = []
    for one in result.routers:
        curve = one.evaluation.curve
        rows += [
            {"router": one.name, "target": "", "lam_to": lam, "mean_cost": cost, "accuracy": right}
            for lam, cost, right in zip(
                curve.lam_to.tolist(),
                curve.mean_cost.tolist(),
                curve.accuracy.tolist(),
                strict=True,
            )
        ]
    for name, values in result.routers[0].evaluation.per_target.items():
        cost, right = values["mean_cost"].value, values["accuracy"].value
        rows.append(
            {"router": "", "target": name, "lam_to": None, "mean_cost": cost, "accuracy": right}
        )
    return rows


def draw_intervals(result: ComparisonResult) -> Figure:
    """Each router's numbers with their intervals, the best AUC on top."""
    ordered = by_number(result.routers, "auc_mean")[::-1]
    figure = Figure(figsize=(11.0, 1.4 + 0.27 * len(ordered)), layout="constrained")
    panels = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, SHOWN, strict=True):
        for row, one in enumerate(ordered):
            colour = _REFERENCE if one.name == result.plan.reference else _DOT
            _dot(axes, row, one.headline[name], colour)
        reference = result.by_name[result.plan.reference].headline[name].value
        axes.axvline(reference, color=_REFERENCE, lw=0.8, ls=":")
        entry = HEADLINE[name]
        arrow = {"higher": " ↑", "lower": " ↓", "neither": ""}[entry.better]
        axes.set_title(entry.label + arrow, fontsize=9, color=INK, loc="left")
        axes.tick_params(colors=INK, labelsize=8)
        axes.grid(visible=True, axis="x", color="#888888", alpha=0.25, lw=0.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        axes.set_facecolor("none")
    panels[0].set_yticks(range(len(ordered)), [one.name for one in ordered])
    return figure


def _dot(axes: Axes, row: int, estimate: Estimate, colour: str) -> None:
    if np.isfinite([estimate.lower, estimate.upper]).all():
        axes.plot([estimate.lower, estimate.upper], [row, row], color=colour, lw=1.4)
    axes.plot(estimate.value, row, "o", color=colour, ms=4.5)


def interval_rows(result: ComparisonResult) -> list[dict[str, Any]]:
    """The data of the intervals."""
    return [
        {
            "router": one.name,
            "number": name,
            "value": one.headline[name].value,
            "lower": one.headline[name].lower,
            "upper": one.headline[name].upper,
        }
        for one in result.routers
        for name in SHOWN
    ]


def by_number(routers: Sequence[ComparedRouter], name: str) -> list[ComparedRouter]:
    """The routers from the best to the worst by one headline number."""
    sign = 1 if HEADLINE[name].better == "lower" else -1
    return sorted(routers, key=lambda one: _last(sign * one.headline[name].value))


def _last(value: float) -> float:
    return value if np.isfinite(value) else np.inf


def _finite(value: float) -> float:
    return value if np.isfinite(value) else -np.inf


def captions() -> Mapping[str, str]:
    """What is under each figure."""
    return {
        "curves": "Each curve is one router from its cheapest to its most accurate setting; up and "
        "to the left is better. Circles are the single targets, the dashed line is what drawing "
        "targets by lot reaches. A router is worth having where it runs above that line.",
        "intervals": "Dots are the numbers on the test queries, each line is the 95 % interval of "
        "its dot alone; the dotted line is the reference. Overlapping lines "
        "don't say that two routers are equal: the paired differences in the tables do better, "
        "since both are judged on the same queries.",
    }
