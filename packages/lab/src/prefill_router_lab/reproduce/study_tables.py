"""The tables that need a study besides the routers.

2, 9, 10   which encoder best predicts which target
6          whether the layer of greatest Fisher J is the one with the best probe
7, 8       the loss on kinds of queries that a router wasn't fitted on
23         the variability over training seeds
28, 29     total cost and latency, encoder included
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_router.evaluation import Estimate
from prefill_router_lab.reproduce.cells import (
    PaperTable,
    PublishedNumber,
    TableCell,
    TableRow,
    Unit,
    Value,
    exact,
    exact_or_none,
    find_run,
    make_paper_only,
    make_table,
    note_absent_pools,
    note_differences,
    number,
    paper_table,
    read_published,
)
from prefill_router_lab.reproduce.router_tables import BOOTSTRAPPED, heading, unit_of
from prefill_router_lab.reproduce.systems import POOLS, SYSTEMS, TRUNK, UNIFIED, PoolRun
from prefill_router_lab.studies import BLOCKS

_SWEEP_KEYS = ("Encoder",)
_MEAN = "Mean"


@paper_table
def sweep_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """A sweep per pool."""
    return [_make_sweep_table(pool, find_run(runs, pool)) for pool in POOLS]


def _make_sweep_table(pool: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_sweep"
    if run is None:
        return make_paper_only(label, pool, {}, _SWEEP_KEYS)
    targets = run.paper_pool.dataset.pool.names
    names = [run.paper_pool.paper_name(target) for target in targets]
    rows: list[TableRow] = []
    missing = run.missing("sweep")
    if not missing:
        rows += [_make_sweep_row(row, targets) for row in run.parts["sweep"]["encoders"]]
    rows += [_make_paper_sweep_row(row, names) for row in read_published()[label].rows]
    columns = (_MEAN, *names)
    return make_table(
        label, _SWEEP_KEYS, columns, rows, notes=note_differences([run]), missing=missing
    )


def _make_sweep_row(row: Mapping[str, Any], targets: Sequence[str]) -> TableRow:
    cells = [TableCell(read_estimate(row["auc"].get(target)), None, "number") for target in targets]
    mean = TableCell(exact_or_none(row["mean"]), None, "number")
    return TableRow((f"{row['encoder']} (ours)",), (mean, *cells))


def _make_paper_sweep_row(row: Mapping[str, Value], names: Sequence[str]) -> TableRow:
    values = [value for value in row.values() if isinstance(value, float)]
    mean = TableCell(None, PublishedNumber(sum(values) / len(values)), "number")
    cells = [TableCell(None, number(row, name), "number") for name in names]
    return TableRow((f"{row['encoder']} (paper)",), (mean, *cells))


SELECTORS = ("Random", "Last", "d_eff", "alpha", "Fisher J", "BestLR")
_TABLE_6 = "tab:layer_selector_ablation"
_ABLATION_KEYS = ("Pool", "Encoder")


@paper_table
def table_6(runs: Sequence[PoolRun]) -> PaperTable:
    """The probe AUC of the layer that each selector chooses, and of several layers together."""
    rows = [row for run in runs for row in _make_ablation_rows(run)]
    why = [run.missing("ablation") for run in runs if run.missing("ablation")]
    return make_table(
        _TABLE_6,
        _ABLATION_KEYS,
        (*SELECTORS, *BLOCKS),
        rows,
        notes=(*note_differences(runs), *note_absent_pools(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _make_ablation_rows(run: PoolRun) -> list[TableRow]:
    rows, names = [], (*SELECTORS, *BLOCKS)
    for encoder in run.parts.get("ablation", {}).get("encoders", ()):
        cells = [
            TableCell(exact_or_none(encoder["auc"].get(name)), None, "number") for name in names
        ]
        rows.append(TableRow((run.title, f"{encoder['encoder']} (ours)"), tuple(cells)))
    for row in read_published()[_TABLE_6].of_pool(run.pool):
        cells = [TableCell(None, number(row, name), "number") for name in names]
        rows.append(TableRow((run.title, f"{row['encoder']} (paper)"), tuple(cells)))
    return rows


_SHIFT_KEYS = ("Pool", "Router")
_ACCURACY: Mapping[str, tuple[str, Unit]] = {
    "shifted": ("Shifted, argmax accuracy", "share"),
    "reference": ("Reference, argmax accuracy", "share"),
    "difference": ("Difference", "points"),
    "equal": ("Reference of equal size", "share"),
}
_AUC: Mapping[str, tuple[str, Unit]] = {"auc_mean": ("Shifted, macro AUC", "number")}


@paper_table
def shift_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """The domains of MMLU-Pro, and a benchmark held out."""
    return [
        _make_shift_table("tab:mmlupro_shift", "shift_domains", runs),
        _make_shift_table("tab:hle_shift", "shift_benchmark", runs),
    ]


def _make_shift_table(label: str, part: str, runs: Sequence[PoolRun]) -> PaperTable:
    columns = {**_ACCURACY, **_AUC}
    usable = [run for run in runs if not run.missing(part)]
    rows = [
        _make_shift_row(label, part, run, system, columns) for run in usable for system in SYSTEMS
    ]
    if not usable:
        rows = [_make_paper_row(label, system, columns) for system in SYSTEMS]
    why = [f"{run.title}: {run.missing(part)}." for run in runs if run.missing(part)]
    heads = [title for title, _ in columns.values()]
    notes = [
        *(_note_shift_sizes(run, part) for run in usable),
        *(why if usable else ()),
        *_note_shift_pools(usable),
    ]
    return make_table(
        label, _SHIFT_KEYS, heads, rows, notes=notes, missing="" if usable else " ".join(why)
    )


def _make_shift_row(
    label: str, part: str, run: PoolRun, system: str, columns: Mapping[str, tuple[str, Unit]]
) -> TableRow:
    study = run.parts[part]
    router = study["routers"].get(SYSTEMS[system])
    cells = []
    for column, (_, unit) in columns.items():
        ours = None if router is None else _read_shift_estimate(router, column)
        paper = read_published()[label].number_of("mixed", system, column)
        why = "" if ours else str(study["failed"].get(SYSTEMS[system], "it couldn't be fitted"))
        cells.append(TableCell(ours, paper, unit, why=why))
    return TableRow((run.title, system), tuple(cells))


def _read_shift_estimate(router: Mapping[str, Any], column: str) -> Estimate | None:
    arm, number = {
        "difference": ("shifted_minus_reference", "argmax_accuracy"),
        "auc_mean": ("shifted", "auc_mean"),
    }.get(column, (column, "argmax_accuracy"))
    return read_estimate(router[arm][number])


def read_estimate(value: Mapping[str, Any] | None) -> Estimate | None:
    """An estimate from its plain values; None where there is none, or it isn't defined."""
    if value is None or value["value"] is None:
        return None
    if value["lower"] is None or value["upper"] is None:
        return exact(value["value"])
    return Estimate(value["value"], value["lower"], value["upper"])


def _make_paper_row(label: str, system: str, columns: Mapping[str, tuple[str, Unit]]) -> TableRow:
    cells = [
        TableCell(None, read_published()[label].number_of("mixed", system, column), unit)
        for column, (_, unit) in columns.items()
    ]
    return TableRow(("Mixed pool", system), tuple(cells))


def _note_shift_sizes(run: PoolRun, part: str) -> str:
    study = run.parts[part]
    sizes = study["trained_on"]
    return (
        f"{run.title}: trained on {', '.join(study['train_on'])} ({sizes['shifted']:,} queries; "
        f"the reference on all {sizes['reference']:,}, the one of equal size on "
        f"{sizes['equal']:,}), tested on {study['queries']:,} queries of "
        f"{', '.join(study['test_on'])}."
    )


def _note_shift_pools(usable: Sequence[PoolRun]) -> list[str]:
    other = [
        run.title for run in usable if run.pool != "mixed" or not run.paper_pool.is_counterpart
    ]
    if not other:
        return []
    return [f"The paper's numbers are its mixed pool's, for context only beside {other[0]}."]


_TABLE_23 = "tab:seed_variability_all"


@paper_table
def table_23(runs: Sequence[PoolRun]) -> PaperTable:
    """Mean and standard deviation over seeds."""
    rows = [_make_seed_row(run, system) for run in runs for system in SYSTEMS]
    why = [run.missing("seeds") for run in runs if run.missing("seeds")]
    return make_table(
        _TABLE_23,
        ("Pool", "Router"),
        [heading(name) for name in BOOTSTRAPPED],
        rows,
        notes=(*_note_seeds(runs), *note_differences(runs), *note_absent_pools(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _make_seed_row(run: PoolRun, system: str) -> TableRow:
    study = run.parts.get("seeds", {})
    router = study.get("routers", {}).get(SYSTEMS[system])
    why = study.get("failed", {}).get(SYSTEMS[system], "") or run.missing("seeds")
    cells = []
    for name in BOOTSTRAPPED:
        numbers = None if router is None else router["numbers"][name]
        cells.append(
            TableCell(
                None if numbers is None else exact_or_none(numbers["mean"]),
                read_published()[_TABLE_23].number_of(run.pool, system, name),
                unit_of(name),
                sd=None if numbers is None else numbers["sd"],
                why="" if router is not None else why,
            )
        )
    return TableRow((run.title, system), tuple(cells))


def _note_seeds(runs: Sequence[PoolRun]) -> list[str]:
    notes = []
    for run in runs:
        routers = run.parts.get("seeds", {}).get("routers", {})
        same = [name for name, router in routers.items() if router["deterministic"]]
        if routers:
            count = max(len(router["seeds"]) for router in routers.values())
            notes.append(
                f"{run.title}: {count} seeds; ours are mean ± sample standard deviation."
                + (f" The seed has no effect on {', '.join(same)}." if same else "")
            )
    return notes


_COST = "tab:end_to_end_cost_points"
_LATENCY = "tab:end_to_end_latency"
_POINTS = {1.0: "argmax", 0.5: "lam 0.5"}
_COST_COLUMNS: Mapping[str, tuple[str, Unit]] = {
    "prefill_total": ("Prefill total", "usd"),
    "semantic_total": ("Semantic total", "usd"),
    "best_single_total": ("Best single total", "usd"),
    "savings_vs_semantic": ("Saved, semantic", "share"),
    "savings_vs_best_single": ("Saved, best single", "share"),
    "gain_vs_semantic": ("Accuracy gain, semantic", "points"),
}
_LATENCY_COLUMNS: Mapping[str, tuple[str, Unit]] = {
    "routing_seconds": ("Routing", "seconds"),
    "completion_seconds": ("Mean target completion", "seconds"),
    "routing_share": ("Routing's share", "share"),
    "cost_per_query": ("Cost per query", "usd"),
    "accuracy": ("Argmax accuracy", "share"),
}
_OURS = {
    "routing_seconds": "routing_seconds",
    "completion_seconds": "answer_seconds",
    "routing_share": "routing_share",
    "cost_per_query": "total_cost",
    "accuracy": "accuracy",
}


@paper_table
def end_to_end_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """The operating points, and the latencies at argmax."""
    usable = [run for run in runs if not run.missing("end_to_end")]
    why = " ".join(
        f"{r.title}: {r.missing('end_to_end')}." for r in runs if r.missing("end_to_end")
    )
    return [_tabulate_costs(usable, why), _tabulate_latencies(usable, why)]


def _tabulate_costs(usable: Sequence[PoolRun], why: str) -> PaperTable:
    rows = [
        TableRow((run.title, _POINTS[point["lam"]]), _make_cost_cells(run, point))
        for run in usable
        for point in run.parts["end_to_end"]["points"]
    ]
    return _make_study_table(_COST, ("Pool", "Setting"), _COST_COLUMNS, rows, usable, why)


def _make_cost_cells(run: PoolRun, point: Mapping[str, Any]) -> tuple[TableCell, ...]:
    study = run.parts["end_to_end"]
    systems, against = point["systems"], point["against"]
    best = _name_single(point)
    count = study["queries"]
    ours = {
        "prefill_total": _multiply(systems[TRUNK]["total_cost"], count),
        "semantic_total": _multiply(systems[UNIFIED]["total_cost"], count),
        "best_single_total": _multiply(systems[best]["total_cost"], count),
        "savings_vs_semantic": read_estimate(against[UNIFIED]["savings"]),
        "savings_vs_best_single": read_estimate(against[best]["savings"]),
        "gain_vs_semantic": read_estimate(against[UNIFIED]["accuracy_gain"]),
    }
    paper = read_published()[_COST]
    return tuple(
        TableCell(ours[name], paper.number_of("frontier", _POINTS[point["lam"]], name), unit)
        for name, (_, unit) in _COST_COLUMNS.items()
    )


def _tabulate_latencies(usable: Sequence[PoolRun], why: str) -> PaperTable:
    rows = []
    for run in usable:
        study = run.parts["end_to_end"]
        point = study["points"][0]
        names = {TRUNK: "prefill", UNIFIED: "semantic", _name_single(point): "best single"}
        for ours, paper in names.items():
            rows.append(
                TableRow((run.title, f"{paper}: {ours}"), _make_latency_cells(point, ours, paper))
            )
    return _make_study_table(_LATENCY, ("Pool", "System"), _LATENCY_COLUMNS, rows, usable, why)


def _name_single(point: Mapping[str, Any]) -> str:
    """The study's name of the best single target, which is the last system."""
    return str(list(point["systems"])[-1])


def _make_latency_cells(point: Mapping[str, Any], ours: str, paper: str) -> tuple[TableCell, ...]:
    cells = []
    for name, (_, unit) in _LATENCY_COLUMNS.items():
        value = point["systems"][ours][_OURS[name]]
        paper_number = read_published()[_LATENCY].number_of("frontier", paper, name)
        our_number = (
            exact_or_none(value["value"]) if name == "routing_seconds" else read_estimate(value)
        )
        cells.append(TableCell(our_number, paper_number, unit, why=str(value.get("reason", ""))))
    return tuple(cells)


def _make_study_table(
    label: str,
    keys: Sequence[str],
    columns: Mapping[str, tuple[str, Unit]],
    rows: Sequence[TableRow],
    usable: Sequence[PoolRun],
    why: str,
) -> PaperTable:
    heads = [title for title, _ in columns.values()]
    if not usable:
        paper = read_published()[label]
        rows = []
        for row in paper.rows:
            name = str(row[paper.keys[-1]])
            numbers = [
                TableCell(None, paper.number_of("frontier", name, column), unit)
                for column, (_, unit) in columns.items()
            ]
            rows.append(TableRow(("Frontier pool", name), tuple(numbers)))
    notes = [line for run in usable for line in _write_notes(run)]
    return make_table(label, keys, heads, rows, notes=notes, missing="" if usable else why)


def _write_notes(run: PoolRun) -> list[str]:
    study = run.parts["end_to_end"]
    notes = [
        f"{run.title}: {study['queries']:,} test queries; the encoder is charged "
        f"{study['charges'][TRUNK]}; best single is {study['best_single']}."
    ]
    if run.pool != "frontier" or not run.paper_pool.is_counterpart:
        notes.append("The paper's numbers are its frontier pool's, for context only.")
    notes += [f"{run.title}: {note}." for note in study.get("notes", ())]
    wait = study["points"][0]["systems"][TRUNK]["answer_seconds"]
    if wait["value"] is None and wait.get("reason"):
        notes.append(f"{run.title}: {wait['reason']}, so completion times are missing.")
    return notes


def _multiply(value: Mapping[str, Any], count: int) -> Estimate | None:
    estimate = read_estimate(value)
    if estimate is None:
        return None
    if estimate.lower != estimate.lower:
        return exact(estimate.value * count)
    return Estimate(estimate.value * count, estimate.lower * count, estimate.upper * count)
