"""Table 23: how far the numbers move from one training seed to the next."""

from collections.abc import Sequence

from prefill_router.reports.reproduce.cells import Cell, Row, Table, known
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import SYSTEMS, Run
from prefill_router.reports.reproduce.tables.common import context, left_out, make
from prefill_router.reports.reproduce.tables.metrics import BOOTSTRAPPED, heading, unit_of

_LABEL = "tab:seed_variability_all"


def table_23(runs: Sequence[Run]) -> Table:
    """Mean and standard deviation over seeds."""
    rows = [_row(run, system) for run in runs for system in SYSTEMS]
    why = [run.missing("seeds") for run in runs if run.missing("seeds")]
    return make(
        _LABEL,
        ("Pool", "Router"),
        [heading(name) for name in BOOTSTRAPPED],
        rows,
        said=(*_fits(runs), *context(runs), *left_out(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _row(run: Run, system: str) -> Row:
    study = run.parts.get("seeds", {})
    found = study.get("routers", {}).get(SYSTEMS[system])
    why = study.get("failed", {}).get(SYSTEMS[system], "") or run.missing("seeds")
    cells = []
    for name in BOOTSTRAPPED:
        numbers = None if found is None else found["numbers"][name]
        cells.append(
            Cell(
                None if numbers is None else known(numbers["mean"]),
                published()[_LABEL].number_of(run.pool, system, name),
                unit_of(name),
                sd=None if numbers is None else numbers["sd"],
                why="" if found is not None else why,
            )
        )
    return Row((run.title, system), tuple(cells))


def _fits(runs: Sequence[Run]) -> list[str]:
    said = []
    for run in runs:
        found = run.parts.get("seeds", {}).get("routers", {})
        same = [name for name, one in found.items() if one["deterministic"]]
        if found:
            count = max(len(one["seeds"]) for one in found.values())
            said.append(
                f"{run.title}: {count} seeds; ours are mean ± sample standard deviation."
                + (f" The seed plays no part in {', '.join(same)}." if same else "")
            )
    return said
