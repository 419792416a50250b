"""The figures of a comparison: all curves with the single targets, and the metrics' intervals."""

from typing import Any

import numpy as np

from prefill_router.comparison.comparison import ComparedRouter, ComparisonResult, by_number
from prefill_router.evaluation import HEADLINE
from prefill_router.reporting import (
    BLUE,
    CURVES,
    PALE,
    PINK,
    CurveLine,
    ReportFigure,
    draw_interval,
    draw_lines,
    drawing,
    ends,
    heading,
    new_figure,
    style,
)

SHOWN = ("auc_mean", "choice_auc", "brier_mean", "argmax_accuracy", "p_auccc")
"""The metrics whose intervals are drawn."""


def choose_highlighted(result: ComparisonResult) -> list[ComparedRouter]:
    """The routers whose curves are coloured: the reference, and those with the largest P-AUCCC."""
    reference = result.by_name[result.plan.reference]
    others = [router for router in result.routers if router is not reference]
    others.sort(key=lambda router: -_sort_finite(router.headline["p_auccc"].value))
    return [reference, *others[: len(CURVES) - 1]]


def curves(result: ComparisonResult) -> ReportFigure:
    """All accuracy-cost curves; the best have colours, the others are grey."""
    drawings = {router.name: drawing(router.evaluation, "raw") for router in result.routers}
    chosen = [router.name for router in choose_highlighted(result)]
    others = [name for name in drawings if name not in chosen]
    lines = [
        CurveLine(drawings[name], "" if place else "the other routers", PALE, "-", 0.8)
        for place, name in enumerate(others)
    ]
    lines += [
        CurveLine(drawings[name], name, *how) for name, how in zip(chosen, CURVES, strict=False)
    ]
    figure = draw_lines(
        lines,
        drawings[chosen[0]],
        title="Accuracy against cost, all routers",
        size=(9.6, 6.4),
        named=[drawings[name] for name in chosen],
    )
    caption = (
        "Each curve is one router from its cheapest to its most accurate setting; up and to the "
        "left is better. Circles are the single targets, the dashed line is the best fixed mix of "
        "targets: a router is worth using where it runs above that line. The dotted line is price "
        f"alone, with the costs that {result.plan.reference} predicts."
    )
    return ReportFigure("curves", figure, curve_rows(result), caption)


def curve_rows(result: ComparisonResult) -> list[dict[str, Any]]:
    """The data of the curves: one row per operating point and per single target."""

    def row(
        router: str, target: str, lam: float | None, cost: float, right: float
    ) -> dict[str, Any]:
        names = {"router": router, "target": target}
        return {**names, "lam_to": lam, "mean_cost": cost, "accuracy": right}

    rows = []
    for router in result.routers:
        curve = router.evaluation.curve
        columns = (curve.lam_to.tolist(), curve.mean_cost.tolist(), curve.accuracy.tolist())
        rows += [row(router.name, "", *point) for point in zip(*columns, strict=True)]
    reference = result.by_name[result.plan.reference]
    for point in reference.evaluation.price_alone:
        rows.append(row("(price alone)", "", None, point.mean_cost, point.accuracy))
    for name, values in result.routers[0].evaluation.per_target.items():
        rows.append(row("", name, None, values["mean_cost"].value, values["accuracy"].value))
    return rows


def intervals(result: ComparisonResult) -> ReportFigure:
    """Each router's metrics with their intervals, the best AUC on top."""
    ordered = by_number(result.routers, "auc_mean")[::-1]
    figure = new_figure(11.0, 1.4 + 0.27 * len(ordered))
    panels = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, SHOWN, strict=True):
        for row, router in enumerate(ordered):
            colour = PINK if router.name == result.plan.reference else BLUE
            draw_interval(axes, row, router.headline[name], colour, size=4.5)
        reference = result.by_name[result.plan.reference].headline[name].value
        axes.axvline(reference, color=PINK, lw=0.8, ls=":")
        style(axes, title=heading(HEADLINE[name]), size=9, bars=True)
    panels[0].set_yticks(range(len(ordered)), [router.name for router in ordered])
    caption = (
        "Dots are the metrics on the test queries, each line is the 95 % interval of its dot "
        "alone; the dotted line is the reference. Overlapping intervals don't mean that two "
        "routers are equal: the paired differences in the tables are more powerful, since both "
        "routers are judged on the same queries."
    )
    rows = [
        {"router": router.name, "number": name, **ends(router.headline[name])}
        for router in result.routers
        for name in SHOWN
    ]
    return ReportFigure("intervals", figure, rows, caption)


def _sort_finite(value: float) -> float:
    return value if np.isfinite(value) else -np.inf
