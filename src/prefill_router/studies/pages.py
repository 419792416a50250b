"""The pages of the routing-ratio study and of the shift study."""

from collections.abc import Mapping, Sequence

import numpy as np

from prefill_router.evaluation import HEADLINE, digits, interval, worded
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BOLD,
    INK,
    QUIET,
    STROKES,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    draw_interval,
    estimate_cell,
    flat,
    legend_below,
    name_rows,
    new_figure,
    significance,
    stroke,
    style,
)
from prefill_router.studies.ratio import PAIR, RATIOS, RatioStudy
from prefill_router.studies.recipe_fits import RecipeFailure, failures, warnings
from prefill_router.studies.shift import ARMS, Arm, Number, ShiftResult, ShiftStudy

_HEADS = tuple(f"{100 * ratio:g} %" for ratio in RATIOS)
_RATIO_MEANINGS = {
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
    meanings = {**_RATIO_MEANINGS, **(_PAIR_MEANING if PAIR[0] in study.curves[0].summary else {})}
    intro = (
        f"The share of queries sent to {study.strong}; prices play no part. At 100 % all routers "
        "are the same."
    )
    return Report(
        name="ratio",
        title=title,
        summary=ratio_summary(study),
        known={**known, "strong target": study.strong},
        parts=[
            ReportFigure("ratio", draw_ratio(study), study.rows(), _caption(study)),
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


def ratio_summary(study: RatioStudy) -> list[str]:
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


def draw_ratio(study: RatioStudy) -> Figure:
    """Draw all curves, the first with its band."""
    figure = new_figure(9.4, 5.6)
    axes = figure.add_subplot()
    for place, one in enumerate(study.curves):
        colour, line, _ = stroke(place)
        label = one.name if place < len(study.curves) else ""
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


NAMES: Mapping[Arm, str] = {
    "reference": "trained on all",
    "shifted": "trained elsewhere",
    "equal": "trained on all, as few queries",
}
_SHIFT_MEANINGS = {
    "trained on all": "The in-distribution reference: trained on the whole train part, which has "
    "queries of the tested kinds.",
    "trained elsewhere": "Trained only on the kinds named above, none of which are tested; layers, "
    "PCA, probabilities and costs were all fitted again.",
    "trained on all, as few queries": "A second reference, trained on a stratified sample of the "
    "train part as large as that of the router trained elsewhere: the loss against this one is due "
    "to the shift, and not to having fewer queries.",
    "difference": "Percentage points for accuracy; paired, on the same resampled test queries.",
}
_CAPTION = (
    "The same routers on the same test queries, trained on everything, on as few queries of "
    "everything, and only elsewhere. Lines are 95 % intervals over test queries; the paired "
    "differences below are more informative than their overlap."
)
_DRAWN: tuple[Number, ...] = ("argmax_accuracy", "auc_mean")
_ORDER: tuple[Arm, ...] = ("reference", "equal", "shifted")


_SECTIONS: Mapping[str, Number] = {
    "Accuracy at lam = 1": "argmax_accuracy",
    "Macro AUC over targets": "auc_mean",
    "Brier score": "brier_mean",
    "Best accuracy at any lam": "max_lam_accuracy",
}


def report_shift(study: ShiftStudy, *, title: str, known: Mapping[str, str]) -> Report:
    """The content of the study's report."""
    drawn = (
        [ReportFigure("shift", draw_shift(study), study.rows(), _CAPTION)] if study.routers else []
    )
    return Report(
        name="shift",
        title=title,
        summary=shift_summary(study),
        known={**known, **_kinds(study)},
        parts=[
            *drawn,
            *(
                Section(head, [Note(f"{HEADLINE[n].meaning} {BOLD}"), _arms(study, n)])
                for head, n in _SECTIONS.items()
            ),
            Section("What the columns mean", [_SHIFT_MEANINGS, *failures(study.failed)]),
        ],
        numbers=study.to_dict(),
        tables={"shift": study.rows(), "paper": paper_rows(study)},
        short=_short(study),
        warnings=warnings(study.failed, end=","),
    )


def shift_summary(study: ShiftStudy) -> list[str]:
    """The result in a few sentences."""
    if not study.routers:
        return ["No router could be fitted in all three ways."]
    ordered = sorted(study.routers, key=lambda one: -one.loss["argmax_accuracy"].value)
    best, worst = ordered[0], ordered[-1]
    lines = [
        f"Tested on {study.queries:,} queries of {_listed(study.shift.test_on)}. "
        + _lost(best)
        + ("" if best is worst else " " + _lost(worst))
    ]
    hurt = [o.name for o in study.routers if o.loss_of_shift["argmax_accuracy"].upper < 0]
    if study.resamples:
        lines.append(
            "Significant loss due to the shift itself, against a reference with as few training "
            f"queries, at lam = 1: {', '.join(hurt) if hurt else 'none'}."
        )
    blind = [o.name for o in study.routers if not o.numbers["shifted"]["auc_mean"].lower > 0.5]
    if blind and study.resamples:
        lines.append(
            "Trained elsewhere, these no longer significantly predict which queries a target gets "
            f"right (macro AUC not above 0.5): {', '.join(blind)}."
        )
    return lines


def _arms(study: ShiftStudy, number: Number) -> Table:
    """A table of one metric in the three arms and their differences, a row per router."""
    entry = HEADLINE[number]
    unit = "points" if entry.unit == "share" else entry.unit
    head = ["Router", *(NAMES[a] for a in ARMS), "elsewhere minus all", "elsewhere minus as few"]
    rows: list[Row] = [
        [
            one.name,
            *(estimate_cell(one.numbers[arm][number], entry.unit) for arm in ARMS),
            *(
                estimate_cell(value, unit, signed=True, compared=significance(value, entry.better))
                for value in (one.loss[number], one.loss_of_shift[number])
            ),
        ]
        for one in study.routers
    ]
    return Table(head, rows)


def _short(study: ShiftStudy) -> Table:
    rows = []
    for one in study.routers:
        accuracy = {arm: 100 * v["argmax_accuracy"].value for arm, v in one.numbers.items()}
        losses = [100 * d["argmax_accuracy"].value for d in (one.loss, one.loss_of_shift)]
        cells = [
            digits(accuracy["shifted"], ".2f"),
            digits(accuracy["reference"], ".2f"),
            digits(losses[0], "+.2f"),
            digits(accuracy["equal"], ".2f"),
            digits(losses[1], "+.2f"),
            digits(one.numbers["shifted"]["auc_mean"].value, ".4f"),
        ]
        rows.append([one.name, *cells])
    head = ["router", "elsewhere", "on all", "diff.", "as few", "diff.", "macro AUC"]
    return Table(head, rows)


def paper_rows(study: ShiftStudy) -> list[dict[str, object]]:
    """The columns of the paper's two tables: percentages, and differences in points."""
    return [
        {
            "router": one.name,
            "shifted": 100 * one.numbers["shifted"]["argmax_accuracy"].value,
            "iid": 100 * one.numbers["reference"]["argmax_accuracy"].value,
            "delta": 100 * one.loss["argmax_accuracy"].value,
            "delta_lower": 100 * one.loss["argmax_accuracy"].lower,
            "delta_upper": 100 * one.loss["argmax_accuracy"].upper,
            "shifted_macro_auc": one.numbers["shifted"]["auc_mean"].value,
        }
        for one in study.routers
    ]


def draw_shift(study: ShiftStudy) -> Figure:
    """Draw accuracy and AUC of every router in the three arms."""
    ordered = study.routers[::-1]
    figure = new_figure(10.0, 1.7 + 0.5 * len(ordered))
    panels = figure.subplots(1, len(_DRAWN), sharey=True, squeeze=False)[0]
    for axes, number in zip(panels, _DRAWN, strict=True):
        scale = 100 if HEADLINE[number].unit == "share" else 1
        for row, one in enumerate(ordered):
            for place, arm in enumerate(_ORDER):
                colour, _, marker = STROKES[place]
                draw_interval(
                    axes,
                    row + 0.2 * (1 - place),
                    one.numbers[arm][number],
                    colour,
                    scale=scale,
                    marker=marker,
                    label="" if row else NAMES[arm],
                )
        unit = " (%)" if scale == 100 else ""
        style(axes, title=HEADLINE[number].label + unit)
    panels[1].axvline(0.5, color=QUIET, lw=0.9, ls=":")
    name_rows(panels[0], [one.name for one in ordered])
    legend_below(figure, columns=3)
    return figure


def _lost(one: ShiftResult) -> str:
    loss = one.loss["argmax_accuracy"]
    spread = interval(loss, "points")
    if not np.isfinite(loss.value):
        why = one.numbers["shifted"]["argmax_accuracy"].reason or loss.reason
        return f"The loss of {one.name} isn't known: {why or 'an accuracy is not defined'}."
    return (
        f"{one.name} trained elsewhere answers "
        f"{worded(one.numbers['shifted']['argmax_accuracy'].value, 'share')} of them correctly, "
        f"{worded(loss.value, 'points')} compared with training on all kinds"
        + (f" ({spread})." if spread else ".")
    )


def _kinds(study: ShiftStudy) -> dict[str, str]:
    sizes = study.arms.sizes
    tested = ", ".join(f"{name} ({count:,})" for name, count in study.arms.domains.items())
    return {
        "trained elsewhere": f"{_listed(study.shift.train_on)}; {sizes['shifted']:,} queries",
        "tested on": tested,
        "references": f"{sizes['reference']:,} queries, and {sizes['equal']:,} drawn of them",
        "intervals": f"95 %, {study.resamples:,} bootstrap resamples of the test queries",
    }


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
