"""The end-to-end study as tables, a figure and a page.

The figure shows what routing adds to the bill and to the wait.
"""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.formatting import NOTHING, PER, UNKNOWN, dollars
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.figures import INK
from prefill_router.reporting.pages import facts, paragraph, plain_cell, table, wide
from prefill_router.reporting.study_report import Rows, StudyFigure, StudyReport
from prefill_router.studies.end_to_end.result import NUMBERS, ROUTER, EndToEndStudy, number, said

NAME = "end-to-end"
_CAPTION = (
    "Each bar is the mean over the queries at argmax accuracy, where every query goes to the "
    "target most probably right. The orange part is what routing adds: the encoder's price on the "
    "left, the decision's time on the right."
)
_WAIT = ("routing_seconds", "answer_seconds", "routing_share", "total_cost", "accuracy")
_READINGS = {
    "p_auccc": "targets alone",
    "charged": "encoder charged",
    "translated": "plane moved as well",
}


def sheet(result: EndToEndStudy, *, title: str, known: Mapping[str, str]) -> StudyReport:
    """Everything that the study says.

    Args:
        result: What was found.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    return StudyReport(
        name=NAME,
        title=title,
        said=said(result),
        known={
            **known,
            "best single": result.best,
            **{f"encoder of {name}": text for name, text in result.charges.items()},
            "answers' time": result.timing or "unknown",
        },
        sections=[
            ("What it costs", [_small(_ABOUT_COST), wide(_costs(result))]),
            ("How long it takes", [_small(_ABOUT_TIME), wide(_times(result)), *_decisions(result)]),
            ("P-AUCCC with the encoder charged", [_small(_ABOUT_AREA), wide(_areas(result))]),
            ("Who answers", [_small(_ABOUT_SHARES), wide(_shares(result))]),
            ("What the numbers mean", [facts({h: m for h, _, m in NUMBERS.values()})]),
        ],
        numbers=result.to_dict(),
        tables=tables(result),
        figures={"overhead": StudyFigure(draw(result), rows(result), _CAPTION)},
    )


_ABOUT_COST = (
    "Totals over all queries; the small print is the 95 % interval over resampled queries. Savings "
    "and gains are the router's against the other's, on the same queries."
)
_ABOUT_TIME = (
    "At argmax accuracy. Completion is from the request to the target until its answer ends; "
    "routing comes before it. The share is routing in the time of both. Systems took turns on "
    "every prompt; the intervals of what routing takes are over the prompts and rounds timed."
)
_ABOUT_AREA = (
    "The encoder is paid at every setting alike, so it moves a router's whole curve. Where single "
    "targets don't pay for it, the area changes; where the plane's ends are moved with the curve, "
    "linear cost gives the same area and inverse cost nearly so."
)
_ABOUT_SHARES = "The share of the queries that each target answers at argmax accuracy."


def tables(result: EndToEndStudy) -> dict[str, Rows]:
    """The tables of the study as rows: `systems`, `differences`, `areas`."""
    systems, differences, areas = [], [], []
    for point in result.points:
        for name, numbers in point.systems.items():
            systems.append({"lam": point.lam, "system": name, **_flat(numbers)})
        for name, numbers in point.against.items():
            differences.append({"lam": point.lam, "against": name, **_flat(numbers)})
    for name, numbers in result.areas.items():
        areas.append({"system": name, **_flat(numbers)})
    return {"systems": systems, "differences": differences, "areas": areas}


def _flat(numbers: Mapping[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, one in numbers.items():
        row |= {name: one.value, f"{name}_lower": one.lower, f"{name}_upper": one.upper}
    return row


def _costs(result: EndToEndStudy) -> str:
    """The paper's table of costs at the operating points."""
    names, others = list(result.points[0].systems), list(result.points[0].against)
    head = [
        "Operating point",
        *(f"{escape(name)}, total" for name in names),
        *(f"Savings vs. {escape(name)}" for name in others),
        *(f"Accuracy gain vs. {escape(name)}" for name in others),
    ]
    rows = []
    for point in result.points:
        totals = [_scaled(point.systems[name]["total_cost"], result.queries) for name in names]
        saved = [point.against[name]["savings"] for name in others]
        gained = [point.against[name]["accuracy_gain"] for name in others]
        rows.append(
            [
                escape(point.title),
                *(_cell(one, _money) for one in totals),
                *(_cell(one, _percent) for one in saved),
                *(_cell(one, _points) for one in gained),
            ]
        )
    return table(head, rows)


def _times(result: EndToEndStudy) -> str:
    """The paper's table of latencies, at the first operating point."""
    rows = [
        [escape(name), *(_use_cell(n, numbers[n]) for n in _WAIT)]
        for name, numbers in result.points[0].systems.items()
    ]
    return table(["Scenario", *(escape(NUMBERS[n][0]) for n in _WAIT)], rows)


def _decisions(result: EndToEndStudy) -> list[str]:
    known = {name: one for name, one in result.latencies.items() if one is not None}
    rows = []
    for name, one in known.items():
        timed = f"{len(one.seconds) // one.rounds:,} prompts, {one.rounds} rounds"
        found = one.estimates(resamples=result.resamples, seed=result.seed)
        cells = [_cell(value, _milliseconds) for value in found.values()]
        rows.append([escape(name), plain_cell(timed if one.source == "measured" else "given")])
        rows[-1] += cells
    head = ["Router", "timed", "mean, ms", "median, ms", "95th percentile, ms"]
    return [wide(table(head, rows))] if rows else []


def _areas(result: EndToEndStudy) -> str:
    rows = []
    for name, numbers in result.areas.items():
        for axis, end in (("inverse", ""), ("linear", "_linear")):
            cells = [_cell(numbers[f"{reading}{end}"], _four) for reading in _READINGS]
            rows.append([escape(f"{name}, {axis} cost"), *cells])
    return table(["Router", *_READINGS.values()], rows)


def _shares(result: EndToEndStudy) -> str:
    shares = result.points[0].shares
    rows = [
        [
            escape(target),
            *(plain_cell(f"{100 * shares[name][target]:.1f} %") for name in result.routers),
        ]
        for target in shares[ROUTER]
    ]
    return table(["Target", *map(escape, result.routers)], rows)


def _small(text: str) -> str:
    return paragraph(text, soft=True)


def _use_cell(name: str, one: Estimate) -> str:
    low, high = (number(name, Estimate(end, end, end)) for end in (one.lower, one.upper))
    note = "" if NOTHING in (low, high) or low == high else f"{low} to {high}"
    return plain_cell(number(name, one), note=note)


def _cell(one: Estimate, word: Any) -> str:
    ends = [word(end) for end in (one.lower, one.upper)]
    return plain_cell(
        word(one.value), note="" if {NOTHING, UNKNOWN} & set(ends) else " to ".join(ends)
    )


def _scaled(one: Estimate, by: int) -> Estimate:
    return Estimate(by * one.value, by * one.lower, by * one.upper, one.undefined, one.reason)


def _money(value: float) -> str:
    return dollars(value) if math.isfinite(value) else UNKNOWN


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else NOTHING


def _points(value: float) -> str:
    return f"{100 * value:+.2f} pp" if math.isfinite(value) else NOTHING


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.1f}" if math.isfinite(value) else NOTHING


def _four(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else NOTHING


# Okabe and Ito's colours, told apart by readers with any colour vision, on white and on black.
_ANSWER, _ROUTING = "#56B4E9", "#D55E00"
_ROOM = 1.35
"""How far the axis goes beyond the longest bar, for what is written there."""
_PANELS = (
    ("target_cost", "encoder_cost", PER, f"US dollars per {PER:,} queries", "encoder"),
    ("answer_seconds", "routing_seconds", 1, "seconds until the answer", "decision"),
)


def draw(result: EndToEndStudy) -> Figure:
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


def rows(result: EndToEndStudy) -> list[dict[str, Any]]:
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
