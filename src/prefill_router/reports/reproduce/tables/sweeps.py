"""Tables 2, 9 and 10: which encoder says most about which target."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_router.evaluation import Estimate
from prefill_router.reports.reproduce.cells import Cell, Row, Table, exact, known
from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.published import Number, Value, number, published
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables.common import context, make, no_pool, of_pool

_KEYS = ("Encoder",)
_MEAN = "Mean"


def tables(runs: Sequence[Run]) -> list[Table]:
    """A sweep per pool."""
    return [_table(pool, of_pool(runs, pool)) for pool in POOLS]


def _table(pool: str, run: Run | None) -> Table:
    label = f"tab:{pool}_sweep"
    if run is None:
        return no_pool(label, pool, {}, _KEYS)
    targets = run.found.dataset.pool.names
    names = [run.found.paper_name(target) for target in targets]
    rows: list[Row] = []
    missing = run.missing("sweep")
    if not missing:
        rows += [_ours(row, targets) for row in run.parts["sweep"]["encoders"]]
    rows += [_paper(row, names) for row in published()[label].rows]
    columns = (_MEAN, *names)
    return make(label, _KEYS, columns, rows, said=context([run]), missing=missing)


def _ours(row: Mapping[str, Any], targets: Sequence[str]) -> Row:
    cells = [Cell(_estimate(row["auc"].get(target)), None, "number") for target in targets]
    mean = Cell(known(row["mean"]), None, "number")
    return Row((f"{row['encoder']} (ours)",), (mean, *cells))


def _estimate(value: Mapping[str, float | None] | None) -> Estimate | None:
    if value is None or value["value"] is None:
        return None
    if value["lower"] is None or value["upper"] is None:
        return exact(value["value"])
    return Estimate(value["value"], value["lower"], value["upper"])


def _paper(row: Mapping[str, Value], names: Sequence[str]) -> Row:
    values = [value for value in row.values() if isinstance(value, float)]
    mean = Cell(None, Number(sum(values) / len(values)), "number")
    cells = [Cell(None, number(row, name), "number") for name in names]
    return Row((f"{row['encoder']} (paper)",), (mean, *cells))
