"""Table 1: what the data hold."""

from collections.abc import Sequence

from prefill_router.data import Regime, summarise
from prefill_router.reports.reproduce.cells import Cell, Row, Table, exact, known
from prefill_router.reports.reproduce.published import Number, published
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables.common import context, left_out, make

_LABEL = "tab:dataset"
_REGIMES = (Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.DISAGREEMENT)
_COLUMNS = (
    *("Queries", "Targets", "Benchmarks", "All correct", "All fail", "Disagreement"),
    *("All correct, share", "All fail, share", "Disagreement, share", "Oracle accuracy"),
)


def table_1(runs: Sequence[Run]) -> Table:
    """Queries in each consensus regime, and the oracle's accuracy."""
    rows = [_row(run) for run in runs]
    return make(_LABEL, ("Pool",), _COLUMNS, rows, said=(*context(runs), *left_out(runs)))


def _row(run: Run) -> Row:
    whole = summarise(run.found.dataset).whole
    found = published()[_LABEL].find(run.pool, run.pool)
    counts = [published()[_LABEL].number_of(run.pool, run.pool, str(one)) for one in _REGIMES]
    sizes = (
        float(len(run.found.dataset)),
        float(len(run.found.dataset.pool)),
        float(len({query.benchmark for query in run.found.dataset.queries})),
    )
    cells = [
        Cell(exact(ours), _plain(found.get(name)), "count")
        for ours, name in zip(sizes, ("queries", "targets", "benchmarks"), strict=True)
    ]
    cells += [
        Cell(exact(whole.regimes[regime]), _count(paper), "count")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    cells += [
        Cell(known(whole.share(regime)), _share(paper), "share")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    oracle = published()[_LABEL].number_of(run.pool, run.pool, "oracle_accuracy")
    return Row((run.title,), (*cells, Cell(known(whole.oracle_accuracy), oracle, "share")))


def _plain(value: object) -> Number | None:
    return Number(float(value)) if isinstance(value, int | float) else None


def _count(paper: Number | None) -> Number | None:
    return None if paper is None or paper.count is None else Number(float(paper.count))


def _share(paper: Number | None) -> Number | None:
    return None if paper is None else Number(paper.value)
