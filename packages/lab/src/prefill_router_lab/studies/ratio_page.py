"""The page of the study of the routing ratio: its tables, its figure, and what they say."""

from collections.abc import Mapping, Sequence

import numpy as np

from prefill_router.comparison import RecipeFailure, warnings
from prefill_router.evaluation import interval, worded
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BOLD,
    INK,
    QUIET,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    flat,
    legend_below,
    new_figure,
    significance,
    stroke,
    style,
)
from prefill_router_lab.studies.ratio import PAIR, RATIOS, RatioStudy

_HEADS = tuple(f"{100 * ratio:g} %" for ratio in RATIOS)
_MEANINGS = {
    "mean accuracy": "Mean over all shares from 0 to 1.",
    "above chance": "The difference to sending the same shares of queries at random; 0 means that "
    "the order doesn't show which queries need the strong target.",
    "in between": "A share between two whole numbers of queries is interpolated linearly.",
    "missing labels": "Left out, whichever target a query goes to; never counted as wrong.",
    "equal probabilities": "The query that comes first in the test part goes first.",
}
_PAIR_LABELS = {
    "apgr": "APGR",
    "cpt_20": "CPT(20 %)",
    "cpt_50": "CPT(50 %)",
    "cpt_80": "CPT(80 %)",
}
_PAIR_MEANING = {
    "APGR": "RouteLLM's average performance gap recovered: the part of the accuracy gap between "
    "the two targets that is closed, averaged over all shares; 0.5 is chance.",
    "CPT(x)": "RouteLLM's call-performance threshold: the share of strong calls that closes x of "
    "the gap; lower is better. On this page the order is by the probability for the strong target; "
    "`compare` and `evaluate` follow the router's own policy.",
}


def report_ratio(
    study: RatioStudy,
    *,
    title: str,
    known: Mapping[str, str],
    failed: Sequence[RecipeFailure] = (),
) -> Report:
    """The content of the study's report."""
    meanings = {**_MEANINGS, **(_PAIR_MEANING if PAIR[0] in study.curves[0].summary else {})}
    intro = (
        f"The share of queries sent to {study.strong}; prices play no part. At 100 % all routers "
        "are the same."
    )
    return Report(
        name="ratio",
        title=title,
        summary=summary(study),
        known={**known, "strong target": study.strong},
        parts=[
            ReportFigure("ratio", draw(study), study.rows(), _caption(study)),
            Section("Accuracy by share", [Note(intro), _shares(study)]),
            Section(f"Differences from {study.curves[0].name}", [_differences(study)]),
            Section("Over all shares", [_summaries(study)]),
            Section("How to read it", [meanings]),
        ],
        numbers=study.to_dict(),
        tables={"ratio": _rows(study)},
        short=Table(
            ["router", *_HEADS],
            [[one.name, *(f"{100 * at.value:.1f}" for at in one.at)] for one in study.curves],
        ),
        warnings=warnings(failed),
    )


def summary(study: RatioStudy) -> list[str]:
    """The result in a few sentences."""
    best = max(study.curves, key=lambda one: one.summary["mean_accuracy"].value)
    top = max(study.curves, key=lambda one: one.best[1])
    share, accuracy = top.best
    lines = [
        f"{study.strong} alone answers {worded(study.strong_accuracy, 'share')} "
        f"correctly, of those among {study.queries:,} queries on which it was measured. Each "
        "router sends it the queries that it most probably answers correctly, and the others to "
        "the other target with the highest probability. "
        f"The highest accuracy is {worded(accuracy, 'share')}, by {top.name} with "
        f"{worded(share, 'share')} sent to {study.strong}; it was chosen among all shares on the "
        "same queries, so it is optimistic.",
        f"Over all shares {best.name} is the most accurate "
        f"({worded(best.summary['mean_accuracy'].value, 'share')}).",
    ]
    idle = [one.name for one in study.curves if not one.summary["lift"].lower > 0]
    if idle and study.resamples:
        lines.append(
            f"Not significantly better than sending random queries: {', '.join(idle)}. Their order "
            f"doesn't show which queries need {study.strong}."
        )
    return lines


def _shares(study: RatioStudy) -> Table:
    """A table of each router's accuracy at some shares."""
    rows: list[Row] = [
        [one.name, *(estimate_cell(value, "share") for value in one.at)] for one in study.curves
    ]
    return Table(["Router", *_HEADS], rows)


def _differences(study: RatioStudy) -> Table:
    """A table of each router minus the first, at the same shares and on the same resamples."""
    rows: list[Row] = [
        [
            one.name,
            *(
                estimate_cell(d, "points", compared=significance(d, "higher"))
                for d in one.difference
            ),
        ]
        for one in study.curves[1:]
    ]
    return Table(["Router", *_HEADS], rows, note=BOLD, otherwise="There is no other router.")


def _summaries(study: RatioStudy) -> Table:
    """A table of means over all shares."""
    pair = [name for name in PAIR if name in study.curves[0].summary]
    head = ["Router", "mean accuracy", "above chance", *(_PAIR_LABELS[name] for name in pair)]
    rows: list[Row] = []
    for one in study.curves:
        found, lift = one.summary, one.summary["lift"]
        cells = [estimate_cell(found[n], "number" if n == "apgr" else "share") for n in pair]
        mean = estimate_cell(found["mean_accuracy"], "share")
        above = estimate_cell(lift, "points", compared=significance(lift, "higher"))
        rows.append([one.name, mean, above, *cells])
    return Table(head, rows)


def draw(study: RatioStudy) -> Figure:
    """Draw all curves, the first with its band."""
    figure = new_figure(9.4, 5.6)
    axes = figure.add_subplot()
    for place, one in enumerate(study.curves):
        colour, line, _ = stroke(place)
        x, y = 100 * one.ratio, 100 * one.accuracy
        axes.plot(x, y, color=colour, ls=line, lw=1.7, label=one.name, zorder=3)
        if place == 0 and np.isfinite(one.lower).any():
            band = (100 * one.band_ratio, 100 * one.lower, 100 * one.upper)
            label = f"{one.name}: 95 % of the resampled curves"
            axes.fill_between(*band, color=colour, alpha=0.13, lw=0, label=label)
    end = 100 * study.strong_accuracy
    axes.axhline(end, color=QUIET, lw=0.9, ls=":", label=f"{study.strong} alone")
    style(
        axes,
        title=f"Accuracy by the share of queries sent to {study.strong}",
        x=f"queries sent to {study.strong} (%)",
        y="accuracy (%)",
    )
    axes.set_xlim(0, 100)
    axes.title.set_color(INK)
    legend_below(figure)
    return figure


def _caption(study: RatioStudy) -> str:
    first = study.curves[0]
    spread = interval(first.summary["mean_accuracy"], "share")
    band = (
        f" The band holds 95 % of the resampled curves of {first.name} from end to end; its mean "
        f"accuracy is within {spread}."
        if spread
        else ""
    )
    return (
        "Left: the strong target answers nothing; right: everything. A curve that rises above both "
        f"of its ends shows that the router knows which queries to send there.{band} Overlapping "
        "bands don't mean that two routers are equal: the paired differences below are more "
        "powerful."
    )


def _rows(study: RatioStudy) -> Rows:
    rows = []
    for one in study.curves:
        named = {f"at_{ratio:g}": value for ratio, value in zip(RATIOS, one.at, strict=True)}
        best = {"best_ratio": one.best[0], "best_accuracy": one.best[1]}
        rows.append({"router": one.name, **flat({**named, **one.summary}), **best})
    return rows
