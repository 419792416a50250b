"""The paper's figures by number: those that can be drawn from the data, and why the others can't.

Accuracy against cost, raw and normalised, and against the routing ratio.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final, get_args

import numpy as np

from prefill_router.plotting import Figure
from prefill_router.reporting import (
    CURVES,
    ORANGE,
    PALE,
    CurveLine,
    ReportFigure,
    View,
    draw_lines,
    drawing,
    legend_below,
    new_figure,
    style,
)
from prefill_router.reproduce.cells import of_pool
from prefill_router.reproduce.pools import POOLS
from prefill_router.reproduce.systems import SYSTEMS, TRUNK, PoolRun

_CURVES = (
    "Each line is one router from its cheapest to its most accurate setting; up and to the "
    "{better} is better. Circles are the single targets, the dashed line is the best random mix "
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
        drawn: The figure with its data; None where it isn't drawn.
    """

    number: int
    title: str
    where: str
    missing: str = ""
    drawn: ReportFigure | None = None


def all_figures(runs: Sequence[PoolRun]) -> list[PaperFigure]:
    """Every figure of the paper, in its order; a figure with several panels is several entries."""
    diagram = (
        "A diagram of the method, without numbers: an encoder reads the query once, and a network "
        "predicts the probability that each target is right."
    )
    made = [PaperFigure(1, "The two stages of the router", "section 2", diagram)]
    for pool in POOLS:
        made += _curves(pool, of_pool(runs, pool))
    return sorted([*made, *map(_ratio, runs)], key=lambda one: one.number)


def _curves(pool: str, run: PoolRun | None) -> list[PaperFigure]:
    made = []
    views: tuple[View, ...] = get_args(View)
    for number, view in enumerate(views, start=_FIRST[pool]):
        title = f"{pool.capitalize()} pool: accuracy against cost, {view}"
        if run is None:
            why = f"The data have no {pool} pool of the paper."
            made.append(PaperFigure(number, title, _PLACE[pool], why))
            continue
        name, (figure, rows) = f"figure_{number}_{pool}_{view}", curves(run, view)
        caption = _CURVES.format(better="left" if view == "raw" else "right") + _context(run)
        drawn = ReportFigure(name, figure, rows, caption, label=title)
        made.append(PaperFigure(number, title, _PLACE[pool], drawn=drawn))
    return made


def _ratio(run: PoolRun) -> PaperFigure:
    title, where = f"Accuracy by routing ratio, {run.title}", "appendix H"
    why = run.missing("ratio")
    if why:
        return PaperFigure(4, title, where, f"Not drawn. {why}")
    figure, rows = ratio(run)
    caption = (
        "The most accurate target of the test part answers the share of queries where each router "
        "gives it the highest probabilities, and the router's best other target answers the rest; "
        "prices play no part. All lines end where that target answers alone." + _context(run)
    )
    name = f"figure_4_{run.pool}_routing_ratio"
    return PaperFigure(4, title, where, drawn=ReportFigure(name, figure, rows, caption, title))


def _context(run: PoolRun) -> str:
    return "" if run.found.is_counterpart else " These aren't the paper's targets."


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
        judged = run.system(system)
        if judged is None:
            continue
        what = drawing(judged.evaluation, view)
        lines.append(CurveLine(what, system, *_STROKES[system], _width(system)))
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
        how = {"linestyle": stroke, "lw": _width(system), "label": system, "zorder": 3}
        axes.plot(x, y, color=colour, **how)
        points = zip(x.tolist(), y.tolist(), strict=True)
        rows += [{"router": system, "ratio": a, "accuracy": b} for a, b in points]
    strong = study["strong"]
    axes.axhline(study["strong_accuracy"], color=ORANGE, lw=1.0, ls=":", label=f"{strong} alone")
    label, title = f"share of the queries sent to {strong}", "accuracy by routing ratio"
    style(axes, title=f"{run.title}: {title}", x=label, y="accuracy", size=11)
    legend_below(figure)
    return figure, rows


def _width(system: str) -> float:
    return 2.0 if system == TRUNK else 1.4
