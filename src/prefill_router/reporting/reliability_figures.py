"""Draws reliability diagrams: small multiples, one panel for each target, the data beside."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from prefill_router import files
from prefill_router.evaluation.reliability_diagram import Diagram, Reliability
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.figures import INK, any_script, png, svg

_POINT, _MASS, _EVEN = "#0072B2", "#999999", "#D55E00"  # told apart with any colour vision
_ACROSS = 5
_HIGH = 0.22
"""How much of a panel's height the share of queries in a bin may take."""


def write_diagrams(found: Reliability, path: Path, *, title: str) -> list[Path]:
    """Write the diagrams as PNG and SVG, and their data in both kinds of bins as CSV.

    Args:
        found: What is drawn.
        path: Where to, without a suffix; each file is written whole or not at all.
        title: Of the figure.

    Returns:
        The files.
    """
    errors = {
        name: f"ECE {row['ece'].value:.3f}, {row['ece_by_chance'].value:.3f} by chance"
        for name, row in found.estimates.items()
    }
    figure = draw_diagrams(found.diagrams["mass"], errors, title=title)
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg", ".csv")]
    with files.replacing_file(written[0]) as temporary:
        temporary.write_bytes(png(figure))
    files.write_text(written[1], svg(figure))
    rows = [row for diagram in found.diagrams.values() for row in diagram.rows()]
    table = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
    files.write_text(written[2], table.write_csv())
    return written


def draw_diagrams(diagram: Diagram, errors: Mapping[str, str], *, title: str) -> Figure:
    """Draw a panel for each target, and one for all together.

    Args:
        diagram: What is drawn.
        errors: What each panel says of its calibration error.
        title: Of the figure.
    """
    names = diagram.bins.names
    across = min(_ACROSS, len(names))
    down = math.ceil(len(names) / across)
    figure = Figure(figsize=(0.6 + 2.3 * across, 1.15 + 2.45 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for k, axes in enumerate(panels):
        if k >= len(names):
            axes.set_visible(False)
            continue
        _draw(axes, diagram, k)
        axes.set_title(
            f"{names[k]}\n{errors[names[k]]}",
            **{"color": INK, "fontsize": 8, "loc": "left", "parse_math": False},
        )
        if k + across >= len(names):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("predicted probability", color=INK, fontsize=8)
        if k % across == 0:
            axes.set_ylabel("share of right answers", color=INK, fontsize=8)
    figure.suptitle(title, color=INK, fontsize=11, parse_math=False)
    handles, labels = panels[0].get_legend_handles_labels()
    with any_script():
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=4,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )
    return figure


def _draw(axes: Axes, diagram: Diagram, column: int) -> None:
    """The points with their intervals, the even line, and where the predictions are."""
    used = diagram.cells[column] > 0
    x, y = diagram.predicted[column, used], diagram.observed[column, used]
    low, high = diagram.lower[column, used], diagram.upper[column, used]
    _draw_mass(axes, diagram, column)
    axes.plot([0, 1], [0, 1], "--", color=_EVEN, lw=1, label="perfectly calibrated", zorder=2)
    if np.isfinite(low).any():
        axes.vlines(
            x,
            low,
            high,
            color=_POINT,
            lw=1.2,
            alpha=0.5,
            label="95 % interval of each bin",
            zorder=3,
        )
    axes.plot(x, y, "o-", color=_POINT, ms=3, lw=0.8, label="observed", zorder=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_aspect("equal")
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")


def _draw_mass(axes: Axes, diagram: Diagram, column: int) -> None:
    """How densely the predictions lie in each bin; the densest is as high as it may be."""
    used = diagram.cells[column] > 0
    low, high = diagram.bins.lower[column, used], diagram.bins.upper[column, used]
    wide = np.maximum(high - low, 0.01)
    dense = diagram.cells[column, used] / wide
    if len(dense):
        tall = _HIGH * dense / dense.max()
        axes.bar(
            (low + high) / 2, tall, wide, color=_MASS, alpha=0.35, lw=0, label="predictions there"
        )
