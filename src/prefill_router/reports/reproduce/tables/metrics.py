"""Tables of the headline numbers: 3, 4, 5, and those of the bootstrap, 24 to 26."""

from collections.abc import Sequence

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.reports.reproduce.cells import Cell, Row, Table, Unit
from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import SYSTEMS, TRUNK, Run
from prefill_router.reports.reproduce.tables.common import (
    context,
    left_out,
    make,
    no_pool,
    of_pool,
)

BOOTSTRAPPED = ("auc_mean", "brier_mean", "max_lam_accuracy", "p_auccc")
"""The numbers whose intervals the paper gives."""
_KEYS = ("Pool", "Router")
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
_MODEL_ONLY = "Model-only Pareto"


def table_3(runs: Sequence[Run]) -> Table:
    """How well each router's probabilities rank and hold, and how often it routes rightly."""
    names = ("auc_mean", "brier_mean", "argmax_accuracy")
    return _by_system("tab:per_llm_routing", runs, names)


def table_4(runs: Sequence[Run]) -> Table:
    """Gain, headroom and savings."""
    names = (
        *("oracle_accuracy", "best_single_accuracy", "accuracy_gain"),
        *("headroom_captured", "cost_savings"),
    )
    return _by_system("tab:headroom_summary", runs, names)


def table_5(runs: Sequence[Run]) -> Table:
    """The area under the curve and the distance to the oracle."""
    label = "tab:global_routing"
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    made = _by_system(label, runs, names)
    rows = [row for run in runs for row in (_model_only(run), *_rows(label, run, names))]
    return make(label, _KEYS, made.columns, rows, said=(*context(runs), *left_out(runs)))


def bootstrap_tables(runs: Sequence[Run]) -> list[Table]:
    """Query-level bootstrap intervals, a table per pool."""
    made = []
    for pool in POOLS:
        label, run = f"tab:bootstrap_{pool}", of_pool(runs, pool)
        if run is None:
            units = {name: unit_of(name) for name in BOOTSTRAPPED}
            made.append(no_pool(label, pool, units, ("Router",)))
        else:
            made.append(_by_system(label, [run], BOOTSTRAPPED))
    return made


def unit_of(name: str) -> Unit:
    """The unit of a headline number."""
    return HEADLINE[name].unit


def heading(name: str) -> str:
    """The head of a column: a headline number's name, and which direction is better."""
    return HEADLINE[name].label + _ARROWS[HEADLINE[name].better]


def _by_system(label: str, runs: Sequence[Run], names: Sequence[str]) -> Table:
    rows = [row for run in runs for row in _rows(label, run, names)]
    said = (*context(runs), *(left_out(runs) if "bootstrap" not in label else ()))
    return make(label, _KEYS, [heading(name) for name in names], rows, said=said)


def _rows(label: str, run: Run, names: Sequence[str]) -> list[Row]:
    return [_row(label, run, system, names) for system in SYSTEMS]


def _row(label: str, run: Run, system: str, names: Sequence[str]) -> Row:
    judged = run.system(system)
    cells = tuple(
        Cell(
            None if judged is None else judged.headline[name],
            published()[label].number_of(run.pool, system, name),
            unit_of(name),
            why="" if judged is not None else run.why_not(system),
        )
        for name in names
    )
    return Row((run.title, system), cells)


def _model_only(run: Run) -> Row:
    numbers = run.result.by_name[SYSTEMS[TRUNK]].headline
    paper = published()["tab:global_routing"]
    ours = ("model_only_p_auccc", None, "model_only_oracle_distance", None)
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    cells = tuple(
        Cell(
            None if mine is None else numbers[mine],
            paper.number_of(run.pool, _MODEL_ONLY, name),
            unit_of(name),
            why="" if mine else "it is measured against this row",
        )
        for mine, name in zip(ours, names, strict=True)
    )
    return Row((run.title, _MODEL_ONLY), cells)
