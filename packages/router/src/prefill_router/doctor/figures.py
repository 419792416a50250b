"""The figures of a check-up, each with its data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefill_router.doctor.checkup import Checkup
from prefill_router.doctor.fixed_choice import ShuffledControl
from prefill_router.evaluation import PER, LambdaSweep, known_mean, mean_over, ones, trace_price
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    QUIET,
    ReportFigure,
    draw_interval,
    draw_mix,
    draw_price,
    ends,
    is_wide,
    legend_below,
    new_figure,
    place_labels,
    scale_cost,
    style,
)

Row = dict[str, Any]
_MOST = 2000
"""The most points drawn of a curve; more would not be visible."""


_CAPTIONS = {
    "plane": "The curve is the router at every lam; the diamond is the lam that was examined. The "
    "dashed line is the best random mix of targets, the dotted line is price alone, the cross is "
    "the router's own choices, randomly reassigned to other queries.",
    "shuffled": "Each bar counts shuffles. The further right the line, the more the router's "
    "choices depend on the queries.",
    "lift": "Green is significantly better and orange significantly worse, corrected for multiple "
    "testing: where the router is nowhere better or worse, at most 5 of 100 samples colour any "
    "part of a group, and likewise the row of all queries. Grey may be chance. Each line is the "
    "95 % interval of its row alone, so some of many exclude 0 by chance.",
    "confidence": "Where the square lies below the dot the router is overconfident. The bar is the "
    "95 % interval of the accuracy.",
}


def figures(checkup: Checkup) -> list[ReportFigure]:
    """Every figure that can be drawn, with its data."""
    made = {"plane": plane(checkup)}
    if checkup.shuffled is not None:
        made["shuffled"] = shuffled(checkup.shuffled)
    made["lift"] = lift(checkup)
    if checkup.regions:
        made["confidence"] = confidence(checkup)
    return [ReportFigure(name, *drawn, _CAPTIONS[name]) for name, drawn in made.items()]


def plane(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """Accuracy against cost: the router, the single targets, the best fixed mixes."""
    subject, trial, dealt = checkup.subject, checkup.subject.trial, checkup.shuffled
    one = ones(len(trial))
    curve, same = LambdaSweep.of(trial).points(one), one * trial.compared
    step = max(1, curve.cost.shape[1] // _MOST)
    cost, accuracy = (known_mean(same, t)[0] for t in (trial.single_cost, trial.single_label))
    own = [float(mean_over(same, values)[0]) for values in (subject.cost, subject.label)]
    corners = list(subject.parts[0].references.mix.corners)
    mixed = _mixed(cost[corners], accuracy[corners])
    rows = _rows("router", curve.cost[0, ::step], curve.accuracy[0, ::step])
    rows += _rows("router at this lam", [own[0]], [own[1]])
    if dealt is not None:
        rows += _rows("shuffled control", [dealt.cost], [dealt.anywhere.mean()])
    rows += _rows("best fixed mix", *mixed)
    price = trace_price(subject.parts)
    costs, rights = [one.mean_cost for one in price], [one.accuracy for one in price]
    rows += _rows("price alone", costs, rights)
    rows += _rows("single target", cost, accuracy, trial.targets)
    figure, axes = _frame("Accuracy against cost", (9.4, 5.4))
    if np.isnan(own).any() or np.isnan(cost[corners]).any():
        axes.text(0.5, 0.5, "no cost is known, so there is nothing to draw", ha="center", color=INK)
        axes.set_axis_off()
        return figure, rows
    styles: Mapping[str, tuple[str, str]] = {
        "router": ("-", BLUE),
        "single target": ("o", ORANGE),
        "shuffled control": ("X", PINK),
        "router at this lam": ("D", BLUE),
    }
    for series, (shape, colour) in styles.items():
        at = [(row["x"], row["y"]) for row in rows if row["series"] == series] or [(np.nan, np.nan)]
        x, y = np.array(at).T
        fill = "none" if series == "single target" else colour  # as on the other pages
        axes.plot(PER * x, 100 * y, shape, color=colour, label=series, ms=7, lw=1.6, mfc=fill)
    draw_mix(axes, *(scale * side for scale, side in zip((PER, 100), mixed, strict=True)))
    if price:
        draw_price(axes, PER * np.array(costs), 100 * np.array(rights))
    if is_wide(np.where(cost > 0, cost, np.nan)):
        scale_cost(axes)
    axes.set_xlabel(f"mean observed cost (US dollars per {PER:,} queries)", color=INK)
    axes.set_ylabel("accuracy (%)", color=INK)
    axes.margins(x=0.08, y=0.08)
    legend_below(figure, columns=6)
    shown = [i for i in range(len(cost)) if np.isfinite(cost[i]) and np.isfinite(accuracy[i])]
    places = [(PER * float(cost[i]), 100 * float(accuracy[i])) for i in shown]
    line = [(PER * float(a), 100 * float(b)) for a, b in zip(*mixed, strict=True)][::8]
    line += [(PER * row["x"], 100 * row["y"]) for row in rows if row["series"] == "router"][::40]
    place_labels(axes, places, [trial.targets[i] for i in shown], avoid=line, colour=INK)
    return figure, rows


def shuffled(found: ShuffledControl) -> tuple[Figure, list[Row]]:
    """Histograms of the control's accuracies, and the router's accuracy."""
    series = {"dealt out anywhere": found.anywhere, "within benchmarks and domains": found.within}
    figure, axes = _frame("The same choices, shuffled among the queries", (9.4, 3.6))
    bins = np.linspace(*_range([*found.anywhere, *found.within]), 41)
    for (name, values), colour in zip(series.items(), (PINK, ORANGE), strict=True):
        axes.hist(100 * values, bins=bins.tolist(), color=colour, alpha=0.55, label=name)
    axes.axvline(100 * found.accuracy, color=BLUE, lw=2, label="the router")
    axes.set_xlabel("accuracy (%)", color=INK)
    axes.set_ylabel("shuffles", color=INK)
    legend_below(figure, columns=3)
    rows = [
        {"series": name, "shuffle": i, "accuracy": value}
        for name, values in series.items()
        for i, value in enumerate(values.tolist())
    ]
    return figure, [*rows, {"series": "router", "shuffle": None, "accuracy": found.accuracy}]


def lift(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """The lift over the best single target, with intervals."""
    found = list(checkup.lifts)[::-1]
    best = checkup.subject.trial.targets[checkup.subject.best]
    figure, axes = _frame(f"Accuracy beyond {best} alone", (9.4, 1.3 + 0.27 * len(found)))
    for place, one in enumerate(found):
        colour = {1: GREEN, 0: QUIET, -1: ORANGE}[one.sure]
        draw_interval(axes, place, one.lift, colour, scale=100, size=6, width=2)
    labels = [f"{one.name} ({one.queries:,})" for one in found]
    axes.set_yticks(range(len(found)), labels, color=INK, fontsize=8)
    axes.axvline(0, color=INK, lw=0.8)
    label = "percentage points; line: 95 % interval of this row alone; coloured: significant in all"
    axes.set_xlabel(label, color=INK)
    rows = [
        {
            "group": one.group,
            "name": one.name,
            "queries": one.queries,
            **ends(one.lift, name="lift"),
            "sure": one.sure,
        }
        for one in checkup.lifts
    ]
    return figure, rows


def confidence(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """Predicted and true accuracy of the chosen targets by distance from the train part."""
    found = checkup.regions
    figure, axes = _frame("Confidence near and far from the training queries", (9.4, 3.9))
    places = range(len(found))
    predicted = [100 * one.confidence for one in found]
    axes.plot(places, predicted, "o", color=BLUE, label="predicted")
    axes.plot(places, [100 * one.accuracy for one in found], "s", color=ORANGE, label="right")
    for place, one in enumerate(found):
        range_ = [100 * (one.confidence - end) for end in (one.gap.lower, one.gap.upper)]
        axes.plot([place, place], range_, color=ORANGE, lw=1.6, alpha=0.6)
    labels = [f"{one.name}\n({one.queries:,})" for one in found]
    axes.set_xticks(places, labels, color=INK, fontsize=8)
    axes.margins(x=0.1)
    axes.set_xlabel("distance from the training queries", color=INK)
    axes.set_ylabel("chosen target (%)", color=INK)
    legend_below(figure, columns=2)
    rows = [
        {
            "region": one.name,
            "queries": one.queries,
            "confidence": one.confidence,
            "accuracy": one.accuracy,
            **ends(one.gap, name="gap"),
        }
        for one in found
    ]
    return figure, rows


def _frame(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = new_figure(*size)
    axes = figure.add_subplot()
    style(axes, title=title, size=11)
    return figure, axes


def _mixed(
    cost: NDArray[np.float64], accuracy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mixes between the corners: linear in cost, so curved on a logarithmic scale."""
    order = np.argsort(cost)
    between = np.linspace(0, len(cost) - 1, 200 if len(cost) > 1 else 1)
    places = np.arange(len(cost))
    return (
        np.interp(between, places, cost[order]),
        np.interp(between, places, accuracy[order]),
    )


def _rows(series: str, x: Any, y: Any, names: tuple[str, ...] = ()) -> list[Row]:
    named = names or ("",) * len(x)
    return [
        {"series": series, "target": name, "x": float(a), "y": float(b)}
        for name, a, b in zip(named, x, y, strict=True)
    ]


def _range(values: list[float]) -> tuple[float, float]:
    low, high = 100 * min(values), 100 * max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
