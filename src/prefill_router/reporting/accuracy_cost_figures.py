"""The accuracy-cost figures, as objects: of one evaluation, and of several systems in one figure.

Several systems were judged on the same queries; their figure is written with its data beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import DataError
from prefill_router.evaluation.accuracy_cost_plane import Anchors, Axis
from prefill_router.evaluation.bootstrap import Band
from prefill_router.evaluation.evaluation import Evaluation
from prefill_router.evaluation.formatting import PER
from prefill_router.plotting import Axes, Figure, LogLocator, NullFormatter
from prefill_router.reporting.figures import INK, place_labels, write_figure

View = Literal["raw", "normalised"]
Values = Float[NDArray[np.float64], " point"]
Mixes = Float[NDArray[np.float64], " mixture"]
Singles = Float[NDArray[np.float64], " target"]
# Okabe and Ito's colours, told apart by readers with any colour vision, on white and on black.
_ROUTER, _SINGLE, _ORACLE, _MARK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_PER_MIX = 40
"""Points drawn between two targets of the best mix: a straight line only where cost is linear."""
_MOST = 4000
"""Points drawn of a curve; more can't be seen."""


@final
@dataclass(frozen=True, eq=False)
class Drawing:
    """What a figure shows, in its own units.

    Attributes:
        title: Of the figure.
        x_label: With the unit.
        y_label: With the unit.
        curve: The router's points, x and y, by rising lam.
        band: Where the curves of the resamples run.
        singles: Each target's x and y.
        names: The targets.
        frontier: Which of them are on the Pareto frontier.
        mix: The best fixed mixes of them, x and y.
        best: The point of highest accuracy, x and y.
        oracle: Its accuracy.
        corner: Whether the oracle is the corner (1, 1), and not only an accuracy.
        log: Whether x is drawn on a logarithmic scale.
        dearest: The dearest target, and at each point of the curve the share of the queries that
            it gets; None where that isn't drawn.
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
    dearest: tuple[str, Values] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """The data of the figure, one row per point."""
        rows = [_row("router", "", *xy) for xy in zip(*self.curve, strict=True)]
        bounds = zip(self.band.x, self.band.lower, self.band.upper, strict=True)
        rows += [_row("band", "", x, float("nan"), low, high) for x, low, high in bounds]
        for name, on, x, y in zip(self.names, self.frontier, *self.singles, strict=True):
            rows.append(_row("frontier target" if on else "target", name, x, y))
        rows += [_row("best mix", "", *xy) for xy in zip(*self.mix, strict=True)]
        if self.dearest is not None:
            name, share = self.dearest
            pairs = zip(self.curve[0], share, strict=True)
            rows += [_row("calls to the dearest", name, *xy) for xy in pairs]
        rows.append(_row("max-lam", "", *self.best))
        rows.append(_row("oracle", "", 1.0 if self.corner else float("nan"), self.oracle))
        return rows


def drawing(evaluation: Evaluation, view: View) -> Drawing:
    """What the raw or the normalised accuracy-cost figure shows."""
    curve, headline = evaluation.curve, evaluation.headline
    best = int(np.flatnonzero(curve.lam_from == evaluation.max_lam[0])[0])
    on = tuple(name in evaluation.frontier for name in evaluation.targets)
    common: dict[str, Any] = {"names": evaluation.targets, "frontier": on}
    mixed = _mixes(evaluation)
    if view == "raw":
        band, cost = evaluation.raw_band, _of_targets(evaluation, "mean_cost")
        return Drawing(
            "Accuracy against cost",
            f"Mean observed cost (US dollars per {PER:,} queries)",
            "Accuracy (%)",
            (PER * curve.mean_cost, 100 * curve.accuracy),
            Band(PER * band.x, 100 * band.lower, 100 * band.upper),
            (PER * cost, 100 * _of_targets(evaluation, "accuracy")),
            best=(PER * float(curve.mean_cost[best]), 100 * float(curve.accuracy[best])),
            oracle=100 * headline["oracle_accuracy"].value,
            mix=(PER * mixed[0], 100 * mixed[1]),
            corner=False,
            log=_spread(PER * cost),
            dearest=_dearest(evaluation, cost),
            **common,
        )
    axis = evaluation.definitions["cost_axis"].split(":")[0]
    return Drawing(
        "Accuracy against cheapness, normalised",
        f"Normalised {axis} cost (0: dearest target, 1: cheapest)",
        "Normalised accuracy (0: worst target, 1: oracle)",
        (curve.normalised_cost, curve.normalised_accuracy),
        evaluation.normalised_band,
        (
            _of_targets(evaluation, "normalised_cost"),
            _of_targets(evaluation, "normalised_accuracy"),
        ),
        best=(float(curve.normalised_cost[best]), float(curve.normalised_accuracy[best])),
        oracle=1.0,
        mix=_normalised(evaluation, mixed),
        corner=True,
        log=False,
        **common,
    )


def draw(what: Drawing) -> Figure:
    """Draw a figure."""
    figure = Figure(figsize=(9.4, 6.0 if what.dearest is None else 7.2), layout="constrained")
    x, y = what.curve
    if not np.isfinite(x * y).any():
        axes = figure.add_subplot()
        axes.text(0.5, 0.5, "no cost is known, so there is nothing to draw", ha="center", color=INK)
        axes.set_axis_off()
        return figure
    axes, below = _panels(figure, what)
    order, shown = np.argsort(x, kind="stable"), max(1, len(x) // _MOST)
    axes.plot(x[order][::shown], y[order][::shown], color=_ROUTER, lw=1.8, label="router", zorder=3)
    _draw_band(axes, what.band)
    draw_singles(axes, what)
    axes.plot(*what.best, "D", color=_MARK, ms=7, label="highest accuracy", zorder=5)
    frame(axes, what)
    if below is not None and what.dearest is not None:
        below.plot(x[order][::shown], 100 * what.dearest[1][order][::shown], color=_ROUTER, lw=1.4)
        _dress(below, axes.get_xlabel(), f"calls (%) to\n{what.dearest[0]}")
        below.yaxis.label.set_fontsize(8)
        axes.set_xlabel("")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    name_targets(axes, what)
    return figure


def name_targets(axes: Axes, *drawn: Drawing) -> None:
    """Write each single target's name beside it, clear of the curves; call it last.

    Args:
        axes: With everything drawn on them.
        drawn: What is, with the same targets.
    """
    first = drawn[0]
    at = [(float(a), float(b)) for a, b in zip(*first.singles, strict=True)]
    keep = [i for i, point in enumerate(at) if np.isfinite(point).all()]
    lines = [first.best]
    for x, y in (first.mix, *(one.curve for one in drawn)):
        step = max(1, len(x) // 60)
        pairs = zip(x[::step].tolist(), y[::step].tolist(), strict=True)
        lines += [pair for pair in pairs if np.isfinite(pair).all()]
    names = [first.names[i] for i in keep]
    place_labels(axes, [at[i] for i in keep], names, avoid=lines, colour=INK)


def _row(
    series: str,
    name: str,
    x: float,
    y: float,
    lower: float = float("nan"),
    upper: float = float("nan"),
) -> dict[str, Any]:
    return {
        "series": series,
        "target": name,
        "x": float(x),
        "y": float(y),
        "lower": float(lower),
        "upper": float(upper),
    }


def _spread(cost: Singles) -> bool:
    known = cost[np.isfinite(cost)]
    return bool(len(known) and known.min() > 0 and known.max() > 10 * known.min())


def _of_targets(evaluation: Evaluation, name: str) -> Singles:
    return np.array([target[name].value for target in evaluation.per_target.values()])


def _mixes(evaluation: Evaluation) -> tuple[Mixes, Mixes]:
    """Cost and accuracy of the best mixes, close enough for what another scale makes of them."""
    corners = [(point.mean_cost, point.accuracy) for point in evaluation.mix]
    if len(corners) < 2:
        return np.array([c for c, _ in corners]), np.array([a for _, a in corners])
    known = np.array(corners)
    place = np.linspace(0, len(corners) - 1, _PER_MIX * (len(corners) - 1) + 1)
    between = np.arange(len(corners), dtype=np.float64)
    return np.interp(place, between, known[:, 0]), np.interp(place, between, known[:, 1])


def _normalised(evaluation: Evaluation, mixed: tuple[Mixes, Mixes]) -> tuple[Mixes, Mixes]:
    anchors = {name: np.array([value]) for name, value in evaluation.anchors.items()}
    plane = Anchors(**anchors)
    axis: Axis = "linear" if evaluation.definitions["cost_axis"].startswith("linear") else "inverse"
    cost, accuracy = (column[None, :] for column in mixed)
    return plane.cheapness(cost, axis=axis)[0], plane.height(accuracy)[0]


def _dearest(evaluation: Evaluation, cost: Singles) -> tuple[str, Values] | None:
    if np.isnan(cost).all() or len(cost) < 2:
        return None
    return evaluation.targets[int(np.nanargmax(cost))], evaluation.curve.dearest_share


def _panels(figure: Figure, what: Drawing) -> tuple[Axes, Axes | None]:
    """The plane, and below it on the same cost the calls to the dearest target."""
    if what.dearest is None:
        return figure.add_subplot(), None
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    above.tick_params(labelbottom=False)
    below.set_ylim(-4, 104)
    below.set_yticks((0, 50, 100))
    return above, below


def _draw_band(axes: Axes, band: Band) -> None:
    if np.isfinite(band.lower).any():
        axes.fill_between(
            band.x,
            band.lower,
            band.upper,
            color=_ROUTER,
            alpha=0.22,
            lw=0,
            label="95 % of resampled curves, end to end",
        )


def draw_singles(axes: Axes, what: Drawing) -> None:
    """Draw the single targets, and the best fixed mixes of them as what a router must beat."""
    x, y = what.singles
    on = np.array(what.frontier)
    axes.plot(x[~on], y[~on], "o", color=_SINGLE, mfc="none", ms=6, label="single target", zorder=4)
    axes.plot(x[on], y[on], "o", color=_SINGLE, ms=6, label="one that no other beats", zorder=4)
    draw_mix(axes, *what.mix)


def draw_mix(axes: Axes, cost: Mixes, accuracy: Mixes) -> None:
    """Draw what drawing targets by lot reaches; it is bent where cost isn't linear."""
    axes.plot(cost, accuracy, "--", color=_SINGLE, lw=1.3, label="best fixed mix", zorder=2)


def frame(axes: Axes, what: Drawing) -> None:
    """Draw the oracle, the scales and what is written at them."""
    if what.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if what.corner:
        axes.plot(1, 1, "*", color=_ORACLE, ms=14, label="oracle corner", zorder=5)
    else:
        axes.axhline(what.oracle, color=_ORACLE, lw=1.2, ls=":", label="oracle accuracy")
    axes.margins(x=0.09, y=0.07)
    axes.set_title(what.title, color=INK, fontsize=11, loc="left")
    _dress(axes, what.x_label, what.y_label)


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK, parse_math=False)
    axes.tick_params(which="both", colors=INK, labelsize=8)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")


# Okabe and Ito's colours that the targets and the oracle leave free; the strokes differ as well.
_STROKES = (("#0072B2", "-"), ("#CC79A7", "--"), (INK, "-."), ("#56B4E9", ":"))


def write_side_by_side(systems: Mapping[str, Evaluation], path: Path, *, title: str) -> list[Path]:
    """Write the figure as PNG and SVG, and its data as CSV, each whole or not at all.

    Args:
        systems: By name, at most four, evaluated on the same queries and targets.
        path: Where to, without a suffix.
        title: Of the figure.

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
    what = _drawings(systems)
    first = next(iter(what.values()))
    figure = Figure(figsize=(9.4, 6.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, shown), (colour, style) in zip(what.items(), _STROKES, strict=False):
        _draw_curve(axes, shown, name, colour, style)
    draw_singles(axes, first)
    frame(axes, first)
    axes.set_title(title, color=INK, fontsize=11, loc="left")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    name_targets(axes, *what.values())
    return figure


def rows(systems: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """The data of the figure: the first system's rows, and the others' curves, bands and bests."""
    table = []
    for place, (name, shown) in enumerate(_drawings(systems).items()):
        own = ("router", "band", "max-lam")
        table += [
            {"system": name if row["series"] in own else "", **row}
            for row in shown.rows()
            if place == 0 or row["series"] in own
        ]
    return table


def _drawings(systems: Mapping[str, Evaluation]) -> dict[str, Drawing]:
    if not 0 < len(systems) <= len(_STROKES):
        raise DataError(f"{len(systems)} systems were given; 1 to {len(_STROKES)} can be drawn")
    if len({(one.targets, one.queries, one.labels) for one in systems.values()}) > 1:
        raise DataError(
            "the systems were evaluated on different queries or targets; evaluate them on the same"
        )
    return {name: drawing(one, "raw") for name, one in systems.items()}


def _draw_curve(axes: Axes, what: Drawing, name: str, colour: str, style: str) -> None:
    x, y = what.curve
    order = np.argsort(x, kind="stable")
    axes.plot(x[order], y[order], style, color=colour, lw=1.8, label=name, zorder=3)
    if np.isfinite(what.band.lower).any():
        bounds = (what.band.lower, what.band.upper)
        axes.fill_between(what.band.x, *bounds, color=colour, alpha=0.12, lw=0)
