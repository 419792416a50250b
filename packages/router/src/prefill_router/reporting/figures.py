"""Figures: their style, labels beside points, and their rendering as files and in pages.

A figure on disk is PNG, SVG with real text, and CSV with the data. In a page it is an SVG element
in the page's text colour. Labels are placed so that they cover neither each other nor the points.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from prefill_router import files
from prefill_router.evaluation import Estimate
from prefill_router.plotting import (
    Axes,
    Bbox,
    Figure,
    FigureCanvasAgg,
    LogLocator,
    NullFormatter,
    mpl,
)
from prefill_router.reporting.report import Rows
from prefill_router.reporting.report_files import write_csv

# Okabe and Ito's colours, distinguished by readers with any colour vision, on white and on black.
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = (
    *("#0072B2", "#D55E00", "#009E73"),
    *("#CC79A7", "#E69F00", "#56B4E9"),
)
# With strokes and markers beside them for print without colour.
STROKES: tuple[tuple[str, Any, str], ...] = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    (PINK, ":", "D"),
    (YELLOW, (0, (5, 1, 1, 1)), "v"),
    (SKY, (0, (3, 1)), "P"),
)
PALE = "#9a9a9a"
QUIET = "#888888"
INK = "#010203"
"""Practically black; `inline_svg` replaces it with the page's text colour."""


def stroke(place: int) -> tuple[str, Any, str]:
    """Colour, line style and marker of the series at an index; grey beyond the last style."""
    return STROKES[place] if place < len(STROKES) else (QUIET, "-", "")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def style(
    axes: Axes,
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    size: float = 10,
    label_size: float | None = None,
    bars: bool = False,
    grid: bool = True,
) -> None:
    """Set title, labels and a plain frame, in a colour that follows the page's.

    Args:
        axes: The axes, with everything drawn on them.
        title: Title of the axes.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        size: Font size of the title, in points.
        label_size: Font size of the labels, in points; Matplotlib's default if not given.
        bars: Whether the rows have names beside them and need no vertical axis.
        grid: Whether a grid is drawn.
    """
    axes.set_title(title, color=INK, fontsize=size, loc="left", parse_math=False)
    axes.set_xlabel(x, color=INK, fontsize=label_size, parse_math=False)
    axes.set_ylabel(y, color=INK, fontsize=label_size, parse_math=False)
    axes.tick_params(which="both", colors=INK, labelsize=8)
    if grid:
        axes.grid(visible=True, axis="x" if bars else "both", color=QUIET, alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.spines["left"].set_visible(not bars)
    axes.set_facecolor("none")


def scale_cost(axes: Axes) -> None:
    """Draw costs on a logarithmic scale with plain tick labels."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of rows beside the vertical axis, the first at the bottom."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(-0.6, len(names) - 0.4)


def draw_interval(
    axes: Axes,
    row: float,
    estimate: Estimate,
    colour: str,
    *,
    scale: float = 1.0,
    marker: str = "o",
    size: float = 5,
    width: float = 1.4,
    label: str = "",
) -> None:
    """Draw a number in its row: a mark, and its interval as a line where it is known.

    Args:
        axes: The axes.
        row: Vertical position.
        estimate: The number.
        colour: Colour of marker and line.
        scale: Factor on the number.
        marker: Style of the marker.
        size: Size of the marker, in points.
        width: Width of the line, in points.
        label: Label of the marker in the legend.
    """
    if np.isfinite([estimate.lower, estimate.upper]).all():
        axes.plot(
            [scale * estimate.lower, scale * estimate.upper], [row, row], color=colour, lw=width
        )
    axes.plot([scale * estimate.value], [row], marker, color=colour, ms=size, label=label)


def legend_below(figure: Figure, *, columns: int = 4) -> None:
    """One legend for the first axes, below the figure."""
    legend = figure.axes[0].get_legend_handles_labels()
    how: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": INK}
    if legend[0]:
        with any_script():
            figure.legend(*legend, loc="outside lower center", ncols=columns, **how)


_RADII = (8, 12, 18, 26, 36, 48, 62)
_ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)
_PARTS = (0.3, 0.5, 0.7)
"""Positions along a leader line where it is tested for crossing other labels."""
_LEADER = 15
"""From this distance on (points), a thin line leads from the label to its point."""


@contextmanager
def any_script() -> Iterator[None]:
    """Draw characters that the font lacks as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


@final
@dataclass(frozen=True)
class _Place:
    offset: tuple[float, float]
    box: Bbox
    radius: float
    penalty: float

    @property
    def blame(self) -> float:
        return self.penalty + self.radius


def place_labels(
    axes: Axes,
    at: Sequence[tuple[float, float]],
    names: Sequence[str],
    *,
    avoid: Sequence[tuple[float, float]] = (),
    size: float = 7.5,
    colour: str = "black",
) -> None:
    """Write each name near its point.

    Args:
        axes: The axes, with their limits already set.
        at: The points, in data coordinates.
        names: The points' names.
        avoid: Other positions that labels should not cover, in data coordinates.
        size: Font size, in points.
        colour: Colour of the text and the leader lines.
    """
    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure) or not at:
        return
    canvas = FigureCanvasAgg(figure)
    with any_script():
        figure.draw_without_rendering()
    figure.set_layout_engine(None)  # labels must not move the axes again
    scale = figure.dpi / 72
    points = axes.transData.transform(np.asarray(at))
    others = axes.transData.transform(np.asarray([*at, *avoid]))
    inside = axes.get_window_extent().padded(-4 * scale)
    boxes: list[Bbox] = []
    for point, xy, name in sorted(
        zip(points.tolist(), at, names, strict=True), key=lambda row: row[0][1]
    ):
        width, height = _measure_text(axes, name, size, canvas)
        places = (
            _try_place(inside, point, (width, height), radius, angle, scale, boxes, others)
            for radius in _RADII
            for angle in _ANGLES
        )
        best = _choose_place(places)
        boxes.append(best.box)
        _write_label(axes, xy, name, best.offset, size, colour)


def _choose_place(places: Iterator[_Place]) -> _Place:
    """The first of the best, of places that come nearest first."""
    best = next(places)
    for place in places:
        if best.blame <= place.radius:  # what follows is at least as far away
            break
        if place.blame < best.blame:
            best = place
    return best


def _measure_text(
    axes: Axes, name: str, size: float, canvas: FigureCanvasAgg
) -> tuple[float, float]:
    text = axes.text(0, 0, name, fontsize=size, parse_math=False)
    with any_script():
        box = text.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
    text.remove()
    return box.width, box.height


def _try_place(
    inside: Bbox,
    point: list[float],
    extent: tuple[float, float],
    radius: float,
    angle: float,
    scale: float,
    boxes: Sequence[Bbox],
    others: np.ndarray,
) -> _Place:
    """A candidate position with its penalty: overlaps first, then distance."""
    towards = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    centre = [
        point[i] + scale * radius * towards[i] + extent[i] / 2 * float(np.round(towards[i]))
        for i in range(2)
    ]
    corner = centre[0] - extent[0] / 2, centre[1] - extent[1] / 2
    box = Bbox.from_bounds(*corner, *extent).padded(1.5 * scale)
    outside = max(0.0, inside.x0 - box.x0, box.x1 - inside.x1) + max(
        0.0, inside.y0 - box.y0, box.y1 - inside.y1
    )
    overlaps = sum(box.overlaps(other) for other in boxes)
    leader = [[point[i] + part * (centre[i] - point[i]) for i in range(2)] for part in _PARTS]
    crossings = sum(bool(other.count_contains(leader)) for other in boxes)
    covered = box.padded(2 * scale).count_contains(others)
    offset = (centre[0] - point[0]) / scale, (centre[1] - point[1]) / scale
    penalty = 1000 * overlaps + 100 * outside + 40 * (covered + crossings)
    return _Place(offset, box, radius, penalty)


def _write_label(
    axes: Axes,
    xy: tuple[float, float],
    name: str,
    offset: tuple[float, float],
    size: float,
    colour: str,
) -> None:
    far = abs(offset[1]) > _LEADER
    axes.annotate(
        name,
        xy,
        xytext=offset,
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=size,
        color=colour,
        parse_math=False,
        arrowprops={"arrowstyle": "-", "lw": 0.5, "color": colour, "alpha": 0.6} if far else None,
        zorder=6,
    )


def png(figure: Figure) -> bytes:
    """The figure as a bitmap on white."""
    buffer = io.BytesIO()
    with any_script():
        figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """The figure as SVG with real text, on white; the same figure gives the same bytes."""
    buffer = io.StringIO()
    with (
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "prefill-router"}),
        any_script(),
    ):
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    return buffer.getvalue()


def inline_svg(text: str, *, label: str) -> str:
    """A figure's SVG file as an element in the page's text colour, on a transparent background."""
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = text.replace('style="fill: #ffffff"', 'style="fill: none"', 1)  # the background is first
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def write_figure(figure: Figure, path: Path, rows: Rows) -> list[Path]:
    """Write a figure and its data, each file whole or not at all.

    Args:
        figure: The figure.
        path: Path of the files, without a suffix.
        rows: The data of the figure, one mapping per point.

    Returns:
        The files: `.png`, `.svg` and `.csv`.
    """
    paths = [path.with_name(path.name + suffix) for suffix in (".png", ".svg", ".csv")]
    with files.replacing_file(paths[0]) as temporary:
        temporary.write_bytes(png(figure))
    figure.set_layout_engine("none")  # as it is in the bitmap; computing it takes half the time
    files.write_text(paths[1], svg(figure))
    write_csv(paths[2], rows)
    return paths
