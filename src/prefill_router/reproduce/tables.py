"""The paper's tables, rebuilt: each is one small function of the pools that were worked through."""

from collections.abc import Sequence

from prefill_router.reproduce import router_tables, study_tables
from prefill_router.reproduce.cells import PaperTable
from prefill_router.reproduce.systems import PoolRun

_MAKERS = (
    router_tables.table_1,
    study_tables.sweep_tables,
    router_tables.table_3,
    router_tables.table_4,
    router_tables.table_5,
    study_tables.table_6,
    study_tables.shift_tables,
    router_tables.extreme_tables,
    router_tables.target_tables,
    study_tables.table_23,
    router_tables.bootstrap_tables,
    router_tables.table_27,
    study_tables.end_to_end_tables,
    router_tables.table_30,
)


def all_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """Every table of the paper, in its order; those that can't be made say why."""
    made: list[PaperTable] = []
    for maker in _MAKERS:
        result = maker(runs)
        made += [result] if isinstance(result, PaperTable) else result
    return sorted(made, key=lambda table: table.number)
