"""The tables that need a study besides the routers.

2, 9, 10   which encoder best predicts which target
6          whether the layer of greatest Fisher J is the one with the best probe
7, 8       the loss on kinds of queries that a router wasn't trained on
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
    context,
    exact,
    known,
    left_out,
    make,
    no_pool,
    number,
    of_pool,
    paper_table,
    published,
)
from prefill_router_lab.reproduce.router_tables import BOOTSTRAPPED, heading, unit_of
from prefill_router_lab.reproduce.systems import POOLS, SYSTEMS, TRUNK, UNIFIED, PoolRun
from prefill_router_lab.studies import BLOCKS

_SWEEP_KEYS = ("Encoder",)
_MEAN = "Mean"


@paper_table
def sweep_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """A sweep per pool."""
    return [_sweep_table(pool, of_pool(runs, pool)) for pool in POOLS]


def _sweep_table(pool: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_sweep"
    if run is None:
        return no_pool(label, pool, {}, _SWEEP_KEYS)
    targets = run.found.dataset.pool.names
    names = [run.found.paper_name(target) for target in targets]
    rows: list[TableRow] = []
    missing = run.missing("sweep")
    if not missing:
        rows += [_sweep_row(row, targets) for row in run.parts["sweep"]["encoders"]]
    rows += [_paper_sweep_row(row, names) for row in published()[label].rows]
    columns = (_MEAN, *names)
    return make(label, _SWEEP_KEYS, columns, rows, said=context([run]), missing=missing)


def _sweep_row(row: Mapping[str, Any], targets: Sequence[str]) -> TableRow:
    cells = [TableCell(read(row["auc"].get(target)), None, "number") for target in targets]
    mean = TableCell(known(row["mean"]), None, "number")
    return TableRow((f"{row['encoder']} (ours)",), (mean, *cells))


def _paper_sweep_row(row: Mapping[str, Value], names: Sequence[str]) -> TableRow:
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
    rows = [row for run in runs for row in _ablation_rows(run)]
    why = [run.missing("ablation") for run in runs if run.missing("ablation")]
    return make(
        _TABLE_6,
        _ABLATION_KEYS,
        (*SELECTORS, *BLOCKS),
        rows,
        said=(*context(runs), *left_out(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _ablation_rows(run: PoolRun) -> list[TableRow]:
    rows, names = [], (*SELECTORS, *BLOCKS)
    for one in run.parts.get("ablation", {}).get("encoders", ()):
        cells = [TableCell(known(one["auc"].get(name)), None, "number") for name in names]
        rows.append(TableRow((run.title, f"{one['encoder']} (ours)"), tuple(cells)))
    for row in published()[_TABLE_6].of_pool(run.pool):
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
        _shift_table("tab:mmlupro_shift", "shift_domains", runs),
        _shift_table("tab:hle_shift", "shift_benchmark", runs),
    ]


def _shift_table(label: str, part: str, runs: Sequence[PoolRun]) -> PaperTable:
    columns = {**_ACCURACY, **_AUC}
    done = [run for run in runs if not run.missing(part)]
    rows = [_shift_row(label, part, run, system, columns) for run in done for system in SYSTEMS]
    if not done:
        rows = [_paper_alone(label, system, columns) for system in SYSTEMS]
    why = [f"{run.title}: {run.missing(part)}." for run in runs if run.missing(part)]
    heads = [title for title, _ in columns.values()]
    said = [*(_shift_sizes(run, part) for run in done), *(why if done else ()), *_shift_pools(done)]
    return make(label, _SHIFT_KEYS, heads, rows, said=said, missing="" if done else " ".join(why))


def _shift_row(
    label: str, part: str, run: PoolRun, system: str, columns: Mapping[str, tuple[str, Unit]]
) -> TableRow:
    study = run.parts[part]
    found = study["routers"].get(SYSTEMS[system])
    cells = []
    for column, (_, unit) in columns.items():
        ours = None if found is None else _shift_estimate(found, column)
        paper = published()[label].number_of("mixed", system, column)
        why = "" if ours else str(study["failed"].get(SYSTEMS[system], "it couldn't be fitted"))
        cells.append(TableCell(ours, paper, unit, why=why))
    return TableRow((run.title, system), tuple(cells))


def _shift_estimate(found: Mapping[str, Any], column: str) -> Estimate | None:
    arm, number = {
        "difference": ("shifted_minus_reference", "argmax_accuracy"),
        "auc_mean": ("shifted", "auc_mean"),
    }.get(column, (column, "argmax_accuracy"))
    return read(found[arm][number])


def read(value: Mapping[str, Any] | None) -> Estimate | None:
    """An estimate from its plain values; None where there is none, or it isn't defined."""
    if value is None or value["value"] is None:
        return None
    if value["lower"] is None or value["upper"] is None:
        return exact(value["value"])
    return Estimate(value["value"], value["lower"], value["upper"])


def _paper_alone(label: str, system: str, columns: Mapping[str, tuple[str, Unit]]) -> TableRow:
    cells = [
        TableCell(None, published()[label].number_of("mixed", system, column), unit)
        for column, (_, unit) in columns.items()
    ]
    return TableRow(("Mixed pool", system), tuple(cells))


def _shift_sizes(run: PoolRun, part: str) -> str:
    study = run.parts[part]
    sizes = study["trained_on"]
    return (
        f"{run.title}: trained on {', '.join(study['train_on'])} ({sizes['shifted']:,} queries; "
        f"the reference on all {sizes['reference']:,}, the one of equal size on "
        f"{sizes['equal']:,}), tested on {study['queries']:,} queries of "
        f"{', '.join(study['test_on'])}."
    )


def _shift_pools(done: Sequence[PoolRun]) -> list[str]:
    other = [run.title for run in done if run.pool != "mixed" or not run.found.is_counterpart]
    if not other:
        return []
    return [f"The paper's numbers are its mixed pool's, for context only beside {other[0]}."]


_TABLE_23 = "tab:seed_variability_all"


@paper_table
def table_23(runs: Sequence[PoolRun]) -> PaperTable:
    """Mean and standard deviation over seeds."""
    rows = [_seed_row(run, system) for run in runs for system in SYSTEMS]
    why = [run.missing("seeds") for run in runs if run.missing("seeds")]
    return make(
        _TABLE_23,
        ("Pool", "Router"),
        [heading(name) for name in BOOTSTRAPPED],
        rows,
        said=(*_seed_fits(runs), *context(runs), *left_out(runs)),
        missing=why[0] if len(why) == len(runs) else "",
    )


def _seed_row(run: PoolRun, system: str) -> TableRow:
    study = run.parts.get("seeds", {})
    found = study.get("routers", {}).get(SYSTEMS[system])
    why = study.get("failed", {}).get(SYSTEMS[system], "") or run.missing("seeds")
    cells = []
    for name in BOOTSTRAPPED:
        numbers = None if found is None else found["numbers"][name]
        cells.append(
            TableCell(
                None if numbers is None else known(numbers["mean"]),
                published()[_TABLE_23].number_of(run.pool, system, name),
                unit_of(name),
                sd=None if numbers is None else numbers["sd"],
                why="" if found is not None else why,
            )
        )
    return TableRow((run.title, system), tuple(cells))


def _seed_fits(runs: Sequence[PoolRun]) -> list[str]:
    said = []
    for run in runs:
        found = run.parts.get("seeds", {}).get("routers", {})
        same = [name for name, one in found.items() if one["deterministic"]]
        if found:
            count = max(len(one["seeds"]) for one in found.values())
            said.append(
                f"{run.title}: {count} seeds; ours are mean ± sample standard deviation."
                + (f" The seed has no effect on {', '.join(same)}." if same else "")
            )
    return said


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
    done = [run for run in runs if not run.missing("end_to_end")]
    why = " ".join(
        f"{r.title}: {r.missing('end_to_end')}." for r in runs if r.missing("end_to_end")
    )
    return [_costs(done, why), _latencies(done, why)]


def _costs(done: Sequence[PoolRun], why: str) -> PaperTable:
    rows = [
        TableRow((run.title, _POINTS[point["lam"]]), _cost_cells(run, point))
        for run in done
        for point in run.parts["end_to_end"]["points"]
    ]
    return _made(_COST, ("Pool", "Setting"), _COST_COLUMNS, rows, done, why)


def _cost_cells(run: PoolRun, point: Mapping[str, Any]) -> tuple[TableCell, ...]:
    study = run.parts["end_to_end"]
    systems, against = point["systems"], point["against"]
    best = _single(point)
    count = study["queries"]
    ours = {
        "prefill_total": _times(systems[TRUNK]["total_cost"], count),
        "semantic_total": _times(systems[UNIFIED]["total_cost"], count),
        "best_single_total": _times(systems[best]["total_cost"], count),
        "savings_vs_semantic": read(against[UNIFIED]["savings"]),
        "savings_vs_best_single": read(against[best]["savings"]),
        "gain_vs_semantic": read(against[UNIFIED]["accuracy_gain"]),
    }
    paper = published()[_COST]
    return tuple(
        TableCell(ours[name], paper.number_of("frontier", _POINTS[point["lam"]], name), unit)
        for name, (_, unit) in _COST_COLUMNS.items()
    )


def _latencies(done: Sequence[PoolRun], why: str) -> PaperTable:
    rows = []
    for run in done:
        study = run.parts["end_to_end"]
        point = study["points"][0]
        names = {TRUNK: "prefill", UNIFIED: "semantic", _single(point): "best single"}
        for ours, paper in names.items():
            rows.append(
                TableRow((run.title, f"{paper}: {ours}"), _latency_cells(point, ours, paper))
            )
    return _made(_LATENCY, ("Pool", "System"), _LATENCY_COLUMNS, rows, done, why)


def _single(point: Mapping[str, Any]) -> str:
    """The study's name of the best single target, which is the last system."""
    return str(list(point["systems"])[-1])


def _latency_cells(point: Mapping[str, Any], ours: str, paper: str) -> tuple[TableCell, ...]:
    cells = []
    for name, (_, unit) in _LATENCY_COLUMNS.items():
        value = point["systems"][ours][_OURS[name]]
        found = published()[_LATENCY].number_of("frontier", paper, name)
        one = known(value["value"]) if name == "routing_seconds" else read(value)
        cells.append(TableCell(one, found, unit, why=str(value.get("reason", ""))))
    return tuple(cells)


def _made(
    label: str,
    keys: Sequence[str],
    columns: Mapping[str, tuple[str, Unit]],
    rows: Sequence[TableRow],
    done: Sequence[PoolRun],
    why: str,
) -> PaperTable:
    heads = [title for title, _ in columns.values()]
    if not done:
        paper = published()[label]
        rows = []
        for row in paper.rows:
            name = str(row[paper.keys[-1]])
            numbers = [
                TableCell(None, paper.number_of("frontier", name, column), unit)
                for column, (_, unit) in columns.items()
            ]
            rows.append(TableRow(("Frontier pool", name), tuple(numbers)))
    said = [line for run in done for line in _said(run)]
    return make(label, keys, heads, rows, said=said, missing="" if done else why)


def _said(run: PoolRun) -> list[str]:
    study = run.parts["end_to_end"]
    said = [
        f"{run.title}: {study['queries']:,} test queries; the encoder is charged "
        f"{study['charges'][TRUNK]}; best single is {study['best_single']}."
    ]
    if run.pool != "frontier" or not run.found.is_counterpart:
        said.append("The paper's numbers are its frontier pool's, for context only.")
    said += [f"{run.title}: {note}." for note in study.get("notes", ())]
    waited = study["points"][0]["systems"][TRUNK]["answer_seconds"]
    if waited["value"] is None and waited.get("reason"):
        said.append(f"{run.title}: {waited['reason']}, so completion times are missing.")
    return said


def _times(value: Mapping[str, Any], count: int) -> Estimate | None:
    found = read(value)
    if found is None:
        return None
    if found.lower != found.lower:
        return exact(found.value * count)
    return Estimate(found.value * count, found.lower * count, found.upper * count)
