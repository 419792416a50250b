"""What the figures of studies have in common."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefill_router.evaluation.rendering import INK

# Okabe and Ito's colours, told apart by readers with any colour vision, with strokes and markers
# beside them for print without colour.
STROKES: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#E69F00", (0, (5, 1, 1, 1)), "v"),
    ("#56B4E9", (0, (3, 1)), "P"),
)
QUIET = "#888888"


def stroke(place: int) -> tuple[str, Any, str]:
    """Colour, line style and marker of the series at a place; grey where there are no more."""
    return STROKES[place] if place < len(STROKES) else (QUIET, "-", "")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches."""
    return Figure(figsize=(width, height), layout="constrained")


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Title, labels and a quiet frame, in a colour that follows the page's."""
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(which="both", colors=INK, labelsize=8)
    axes.grid(visible=True, color=QUIET, alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")


def legend_below(figure: Figure, *, columns: int = 4) -> None:
    """One legend of all that is labelled in the first axes, under the figure."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )
