"""Tables 11 to 16: the three best and the three worst experiments, target by target."""

from collections.abc import Sequence

from prefill_router.reports.compare.drawing import by_number
from prefill_router.reports.reproduce.cells import Cell, Row, Table
from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.published import number, published
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables.common import (
    context,
    experiment,
    make,
    no_pool,
    of_pool,
)

_KEYS = ("Place", "Experiment")
_EDGE = 3


def tables(runs: Sequence[Run]) -> list[Table]:
    """By AUC and by Brier score, for each pool."""
    return [_table(pool, key, of_pool(runs, pool)) for pool in POOLS for key in ("auc", "brier")]


def _table(pool: str, key: str, run: Run | None) -> Table:
    label = f"tab:{pool}_{key}"
    if run is None:
        return no_pool(label, pool, {}, _KEYS)
    targets = run.found.dataset.pool.names
    names = [run.found.paper_name(target) for target in targets]
    rows = _ours(run, key, targets)
    for row in published()[label].rows:
        cells = [Cell(None, number(row, name), "number") for name in ("mean", *names)]
        rows.append(Row((f"{row['place']} (paper)", experiment(row)), tuple(cells)))
    said = (
        f"Ours are the best and the worst of {len(run.result.routers)} routers, the paper's of its "
        "semantic experiments, more than 1,300 configurations.",
        *context([run]),
    )
    return make(label, _KEYS, ("Mean", *names), rows, said=said)


def _ours(run: Run, key: str, targets: Sequence[str]) -> list[Row]:
    ordered = by_number(run.result.routers, f"{key}_mean")
    count = len(ordered)
    places = [*range(min(_EDGE, count)), *range(max(_EDGE, count - _EDGE), count)]
    rows = []
    for place in places:
        one = ordered[place]
        values = [
            one.headline[f"{key}_mean"],
            *(one.evaluation.per_target[target][key] for target in targets),
        ]
        cells = tuple(Cell(value, None, "number") for value in values)
        rows.append(Row((f"#{place + 1} of {count} (ours)", one.name), cells))
    return rows
