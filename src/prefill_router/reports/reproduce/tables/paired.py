"""Table 27: SharedTrunkNet minus Unified Multitask on the same resamples."""

from collections.abc import Sequence

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.reports.reproduce.cells import Cell, Row, Table, Unit
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import TRUNK, UNIFIED, Run
from prefill_router.reports.reproduce.tables.common import context, left_out, make
from prefill_router.reports.reproduce.tables.metrics import BOOTSTRAPPED, heading, unit_of

_LABEL = "tab:paired_bootstrap_unified"


def table_27(runs: Sequence[Run]) -> Table:
    """The paired differences, with intervals."""
    rows = [_row(run, name) for run in runs for name in BOOTSTRAPPED]
    columns = (TRUNK, UNIFIED, "Difference")
    said = (*context(runs), *left_out(runs))
    return make(_LABEL, ("Pool", "Number"), columns, rows, said=said)


def _row(run: Run, name: str) -> Row:
    found = {
        column: published()[_LABEL].number_of(run.pool, name, column)
        for column in (TRUNK, UNIFIED, "difference")
    }
    trunk, unified = run.system(TRUNK), run.system(UNIFIED)
    why = "" if unified is not None else run.why_not(UNIFIED)
    unit: Unit = unit_of(name)
    cells = (
        Cell(None if trunk is None else trunk.headline[name], found[TRUNK], unit),
        Cell(None if unified is None else unified.headline[name], found[UNIFIED], unit, why=why),
        Cell(
            None if unified is None else minus(unified.against[name]),
            found["difference"],
            "points" if HEADLINE[name].unit == "share" else unit,
            why=why,
        ),
    )
    return Row((run.title, heading(name)), cells)


def minus(estimate: Estimate) -> Estimate:
    """The difference the other way round."""
    return Estimate(
        -estimate.value, -estimate.upper, -estimate.lower, estimate.undefined, estimate.reason
    )
