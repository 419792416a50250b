"""Several systems on the same queries, in one accuracy-cost figure with its data beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefill_router.errors import DataError
from prefill_router.evaluation.drawn import write_figure
from prefill_router.evaluation.evaluation import Evaluation
from prefill_router.evaluation.figures import Drawing, draw_singles, drawing, frame, name_targets
from prefill_router.evaluation.rendering import INK

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
