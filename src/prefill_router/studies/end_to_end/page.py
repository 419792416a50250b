"""The end-to-end study as tables, figures and a page."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.document import facts, paragraph, plain_cell, table, wide
from prefill_router.evaluation.wording import NOTHING, UNKNOWN, dollars
from prefill_router.studies.end_to_end.drawing import draw, rows as drawn_rows
from prefill_router.studies.end_to_end.result import NUMBERS, ROUTER, EndToEnd
from prefill_router.studies.end_to_end.words import number, said
from prefill_router.studies.output import Drawn, Rows, Sheet

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


def sheet(result: EndToEnd, *, title: str, known: Mapping[str, str]) -> Sheet:
    """Everything that the study says.

    Args:
        result: What was found.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    return Sheet(
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
        figures={"overhead": Drawn(draw(result), drawn_rows(result), _CAPTION)},
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


def tables(result: EndToEnd) -> dict[str, Rows]:
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


def _costs(result: EndToEnd) -> str:
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


def _times(result: EndToEnd) -> str:
    """The paper's table of latencies, at the first operating point."""
    rows = [
        [escape(name), *(_use_cell(n, numbers[n]) for n in _WAIT)]
        for name, numbers in result.points[0].systems.items()
    ]
    return table(["Scenario", *(escape(NUMBERS[n][0]) for n in _WAIT)], rows)


def _decisions(result: EndToEnd) -> list[str]:
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


def _areas(result: EndToEnd) -> str:
    rows = []
    for name, numbers in result.areas.items():
        for axis, end in (("inverse", ""), ("linear", "_linear")):
            cells = [_cell(numbers[f"{reading}{end}"], _four) for reading in _READINGS]
            rows.append([escape(f"{name}, {axis} cost"), *cells])
    return table(["Router", *_READINGS.values()], rows)


def _shares(result: EndToEnd) -> str:
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
