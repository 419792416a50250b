"""Table 6: is the layer of greatest Fisher J the one that probes like?"""

from collections.abc import Sequence

from prefill_router.reports.reproduce.cells import Cell, Row, Table, known
from prefill_router.reports.reproduce.published import number, published
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables.common import context, left_out, make

SELECTORS = ("Random", "Last", "d_eff", "alpha", "Fisher J", "BestLR")
_LABEL = "tab:layer_selector_ablation"
_KEYS = ("Pool", "Encoder")


def table_6(runs: Sequence[Run]) -> Table:
    """The probe AUC of the layer that each selector picks."""
    rows = [row for run in runs for row in _rows(run)]
    why = [run.missing("ablation") for run in runs if run.missing("ablation")]
    return make(
        _LABEL,
        _KEYS,
        SELECTORS,
        rows,
        said=(*context(runs), *left_out(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _rows(run: Run) -> list[Row]:
    rows = []
    for one in run.parts.get("ablation", {}).get("encoders", ()):
        cells = [Cell(known(one["auc"].get(name)), None, "number") for name in SELECTORS]
        rows.append(Row((run.title, f"{one['encoder']} (ours)"), tuple(cells)))
    for row in published()[_LABEL].of_pool(run.pool):
        cells = [Cell(None, number(row, name), "number") for name in SELECTORS]
        rows.append(Row((run.title, f"{row['encoder']} (paper)"), tuple(cells)))
    return rows
