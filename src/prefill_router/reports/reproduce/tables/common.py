"""What the makers of tables share."""

from collections.abc import Mapping, Sequence

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.reports.reproduce.cells import Cell, Row, Table, Unit
from prefill_router.reports.reproduce.differences import DIFFERENCES
from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.published import Published, Value, number, published
from prefill_router.reports.reproduce.run import Run


def make(
    label: str,
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    said: Sequence[str] = (),
    missing: str = "",
) -> Table:
    """A table with what the paper says of it, and how our definitions differ."""
    paper = published()[label]
    return Table(
        number=paper.number,
        label=label,
        where=paper.where,
        title=paper.title,
        keys=tuple(keys),
        columns=tuple(columns),
        rows=tuple(rows),
        said=(*said, *DIFFERENCES.get(label, ())),
        missing=missing,
    )


def of_pool(runs: Sequence[Run], pool: str) -> Run | None:
    """The run beside which a pool's numbers stand."""
    return next((run for run in runs if run.pool == pool), None)


def context(runs: Sequence[Run]) -> list[str]:
    """Which of the paper's pools stand beside ours, where that isn't plain."""
    said = [
        f"In italics: the paper's {run.pool} pool, as context and no counterpart: these aren't the "
        "paper's targets."
        for run in runs
        if not run.found.is_counterpart
    ]
    said += [
        f"{run.title}: the data lack {', '.join(run.found.absent)}, which the paper has."
        for run in runs
        if run.found.absent
    ]
    return said


def left_out(runs: Sequence[Run]) -> list[str]:
    """The pools of the paper that the data don't have."""
    absent = [pool for pool in POOLS if of_pool(runs, pool) is None]
    if not absent:
        return []
    return [
        f"The data hold no {' and no '.join(absent)} pool; the paper's rows of it are left out."
    ]


def no_pool(label: str, pool: str, units: Mapping[str, Unit], keys: Sequence[str]) -> Table:
    """A table about a pool that the data don't have: the paper's numbers alone."""
    paper = published()[label]
    columns = list(dict.fromkeys(c for row in paper.rows for c in row if _is_number(row, c)))
    rows = [paper_row(row, columns, units, paper) for row in paper.of_pool(pool)]
    heads = [HEADLINE[name].label if name in HEADLINE else name for name in columns]
    return make(label, keys, heads, rows, missing=f"The data hold no {pool} pool of the paper.")


def paper_row(
    row: Mapping[str, Value], columns: Sequence[str], units: Mapping[str, Unit], paper: Published
) -> Row:
    """A row of the paper alone."""
    names = [str(row[key]) for key in paper.keys if key != "pool"]
    if "place" in paper.keys:
        names.append(experiment(row))
    cells = [Cell(None, number(row, column), units.get(column, "number")) for column in columns]
    return Row(tuple(names), tuple(cells))


def experiment(row: Mapping[str, Value]) -> str:
    """What the paper calls an experiment: its router, and the embeddings in brackets."""
    return f"{row['system']} [{row['variant']}]" if "variant" in row else str(row["system"])


def _is_number(row: Mapping[str, Value], column: str) -> bool:
    return not isinstance(row[column], str)
