"""The figure of the end-to-end study: what routing adds to the bill and to the wait."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefill_router.evaluation.rendering import INK
from prefill_router.evaluation.wording import PER
from prefill_router.studies.end_to_end.result import EndToEnd

# Okabe and Ito's colours, told apart by readers with any colour vision, on white and on black.
_ANSWER, _ROUTING = "#56B4E9", "#D55E00"
_ROOM = 1.35
"""How far the axis goes beyond the longest bar, for what is written there."""
_PANELS = (
    ("target_cost", "encoder_cost", PER, f"US dollars per {PER:,} queries", "encoder"),
    ("answer_seconds", "routing_seconds", 1, "seconds until the answer", "decision"),
)


def draw(result: EndToEnd) -> Figure:
    """Draw cost and time at the first setting, a bar per system."""
    systems = result.points[0].systems
    figure = Figure(figsize=(9.4, 1.9 + 0.5 * len(systems)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (answer, routing, scale, label, what) in zip(panels, _PANELS, strict=True):
        ends = [
            (scale * numbers[answer].value, scale * numbers[routing].value)
            for numbers in systems.values()
        ]
        _bars(axes, ends, what)
        axes.set_xlabel(label, color=INK, fontsize=9)
    panels[0].set_yticks(range(len(systems)), list(systems))
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return figure


def rows(result: EndToEnd) -> list[dict[str, Any]]:
    """The data of the figure: means per query, US dollars and seconds."""
    names = [name for answer, routing, *_ in _PANELS for name in (answer, routing)]
    return [
        {"system": system, **{name: numbers[name].value for name in names}}
        for system, numbers in result.points[0].systems.items()
    ]


def _bars(axes: Axes, ends: list[tuple[float, float]], what: str) -> None:
    places = np.arange(len(ends))
    answer, routing = (np.array(part) for part in zip(*ends, strict=True))
    known = np.isfinite(answer)
    shown = np.where(known, answer, 0)
    axes.barh(places, shown, color=_ANSWER, label="the target's answer", height=0.6)
    axes.barh(
        places, np.nan_to_num(routing), left=shown, color=_ROUTING, label="routing", height=0.6
    )
    for place in range(len(ends)):
        added = routing[place] / (answer[place] + routing[place]) if known[place] else np.nan
        text = "  unknown" if not known[place] else f"  {100 * added:.2f} % {what}" if added else ""
        at = shown[place] + np.nan_to_num(routing[place])
        axes.text(at, place, text, va="center", color=INK, fontsize=8)
    axes.set_xlim(0, _ROOM * max(float(np.max(shown + np.nan_to_num(routing))), 1e-9))
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(visible=True, axis="x", color="#888888", alpha=0.25, lw=0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.set_facecolor("none")
