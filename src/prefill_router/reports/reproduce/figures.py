"""The paper's figures: accuracy against cost, raw and normalised, and against the routing ratio."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefill_router.evaluation.figures import draw_singles, drawing, frame, name_targets
from prefill_router.evaluation.rendering import INK
from prefill_router.reports.reproduce.run import SYSTEMS, TRUNK, Run

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


def curves(run: Run, view: str) -> tuple[Figure, Rows]:
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


def ratio(run: Run) -> tuple[Figure, Rows]:
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
