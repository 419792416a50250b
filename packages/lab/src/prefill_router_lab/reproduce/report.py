"""A reproduction on disk: the paper's figures by number, and its claims checked on the data.

study.json      the study that the folder is for, and its options
results.json    every number of every table, ours and the paper's
tables/         each table as CSV, one row per number
figures/        each figure: .png, .svg, .csv
index.html      one page with all of it, in the paper's order; works offline
work/           fitted routers and intermediate results, from which interrupted work resumes

The paper's figures by number: those that can be drawn from the data, and why the others can't.

Accuracy against cost, raw and normalised, and against the routing ratio.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np

from prefill_router.evaluation import HEADLINE, NOTHING
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    CURVES,
    ORANGE,
    PALE,
    Cell,
    CurveLine,
    Folded,
    Note,
    Part,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    View,
    draw_lines,
    drawing,
    legend_below,
    new_figure,
    style,
    write_report_files,
)
from prefill_router_lab.reproduce.cells import (
    PaperTable,
    TableCell,
    all_tables,
    find_run,
    format_interval,
    format_value,
)
from prefill_router_lab.reproduce.router_tables import negate
from prefill_router_lab.reproduce.systems import POOLS, SEMANTIC, SYSTEMS, TRUNK, UNIFIED, PoolRun

Answer = Literal["yes", "no", "undecided"]
_LAYER = 0.0003
"""The AUC by which Fisher J may miss the best selector, as in the paper."""


@final
@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        pool: The pool that it was checked on.
        text: The claim.
        answer: `yes` or `no` where the intervals decide, else `undecided`.
        because: The numbers behind the answer.
    """

    pool: str
    text: str
    answer: Answer
    because: str


def check(runs: Sequence[PoolRun]) -> list[Claim]:
    """Check the claims of the paper on every pool."""
    return [claim for run in runs for claim in _check_pool(run)]


def _check_pool(run: PoolRun) -> list[Claim]:
    claims = [
        _check_lead(run, "auc_mean", "SharedTrunkNet has the highest mean AUC of the six routers."),
        _check_lead(run, "brier_mean", "SharedTrunkNet has the lowest Brier score of the six."),
        _check_lead(run, "p_auccc", "SharedTrunkNet has the largest P-AUCCC of the six."),
        _check_gain(run),
    ]
    if run.system(UNIFIED) is not None:
        claims.append(_check_advantage(run))
    if not run.missing("ablation"):
        claims.append(_check_fisher(run))
    return claims


def _check_lead(run: PoolRun, name: str, text: str) -> Claim:
    sign = 1 if HEADLINE[name].better == "higher" else -1
    better, worse, undecided = list[str](), list[str](), list[str]()
    for system in SEMANTIC:
        router = run.system(system)
        if router is None:
            continue
        lower, upper = sorted(
            sign * end
            for end in (negate(router.against[name]).lower, negate(router.against[name]).upper)
        )
        (better if lower > 0 else worse if upper < 0 else undecided).append(system)
    answer: Answer = "no" if worse else "undecided" if undecided or not better else "yes"
    reasons = [
        f"significantly better than {', '.join(better)}" if better else "",
        f"no significant difference to {', '.join(undecided)}" if undecided else "",
        f"significantly worse than {', '.join(worse)}" if worse else "",
    ]
    return Claim(run.title, text, answer, "; ".join(part for part in reasons if part))


def _check_gain(run: PoolRun) -> Claim:
    router = run.system(TRUNK)
    text = "Routing answers more questions correctly than the best single target."
    if router is None:
        return Claim(run.title, text, "undecided", "the router couldn't be fitted")
    gain = router.headline["accuracy_gain"]
    answer: Answer = "yes" if gain.lower > 0 else "no" if gain.upper < 0 else "undecided"
    value = format_value(gain.value, "points")
    interval = format_interval(gain.lower, gain.upper, "points")
    return Claim(run.title, text, answer, f"at its best lam {value} ({interval})")


def _check_advantage(run: PoolRun) -> Claim:
    text = "The paired advantage over Unified Multitask is significant on most numbers."
    router = run.system(UNIFIED)
    names = ("auc_mean", "brier_mean", "max_lam_accuracy", "p_auccc")
    labels: dict[str, list[str]] = {"better": [], "worse": [], "open": []}
    for name in names:
        if router is None:
            continue
        sign = 1 if HEADLINE[name].better == "higher" else -1
        estimate = negate(router.against[name])
        low, high = sorted((sign * estimate.lower, sign * estimate.upper))
        labels["better" if low > 0 else "worse" if high < 0 else "open"].append(
            HEADLINE[name].label
        )
    answer: Answer = (
        "no" if labels["worse"] else "yes" if len(labels["better"]) >= 3 else "undecided"
    )
    reasons = [
        f"significantly better in {', '.join(labels['better'])}" if labels["better"] else "",
        f"significantly worse in {', '.join(labels['worse'])}" if labels["worse"] else "",
        f"no significant difference in {', '.join(labels['open'])}" if labels["open"] else "",
    ]
    return Claim(run.title, text, answer, "; ".join(part for part in reasons if part))


def _check_fisher(run: PoolRun) -> Claim:
    text = "Fisher J selects the best layer, or one within 0.0003 AUC of it."
    reasons, holds = [], True
    for encoder in run.parts["ablation"]["encoders"]:
        auc = encoder["auc"]
        best = max(auc[name] for name in ("Random", "Last", "d_eff", "alpha"))
        holds = holds and auc["Fisher J"] >= best - _LAYER
        reasons.append(f"{encoder['encoder']}: {auc['Fisher J']:.4f} against {best:.4f}")
    return Claim(run.title, text, "yes" if holds else "no", "; ".join(reasons))


STUDY = "reproduction"
"""The name of the study in `study.json` (`reporting.mark`)."""
WORK = "work"


def to_dict(runs: Sequence[PoolRun]) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "pools": {
            run.title: {
                "paper_pool": run.pool,
                "is_counterpart": run.paper_pool.is_counterpart,
                "targets": {
                    target: run.paper_pool.names.get(target)
                    for target in run.paper_pool.dataset.pool.names
                },
                "queries": {part: len(ids) for part, ids in run.split.parts.items()},
                "not_fitted": {failure.name: failure.why for failure in run.result.failures},
                "routing_ratio": dict(run.parts.get("ratio", {})),
            }
            for run in runs
        },
        "claims": [vars(claim) for claim in check(runs)],
        "tables": [table.to_dict() for table in all_tables(runs)],
    }


def write(
    runs: Sequence[PoolRun],
    folder: Path,
    *,
    title: str,
    introduction: Sequence[str],
    facts: Mapping[str, str],
) -> None:
    """Write the report, each file whole or not at all.

    Args:
        runs: The pools' results.
        folder: The folder to write, already checked and marked.
        title: Title of the page.
        introduction: Introductory sentences.
        facts: Facts about the data, the encoder and the options, by name.
    """
    tables = all_tables(runs)
    report = Report(
        name="results",
        title=title,
        summary=introduction,
        facts=facts,
        parts=page_parts(tables, all_figures(runs), check(runs)),
        head={"title": title, "said": list(introduction), "known": dict(facts)},
        numbers=to_dict(runs),
        tables={f"tables/{table.file_name}": table.flat() for table in tables},
    )
    write_report_files(report, folder)


_AFTER: Mapping[int, int] = {1: 0, 2: 3, 3: 3, 4: 27, 5: 29, 6: 29, 7: 29, 8: 29}
"""The table that each figure follows in the paper."""


_ONE_BY_ONE = (
    "Significant means that the 95 % interval of a paired difference excludes 0. Each difference "
    "is tested by itself, without a correction for how many there are."
)
_READING = (
    "Tables and figures have the paper's order and numbers. In every cell our number is on top "
    "with its 95 % interval below. The paper's number comes last, in italics, with the paper's own "
    "interval where it gives one. A dash means that we have no number; the reason is in the "
    "tooltip or above the table.",
    "The routers are the packaged ones with their defaults, fitted on the train part of one split "
    "and judged on its test part. They don't use the paper's encoder, its embeddings or its "
    "search over configurations. So expect the order of the routers to agree, not the third digit.",
)


def page_parts(
    tables: Sequence[PaperTable], pictures: "Sequence[PaperFigure]", claims: Sequence[Claim]
) -> list[Part]:
    """The parts of the page, in the paper's order.

    Args:
        tables: The tables.
        pictures: The figures.
        claims: The paper's claims, checked.
    """

    def list_figures_after(number: int) -> list[Part]:
        return [
            _make_figure_section(figure) for figure in pictures if _AFTER[figure.number] == number
        ]

    claim_rows: list[Row] = [
        [claim.pool, Cell(claim.text, words=True), claim.answer, Cell(claim.because, words=True)]
        for claim in claims
    ]
    heads = ["Pool", "the paper says", "holds", "found"]
    return [
        Section("The paper's claims on these data", [Note(_ONE_BY_ONE), Table(heads, claim_rows)]),
        Section("How to read the tables", _READING),
        *list_figures_after(0),
        *(
            part
            for table in tables
            for part in (_make_section(table), *list_figures_after(table.number))
        ),
    ]


def _make_section(table: PaperTable) -> Section:
    rows: list[Row] = [[*row.names, *map(_make_cell, row.cells)] for row in table.rows]
    content: Part = Table([*table.keys, *table.columns], rows)
    parts: list[Part] = [Note(f"In the paper: {table.where}.")]
    if table.missing:
        parts.append(f"Not computed. {table.missing}")
        content = Folded("The paper's numbers", [content])
    notes = [Note(text) for text in dict.fromkeys(table.notes)]
    return Section(f"Table {table.number}. {table.title}", [*parts, *notes, content])


def _make_cell(cell: TableCell) -> Cell:
    ours, paper = cell.ours, cell.paper
    text = note = ""
    if ours is not None:
        text = _add_deviation(format_value(ours.value, cell.unit), cell.sd)
        note = format_interval(ours.lower, ours.upper, cell.unit)
    elif cell.why or paper is None:
        text = NOTHING
    cited: tuple[str, ...] = ()
    if paper is not None:
        number = _add_deviation(format_value(paper.value, cell.unit), paper.sd)
        cited = (number, format_interval(paper.lower, paper.upper, cell.unit))
    hint = cell.why or ("" if ours is None else ours.reason)
    return Cell(text, note=note, hint=hint, cited=cited)


def _add_deviation(text: str, sd: float | None) -> str:
    return text if sd is None else f"{text} ± {sd:.4f}"


def _make_figure_section(figure: "PaperFigure") -> Section:
    where = Note(f"In the paper: {figure.where}.")
    return Section(
        f"Figure {figure.number}. {figure.title}", [where, figure.figure or figure.missing]
    )


_CURVES = (
    "Each line is one router from its cheapest to its most accurate setting; up and to the "
    "{better} is better. Circles are the single targets, the dashed line is the best fixed mix "
    "of targets."
)
_FIRST = {"frontier": 2, "small": 5, "mixed": 7}
"""The number of each pool's first figure of curves; the normalised figure has the next number."""
_PLACE = {"frontier": "section 5.1.3", "small": "appendix J.1", "mixed": "appendix J.2"}


@final
@dataclass(frozen=True, eq=False)
class PaperFigure:
    """One figure of the paper.

    Attributes:
        number: The figure's number in the paper.
        title: Its title.
        where: Its section in the paper.
        missing: Why it isn't drawn; empty where it is.
        figure: The figure with its data; None where it isn't drawn.
    """

    number: int
    title: str
    where: str
    missing: str = ""
    figure: ReportFigure | None = None


def all_figures(runs: Sequence[PoolRun]) -> list[PaperFigure]:
    """Every figure of the paper, in its order; a figure with several panels is several entries."""
    diagram = (
        "A diagram of the method, without numbers: an encoder reads the query once, and a network "
        "predicts the probability that each target is right."
    )
    figures = [PaperFigure(1, "The two stages of the router", "section 2", diagram)]
    for pool in POOLS:
        figures += _make_curve_figures(pool, find_run(runs, pool))
    return sorted([*figures, *map(_make_ratio_figure, runs)], key=lambda figure: figure.number)


def _make_curve_figures(pool: str, run: PoolRun | None) -> list[PaperFigure]:
    figures = []
    views: tuple[View, ...] = get_args(View)
    for number, view in enumerate(views, start=_FIRST[pool]):
        title = f"{pool.capitalize()} pool: accuracy against cost, {view}"
        if run is None:
            why = f"The data have no {pool} pool of the paper."
            figures.append(PaperFigure(number, title, _PLACE[pool], why))
            continue
        name, (figure, rows) = f"figure_{number}_{pool}_{view}", curves(run, view)
        caption = _CURVES.format(better="left" if view == "raw" else "right") + _note_pool(run)
        report_figure = ReportFigure(name, figure, rows, caption, label=title)
        figures.append(PaperFigure(number, title, _PLACE[pool], figure=report_figure))
    return figures


def _make_ratio_figure(run: PoolRun) -> PaperFigure:
    title, where = f"Accuracy by routing ratio, {run.title}", "appendix H"
    why = run.missing("ratio")
    if why:
        return PaperFigure(4, title, where, f"Not drawn. {why}")
    figure, rows = ratio(run)
    caption = (
        "The most accurate target of the test part answers the share of queries where each router "
        "gives it the highest probabilities. The router's best other target answers the rest. "
        "Prices play no part. All lines end where that target answers alone." + _note_pool(run)
    )
    name = f"figure_4_{run.pool}_routing_ratio"
    return PaperFigure(4, title, where, figure=ReportFigure(name, figure, rows, caption, title))


def _note_pool(run: PoolRun) -> str:
    return "" if run.paper_pool.is_counterpart else " These aren't the paper's targets."


_STROKES: Mapping[str, tuple[str, Any]] = dict(
    zip(SYSTEMS, (*CURVES, (PALE, (0, (1, 1)))), strict=True)
)
_TITLES = {
    "raw": "accuracy against mean cost",
    "normalised": "normalised accuracy against normalised inverse cost",
}
Rows = list[dict[str, Any]]


def curves(run: PoolRun, view: View) -> tuple[Figure, Rows]:
    """The figure of accuracy against cost of the six routers with the single targets, and its data.

    Args:
        run: The pool.
        view: `raw` or `normalised`.
    """
    rows, lines = Rows(), []
    for system in SYSTEMS:
        router = run.system(system)
        if router is None:
            continue
        what = drawing(router.evaluation, view)
        lines.append(CurveLine(what, system, *_STROKES[system], _choose_width(system)))
        x, y = what.curve
        order = np.argsort(x, kind="stable")
        points = zip(x[order].tolist(), y[order].tolist(), strict=True)
        rows += [{"router": system, "x": a, "y": b} for a, b in points]
    first = drawing(run.result.by_name[SYSTEMS[TRUNK]].evaluation, view)
    title = f"{run.title}: {_TITLES[view]}"
    figure = draw_lines(lines, first, title=title, size=(9.2, 6.0), named=[first])
    singles = zip(first.names, *(side.tolist() for side in first.singles), strict=True)
    return figure, rows + [{"router": f"(single) {name}", "x": x, "y": y} for name, x, y in singles]


def ratio(run: PoolRun) -> tuple[Figure, Rows]:
    """The figure of accuracy over the share of queries sent to the strong target, and its data."""
    study, rows = run.parts["ratio"], Rows()
    figure = new_figure(9.2, 5.2)
    axes = figure.add_subplot()
    for system, curve in study["curves"].items():
        x, y = (np.array(curve[name], dtype=np.float64) for name in ("ratio", "accuracy"))
        colour, stroke = _STROKES[system]
        how = {"linestyle": stroke, "lw": _choose_width(system), "label": system, "zorder": 3}
        axes.plot(x, y, color=colour, **how)
        points = zip(x.tolist(), y.tolist(), strict=True)
        rows += [{"router": system, "ratio": a, "accuracy": b} for a, b in points]
    strong = study["strong"]
    axes.axhline(study["strong_accuracy"], color=ORANGE, lw=1.0, ls=":", label=f"{strong} alone")
    label, title = f"share of the queries sent to {strong}", "accuracy by routing ratio"
    style(axes, title=f"{run.title}: {title}", x=label, y="accuracy", size=11)
    legend_below(figure)
    return figure, rows


def _choose_width(system: str) -> float:
    return 2.0 if system == TRUNK else 1.4
