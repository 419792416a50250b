"""One figure of a decision, a router, a dataset or an evaluation, for notebooks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import LabelMeaning, RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import Evaluation
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.evaluation_charts import is_wide
from prefill_router.reporting.evaluation_report import evaluation_figures
from prefill_router.reporting.figures import (
    BLUE,
    INK,
    ORANGE,
    PALE,
    legend_below,
    name_rows,
    new_figure,
    place_labels,
    png,
    scale_cost,
    style,
    write_figure,
)
from prefill_router.reporting.report import Rows
from prefill_router.router import Decision, Router
from prefill_router.short_repr import short_repr

_PER = 1000
_SUFFIXES = (".png", ".svg", ".csv")
Row = dict[str, Any]
PerTarget = Float64[NDArray[np.float64], " target"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Plot:
    """A figure, which a notebook shows, with its data.

    Attributes:
        figure: The figure.
        rows: The data that it is drawn from, one mapping per point.
    """

    figure: Figure
    rows: Rows

    def _repr_png_(self) -> bytes:
        return png(self.figure)

    def save(self, path: Path | str) -> list[Path]:
        """Write the figure as PNG and SVG and the data as CSV; returns the files.

        Args:
            path: Path of the files; a suffix of one of the three is left out.
        """
        place = Path(path)
        if place.suffix.lower() in _SUFFIXES:
            place = place.with_suffix("")
        return write_figure(self.figure, place, self.rows)


@singledispatch
def plot(what: object) -> Plot:
    """Draw a decision, a router, a dataset, or an evaluation.

    A decision has every target's probability of a correct answer, and its score over lam. A router
    has the points of its curve that its verdict judged, beside rules that read no request. A
    dataset, and a router without a verdict or costs, has every target's accuracy against what its
    answers cost. An evaluation has the accuracy at each cost, with its interval.

    Args:
        what: The object.

    Raises:
        ConfigError: It is something else, or nothing is known of it that could be drawn.
        MissingExtraError: Matplotlib isn't installed.
    """
    raise ConfigError(
        f"a {type(what).__name__} can't be drawn; give a Decision, a Router, a RoutingDataset or "
        "an Evaluation"
    )


@plot.register
def _plot_decision(what: Decision) -> Plot:
    figure = new_figure(9.4, 0.34 * len(what.order) + 1.6)
    left, right = figure.subplots(1, 2, sharey=True)
    names = what.order[::-1]
    colours = [BLUE if name == what.target else PALE for name in names]
    left.barh(range(len(names)), [100 * what.correctness[n] for n in names], color=colours)
    name_rows(left, names)
    style(
        left, title=f"{what.target}, at lam = {what.lam:g}", x=f"{what.chance_title}, %", bars=True
    )
    for piece in what.path:
        row = names.index(piece.target)
        right.barh(row, piece.lam_to - piece.lam_from, left=piece.lam_from, color=colours[row])
    right.axvline(what.lam, color=INK, lw=1, ls=":")
    right.set_xlim(0, 1)
    style(right, title="Who wins at which lam", x="lam", bars=True)
    rows: list[dict[str, object]] = [
        {"target": name, "lam_from": None, "lam_to": None, "correctness": share}
        for name, share in what.correctness.items()
    ]
    rows += [{**vars(piece), "correctness": what.correctness[piece.target]} for piece in what.path]
    return Plot(figure, rows)


@plot.register
def _plot_dataset(what: RoutingDataset) -> Plot:
    is_known = ~np.isnan(what.correct)
    accuracy = [_average_known(what.correct[is_known[:, k], k]) for k in range(len(what.pool))]
    cost = [_average_known(what.observed_cost[:, k]) for k in range(len(what.pool))]
    title = f"{len(what):,} queries"
    return _plot_targets(what.pool.names, accuracy, cost, title, what.meaning.title)


@plot.register
def _plot_router(what: Router) -> Plot:
    curve = _read_curve(what)
    if len(curve) > 1:
        return _draw_curve(what, curve)
    if what.reference is None:
        raise ConfigError("the router has no statistics of its train rows; fit it again")
    forecast = what.costs.estimate(np.array([_PER]))
    cost = (forecast[0] if not what.costs.is_free else np.full(len(what.pool), np.nan)).tolist()
    title = f"Train rows; cost of a question of {_PER:,} tokens"
    share = LabelMeaning(kind=what.record.labels).title
    return _plot_targets(what.pool.names, what.reference.accuracy.tolist(), cost, title, share)


def _read_curve(what: Router) -> list[Row]:
    """The points of the router's curve that its verdict judged, by rising cost; empty if none."""
    ruling = what.record.verdict or {}
    points = [point for point in ruling.get("curve", ()) if point["mean_cost"] is not None]
    rows: list[Row] = []
    for point in sorted(points, key=lambda point: float(point["mean_cost"])):
        price = point["price_alone"] or {}
        rules = (
            ("router", point["accuracy"]),
            ("best fixed mix", point["best_mix"]["accuracy"]),
            ("price alone", price.get("accuracy")),
        )
        rows += [
            {"series": series, "point": point["name"], "lam": point["lam"],
             "cost": point["mean_cost"], "accuracy": accuracy}
            for series, accuracy in rules
            if accuracy is not None
        ]  # fmt: skip
    return rows


_CURVES = {
    "router": (BLUE, "-o"),
    "best fixed mix": (ORANGE, "--"),
    "price alone": (ORANGE, ":"),
}


def _draw_curve(what: Router, curve: list[Row]) -> Plot:
    """The router's curve beside both rules at the same costs, and the best single target."""
    ruling = what.record.verdict or {}
    first = ruling["curve"][0]
    best = {"series": ruling["best"], "point": "", "lam": None, "cost": first["best_cost"],
            "accuracy": first["best_accuracy"]}  # fmt: skip
    figure = new_figure(7.4, 5.0)
    axes = figure.add_subplot()
    for series, (colour, line) in _CURVES.items():
        at = [point for point in curve if point["series"] == series]
        x, y = (
            [scale * point[name] for point in at]
            for scale, name in ((_PER, "cost"), (100, "accuracy"))
        )
        axes.plot(x, y, line, color=colour, label=series, ms=5, lw=1.6)
    setting = next(point for point in curve if point["point"] == "setting")
    marks = ((setting, "D", BLUE, "its setting"), (best, "s", ORANGE, f"{ruling['best']} alone"))
    for point, shape, colour, label in marks:
        if point["cost"] is not None:
            axes.plot(
                _PER * point["cost"],
                100 * point["accuracy"],
                shape,
                color=colour,
                ms=8,
                label=label,
            )
    if is_wide(np.array([point["cost"] for point in (*curve, best) if point["cost"]])):
        scale_cost(axes)
    axes.margins(0.08)
    title = f"{ruling['word'].capitalize()}, on {ruling['compared']:,} queries"
    style(axes, title=title, x=f"US dollars per {_PER:,} answers", y="Accuracy (%)")
    legend_below(figure)
    return Plot(figure, [*curve, best])


@plot.register
def _plot_evaluation(what: Evaluation) -> Plot:
    first = evaluation_figures(what)[0]
    return Plot(first.figure, first.rows)


def _average_known(values: Iterable[float]) -> float:
    finite = [value for value in values if value == value]
    return float(np.mean(finite)) if finite else float("nan")


def _plot_targets(
    names: Sequence[str],
    accuracy: Sequence[float],
    cost: Sequence[float],
    title: str,
    measure: str,
) -> Plot:
    """Every target's mean label against its cost, or in rows where no cost is known."""
    figure = new_figure(7.4, 5.0)
    axes = figure.add_subplot()
    dollars, share = _PER * np.array(cost), 100 * np.array(accuracy)
    if np.isfinite(dollars * share).all():
        _draw_points(axes, names, dollars, share, title, measure)
    else:
        axes.barh(range(len(names)), np.nan_to_num(share), color=BLUE)
        name_rows(axes, names)
        style(axes, title=title, x=f"{measure.capitalize()} (%)", bars=True)
    rows = [
        {"target": name, "accuracy": share, "cost": dollars_per_answer}
        for name, share, dollars_per_answer in zip(names, accuracy, cost, strict=True)
    ]
    return Plot(figure, rows)


def _draw_points(
    axes: Axes,
    names: Sequence[str],
    dollars: PerTarget,
    share: PerTarget,
    title: str,
    measure: str,
) -> None:
    axes.plot(dollars, share, "o", color=BLUE)
    if is_wide(dollars):
        scale_cost(axes)
    axes.margins(0.15)
    style(axes, title=title, x=f"US dollars per {_PER:,} answers", y=f"{measure.capitalize()} (%)")
    at = list(zip(dollars.tolist(), share.tolist(), strict=True))
    place_labels(axes, at, names, colour=INK)
