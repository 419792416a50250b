"""The headline numbers of an evaluation, for the terminal: a table and a scatter plot.

The plot is made of characters, so that no image viewer is needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from prefill_router.cli.application import columns, out

if TYPE_CHECKING:
    from prefill_router.evaluation import Evaluation, Verdict, WinVerdict


_ROWS = {
    "best_single_accuracy": ("best single target, accuracy", 100, "%"),
    "chosen_accuracy": ("router at its lam, accuracy", 100, "%"),
    "chosen_gain": ("  beyond the best single target, points", 100, ""),
    "argmax_accuracy": ("router at lam = 1, accuracy", 100, "%"),
    "oracle_accuracy": ("oracle, accuracy", 100, "%"),
    "savings": ("saved at no less accuracy than it", 100, "%"),
    "savings_gain": ("  accuracy gained meanwhile, points", 100, ""),
    "auc_mean": ("mean AUC over targets", 1, ""),
    "choice_auc": ("choice AUC over pairs of targets", 1, ""),
    "choice_auc_best": ("choice AUC over pairs of the best six", 1, ""),
    "brier_mean": ("mean Brier score", 1, ""),
    "p_auccc": ("P-AUCCC", 1, ""),
    "mdp_auccc": ("MDP-AUCCC", 1, ""),
    "oracle_distance": ("oracle distance", 1, ""),
    "max_lam_accuracy": ("paper's*: highest accuracy over lam", 100, "%"),
    "headroom_captured": ("paper's*: headroom captured", 100, "%"),
    "cost_savings": ("paper's*: saved against the most expensive", 100, "%"),
}
_PAPER = (
    "The router's lam, the lam of its savings, and the target that it is compared with were chosen "
    "on train rows.\n* The paper's metrics choose lam on the judged queries, which is optimistic."
)


def show_verdict(verdict: "Verdict | WinVerdict | None") -> None:
    """Print whether a router is worth having, and why."""
    if verdict is not None:
        out.print(f"{verdict.word}: ", style="bold", end="")
        out.say(f"{verdict.because}\n")
        for line in verdict.lines:
            out.say(f"- {line}")
        out.say("")


def show_headline(result: "Evaluation") -> None:
    """Print the verdict, the headline numbers with their intervals, and the accuracy-cost plane."""
    show_verdict(result.verdict)
    head = f"{result.queries:,} queries, {len(result.targets)} targets"
    table = columns(head, "value", "95 % interval")
    for key, (title, factor, unit) in _ROWS.items():
        got = result.headline[key]
        if math.isnan(got.value):
            continue
        digits = 1 if factor == 100 else 4
        value, low, high = (
            _format_value(v * factor, digits, unit) for v in (got.value, got.lower, got.upper)
        )
        table.add_row(title, value, f"{low} to {high}")
    out.print(table)
    out.say(_PAPER, style="dim")
    out.print("\n" + picture(result) + "\n")
    if result.caution:
        out.say(f"note: {result.caution}\n")


def _format_value(value: float, digits: int, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}{unit}"


def picture(result: "Evaluation") -> str:
    """The accuracy-cost plane in characters."""
    import numpy as np

    curve = [
        PlotMark(cost, accuracy, "*")
        for cost, accuracy in zip(result.curve.mean_cost, result.curve.accuracy, strict=True)
    ]
    singles = [
        PlotMark(values["mean_cost"].value, values["accuracy"].value, "o")
        for values in result.per_target.values()
    ]
    if not np.isfinite([mark.x for mark in curve]).any():
        return "(no cost is known, so there is no accuracy-cost plane to draw)"
    return draw(
        [*singles, *curve],
        x_label="US dollars a query (log)    * router along lam    o a target alone",
        y_label="accuracy",
        log_x=True,
    )


@final
@dataclass(frozen=True)
class PlotMark:
    """A point of the plot.

    Attributes:
        x: Position from left to right.
        y: Position from bottom to top.
        sign: The character that is drawn.
    """

    x: float
    y: float
    sign: str


def draw(
    marks: Sequence[PlotMark],
    *,
    x_label: str,
    y_label: str,
    width: int = 68,
    height: int = 16,
    log_x: bool = False,
) -> str:
    """Draw marks on a grid of characters; later marks cover earlier ones.

    Args:
        marks: The points; those that aren't finite are left out.
        x_label: The label of the x axis, with its unit.
        y_label: The label of the y axis, with its unit.
        width: Columns of the grid.
        height: Rows of the grid.
        log_x: Whether x, all positive, is drawn on a logarithmic scale.
    """
    points = [
        m for m in marks if math.isfinite(m.x) and math.isfinite(m.y) and (m.x > 0 or not log_x)
    ]
    if not points:
        return "(nothing to draw: no finite points)"
    xs = [math.log10(m.x) if log_x else m.x for m in points]
    ys = [m.y for m in points]
    grid = [[" "] * width for _ in range(height)]
    ends = (min(xs), max(xs)), (min(ys), max(ys))
    for mark, x, y in zip(points, xs, ys, strict=True):
        row = height - 1 - _find_cell(y, *ends[1], height)
        grid[row][_find_cell(x, *ends[0], width)] = mark.sign
    return _frame_grid(grid, points, x_label, y_label)


def _find_cell(value: float, low: float, high: float, count: int) -> int:
    return 0 if high <= low else round((value - low) / (high - low) * (count - 1))


def _frame_grid(
    grid: list[list[str]], points: Sequence[PlotMark], x_label: str, y_label: str
) -> str:
    low, high = min(m.y for m in points), max(m.y for m in points)
    sides = [f"{high:7.3f}", *["       "] * (len(grid) - 2), f"{low:7.3f}"]
    body = [f"{side} |{''.join(row).rstrip()}" for side, row in zip(sides, grid, strict=True)]
    left, right = f"{min(m.x for m in points):.3g}", f"{max(m.x for m in points):.3g}"
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
