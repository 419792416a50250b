"""The paper's tables, rebuilt: each is one small function of the pools that were worked through."""

from collections.abc import Sequence

from prefill_router.reports.reproduce.cells import Table
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables import (
    ablation,
    data,
    end_to_end,
    extremes,
    metrics,
    paired,
    seeds,
    shift,
    steps,
    sweeps,
    targets,
)

_MAKERS = (
    data.table_1,
    sweeps.tables,
    metrics.table_3,
    metrics.table_4,
    metrics.table_5,
    ablation.table_6,
    shift.tables,
    extremes.tables,
    targets.tables,
    seeds.table_23,
    metrics.bootstrap_tables,
    paired.table_27,
    end_to_end.tables,
    steps.table_30,
)


def all_tables(runs: Sequence[Run]) -> list[Table]:
    """Every table of the paper, in its order; those that can't be made say why."""
    made: list[Table] = []
    for maker in _MAKERS:
        result = maker(runs)
        made += [result] if isinstance(result, Table) else result
    return sorted(made, key=lambda table: table.number)
