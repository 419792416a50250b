"""The study of learning curves as tables, a figure and a page."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.document import (
    estimate_cell,
    facts,
    paragraph,
    plain_cell,
    table,
    wide,
)
from prefill_router.evaluation.wording import NOTHING
from prefill_router.studies.learning.drawing import draw, rows as drawn_rows
from prefill_router.studies.learning.numbers import NUMBERS, Number
from prefill_router.studies.learning.result import STEP, Curve, Learning, SizePoint
from prefill_router.studies.learning.words import rounded, said
from prefill_router.studies.output import Drawn, Rows, Sheet

NAME = "learning"
_CAPTION = (
    "Filled dots: fewer labelled queries, every target measured. Open squares: all queries, fewer "
    "targets measured of each. At the same place on the horizontal axis both cost the same number "
    "of answers to collect and grade. A dotted line, where there is one, is the power law through "
    "the dots, drawn to twice the labels there are (grey line). Shades join the 95 % intervals of "
    "each size, over draws and test queries."
)
_ABOUT = (
    "Every row is the mean over the draws; the small print is the 95 % interval over draws and "
    "test queries together. The test queries are the same everywhere, so differences between rows "
    "are surer than their intervals look."
)
_LAW = (
    "The error (1 minus the number, or the Brier score itself) is fitted as a + b n^-c, n the "
    "labels. Rises are improvements, whatever their direction. A law is not to be trusted where "
    "the last column says why."
)


def sheet(found: Learning, *, title: str, known: Mapping[str, str]) -> Sheet:
    """Everything that the study says.

    Args:
        found: It.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    sections: list[tuple[str, Sequence[str]]] = []
    for curve in found.curves.values():
        sections += [
            (f"{curve.name}: each size", [_small(_ABOUT), wide(_sizes(curve)), *_failed(curve)]),
            (f"{curve.name}: how it goes on", [_small(_LAW), wide(_trends(curve))]),
        ]
    meanings = {HEADLINE[n].label: HEADLINE[n].meaning for n in NUMBERS}
    return Sheet(
        name=NAME,
        title=title,
        said=said(found),
        known={
            **known,
            "draws of each size": str(found.draws),
            "intervals": f"95 %, {found.resamples:,} resamples of test queries and draws",
        },
        sections=[*sections, ("What the numbers mean", [facts(meanings)])],
        numbers=found.to_dict(),
        tables={"sizes": drawn_rows(found), "trends": trend_rows(found)},
        figures={"learning": Drawn(draw(found), drawn_rows(found), _CAPTION)},
    )


def trend_rows(found: Learning) -> Rows:
    """The trends as rows; labels without end are missing."""
    return [
        {
            "router": name,
            "number": number,
            **_flat("per_doubling", trend.per_doubling),
            **_flat("next_doubling", trend.next_doubling),
            **_flat("labels_for_step", trend.labels_for_step),
            **_flat("spread", curve.spread[number]),
            "a": math.nan if trend.law is None else trend.law.floor,
            "b": math.nan if trend.law is None else trend.law.scale,
            "c": math.nan if trend.law is None else trend.law.exponent,
            "explained": trend.explained,
            "why_poor": trend.why_poor,
        }
        for name, curve in found.curves.items()
        for number, trend in curve.trends.items()
    ]


def _flat(name: str, one: Estimate) -> dict[str, Any]:
    ends = {name: one.value, f"{name}_lower": one.lower, f"{name}_upper": one.upper}
    return {key: value if math.isfinite(value) else math.nan for key, value in ends.items()}


def _sizes(curve: Curve) -> str:
    head = ["Learned from", "labels", *(escape(HEADLINE[n].label) for n in NUMBERS)]
    body = [
        [
            _named(point),
            plain_cell(f"{point.labels:,.0f}"),
            *(estimate_cell(point.numbers[n], HEADLINE[n].unit) for n in NUMBERS),
        ]
        for point in curve.points
    ]
    return table(head, body)


def _named(point: SizePoint) -> str:
    if point.size.measured is not None:
        return f"{point.queries:,} queries, {point.size.words}"
    return f"{point.queries:,} queries ({100 * point.size.share:.3g} %)"


def _trends(curve: Curve) -> str:
    head = [
        "Number",
        "rise per doubling, measured",
        "rise of the next doubling, by the law",
        f"labels in all for {STEP:g} more",
        "few targets of all queries against all targets of few",
        "R²",
        "not to be trusted because",
    ]
    return table(head, [_trend(curve, number) for number in NUMBERS])


def _trend(curve: Curve, number: Number) -> list[str]:
    trend = curve.trends[number]
    return [
        escape(HEADLINE[number].label),
        _signed(trend.per_doubling),
        _signed(trend.next_doubling),
        _counted(trend.labels_for_step),
        _signed(curve.spread[number]),
        plain_cell(f"{trend.explained:.2f}" if math.isfinite(trend.explained) else NOTHING),
        f'<td class="text">{escape(trend.why_poor)}</td>',
    ]


def _signed(one: Estimate) -> str:
    values = [_four(value) for value in (one.value, one.lower, one.upper)]
    return plain_cell(values[0], note="" if NOTHING in values else f"{values[1]} to {values[2]}")


def _four(value: float) -> str:
    return f"{value:+.4f}" if math.isfinite(value) else NOTHING


def _counted(one: Estimate) -> str:
    values = [
        NOTHING if math.isnan(value) else "never" if math.isinf(value) else rounded(value)
        for value in (one.value, one.lower, one.upper)
    ]
    return plain_cell(values[0], note="" if NOTHING in values else f"{values[1]} to {values[2]}")


def _failed(curve: Curve) -> list[str]:
    if not curve.failed:
        return []
    return [
        paragraph("These fits had too little to learn from:"),
        facts({one.name: one.why for one in curve.failed}),
    ]


def _small(text: str) -> str:
    return paragraph(text, soft=True)
