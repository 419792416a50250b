"""The report of an evaluation on disk: numbers, tables, figures and an HTML page.

    metrics.json           every number with its interval, and the definitions used
    curve.csv              every exact operating point of the accuracy-cost curve
    targets.csv            every number of every target
    operating_points.csv   the paper's lambda table
    index.html             one page with all of it; works offline
    figures/               accuracy_cost and accuracy_cost_normalised: .png, .svg, .csv

The folder is written whole or not at all. Costs in files are US dollars per query.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefill_router.data import Origin
from prefill_router.errors import MissingExtraError
from prefill_router.evaluation import HEADLINE, Evaluation, WinVerdict, interval, worded
from prefill_router.reporting.evaluation_tables import REPORT_TABLES, csv_tables
from prefill_router.reporting.report import (
    Banner,
    Cards,
    Note,
    Part,
    Report,
    ReportFigure,
    Section,
    Table,
)
from prefill_router.reporting.report_files import ReportKind

FORMAT = "prefill-router report 1"
METRICS = "metrics.json"
KIND = ReportKind("a report", METRICS, FORMAT)
_CARDS = (
    *("chosen_accuracy", "savings", "savings_gain", "best_single_accuracy"),
    *("oracle_accuracy", "auc_mean", "choice_auc", "p_auccc"),
)
_LAM = (
    "The trade-off lam weighs accuracy against cost: at 0 every query goes to the cheapest "
    "target, at 1 to the one that is most probably right. The curve shows all its values. Where it "
    "runs above the dashed line, routing beats fixed mixes of targets at the same cost."
)
_PRICE = (
    " The dotted line is price alone: the router's estimated costs, with each target's accuracy on "
    "train rows in the place of probabilities. Only where the curve runs above this line, too, "
    "does reading the requests gain anything."
)
_CAPTIONS = {
    "accuracy_cost": "Each point of the curve is one value of lam. 95 % of the curves of resampled "
    "queries stay within the band from end to end. Below: the share of the calls that goes to the "
    "most expensive target.",
    "accuracy_cost_normalised": "The same, normalised to this pool: right is cheaper, up is more "
    "accurate. The area under the curve is P-AUCCC; the mean distance to the star is the oracle "
    "distance.",
}


def is_report(folder: Path) -> bool:
    """Whether a folder is a report that this package wrote."""
    return KIND.is_own(folder)


def check_replaceable(folder: Path) -> None:
    """Check that a report may be written to the folder, before any long computation.

    Raises:
        DataError: The folder holds something other than a report.
        ConfigError: The folder can't be created.
    """
    KIND.check_replaceable(folder)


def write_report(
    evaluation: Evaluation,
    folder: Path | str,
    *,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write a report, whole or not at all; an earlier report in the folder is replaced.

    Args:
        evaluation: The reported evaluation.
        folder: The folder to write: missing, empty, or an earlier report.
        title: Title of the page.
        facts: Facts about the run by name, for example the router, the data, the date.
        origin: The command that made it, to be recorded with it.

    Raises:
        DataError: The folder holds something other than a report.
        MissingExtraError: Matplotlib isn't installed; all but the figures and the page is written.
    """
    check_replaceable(Path(folder))
    lacking: MissingExtraError | None = None
    figures: list[ReportFigure] = []
    try:
        figures = evaluation_figures(evaluation)
    except MissingExtraError as error:
        lacking = error
    report = report_of(evaluation, figures, title=title, facts=dict(facts or {}))
    KIND.replace(report, Path(folder), page=lacking is None, origin=origin)
    if lacking is not None:
        raise lacking


def write_vote_report(
    verdict: WinVerdict,
    folder: Path | str,
    *,
    title: str,
    facts: Mapping[str, str],
    origin: Origin | None = None,
) -> None:
    """Write a report on a router that learned from votes: its win rate, and no accuracy.

    Args:
        verdict: What is reported.
        folder: As for `write_report`; so are the others.
        title: Title of the page.
        facts: Facts about the run by name.
        origin: The command that made it.

    Raises:
        DataError: The folder holds something other than a report.
        MissingExtraError: Matplotlib isn't installed; all but the page is written.
    """
    check_replaceable(Path(folder))
    gain = verdict.gain
    cards = [
        ("win rate of its picks", worded(verdict.win_rate.value, "share"), "a tie is half a win"),
        ("of the best fixed ranking", worded(verdict.ranking_win_rate, "share"), verdict.best),
        ("gain", worded(gain.value, "points"), f"95 %: {interval(gain, 'points')}"),
    ]
    shares = [[name, worded(share, "share")] for name, share in verdict.shares.items()]
    report = Report(
        name=METRICS.removesuffix(".json"),
        title=title,
        parts=[
            Banner([f"{verdict.because}.", *verdict.lines], word=verdict.word.capitalize()),
            {**facts, "votes": f"{verdict.votes:,}"},
            Cards(cards),
            Section("Where the prompts go", [Table(["target", "share of the prompts"], shares)]),
        ],
        head={"format": FORMAT, "title": title, "facts": dict(facts)},
        numbers={"votes": verdict.to_dict()},
    )
    KIND.replace(report, Path(folder), page=True, origin=origin)


def report_of(
    evaluation: Evaluation,
    figures: Sequence[ReportFigure],
    *,
    title: str,
    facts: Mapping[str, str],
) -> Report:
    """The content of the report; the arguments are those of `write_report`."""
    number = evaluation.headline
    cards = []
    for name in _CARDS:
        spread = interval(number[name], HEADLINE[name].unit)
        value = worded(number[name].value, HEADLINE[name].unit)
        note = f"95 %: {spread}" if spread else number[name].reason
        cards.append((HEADLINE[name].label, value, note))
    tables = [
        Section(table.title, [*([Note(table.note)] if table.note else []), table.make(evaluation)])
        for table in REPORT_TABLES.values()
    ]
    parts: list[Part] = [
        Banner(verdict(evaluation).splitlines()),
        {**facts, **_list_counts(evaluation, facts=facts)},
        Cards(cards),
        Section("Accuracy and cost", [_LAM + (_PRICE if evaluation.price_alone else ""), *figures]),
        *tables,
        Section("How the numbers were read", [evaluation.definitions]),
    ]
    return Report(
        name=METRICS.removesuffix(".json"),
        title=title,
        parts=parts,
        head={"format": FORMAT, "title": title, "facts": dict(facts)},
        numbers=evaluation.to_dict(),
        tables=csv_tables(evaluation),
    )


def evaluation_figures(evaluation: Evaluation) -> list[ReportFigure]:
    """The figures of the report.

    Raises:
        MissingExtraError: Matplotlib isn't installed.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.evaluation_charts import draw, drawing

    drawings = [drawing(evaluation, "raw"), drawing(evaluation, "normalised")]
    return [
        ReportFigure(
            name, draw(what), what.rows(), "" if what.is_empty else caption, label=what.title
        )
        for (name, caption), what in zip(_CAPTIONS.items(), drawings, strict=True)
    ]


def verdict(evaluation: Evaluation) -> str:
    """The verdict, the result, and any queries that aren't compared, one line each."""
    if not evaluation.coverage.compared:
        return evaluation.caution
    ruling, first = evaluation.verdict, ""
    if ruling is not None:
        first = f"{ruling.word.capitalize()}, at lam = {ruling.lam:.3g}: {ruling.because}."
    return "\n".join(filter(None, (first, _word_result(evaluation), evaluation.caution)))


def _word_result(evaluation: Evaluation) -> str:
    number = evaluation.headline
    best = max(evaluation.per_target, key=lambda name: _sort_accuracy(evaluation, name))
    kind = evaluation.definitions["policy"].split(";")[0].split(",")[0].removeprefix("kind: ")
    start = (
        f"Sending each of {evaluation.queries:,} queries to the target most probably right"
        if kind == "lambda"
        else f"The policy {kind} at its most accurate end, on {evaluation.queries:,} queries,"
    )
    mean = evaluation.meaning.words
    is_right = evaluation.meaning.kind == "right"
    verb, rest = ("answers", " of them correctly") if is_right else ("has a mean score of", "")
    first = (
        f"{start} {verb} {mean(number['argmax_accuracy'].value)}{rest}; the best single target, "
        f"{best}, {verb} {mean(number['best_single_accuracy'].value)}, and a perfect router would "
        f"reach {mean(number['oracle_accuracy'].value)}."
    )
    savings = number["savings"]
    if savings.reason:
        return f"{first} Saved at no less accuracy: {savings.reason}."
    return (
        f"{first} One setting is the cheapest that was no less accurate than the best single "
        f"target on train rows. There it spends {worded(savings.value, 'share')} less than that "
        f"target and is {worded(number['savings_gain'].value, 'points')} more accurate."
    )


def _sort_accuracy(evaluation: Evaluation, name: str) -> float:
    value = evaluation.per_target[name]["accuracy"].value
    return -1.0 if math.isnan(value) else value


def _list_counts(evaluation: Evaluation, *, facts: Mapping[str, str]) -> dict[str, str]:
    """Facts that the evaluation itself gives, except those that the caller has set."""
    cells = evaluation.queries * len(evaluation.targets)
    groups = evaluation.conversations
    unit = "queries" if groups is None else f"{groups:,} conversations"
    counts = {
        "queries": f"{evaluation.queries:,}",
        "targets": f"{len(evaluation.targets)}",
        "labels": f"{evaluation.labels:,} of {cells:,} measured; the others are left out",
        "intervals": f"95 %, {evaluation.resamples:,} bootstrap resamples of the {unit}",
    }
    return {name: text for name, text in counts.items() if name not in facts}
