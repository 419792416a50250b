"""The figures of an evaluation: accuracy against cost, and reliability diagrams.

The diagrams have one panel per target, small enough that all are seen together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import DataError
from prefill_router.evaluation import PER, Anchors, Axis, Band, Diagram, Evaluation, Reliability
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.figures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PINK,
    SKY,
    YELLOW,
    legend_below,
    new_figure,
    place_labels,
    scale_cost,
    style,
    write_figure,
)

View = Literal["raw", "normalised"]
Values = Float[NDArray[np.float64], " point"]
Mixes = Float[NDArray[np.float64], " mixture"]
PricePoints = Float[NDArray[np.float64], " price"]
Singles = Float[NDArray[np.float64], " target"]
# The colours that the targets and the oracle don't use; the line styles differ as well.
CURVES: tuple[tuple[str, Any], ...] = (
    (BLUE, "-"),
    (PINK, "--"),
    (INK, "-."),
    (SKY, ":"),
    (YELLOW, (0, (5, 1, 1, 1))),
)
_SYSTEMS = 4
"""The most curves with bands that can be distinguished in one figure."""
_PER_MIX = 40
"""Points drawn between two targets of the best mix: a straight line only where cost is linear."""
_MOST = 4000
"""The most points drawn of a curve; more would not be visible."""


@final
@dataclass(frozen=True, eq=False)
class Drawing:
    """What a figure shows, in its own units.

    Attributes:
        title: Title of the figure.
        x_label: Label of the x axis, with the unit.
        y_label: Label of the y axis, with the unit.
        curve: The router's points, x and y, by rising lam.
        band: The band of the resampled curves.
        singles: Each target's x and y.
        names: The targets.
        frontier: Which targets are on the Pareto frontier.
        mix: The best fixed mixes of the targets, x and y.
        best: The point of highest accuracy, x and y.
        oracle: The oracle's accuracy.
        corner: Whether the oracle is drawn as the corner (1, 1), and not as a line.
        log: Whether x is drawn on a logarithmic scale.
        costliest: The most expensive target, and at each point of the curve the share of the
            queries that it gets. None where that isn't drawn, as where it never gets any.
        price: Price alone, x and y; None where it isn't known.
    """

    title: str
    x_label: str
    y_label: str
    curve: tuple[Values, Values]
    band: Band
    singles: tuple[Singles, Singles]
    names: tuple[str, ...]
    frontier: tuple[bool, ...]
    mix: tuple[Mixes, Mixes]
    best: tuple[float, float]
    oracle: float
    corner: bool
    log: bool
    costliest: tuple[str, Values] | None = None
    price: tuple[PricePoints, PricePoints] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no point of the curve has a cost."""
        x, y = self.curve
        return not np.isfinite(x * y).any()

    def rows(self) -> list[dict[str, Any]]:
        """The data of the figure, one row per point."""
        rows = [_make_row("router", "", *xy) for xy in zip(*self.curve, strict=True)]
        bounds = zip(self.band.x, self.band.lower, self.band.upper, strict=True)
        rows += [_make_row("band", "", x, float("nan"), low, high) for x, low, high in bounds]
        for name, on, x, y in zip(self.names, self.frontier, *self.singles, strict=True):
            rows.append(_make_row("frontier target" if on else "target", name, x, y))
        rows += [_make_row("best mix", "", *xy) for xy in zip(*self.mix, strict=True)]
        if self.price is not None:
            rows += [_make_row("price alone", "", *xy) for xy in zip(*self.price, strict=True)]
        if self.costliest is not None:
            name, share = self.costliest
            pairs = zip(self.curve[0], share, strict=True)
            rows += [_make_row("calls to the most expensive", name, *xy) for xy in pairs]
        rows.append(_make_row("max-lam", "", *self.best))
        rows.append(_make_row("oracle", "", 1.0 if self.corner else float("nan"), self.oracle))
        return rows


def drawing(evaluation: Evaluation, view: View) -> Drawing:
    """The content of the raw or the normalised accuracy-cost figure."""
    best = int(np.flatnonzero(evaluation.curve.lam_from == evaluation.max_lam[0])[0])
    on = tuple(name in evaluation.frontier for name in evaluation.targets)
    common: dict[str, Any] = {"names": evaluation.targets, "frontier": on}
    if view == "raw":
        return _make_raw_drawing(evaluation, best, common)
    return _make_normalised_drawing(evaluation, best, common)


def _make_raw_drawing(evaluation: Evaluation, best: int, common: Mapping[str, Any]) -> Drawing:
    curve, band = evaluation.curve, evaluation.raw_band
    mixes, price = _space_mixes(evaluation), _read_price_alone(evaluation)
    cost = _read_targets(evaluation, "mean_cost")
    return Drawing(
        "Accuracy against cost",
        f"Mean observed cost (US dollars per {PER:,} queries)",
        "Accuracy (%)",
        (PER * curve.mean_cost, 100 * curve.accuracy),
        Band(PER * band.x, 100 * band.lower, 100 * band.upper),
        (PER * cost, 100 * _read_targets(evaluation, "accuracy")),
        best=(PER * float(curve.mean_cost[best]), 100 * float(curve.accuracy[best])),
        oracle=100 * evaluation.headline["oracle_accuracy"].value,
        mix=(PER * mixes[0], 100 * mixes[1]),
        price=None if price is None else (PER * price[0], 100 * price[1]),
        corner=False,
        log=is_wide(PER * cost),
        costliest=_find_costliest(evaluation, cost),
        **common,
    )


def _make_normalised_drawing(
    evaluation: Evaluation, best: int, common: Mapping[str, Any]
) -> Drawing:
    curve, price = evaluation.curve, _read_price_alone(evaluation)
    axis = evaluation.definitions["cost_axis"].split(":")[0]
    return Drawing(
        "Accuracy against cheapness, normalised",
        f"Normalised {axis} cost (0: most expensive target, 1: cheapest)",
        "Normalised accuracy (0: worst target, 1: oracle)",
        (curve.normalised_cost, curve.normalised_accuracy),
        evaluation.normalised_band,
        (
            _read_targets(evaluation, "normalised_cost"),
            _read_targets(evaluation, "normalised_accuracy"),
        ),
        best=(float(curve.normalised_cost[best]), float(curve.normalised_accuracy[best])),
        oracle=1.0,
        mix=_normalise(evaluation, _space_mixes(evaluation)),
        price=None if price is None else _normalise(evaluation, price),
        corner=True,
        log=False,
        **common,
    )


def draw(what: Drawing) -> Figure:
    """Draw a figure."""
    if what.is_empty:
        figure = new_figure(9.4, 0.8)
        axes = figure.add_subplot()
        axes.text(0.5, 0.5, "no cost is known, so there is nothing to draw", ha="center", color=INK)
        axes.set_axis_off()
        return figure
    figure = new_figure(9.4, 6.0 if what.costliest is None else 7.2)
    axes, below = _make_panels(figure, what)
    x, y = what.curve
    order, step = np.argsort(x, kind="stable"), max(1, len(x) // _MOST)
    axes.plot(x[order][::step], y[order][::step], color=BLUE, lw=1.8, label="router", zorder=3)
    _draw_band(axes, what.band)
    draw_singles(axes, what)
    axes.plot(*what.best, "D", color=PINK, ms=7, label="highest accuracy", zorder=5)
    frame(axes, what)
    if below is not None and what.costliest is not None:
        below.plot(x[order][::step], 100 * what.costliest[1][order][::step], color=BLUE, lw=1.4)
        style(below, x=axes.get_xlabel(), y=f"calls (%) to\n{what.costliest[0]}")
        below.yaxis.label.set_fontsize(8)
        axes.set_xlabel("")
    legend_below(figure)
    name_targets(axes, what)
    return figure


def name_targets(axes: Axes, *drawings: Drawing) -> None:
    """Write each single target's name beside it, clear of the curves; call it last.

    Args:
        axes: The axes, with everything drawn on them.
        drawings: The drawings on them, all of the same targets.
    """
    first = drawings[0]
    at = [(float(a), float(b)) for a, b in zip(*first.singles, strict=True)]
    keep = [i for i, point in enumerate(at) if np.isfinite(point).all()]
    lines = [first.best]
    for x, y in (first.mix, first.price or first.mix, *(drawing.curve for drawing in drawings)):
        step = max(1, len(x) // 60)
        pairs = zip(x[::step].tolist(), y[::step].tolist(), strict=True)
        lines += [pair for pair in pairs if np.isfinite(pair).all()]
    names = [first.names[i] for i in keep]
    place_labels(axes, [at[i] for i in keep], names, avoid=lines, colour=INK)


def _make_row(
    series: str, name: str, x: float, y: float, lower: float = math.nan, upper: float = math.nan
) -> dict[str, Any]:
    numbers = {"x": float(x), "y": float(y), "lower": float(lower), "upper": float(upper)}
    return {"series": series, "target": name, **numbers}


def is_wide(cost: Singles) -> bool:
    """Whether the costs span so wide a range that a logarithmic scale shows them better."""
    finite = cost[np.isfinite(cost)]
    return bool(len(finite) and finite.min() > 0 and finite.max() > 10 * finite.min())


def _read_targets(evaluation: Evaluation, name: str) -> Singles:
    return np.array([target[name].value for target in evaluation.per_target.values()])


def _space_mixes(evaluation: Evaluation) -> tuple[Mixes, Mixes]:
    """Cost and accuracy of the best mixes, densely spaced for scales where they aren't straight."""
    corners = [(point.mean_cost, point.accuracy) for point in evaluation.mix]
    if len(corners) < 2:
        return np.array([c for c, _ in corners]), np.array([a for _, a in corners])
    points = np.array(corners)
    place = np.linspace(0, len(corners) - 1, _PER_MIX * (len(corners) - 1) + 1)
    between = np.arange(len(corners), dtype=np.float64)
    return np.interp(place, between, points[:, 0]), np.interp(place, between, points[:, 1])


def _read_price_alone(evaluation: Evaluation) -> tuple[PricePoints, PricePoints] | None:
    points = evaluation.price_alone
    if not points:
        return None
    return np.array([p.mean_cost for p in points]), np.array([p.accuracy for p in points])


def _normalise(evaluation: Evaluation, mixes: tuple[Mixes, Mixes]) -> tuple[Mixes, Mixes]:
    anchors = {name: np.array([value]) for name, value in evaluation.anchors.items()}
    plane = Anchors(**anchors)
    axis: Axis = "linear" if evaluation.definitions["cost_axis"].startswith("linear") else "inverse"
    cost, accuracy = (column[None, :] for column in mixes)
    return plane.cheapness(cost, axis=axis)[0], plane.height(accuracy)[0]


def _find_costliest(evaluation: Evaluation, cost: Singles) -> tuple[str, Values] | None:
    share = evaluation.curve.dearest_share
    if np.isnan(cost).all() or len(cost) < 2 or not (share > 0).any():
        return None
    return evaluation.targets[int(np.nanargmax(cost))], share


def _make_panels(figure: Figure, what: Drawing) -> tuple[Axes, Axes | None]:
    """The axes of the plane and, below with the same x axis, of the costliest target's share."""
    if what.costliest is None:
        return figure.add_subplot(), None
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    above.tick_params(labelbottom=False)
    below.set_ylim(-4, 104)
    below.set_yticks((0, 50, 100))
    return above, below


def _draw_band(axes: Axes, band: Band) -> None:
    if np.isfinite(band.lower).any():
        label = "95 % of resampled curves, end to end"
        axes.fill_between(band.x, band.lower, band.upper, color=BLUE, alpha=0.22, lw=0, label=label)


def draw_singles(axes: Axes, what: Drawing) -> None:
    """Draw the single targets, their best fixed mixes, and price alone."""
    x, y = what.singles
    on = np.array(what.frontier)
    axes.plot(x[~on], y[~on], "o", color=ORANGE, mfc="none", ms=6, label="single target", zorder=4)
    axes.plot(x[on], y[on], "o", color=ORANGE, ms=6, label="on the Pareto frontier", zorder=4)
    draw_mix(axes, *what.mix)
    if what.price is not None:
        draw_price(axes, *what.price)


def draw_mix(axes: Axes, cost: Mixes, accuracy: Mixes) -> None:
    """Draw the best fixed mixes; their line is curved where the cost axis isn't linear."""
    axes.plot(cost, accuracy, "--", color=ORANGE, lw=1.3, label="best fixed mix", zorder=2)


def draw_price(axes: Axes, cost: PricePoints, accuracy: PricePoints) -> None:
    """Draw price alone, which a router must beat to gain by what requests say."""
    axes.plot(cost, accuracy, ":", color=ORANGE, lw=1.5, label="price alone", zorder=2)


def frame(axes: Axes, what: Drawing) -> None:
    """Draw the oracle, the axes and their labels."""
    if what.log:
        scale_cost(axes)
    if what.corner:
        axes.plot(1, 1, "*", color=GREEN, ms=14, label="oracle corner", zorder=5)
    else:
        axes.axhline(what.oracle, color=GREEN, lw=1.2, ls=":", label="oracle accuracy")
    axes.margins(x=0.09, y=0.07)
    style(axes, title=what.title, x=what.x_label, y=what.y_label, size=11)


@final
@dataclass(frozen=True, eq=False)
class CurveLine:
    """One of several curves of a figure.

    Attributes:
        what: The drawing that the curve is taken from.
        label: Label in the legend.
        colour: Colour of the line.
        stroke: Style of the line.
        width: Width of the line, in points.
        band: Whether its band is drawn.
    """

    what: Drawing
    label: str
    colour: str
    stroke: Any
    width: float = 1.8
    band: bool = False


def draw_lines(
    lines: Sequence[CurveLine],
    first: Drawing,
    *,
    title: str,
    size: tuple[float, float],
    named: Sequence[Drawing],
) -> Figure:
    """Draw several curves among the single targets, under the oracle.

    Args:
        lines: The curves.
        first: The drawing whose targets and oracle are shown.
        title: Title of the figure.
        size: Size of the figure, inches.
        named: The curves that the targets' names must not cover.
    """
    figure = new_figure(*size)
    axes = figure.add_subplot()
    for line in lines:
        _draw_line(axes, line)
    draw_singles(axes, first)
    frame(axes, first)
    axes.set_title(title, color=INK, fontsize=11, loc="left")
    legend_below(figure)
    name_targets(axes, *named)
    return figure


def write_side_by_side(systems: Mapping[str, Evaluation], path: Path, *, title: str) -> list[Path]:
    """Write the figure as PNG and SVG, and its data as CSV, each whole or not at all.

    Args:
        systems: Evaluations by name, at most four, of the same queries and targets.
        path: Path of the files, without a suffix.
        title: Title of the figure.

    Returns:
        The files.

    Raises:
        DataError: There is no system, there are more than four, or they were evaluated on
            different targets or numbers of queries.
    """
    return write_figure(draw_side_by_side(systems, title=title), path, rows(systems))


def draw_side_by_side(systems: Mapping[str, Evaluation], *, title: str) -> Figure:
    """Draw every system's curve among the single targets, under the oracle.

    Raises:
        DataError: As `write_side_by_side`.
    """
    what = _make_drawings(systems)
    lines = [
        CurveLine(content, name, *how, band=True)
        for (name, content), how in zip(what.items(), CURVES, strict=False)
    ]
    return draw_lines(lines, lines[0].what, title=title, size=(9.4, 6.0), named=[*what.values()])


def rows(systems: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """The data of the figure: all rows of the first system; curve, band and best of the others."""
    own = ("router", "band", "max-lam")
    return [
        {"system": name if row["series"] in own else "", **row}
        for place, (name, content) in enumerate(_make_drawings(systems).items())
        for row in content.rows()
        if place == 0 or row["series"] in own
    ]


def _make_drawings(systems: Mapping[str, Evaluation]) -> dict[str, Drawing]:
    if not 0 < len(systems) <= _SYSTEMS:
        raise DataError(f"{len(systems)} systems were given; 1 to {_SYSTEMS} can be drawn")
    subjects = {(each.targets, each.queries, each.labels) for each in systems.values()}
    if len(subjects) > 1:
        raise DataError(
            "the systems were evaluated on different queries or targets; evaluate them on the same"
        )
    return {name: drawing(evaluation, "raw") for name, evaluation in systems.items()}


def _draw_line(axes: Axes, line: CurveLine) -> None:
    (x, y), band = line.what.curve, line.what.band
    order = np.argsort(x, kind="stable")
    how = {"linestyle": line.stroke, "lw": line.width, "label": line.label, "zorder": 3}
    axes.plot(x[order], y[order], color=line.colour, **how)
    if line.band and np.isfinite(band.lower).any():
        axes.fill_between(band.x, band.lower, band.upper, color=line.colour, alpha=0.12, lw=0)


_ACROSS = 5
_HIGH = 0.22
"""How much of a panel's height the share of queries in a bin may take."""


def write_diagrams(reliability: Reliability, path: Path, *, title: str) -> list[Path]:
    """Write the diagrams as PNG and SVG, and their data in both kinds of bins as CSV.

    Args:
        reliability: The calibration to draw.
        path: Path of the files, without a suffix; each file is written whole or not at all.
        title: Title of the figure.

    Returns:
        The files.
    """
    errors = {
        name: f"ECE {row['ece'].value:.3f}, {row['ece_by_chance'].value:.3f} by chance"
        for name, row in reliability.estimates.items()
    }
    figure = draw_diagrams(reliability.diagrams["mass"], errors, title=title)
    rows = [row for diagram in reliability.diagrams.values() for row in diagram.rows()]
    return write_figure(figure, path, rows)


def draw_diagrams(diagram: Diagram, errors: Mapping[str, str], *, title: str) -> Figure:
    """Draw a panel for each target, and one for all together.

    Args:
        diagram: The data of the panels.
        errors: Text about the calibration error, for each panel.
        title: Title of the figure.
    """
    names = diagram.bins.names
    across = min(_ACROSS, len(names))
    down = math.ceil(len(names) / across)
    figure = new_figure(0.6 + 2.3 * across, 1.15 + 2.45 * down)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for k, axes in enumerate(panels):
        if k >= len(names):
            axes.set_visible(False)
            continue
        _draw_panel(axes, diagram, k)
        lowest = k + across >= len(names)
        if lowest:
            axes.tick_params(labelbottom=True)
        style(
            axes,
            title=f"{names[k]}\n{errors[names[k]]}",
            x="predicted probability" if lowest else "",
            y="" if k % across else "share of right answers",
            size=8,
            label_size=8,
        )
    figure.suptitle(title, color=INK, fontsize=11, parse_math=False)
    legend_below(figure)
    return figure


def _draw_panel(axes: Axes, diagram: Diagram, column: int) -> None:
    """Draw the points with their intervals, the diagonal, and the distribution of predictions."""
    used = diagram.cells[column] > 0
    x, y = diagram.predicted[column, used], diagram.observed[column, used]
    low, high = diagram.lower[column, used], diagram.upper[column, used]
    _draw_mass(axes, diagram, column)
    axes.plot([0, 1], [0, 1], "--", color=ORANGE, lw=1, label="perfectly calibrated", zorder=2)
    if np.isfinite(low).any():
        label = "95 % interval of each bin"
        axes.vlines(x, low, high, color=BLUE, lw=1.2, alpha=0.5, label=label, zorder=3)
    axes.plot(x, y, "o-", color=BLUE, ms=3, lw=0.8, label="observed", zorder=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_aspect("equal")


def _draw_mass(axes: Axes, diagram: Diagram, column: int) -> None:
    """Draw the density of predictions per bin, scaled to the highest bin."""
    is_filled = diagram.cells[column] > 0
    low, high = diagram.bins.lower[column, is_filled], diagram.bins.upper[column, is_filled]
    wide = np.maximum(high - low, 0.01)
    dense = diagram.cells[column, is_filled] / wide
    if len(dense):
        tall = _HIGH * dense / dense.max()
        axes.bar(
            (low + high) / 2, tall, wide, color=PALE, alpha=0.35, lw=0, label="predictions there"
        )
