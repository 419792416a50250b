"""Labels beside points, placed so that they cover neither each other nor the points."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

_RADII = (8, 12, 18, 26, 36, 48, 62)
_ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)
_PARTS = (0.3, 0.5, 0.7)
"""Where a leader is looked at for other labels that it would cross."""
_LEADER = 15
"""From this distance on (points), a thin line leads from the label to its point."""


@contextmanager
def any_script() -> Iterator[None]:
    """Letters that the font lacks are drawn as boxes, without a warning for each."""
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
    blame: float


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
        axes: With its limits already set.
        at: The points, in data coordinates.
        names: What they are called.
        avoid: Other places that labels had better not cover, in data coordinates.
        size: Of the letters, in points.
        colour: Of the letters and the leaders.
    """
    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure) or not at:
        return
    canvas = FigureCanvasAgg(figure)
    with any_script():
        canvas.draw()  # type: ignore[no-untyped-call]
    figure.set_layout_engine("none")  # what is placed now mustn't move the axes again
    scale = figure.dpi / 72
    points = axes.transData.transform(np.asarray(at))
    others = axes.transData.transform(np.asarray([*at, *avoid]))
    taken: list[Bbox] = []
    for point, xy, name in sorted(
        zip(points.tolist(), at, names, strict=True), key=lambda row: row[0][1]
    ):
        width, height = _extent(axes, name, size, canvas)
        places = [
            _place(axes, point, (width, height), radius, angle, scale, taken, others)
            for radius in _RADII
            for angle in _ANGLES
        ]
        best = min(places, key=lambda place: place.blame)
        taken.append(best.box)
        _write(axes, xy, name, best.offset, size, colour)


def _extent(axes: Axes, name: str, size: float, canvas: FigureCanvasAgg) -> tuple[float, float]:
    text = axes.text(0, 0, name, fontsize=size, parse_math=False)
    with any_script():
        box = text.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
    text.remove()
    return box.width, box.height


def _place(
    axes: Axes,
    point: list[float],
    extent: tuple[float, float],
    radius: float,
    angle: float,
    scale: float,
    taken: Sequence[Bbox],
    others: np.ndarray,
) -> _Place:
    """A candidate, and how bad it is: what it covers, then how far it is."""
    towards = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    centre = [
        point[i] + scale * radius * towards[i] + extent[i] / 2 * float(np.round(towards[i]))
        for i in range(2)
    ]
    corner = centre[0] - extent[0] / 2, centre[1] - extent[1] / 2
    box = Bbox.from_bounds(*corner, *extent).padded(1.5 * scale)
    inside = axes.get_window_extent().padded(-4 * scale)
    outside = max(0.0, inside.x0 - box.x0, box.x1 - inside.x1) + max(
        0.0, inside.y0 - box.y0, box.y1 - inside.y1
    )
    overlaps = sum(box.overlaps(other) for other in taken)
    leader = [[point[i] + part * (centre[i] - point[i]) for i in range(2)] for part in _PARTS]
    crossed = sum(bool(other.count_contains(leader)) for other in taken)
    covered = box.padded(2 * scale).count_contains(others)
    offset = (centre[0] - point[0]) / scale, (centre[1] - point[1]) / scale
    return _Place(offset, box, 1000 * overlaps + 100 * outside + 40 * (covered + crossed) + radius)


def _write(
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
