"""Reliability diagrams: small multiples with one panel per target, and their data."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from prefill_router.evaluation import Diagram, Reliability
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.figures import (
    BLUE,
    INK,
    ORANGE,
    PALE,
    legend_below,
    new_figure,
    style,
    write_figure,
)

_ACROSS = 5
_HIGH = 0.22
"""How much of a panel's height the share of queries in a bin may take."""


def write_diagrams(found: Reliability, path: Path, *, title: str) -> list[Path]:
    """Write the diagrams as PNG and SVG, and their data in both kinds of bins as CSV.

    Args:
        found: The calibration to draw.
        path: Path of the files, without a suffix; each file is written whole or not at all.
        title: Title of the figure.

    Returns:
        The files.
    """
    errors = {
        name: f"ECE {row['ece'].value:.3f}, {row['ece_by_chance'].value:.3f} by chance"
        for name, row in found.estimates.items()
    }
    figure = draw_diagrams(found.diagrams["mass"], errors, title=title)
    rows = [row for diagram in found.diagrams.values() for row in diagram.rows()]
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
        _draw(axes, diagram, k)
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


def _draw(axes: Axes, diagram: Diagram, column: int) -> None:
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
    used = diagram.cells[column] > 0
    low, high = diagram.bins.lower[column, used], diagram.bins.upper[column, used]
    wide = np.maximum(high - low, 0.01)
    dense = diagram.cells[column, used] / wide
    if len(dense):
        tall = _HIGH * dense / dense.max()
        axes.bar(
            (low + high) / 2, tall, wide, color=PALE, alpha=0.35, lw=0, label="predictions there"
        )
