"""The headline numbers of an evaluation, for the terminal: a table and a picture."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

from prefill_router.cli.app import out
from prefill_router.cli.plot import Mark, draw

if TYPE_CHECKING:
    from prefill_router.evaluation import Evaluation, Verdict

_ROWS = {
    "best_single_accuracy": ("best single target, accuracy", 100, "%"),
    "chosen_accuracy": ("router at its lam, accuracy", 100, "%"),
    "chosen_gain": ("  beyond the best single target, points", 100, ""),
    "argmax_accuracy": ("router at lam = 1, accuracy", 100, "%"),
    "oracle_accuracy": ("oracle, accuracy", 100, "%"),
    "savings": ("saved at no less accuracy than it", 100, "%"),
    "savings_gain": ("  accuracy gained meanwhile, points", 100, ""),
    "auc_mean": ("mean AUC over targets", 1, ""),
    "choice_auc": ("choice AUC over pairs of targets", 1, ""),
    "choice_auc_best": ("choice AUC over pairs of the best six", 1, ""),
    "brier_mean": ("mean Brier score", 1, ""),
    "p_auccc": ("P-AUCCC", 1, ""),
    "mdp_auccc": ("MDP-AUCCC", 1, ""),
    "oracle_distance": ("oracle distance", 1, ""),
    "max_lam_accuracy": ("paper's*: highest accuracy over lam", 100, "%"),
    "headroom_captured": ("paper's*: headroom captured", 100, "%"),
    "cost_savings": ("paper's*: saved against the dearest", 100, "%"),
}
_PAPER = (
    "The router's lam, that at which it saves, and the target that it is held against there were "
    "chosen on train rows.\n* The paper's pick lam on the queries that are judged: optimistic."
)


def show_verdict(verdict: "Verdict | None") -> None:
    """Print whether a router is worth having, and why."""
    if verdict is not None:
        out.print(f"{verdict.word}, at lam = {verdict.lam:.3g}: ", style="bold", end="")
        out.print(f"{verdict.because}\n", soft_wrap=True)


def show_headline(result: "Evaluation") -> None:
    """Print the verdict, the headline numbers with their intervals, and the accuracy-cost plane."""
    show_verdict(result.verdict)
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{result.queries:,} queries, {len(result.targets)} targets")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for key, (title, factor, unit) in _ROWS.items():
        got = result.headline[key]
        digits = 1 if factor == 100 else 4
        value, low, high = (
            _text(v * factor, digits, unit) for v in (got.value, got.lower, got.upper)
        )
        table.add_row(title, value, f"{low} to {high}")
    out.print(table)
    out.print(_PAPER, style="dim", soft_wrap=True)
    out.print("\n" + picture(result) + "\n")
    if result.caution:
        out.print(f"note: {result.caution}\n", soft_wrap=True)


def _text(value: float, digits: int, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}{unit}"


def picture(result: "Evaluation") -> str:
    """The accuracy-cost plane in characters."""
    import numpy as np

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
