"""The figures of a check-up, each with its data."""

from collections.abc import Mapping, Sequence
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
    "dashed line is the best fixed mix of targets, the dotted line is price alone. The cross is "
    "the router's own choices, randomly reassigned to other queries.",
    "shuffled": "Each bar counts shuffles. The further right the line, the more the router's "
    "choices depend on the queries.",
    "lift": "Green is significantly better and orange significantly worse, corrected for multiple "
    "testing. Where the router is nowhere better or worse, at most 5 of 100 samples colour any "
    "part of a group. The same holds for the row of all queries. Grey may be chance. Each line is "
    "the 95 % interval of its row alone, so some of many exclude 0 by chance.",
    "confidence": "Where the square lies below the dot the router is overconfident. The bar is the "
    "95 % interval of the accuracy.",
}


def make_figures(checkup: Checkup) -> list[ReportFigure]:
    """Every figure that can be drawn, with its data."""
    drawings = {"plane": draw_plane(checkup)}
    if checkup.shuffled is not None:
        drawings["shuffled"] = draw_shuffled(checkup.shuffled)
    drawings["lift"] = draw_lift(checkup)
    if checkup.regions:
        drawings["confidence"] = draw_confidence(checkup)
    return [ReportFigure(name, *drawing, _CAPTIONS[name]) for name, drawing in drawings.items()]


def draw_plane(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """Accuracy against cost: the router, the single targets, the best fixed mixes."""
    subject, trial, control = checkup.subject, checkup.subject.trial, checkup.shuffled
    weights = ones(len(trial))
    curve, same = LambdaSweep.of(trial).points(weights), weights * trial.compared
    step = max(1, curve.cost.shape[1] // _MOST)
    cost, accuracy = (known_mean(same, t)[0] for t in (trial.single_cost, trial.single_label))
    own = [float(mean_over(same, values)[0]) for values in (subject.cost, subject.label)]
    corners = list(subject.parts[0].references.mix.corners)
    mixes = _interpolate_mixes(cost[corners], accuracy[corners])
    rows = _make_rows("router", curve.cost[0, ::step], curve.accuracy[0, ::step])
    rows += _make_rows("router at this lam", [own[0]], [own[1]])
    if control is not None:
        rows += _make_rows("shuffled control", [control.cost], [control.anywhere.mean()])
    rows += _make_rows("best fixed mix", *mixes)
    price = trace_price(subject.parts)
    costs, rights = [point.mean_cost for point in price], [point.accuracy for point in price]
    rows += _make_rows("price alone", costs, rights)
    rows += _make_rows("single target", cost, accuracy, trial.targets)
    figure, axes = _make_frame("Accuracy against cost", (9.4, 5.4))
    if np.isnan(own).any() or np.isnan(cost[corners]).any():
        axes.text(0.5, 0.5, "no cost is known, so there is nothing to draw", ha="center", color=INK)
        axes.set_axis_off()
        return figure, rows
    _draw_series(axes, rows)
    draw_mix(axes, *(scale * side for scale, side in zip((PER, 100), mixes, strict=True)))
    if price:
        draw_price(axes, PER * np.array(costs), 100 * np.array(rights))
    if is_wide(np.where(cost > 0, cost, np.nan)):
        scale_cost(axes)
    axes.set_xlabel(f"mean observed cost (US dollars per {PER:,} queries)", color=INK)
    axes.set_ylabel("accuracy (%)", color=INK)
    axes.margins(x=0.08, y=0.08)
    legend_below(figure, columns=6)
    _label_targets(axes, rows)
    return figure, rows


def _draw_series(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the router, its lam, the single targets and the shuffled control."""
    styles: Mapping[str, tuple[str, str]] = {
        "router": ("-", BLUE),
        "single target": ("o", ORANGE),
        "shuffled control": ("X", PINK),
        "router at this lam": ("D", BLUE),
    }
    for series, (shape, colour) in styles.items():
        x, y = np.array(_scale_points(rows, series) or [(np.nan, np.nan)]).T
        fill = "none" if series == "single target" else colour  # as on the other pages
        axes.plot(x, y, shape, color=colour, label=series, ms=7, lw=1.6, mfc=fill)


def _label_targets(axes: Axes, rows: Sequence[Row]) -> None:
    """Write each single target's name beside it, clear of the mixes and of the router's curve."""
    targets = [
        row
        for row in rows
        if row["series"] == "single target" and np.isfinite((row["x"], row["y"])).all()
    ]
    names = [row["target"] for row in targets]
    line = _scale_points(rows, "best fixed mix")[::8] + _scale_points(rows, "router")[::40]
    place_labels(axes, _scale_points(targets, "single target"), names, avoid=line, colour=INK)


def _scale_points(rows: Sequence[Row], series: str) -> list[tuple[float, float]]:
    """The points of a series, in the units of the figure."""
    return [(PER * row["x"], 100 * row["y"]) for row in rows if row["series"] == series]


def draw_shuffled(control: ShuffledControl) -> tuple[Figure, list[Row]]:
    """Histograms of the control's accuracies, and the router's accuracy."""
    series = {
        "dealt out anywhere": control.anywhere,
        "within benchmarks and domains": control.within,
    }
    figure, axes = _make_frame("The same choices, shuffled among the queries", (9.4, 3.6))
    bins = np.linspace(*_find_range([*control.anywhere, *control.within]), 41)
    for (name, values), colour in zip(series.items(), (PINK, ORANGE), strict=True):
        axes.hist(100 * values, bins=bins.tolist(), color=colour, alpha=0.55, label=name)
    axes.axvline(100 * control.accuracy, color=BLUE, lw=2, label="the router")
    axes.set_xlabel("accuracy (%)", color=INK)
    axes.set_ylabel("shuffles", color=INK)
    legend_below(figure, columns=3)
    rows = [
        {"series": name, "shuffle": i, "accuracy": value}
        for name, values in series.items()
        for i, value in enumerate(values.tolist())
    ]
    return figure, [*rows, {"series": "router", "shuffle": None, "accuracy": control.accuracy}]


def draw_lift(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """The lift over the best single target, with intervals."""
    lifts = list(checkup.lifts)[::-1]
    best = checkup.subject.trial.targets[checkup.subject.best]
    figure, axes = _make_frame(f"Accuracy beyond {best} alone", (9.4, 1.3 + 0.27 * len(lifts)))
    for place, row_lift in enumerate(lifts):
        colour = {1: GREEN, 0: QUIET, -1: ORANGE}[row_lift.sure]
        draw_interval(axes, place, row_lift.lift, colour, scale=100, size=6, width=2)
    labels = [f"{row_lift.name} ({row_lift.queries:,})" for row_lift in lifts]
    axes.set_yticks(range(len(lifts)), labels, color=INK, fontsize=8)
    axes.axvline(0, color=INK, lw=0.8)
    label = "percentage points; line: 95 % interval of this row alone; coloured: significant in all"
    axes.set_xlabel(label, color=INK)
    rows = [
        {
            "group": row_lift.group,
            "name": row_lift.name,
            "queries": row_lift.queries,
            **ends(row_lift.lift, name="lift"),
            "sure": row_lift.sure,
        }
        for row_lift in checkup.lifts
    ]
    return figure, rows


def draw_confidence(checkup: Checkup) -> tuple[Figure, list[Row]]:
    """Predicted and true accuracy of the chosen targets by distance from the train part."""
    regions = checkup.regions
    figure, axes = _make_frame("Confidence near and far from the train rows", (9.4, 3.9))
    places = range(len(regions))
    predicted = [100 * region.confidence for region in regions]
    axes.plot(places, predicted, "o", color=BLUE, label="predicted")
    axes.plot(
        places, [100 * region.accuracy for region in regions], "s", color=ORANGE, label="right"
    )
    for place, region in enumerate(regions):
        range_ = [100 * (region.confidence - end) for end in (region.gap.lower, region.gap.upper)]
        axes.plot([place, place], range_, color=ORANGE, lw=1.6, alpha=0.6)
    labels = [f"{region.name}\n({region.queries:,})" for region in regions]
    axes.set_xticks(places, labels, color=INK, fontsize=8)
    axes.margins(x=0.1)
    axes.set_xlabel("distance from the train rows", color=INK)
    axes.set_ylabel("chosen target (%)", color=INK)
    legend_below(figure, columns=2)
    rows = [
        {
            "region": region.name,
            "queries": region.queries,
            "confidence": region.confidence,
            "accuracy": region.accuracy,
            **ends(region.gap, name="gap"),
        }
        for region in regions
    ]
    return figure, rows


def _make_frame(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = new_figure(*size)
    axes = figure.add_subplot()
    style(axes, title=title, size=11)
    return figure, axes


def _interpolate_mixes(
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


def _make_rows(series: str, x: Any, y: Any, names: tuple[str, ...] = ()) -> list[Row]:
    labels = names or ("",) * len(x)
    return [
        {"series": series, "target": name, "x": float(a), "y": float(b)}
        for name, a, b in zip(labels, x, y, strict=True)
    ]


def _find_range(values: list[float]) -> tuple[float, float]:
    low, high = 100 * min(values), 100 * max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
