"""Table 30: how many operating points a grid of lam meets, and where on the range of cost."""

import math
from collections.abc import Sequence

from prefill_router.evaluation import Step
from prefill_router.reports.reproduce.cells import Cell, Row, Table, exact
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import TRUNK, Run
from prefill_router.reports.reproduce.tables.common import context, left_out, make

_LABEL = "tab:lambda_operating_points"
_NAMES = ("points", "q1", "q2", "q3", "q4")
_EXACT = "exact path"


def table_30(runs: Sequence[Run]) -> Table:
    """Operating points of SharedTrunkNet by the step of lam."""
    rows = [_row(run, step) for run in runs for step in _steps(run)]
    columns = ("N", "Q1", "Q2", "Q3", "Q4")
    said = (*context(runs), *left_out(runs))
    return make(_LABEL, ("Pool", "Step"), columns, rows, said=said)


def _steps(run: Run) -> Sequence[Step]:
    judged = run.system(TRUNK)
    return () if judged is None else judged.evaluation.steps


def _row(run: Run, step: Step) -> Row:
    name = _EXACT if step.step is None else f"1e-{-round(math.log10(step.step))}"
    cells = tuple(
        Cell(
            exact(float(getattr(step, one))),
            published()[_LABEL].number_of(run.pool, name, one),
            "count",
        )
        for one in _NAMES
    )
    return Row((run.title, name), cells)
