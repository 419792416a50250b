"""Tables 17 to 22: every target under each of the semantic baselines."""

import math
from collections.abc import Sequence

from prefill_router.reports.reproduce.cells import Cell, Row, Table
from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import SEMANTIC, Run
from prefill_router.reports.reproduce.tables.common import context, make, no_pool, of_pool

_KEYS = ("Target",)


def tables(runs: Sequence[Run]) -> list[Table]:
    """AUC and Brier score, for each pool."""
    return [_table(pool, key, of_pool(runs, pool)) for pool in POOLS for key in ("auc", "brier")]


def _table(pool: str, key: str, run: Run | None) -> Table:
    label = f"tab:{pool}_permodel_{key}"
    if run is None:
        return no_pool(label, pool, {}, ("Router",))
    rows = [_row(label, run, target, key) for target in run.found.dataset.pool.names]
    return make(label, _KEYS, SEMANTIC, [*rows, _mean(label, run, key)], said=context([run]))


def _row(label: str, run: Run, target: str, key: str) -> Row:
    cells = []
    for system in SEMANTIC:
        judged, name = run.system(system), run.found.paper_name(target)
        ours = None if judged is None else judged.evaluation.per_target[target][key]
        if ours is not None and math.isnan(ours.value):
            ours = None
        paper = published()[label].number_of(run.pool, system, name)
        cells.append(Cell(ours, paper, "number", why="" if ours else "not defined here"))
    return Row((run.found.paper_name(target),), tuple(cells))


def _mean(label: str, run: Run, key: str) -> Row:
    cells = []
    for system in SEMANTIC:
        judged = run.system(system)
        ours = None if judged is None else judged.headline[f"{key}_mean"]
        paper = published()[label].number_of(run.pool, system, "mean")
        cells.append(Cell(ours, paper, "number", why="" if ours else run.why_not(system)))
    return Row(("Mean",), tuple(cells))
