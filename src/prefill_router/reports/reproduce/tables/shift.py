"""Tables 7 and 8: what a router loses on queries of a kind that it wasn't trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_router.evaluation import Estimate
from prefill_router.reports.reproduce.cells import Cell, Row, Table, Unit, exact
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import SYSTEMS, Run
from prefill_router.reports.reproduce.tables.common import make

_KEYS = ("Pool", "Router")
_ACCURACY: Mapping[str, tuple[str, Unit]] = {
    "shifted": ("Shifted, argmax accuracy", "share"),
    "reference": ("Reference, argmax accuracy", "share"),
    "difference": ("Difference", "points"),
    "equal": ("Reference of equal size", "share"),
}
_AUC: Mapping[str, tuple[str, Unit]] = {"auc_mean": ("Shifted, macro AUC", "number")}


def tables(runs: Sequence[Run]) -> list[Table]:
    """The domains of MMLU-Pro, and a benchmark held out."""
    return [
        _table("tab:mmlupro_shift", "shift_domains", runs),
        _table("tab:hle_shift", "shift_benchmark", runs),
    ]


def _table(label: str, part: str, runs: Sequence[Run]) -> Table:
    columns = {**_ACCURACY, **_AUC}
    done = [run for run in runs if not run.missing(part)]
    rows = [_row(label, part, run, system, columns) for run in done for system in SYSTEMS]
    if not done:
        rows = [_paper_alone(label, system, columns) for system in SYSTEMS]
    why = [f"{run.title}: {run.missing(part)}." for run in runs if run.missing(part)]
    heads = [title for title, _ in columns.values()]
    said = [*(_sizes(run, part) for run in done), *(why if done else ()), *_pools(done)]
    return make(label, _KEYS, heads, rows, said=said, missing="" if done else " ".join(why))


def _row(
    label: str, part: str, run: Run, system: str, columns: Mapping[str, tuple[str, Unit]]
) -> Row:
    study = run.parts[part]
    found = study["routers"].get(SYSTEMS[system])
    cells = []
    for column, (_, unit) in columns.items():
        ours = None if found is None else _ours(found, column)
        paper = published()[label].number_of("mixed", system, column)
        why = "" if ours else str(study["failed"].get(SYSTEMS[system], "it couldn't be fitted"))
        cells.append(Cell(ours, paper, unit, why=why))
    return Row((run.title, system), tuple(cells))


def _ours(found: Mapping[str, Any], column: str) -> Estimate | None:
    arm, number = {
        "difference": ("shifted_minus_reference", "argmax_accuracy"),
        "auc_mean": ("shifted", "auc_mean"),
    }.get(column, (column, "argmax_accuracy"))
    return read(found[arm][number])


def read(value: Mapping[str, Any]) -> Estimate | None:
    """An estimate from its plain values; None where it isn't defined."""
    if value["value"] is None:
        return None
    if value["lower"] is None or value["upper"] is None:
        return exact(value["value"])
    return Estimate(value["value"], value["lower"], value["upper"])


def _paper_alone(label: str, system: str, columns: Mapping[str, tuple[str, Unit]]) -> Row:
    cells = [
        Cell(None, published()[label].number_of("mixed", system, column), unit)
        for column, (_, unit) in columns.items()
    ]
    return Row(("Mixed pool", system), tuple(cells))


def _sizes(run: Run, part: str) -> str:
    study = run.parts[part]
    sizes = study["trained_on"]
    return (
        f"{run.title}: trained on {', '.join(study['train_on'])} ({sizes['shifted']:,} queries; "
        f"the reference on all {sizes['reference']:,}, the one of equal size on "
        f"{sizes['equal']:,}), tested on {study['queries']:,} queries of "
        f"{', '.join(study['test_on'])}."
    )


def _pools(done: Sequence[Run]) -> list[str]:
    other = [run.title for run in done if run.pool != "mixed" or not run.found.is_counterpart]
    if not other:
        return []
    return [f"The paper's numbers are its mixed pool's: context, no counterpart of {other[0]}."]
