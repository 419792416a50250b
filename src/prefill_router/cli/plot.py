"""A scatter of points in the terminal, for those who have no picture viewer at hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Mark:
    """A labelled point.

    Attributes:
        x: Position from left to right.
        y: Position from bottom to top.
        sign: One character that is drawn.
    """

    x: float
    y: float
    sign: str


def draw(
    marks: Sequence[Mark],
    *,
    x_label: str,
    y_label: str,
    width: int = 68,
    height: int = 16,
    log_x: bool = False,
) -> str:
    """Draw marks on a grid of characters; later marks cover earlier ones.

    Args:
        marks: What is drawn; those that aren't finite are left out.
        x_label: Says what goes to the right, with its unit.
        y_label: Says what goes up, with its unit.
        width: Columns of the grid.
        height: Rows of the grid.
        log_x: Whether x, all positive, is drawn on a logarithmic scale.
    """
    shown = [
        m for m in marks if math.isfinite(m.x) and math.isfinite(m.y) and (m.x > 0 or not log_x)
    ]
    if not shown:
        return "(nothing to draw: no finite points)"
    xs = [math.log10(m.x) if log_x else m.x for m in shown]
    ys = [m.y for m in shown]
    grid = [[" "] * width for _ in range(height)]
    for mark, x, y in zip(shown, xs, ys, strict=True):
        row = height - 1 - _cell(y, min(ys), max(ys), height)
        grid[row][_cell(x, min(xs), max(xs), width)] = mark.sign
    return _frame(grid, shown, x_label, y_label)


def _cell(value: float, low: float, high: float, count: int) -> int:
    return 0 if high <= low else round((value - low) / (high - low) * (count - 1))


def _frame(grid: list[list[str]], shown: Sequence[Mark], x_label: str, y_label: str) -> str:
    low, high = min(m.y for m in shown), max(m.y for m in shown)
    sides = [f"{high:7.3f}", *["       "] * (len(grid) - 2), f"{low:7.3f}"]
    body = [f"{side} |{''.join(row).rstrip()}" for side, row in zip(sides, grid, strict=True)]
    left, right = f"{min(m.x for m in shown):.3g}", f"{max(m.x for m in shown):.3g}"
    gap = " " * max(1, len(grid[0]) - len(left) - len(right))
    return "\n".join(
        [
            f"  {y_label}",
            *body,
            f"{'':8}+{'-' * len(grid[0])}",
            f"{'':9}{left}{gap}{right}",
            f"{'':9}{x_label}",
        ]
    )
