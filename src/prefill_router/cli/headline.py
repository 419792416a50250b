"""The headline numbers of an evaluation, for the terminal: a table and a picture."""

import math
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from prefill_router.cli.app import out
from prefill_router.cli.plot import Mark, draw

if TYPE_CHECKING:
    from prefill_router.evaluation import Evaluation

_ROWS = {
    "auc_mean": ("mean AUC over targets", 1, ""),
    "brier_mean": ("mean Brier score", 1, ""),
    "best_single_accuracy": ("best single target, accuracy", 100, "%"),
    "argmax_accuracy": ("router at lam = 1, accuracy", 100, "%"),
    "max_lam_accuracy": ("router at its best lam, accuracy", 100, "%"),
    "oracle_accuracy": ("oracle, accuracy", 100, "%"),
    "headroom_captured": ("headroom captured", 100, "%"),
    "cost_savings": ("cost savings against the dearest target", 100, "%"),
    "p_auccc": ("P-AUCCC", 1, ""),
    "mdp_auccc": ("MDP-AUCCC", 1, ""),
    "oracle_distance": ("oracle distance", 1, ""),
}


def show_headline(result: "Evaluation") -> None:
    """Print the headline numbers with their intervals, and the accuracy-cost plane."""
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{result.queries:,} queries, {len(result.targets)} targets")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for key, (title, factor, unit) in _ROWS.items():
        got = result.headline[key]
        digits = 1 if unit else 4
        value, low, high = (
            _text(v * factor, digits, unit) for v in (got.value, got.lower, got.upper)
        )
        table.add_row(title, value, f"{low} to {high}")
    out.print(table)
    out.print("\n" + picture(result) + "\n")
    if result.caution:
        out.print(f"note: {result.caution}\n", soft_wrap=True)


def _text(value: float, digits: int, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}{unit}"


def picture(result: "Evaluation") -> str:
    """The accuracy-cost plane in characters."""
    curve = [
        Mark(cost, accuracy, "*")
        for cost, accuracy in zip(result.curve.mean_cost, result.curve.accuracy, strict=True)
    ]
    singles = [
        Mark(values["mean_cost"].value, values["accuracy"].value, "o")
        for values in result.per_target.values()
    ]
    if not np.isfinite([mark.x for mark in curve]).any():
        return "(no cost is known, so there is no accuracy-cost plane to draw)"
    return draw(
        [*singles, *curve],
        x_label="US dollars a query (log)    * router along lam    o a target alone",
        y_label="accuracy",
        log_x=True,
    )
