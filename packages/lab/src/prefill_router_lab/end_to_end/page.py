"""The end-to-end study as tables, a page, and a figure of the cost and time that routing adds."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from prefill_router.evaluation import NOTHING, PER, UNKNOWN, Estimate, digits, dollars, worded
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting import (
    INK,
    ORANGE,
    SKY,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    flat,
    legend_below,
    new_figure,
    style,
)
from prefill_router_lab.end_to_end.study import NUMBERS, ROUTER, EndToEndStudy, number, summary

NAME = "end-to-end"
_CAPTION = (
    "Each bar is the mean over the queries at argmax accuracy, where every query goes to the "
    "target that is most probably right. The orange part is what routing adds: the encoder's cost "
    "on the left, the decision's time on the right."
)
_WAIT = ("routing_seconds", "answer_seconds", "routing_share", "total_cost", "accuracy")
_READINGS = {
    "p_auccc": "targets alone",
    "charged": "encoder charged",
    "translated": "anchors moved as well",
}


def report_of(result: EndToEndStudy, *, title: str, known: Mapping[str, str]) -> Report:
    """The content of the study's report.

    Args:
        result: The study.
        title: Title of the page.
        known: Facts about the data, by name.
    """
    area = "P-AUCCC with the encoder charged"
    return Report(
        name=NAME,
        title=title,
        summary=summary(result),
        known={
            **known,
            "best single": result.best,
            **{f"encoder of {name}": text for name, text in result.charges.items()},
            "answers' time": result.timing or "unknown",
        },
        parts=[
            ReportFigure("overhead", draw(result), rows(result), _CAPTION),
            Section("What it costs", [Note(_ABOUT_COST), _costs(result)]),
            Section("How long it takes", [Note(_ABOUT_TIME), _times(result), *_decisions(result)]),
            Section(area, [Note(_ABOUT_AREA), _areas(result)]),
            Section("Who answers", [Note(_ABOUT_SHARES), _shares(result)]),
            Section("What the numbers mean", [{h: m for h, _, m in NUMBERS.values()}]),
        ],
        numbers=result.to_dict(),
        tables=tables(result),
        short=_short(result),
    )


_ABOUT_COST = (
    "Totals over all queries; the small print is the 95 % interval over resampled queries. Savings "
    "and gains compare the router with the other system on the same queries."
)
_ABOUT_TIME = (
    "At argmax accuracy. Completion is from the request to the target until its answer ends; "
    "routing comes before it. The share is routing's part of the total time. Systems took turns on "
    "every prompt; the intervals of routing are over the timed prompts and rounds."
)
_ABOUT_AREA = (
    "The encoder costs the same at every setting, so it moves a router's whole curve. If single "
    "targets don't pay for it, the area changes; if the anchors of the plane move with the curve, "
    "linear cost gives the same area and inverse cost nearly the same."
)
_ABOUT_SHARES = "The share of the queries that each target answers at argmax accuracy."


def tables(result: EndToEndStudy) -> dict[str, Rows]:
    """The tables of the study as rows: `systems`, `differences`, `areas`."""
    systems, differences, areas = [], [], []
    for point in result.points:
        for name, numbers in point.systems.items():
            systems.append({"lam": point.lam, "system": name, **flat(numbers)})
        for name, numbers in point.against.items():
            differences.append({"lam": point.lam, "against": name, **flat(numbers)})
    for name, numbers in result.areas.items():
        areas.append({"system": name, **flat(numbers)})
    return {"systems": systems, "differences": differences, "areas": areas}


def _costs(result: EndToEndStudy) -> Table:
    """The paper's table of costs at the operating points."""
    names, others = list(result.points[0].systems), list(result.points[0].against)
    head = [
        "Operating point",
        *(f"{name}, total" for name in names),
        *(f"Savings vs. {name}" for name in others),
        *(f"Accuracy gain vs. {name}" for name in others),
    ]
    body: list[Row] = []
    for point in result.points:
        totals = [_scaled(point.systems[name]["total_cost"], result.queries) for name in names]
        cells = [_cell(one, _money) for one in totals]
        cells += [_cell(point.against[name]["savings"], _percent) for name in others]
        cells += [_cell(point.against[name]["accuracy_gain"], _points) for name in others]
        body.append([point.title, *cells])
    return Table(head, body)


def _times(result: EndToEndStudy) -> Table:
    """The paper's table of latencies, at the first operating point."""
    body: list[Row] = [
        [name, *(_use_cell(n, numbers[n]) for n in _WAIT)]
        for name, numbers in result.points[0].systems.items()
    ]
    return Table(["Scenario", *(NUMBERS[n][0] for n in _WAIT)], body)


def _decisions(result: EndToEndStudy) -> list[Table]:
    body: list[Row] = []
    for name, one in result.latencies.items():
        if one is None:
            continue
        timed = f"{len(one.seconds) // one.rounds:,} prompts, {one.rounds} rounds"
        found = one.estimates(resamples=result.resamples, seed=result.seed)
        cells = [_cell(value, _milliseconds) for value in found.values()]
        body.append([name, timed if one.source == "measured" else "given", *cells])
    head = ["Router", "timed", "mean, ms", "median, ms", "95th percentile, ms"]
    return [Table(head, body)] if body else []


def _areas(result: EndToEndStudy) -> Table:
    body: list[Row] = []
    for name, numbers in result.areas.items():
        for axis, end in (("inverse", ""), ("linear", "_linear")):
            cells = [_cell(numbers[f"{reading}{end}"], _four) for reading in _READINGS]
            body.append([f"{name}, {axis} cost", *cells])
    return Table(["Router", *_READINGS.values()], body)


def _shares(result: EndToEndStudy) -> Table:
    shares = result.points[0].shares
    body = [
        [target, *(f"{100 * shares[name][target]:.1f} %" for name in result.routers)]
        for target in shares[ROUTER]
    ]
    return Table(["Target", *result.routers], body)


def _short(result: EndToEndStudy) -> Table:
    head = ["lam", "system", f"$ per {PER:,}", "encoder", "routing, ms", "answer, s", "accuracy"]
    body = []
    for point in result.points:
        for system, numbers in point.systems.items():
            cells = [
                worded(numbers["total_cost"].value, "usd"),
                number("encoder_share", numbers["encoder_share"]),
                _milliseconds(numbers["routing_seconds"].value),
                number("answer_seconds", numbers["answer_seconds"]),
                number("accuracy", numbers["accuracy"]),
            ]
            body.append([f"{point.lam:g}", system, *cells])
    return Table(head, body, right_from=2, unbroken=True)


def _use_cell(name: str, one: Estimate) -> Cell:
    low, high = (number(name, Estimate(end, end, end)) for end in (one.lower, one.upper))
    note = "" if NOTHING in (low, high) or low == high else f"{low} to {high}"
    return Cell(number(name, one), note=note)


def _cell(one: Estimate, word: Callable[[float], str]) -> Cell:
    ends = [word(end) for end in (one.lower, one.upper)]
    return Cell(word(one.value), note="" if {NOTHING, UNKNOWN} & set(ends) else " to ".join(ends))


def _scaled(one: Estimate, by: int) -> Estimate:
    return Estimate(by * one.value, by * one.lower, by * one.upper, one.undefined, one.reason)


def _money(value: float) -> str:
    return dollars(value) if math.isfinite(value) else UNKNOWN


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else NOTHING


def _points(value: float) -> str:
    return f"{100 * value:+.2f} pp" if math.isfinite(value) else NOTHING


def _milliseconds(value: float) -> str:
    return digits(1000 * value, ",.1f")


def _four(value: float) -> str:
    return digits(value, ".4f")


_ROOM = 1.35
"""Length of the axis relative to the longest bar, to leave space for the labels."""
_PANELS = (
    ("target_cost", "encoder_cost", PER, f"US dollars per {PER:,} queries", "encoder"),
    ("answer_seconds", "routing_seconds", 1, "seconds until the answer", "decision"),
)


def draw(result: EndToEndStudy) -> Figure:
    """Draw cost and time at the first setting, a bar per system."""
    systems = result.points[0].systems
    figure = new_figure(9.4, 1.9 + 0.5 * len(systems))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (answer, routing, scale, label, what) in zip(panels, _PANELS, strict=True):
        ends = [
            (scale * numbers[answer].value, scale * numbers[routing].value)
            for numbers in systems.values()
        ]
        _bars(axes, ends, what)
        style(axes, x=label, label_size=9, bars=True)
    panels[0].set_yticks(range(len(systems)), list(systems))
    panels[0].invert_yaxis()
    legend_below(figure, columns=2)
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
    axes.barh(places, shown, color=SKY, label="the target's answer", height=0.6)
    added = np.nan_to_num(routing)
    axes.barh(places, added, left=shown, color=ORANGE, label="routing", height=0.6)
    for place in range(len(ends)):
        share = routing[place] / (answer[place] + routing[place]) if known[place] else np.nan
        text = "  unknown" if not known[place] else f"  {100 * share:.2f} % {what}" if share else ""
        axes.text(shown[place] + added[place], place, text, va="center", color=INK, fontsize=8)
    axes.set_xlim(0, _ROOM * max(float(np.max(shown + added)), 1e-9))
