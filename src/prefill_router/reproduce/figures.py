"""The paper's figures by number: which can be drawn of the data, and why the others can't.

Accuracy against cost, raw and normalised, and against the routing ratio.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.accuracy_cost_figures import (
    draw_singles,
    drawing,
    frame,
    name_targets,
)
from prefill_router.reporting.figures import INK
from prefill_router.reproduce.cells import of_pool
from prefill_router.reproduce.pools import POOLS
from prefill_router.reproduce.systems import SYSTEMS, TRUNK, PoolRun

_CURVES = (
    "Each line is one router from its cheapest to its most accurate setting; up and to the "
    "{better} is better. Circles are the single targets, the dashed line is what drawing "
    "targets by lot reaches."
)
_FIRST = {"frontier": 2, "small": 5, "mixed": 7}
"""The number of each pool's first figure of curves; the normalised one comes next."""
_PLACE = {"frontier": "section 5.1.3", "small": "appendix J.1", "mixed": "appendix J.2"}


@final
@dataclass(frozen=True, eq=False)
class PaperFigure:
    """One figure of the paper.

    Attributes:
        number: Of the figure in the paper.
        name: Of its files.
        title: What it shows.
        where: The section that it stands in.
        caption: What to see in it.
        missing: Why it isn't drawn; empty where it is.
        drawn: It and its data.
    """

    number: int
    name: str
    title: str
    where: str
    caption: str
    missing: str = ""
    drawn: "tuple[Figure, list[dict[str, Any]]] | None" = None


def all_figures(runs: Sequence[PoolRun]) -> list[PaperFigure]:
    """Every figure of the paper, in its order; one that has several panels comes several times."""
    made = [
        PaperFigure(
            1,
            "figure_1",
            "The two stages of the router",
            "section 2",
            "",
            missing="A diagram of the method, without numbers: an encoder reads the query once, "
            "and a network says how probably each target is right.",
        )
    ]
    for pool in POOLS:
        made += _curves(pool, of_pool(runs, pool))
    made += _ratios(runs)
    return sorted(made, key=lambda one: one.number)


def _curves(pool: str, run: PoolRun | None) -> list[PaperFigure]:

    made = []
    for offset, view in enumerate(("raw", "normalised")):
        number = _FIRST[pool] + offset
        made.append(
            PaperFigure(
                number,
                f"figure_{number}_{pool}_{view}",
                f"{pool.capitalize()} pool: accuracy against cost, {view}",
                _PLACE[pool],
                _CURVES.format(better="left" if view == "raw" else "right")
                + (_context(run) if run is not None else ""),
                missing="" if run else f"The data hold no {pool} pool of the paper.",
                drawn=None if run is None else curves(run, view),
            )
        )
    return made


def _ratios(runs: Sequence[PoolRun]) -> list[PaperFigure]:

    made = []
    for run in runs:
        why = run.missing("ratio")
        made.append(
            PaperFigure(
                4,
                f"figure_4_{run.pool}_routing_ratio",
                f"Accuracy by routing ratio, {run.title}",
                "appendix H",
                "The most accurate target of the test part is forced on the share of queries that "
                "each router thinks it most surely right on, and the router's best other target "
                "answers the rest; prices play no part. All lines end where that target answers "
                "alone." + _context(run),
                missing=why and f"Not drawn. {why}",
                drawn=None if why else ratio(run),
            )
        )
    return made


def _context(run: PoolRun) -> str:
    return "" if run.found.is_counterpart else " These aren't the paper's targets."


# Okabe and Ito's colours that the targets and the oracle leave free, and strokes beside them.
_STROKES: Mapping[str, tuple[str, Any]] = {
    TRUNK: ("#0072B2", "-"),
    "Unified Multitask": ("#CC79A7", "--"),
    "Matrix Factorization": (INK, "-."),
    "Per-Model Multitask": ("#56B4E9", ":"),
    "GraphRouter": ("#E69F00", (0, (5, 1, 1, 1))),
    "kNN": ("#8a8a8a", (0, (1, 1))),
}
Rows = list[dict[str, Any]]


def curves(run: PoolRun, view: str) -> tuple[Figure, Rows]:
    """Accuracy against cost of the six routers among the single targets, and its data.

    Args:
        run: The pool.
        view: `raw` or `normalised`.
    """
    figure = Figure(figsize=(9.2, 6.0), layout="constrained")
    axes = figure.add_subplot()
    rows: Rows = []
    for system in SYSTEMS:
        judged = run.system(system)
        if judged is None:
            continue
        x, y = drawing(judged.evaluation, "raw" if view == "raw" else "normalised").curve
        order = np.argsort(x, kind="stable")
        _line(axes, x[order], y[order], system)
        rows += [
            {"router": system, "x": a, "y": b}
            for a, b in zip(x[order].tolist(), y[order].tolist(), strict=True)
        ]
    first = drawing(
        run.result.by_name[SYSTEMS[TRUNK]].evaluation, "raw" if view == "raw" else "normalised"
    )
    draw_singles(axes, first)
    frame(axes, first)
    axes.set_title(f"{run.title}: {_TITLES[view]}", color=INK, fontsize=11, loc="left")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    name_targets(axes, first)
    singles = zip(first.names, *(side.tolist() for side in first.singles), strict=True)
    return figure, rows + [{"router": f"(single) {name}", "x": x, "y": y} for name, x, y in singles]


def ratio(run: PoolRun) -> tuple[Figure, Rows]:
    """Accuracy over the share of queries that is forced on the strong target, and its data."""
    study = run.parts["ratio"]
    figure = Figure(figsize=(9.2, 5.2), layout="constrained")
    axes = figure.add_subplot()
    rows: Rows = []
    for system, curve in study["curves"].items():
        x = np.array(curve["ratio"], dtype=np.float64)
        y = np.array(curve["accuracy"], dtype=np.float64)
        _line(axes, x, y, system)
        rows += [
            {"router": system, "ratio": a, "accuracy": b}
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
    axes.axhline(
        study["strong_accuracy"], color="#D55E00", lw=1.0, ls=":", label=f"{study['strong']} alone"
    )
    axes.set_xlabel(f"share of the queries forced on {study['strong']}", color=INK)
    axes.set_ylabel("accuracy", color=INK)
    axes.set_title(f"{run.title}: accuracy by routing ratio", color=INK, fontsize=11, loc="left")
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return figure, rows


_TITLES = {
    "raw": "accuracy against mean cost",
    "normalised": "normalised accuracy against normalised inverse cost",
}


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, system: str) -> None:
    colour, style = _STROKES[system]
    width = 2.0 if system == TRUNK else 1.4
    axes.plot(x, y, linestyle=style, color=colour, lw=width, label=system, zorder=3)
