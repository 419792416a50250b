"""The page of a report: everything in one file that opens without a network."""

import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.catalogue import HEADLINE, REGIME, TARGET, MetricEntry
from prefill_router.evaluation.evaluation import Evaluation
from prefill_router.evaluation.formatting import NOTHING, PER, interval, worded
from prefill_router.reporting.pages import pairs, style, table

_CARDS = (
    "chosen_accuracy",
    "savings",
    "savings_gain",
    "best_single_accuracy",
    "oracle_accuracy",
    "auc_mean",
    "choice_auc",
    "p_auccc",
)
_COLUMNS = ("accuracy", "mean_cost", "auc", "brier", "share_routed", "accuracy_routed",
            "accuracy_delta", "cost_routed", "cost_delta")  # fmt: skip
_ARROW = {"higher": " ↑", "lower": " ↓", "neither": ""}


def render(
    evaluation: Evaluation,
    *,
    title: str,
    facts: Mapping[str, str],
    figures: Mapping[str, str],
) -> str:
    """The page's HTML.

    Args:
        evaluation: What is reported.
        title: Heads the page.
        facts: What the reader must know of it.
        figures: SVG elements by view, `raw` and `normalised`.
    """
    template = Template(
        (files("prefill_router.reporting") / "page.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        title=escape(title),
        style=style(),
        verdict="</p><p>".join(map(escape, verdict(evaluation).splitlines())),
        facts=pairs({**facts, **_counts(evaluation, said=facts)}),
        cards="".join(_card(HEADLINE[name], evaluation.headline[name]) for name in _CARDS),
        raw=figures["raw"],
        normalised=figures["normalised"],
        headline=_headline(evaluation),
        targets=_targets(evaluation),
        regimes=_regimes(evaluation),
        steps=_steps(evaluation),
        definitions=pairs(evaluation.definitions),
    )


def verdict(evaluation: Evaluation) -> str:
    """Whether the router is worth having, the result, and what isn't compared, a line each."""
    if not evaluation.coverage.compared:
        return evaluation.caution
    said, first = evaluation.verdict, ""
    if said is not None:
        first = f"{said.word.capitalize()}, at lam = {said.lam:.3g}: {said.because}."
    return "\n".join(filter(None, (first, _result(evaluation), evaluation.caution)))


def _result(evaluation: Evaluation) -> str:
    number = evaluation.headline
    best = max(evaluation.per_target, key=lambda name: _accuracy(evaluation, name))
    kind = evaluation.definitions["policy"].split(";")[0].split(",")[0].removeprefix("kind: ")
    sent = (
        f"Sending each of {evaluation.queries:,} queries to the target most probably right"
        if kind == "lambda"
        else f"The policy {kind} at its most accurate end, on {evaluation.queries:,} queries,"
    )
    first = (
        f"{sent} answers {worded(number['argmax_accuracy'].value, 'share')} of them correctly; the "
        f"best single target, {best}, answers "
        f"{worded(number['best_single_accuracy'].value, 'share')}, and a perfect router would "
        f"reach {worded(number['oracle_accuracy'].value, 'share')}."
    )
    savings = number["savings"]
    if savings.reason:
        return f"{first} Saved at no less accuracy: {savings.reason}."
    return (
        f"{first} At the cheapest setting that was no less accurate than the best single target on "
        f"train rows, it spends {worded(savings.value, 'share')} less than that target and is "
        f"{worded(number['savings_gain'].value, 'points')} more accurate."
    )


def _accuracy(evaluation: Evaluation, name: str) -> float:
    value = evaluation.per_target[name]["accuracy"].value
    return -1.0 if math.isnan(value) else value


def _counts(evaluation: Evaluation, *, said: Mapping[str, str]) -> dict[str, str]:
    """What the evaluation itself knows, without what the writer of the report has said."""
    cells = evaluation.queries * len(evaluation.targets)
    counts = {
        "queries": f"{evaluation.queries:,}",
        "targets": f"{len(evaluation.targets)}",
        "labels": f"{evaluation.labels:,} of {cells:,} measured; the others are left out",
        "intervals": f"95 %, {evaluation.resamples:,} bootstrap resamples of the queries",
    }
    return {name: text for name, text in counts.items() if name not in said}


def _card(entry: MetricEntry, estimate: Estimate) -> str:
    spread = interval(estimate, entry.unit)
    note = f"95 %: {spread}" if spread else estimate.reason
    return (
        f'<div class="card"><span>{escape(entry.label)}</span>'
        f"<b>{escape(worded(estimate.value, entry.unit))}</b><span>{escape(note)}</span></div>"
    )


def _cell(estimate: Estimate, entry: MetricEntry) -> str:
    spread = interval(estimate, entry.unit)
    small = f"<small>{escape(spread)}</small>" if spread else ""
    hint = f' title="{escape(estimate.reason)}"' if estimate.reason else ""
    return f"<td{hint}>{escape(worded(estimate.value, entry.unit))}{small}</td>"


def _headline(evaluation: Evaluation) -> str:
    rows = []
    for name, estimate in evaluation.headline.items():
        entry = HEADLINE[name]
        unit = f" ($ per {PER:,})" if entry.unit == "usd" else ""
        said = entry.meaning + (f" Not defined here: {estimate.reason}." if estimate.reason else "")
        label = escape(entry.label + unit + _ARROW[entry.better])
        rows.append([label, _cell(estimate, entry), f'<td class="text">{escape(said)}</td>'])
    numbers = table(["", "value, 95 % interval", "what it means"], rows)
    return numbers.replace('<th scope="col">what', '<th class="text" scope="col">what')


def _targets(evaluation: Evaluation) -> str:
    head = ["Target"]
    for name in _COLUMNS:
        unit = f", $ per {PER:,}" if TARGET[name].unit == "usd" else ""
        head.append(escape(TARGET[name].label + unit + _ARROW[TARGET[name].better]))
    rows = [
        [escape(target), *(_cell(values[name], TARGET[name]) for name in _COLUMNS)]
        for target, values in evaluation.per_target.items()
    ]
    return table(head, rows)


def _regimes(evaluation: Evaluation) -> str:
    head = ["Regime", "Queries", *(escape(entry.label) for entry in REGIME.values())]
    rows = []
    for name, count in evaluation.regime_sizes.items():
        values = evaluation.regimes.get(name)
        if values is None and not count:
            continue
        cells = [
            _cell(values[key], entry) if values else f"<td>{NOTHING}</td>"
            for key, entry in REGIME.items()
        ]
        rows.append([escape(name), f"<td>{count:,}</td>", *cells])
    return table(head, rows)


def _steps(evaluation: Evaluation) -> str:
    head = ["Step of lam", "Points", "Q1", "Q2", "Q3", "Q4", "P-AUCCC", "linear",
            "Oracle distance", "linear"]  # fmt: skip
    rows = []
    for step in evaluation.steps:
        counts = (step.points, step.q1, step.q2, step.q3, step.q4)
        areas = [step.p_auccc, step.p_auccc_linear]
        numbers = [*areas, step.oracle_distance, step.oracle_distance_linear]
        cells = [f"{count:,}" for count in counts] + [worded(n, "number") for n in numbers]
        label = "exact" if step.step is None else f"{step.step:g}"
        rows.append([label, *(f"<td>{cell}</td>" for cell in cells)])
    return table(head, rows)
