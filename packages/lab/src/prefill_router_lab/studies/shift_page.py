"""The page of the study of a shift between train and test: tables, a figure, and what they say."""

import math
from collections.abc import Mapping, Sequence

from prefill_router.comparison import failures, warnings
from prefill_router.evaluation import HEADLINE, digits, interval, worded
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BOLD,
    QUIET,
    STROKES,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    draw_interval,
    estimate_cell,
    legend_below,
    name_rows,
    new_figure,
    significance,
    style,
)
from prefill_router_lab.studies.shift import ARM_NAMES, ARMS, Arm, Number, ShiftResult, ShiftStudy

_MEANINGS = {
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
    drawn = [ReportFigure("shift", draw(study), study.rows(), _CAPTION)] if study.routers else []
    return Report(
        name="shift",
        title=title,
        summary=summary(study),
        known={**known, **_kinds(study)},
        parts=[
            *drawn,
            *(
                Section(head, [Note(f"{HEADLINE[n].meaning} {BOLD}"), _metric_table(study, n)])
                for head, n in _SECTIONS.items()
            ),
            Section("What the columns mean", [_MEANINGS, *failures(study.failed)]),
        ],
        numbers=study.to_dict(),
        tables={"shift": study.rows(), "paper": paper_rows(study)},
        short=_short(study),
        warnings=warnings(study.failed, end=","),
    )


def summary(study: ShiftStudy) -> list[str]:
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


def _metric_table(study: ShiftStudy, number: Number) -> Table:
    """A table of one metric in the three arms and their differences, a row per router."""
    entry = HEADLINE[number]
    unit = "points" if entry.unit == "share" else entry.unit
    head = [
        "Router",
        *(ARM_NAMES[a] for a in ARMS),
        "elsewhere minus all",
        "elsewhere minus as few",
    ]
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


def draw(study: ShiftStudy) -> Figure:
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
                    label="" if row else ARM_NAMES[arm],
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
    if not math.isfinite(loss.value):
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
