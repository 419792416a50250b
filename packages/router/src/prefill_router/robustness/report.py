"""The page of the study of robustness."""

from collections.abc import Mapping

from prefill_router.evaluation import interval, worded
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BLUE,
    ORANGE,
    QUIET,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    draw_interval,
    estimate_cell,
    name_rows,
    new_figure,
    style,
)
from prefill_router.robustness.study import KindResult, RobustnessStudy

NAME = "robustness"
_CAPTION = (
    "Left: the share of the decisions that stay when prompts are perturbed; the grey cross is the "
    "share that would stay by chance. Right: the change of accuracy by the decisions that don't. "
    "Lines are 95 % intervals over queries."
)
_KINDS = {
    "typos": "In a share of the words of four or more letters, and in at least one, a letter is "
    "wrong, missing, doubled or swapped with the next.",
    "wording": "Everyday words and phrases of questions are replaced by a fixed table. It is made "
    "by rules and not by a language model, so it is milder than a paraphrase.",
    "options": "The lettered options of multiple-choice questions in another order, under the same "
    "letters; questions whose options speak of each other are left out.",
    "paraphrases": "The other wordings that were given, matched by id.",
}
_COLUMNS = {
    "Stay": "The share of the decisions that stay the same: RouterArena's robustness, 1 - flips / "
    "matches. Only queries whose prompt is changed count.",
    "by chance": "The same if the decisions before and after, each as frequent as here, had "
    "nothing to do with each other. A router that always takes the same target has 100 % in both.",
    "Probabilities move": "Mean absolute change of the predicted probabilities, over all targets.",
    "accuracy": "Accuracy after minus accuracy before, by labels and costs of the original "
    "prompts, as if the targets answered the perturbed ones equally well. Queries that lack a "
    "label of either choice are left out.",
    "cost": "The change of the observed cost of 1,000 queries, in the same way.",
}


def report_of(study: RobustnessStudy, *, title: str, facts: Mapping[str, str]) -> Report:
    """The content of the study's report."""
    figure = ReportFigure("robustness", draw(study), study.figure_rows(), _CAPTION)
    kinds: dict[str, str] = {kind.kind: _KINDS[kind.kind] for kind in study.kinds}
    return Report(
        name=NAME,
        title=title,
        summary=summary(study),
        facts={
            **facts,
            "lam": f"{study.lam:g}",
            "intervals": f"95 %, {study.resamples:,} bootstrap resamples of the queries",
        },
        parts=[
            figure,
            _tabulate_kinds(study),
            Section("How prompts were perturbed", [kinds]),
            Section("What the columns mean", [Note(_REFERENCE), _COLUMNS]),
        ],
        numbers=study.to_dict(),
        tables={NAME: study.rows()},
        short=_tabulate_summary(study),
    )


_REFERENCE = (
    "A decision is allowed to change where two targets are about equally good; the columns "
    "accuracy and cost say what the changes cost."
)


def summary(study: RobustnessStudy) -> list[str]:
    """The result in a few sentences."""
    most = max(study.shares, key=lambda name: study.shares[name])
    lines = [
        f"At lam = {study.lam:g}, {worded(study.shares[most], 'share')} of {study.queries:,} "
        f"queries go to {most}."
    ]
    lines += [_word_kind(kind) for kind in study.kinds]
    lines += [f"No prompt is changed by {kind}." for kind in study.unchanged]
    return lines


def _word_kind(kind: KindResult) -> str:
    spread = interval(kind.kept_share, "share")
    text = (
        f"{kind.kind.capitalize()}: {worded(kind.kept_share.value, 'share')} of the decisions stay"
        f"{f' ({spread})' if spread else ''}, {worded(kind.by_chance, 'share')} by chance, on "
        f"{kind.queries:,} queries"
    )
    if kind.accuracy.reason:
        return f"{text}; what flips cost isn't known: {kind.accuracy.reason}."
    spread = interval(kind.accuracy, "points")
    change = worded(kind.accuracy.value, "points") + (f" ({spread})" if spread else "")
    return f"{text}; flips change accuracy by {change}."


def _make_row(kind: KindResult) -> Row:
    return [
        kind.kind,
        f"{kind.queries:,}",
        estimate_cell(kind.kept_share, "share"),
        worded(kind.by_chance, "share"),
        estimate_cell(kind.moved, "number"),
        estimate_cell(kind.accuracy, "points"),
        estimate_cell(kind.cost, "usd"),
    ]


_HEAD = ("Kind", "queries", "stay", "by chance", "P moves", "accuracy", "cost of 1,000")


def _tabulate_kinds(study: RobustnessStudy) -> Table:
    return Table(_HEAD, [_make_row(kind) for kind in study.kinds])


def _tabulate_summary(study: RobustnessStudy) -> Table:
    return Table(_HEAD, [_make_row(kind) for kind in study.kinds], right_from=1)


def draw(study: RobustnessStudy) -> Figure:
    """Draw the share of decisions that stay and the change of accuracy, a row per kind."""
    ordered = study.kinds[::-1]
    figure = new_figure(9.0, 1.5 + 0.5 * len(ordered))
    left, right = figure.subplots(1, 2, sharey=True)
    for row, kind in enumerate(ordered):
        draw_interval(left, row, kind.kept_share, BLUE, scale=100)
        left.plot([100 * kind.by_chance], [row], "x", color=QUIET)
        draw_interval(right, row, kind.accuracy, ORANGE, scale=100)
    right.axvline(0, color=QUIET, lw=0.9, ls=":")
    style(left, title="Decisions that stay (%)")
    style(right, title="Change of accuracy (points)")
    name_rows(left, [kind.kind for kind in ordered])
    return figure
