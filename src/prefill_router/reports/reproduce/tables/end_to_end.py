"""Tables 28 and 29: cost and latency with the encoder counted."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_router.evaluation import Estimate
from prefill_router.reports.reproduce.cells import Cell, Row, Table, Unit, exact, known
from prefill_router.reports.reproduce.published import published
from prefill_router.reports.reproduce.run import TRUNK, UNIFIED, Run
from prefill_router.reports.reproduce.tables.common import make
from prefill_router.reports.reproduce.tables.shift import read

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


def tables(runs: Sequence[Run]) -> list[Table]:
    """The operating points, and the latencies at argmax."""
    done = [run for run in runs if not run.missing("end_to_end")]
    why = " ".join(
        f"{r.title}: {r.missing('end_to_end')}." for r in runs if r.missing("end_to_end")
    )
    return [_costs(done, why), _latencies(done, why)]


def _costs(done: Sequence[Run], why: str) -> Table:
    rows = [
        Row((run.title, _POINTS[point["lam"]]), _cost_cells(run, point))
        for run in done
        for point in run.parts["end_to_end"]["points"]
    ]
    return _made(_COST, ("Pool", "Setting"), _COST_COLUMNS, rows, done, why)


def _cost_cells(run: Run, point: Mapping[str, Any]) -> tuple[Cell, ...]:
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
        Cell(ours[name], paper.number_of("frontier", _POINTS[point["lam"]], name), unit)
        for name, (_, unit) in _COST_COLUMNS.items()
    )


def _latencies(done: Sequence[Run], why: str) -> Table:
    rows = []
    for run in done:
        study = run.parts["end_to_end"]
        point = study["points"][0]
        names = {TRUNK: "prefill", UNIFIED: "semantic", _single(point): "best single"}
        for ours, paper in names.items():
            rows.append(Row((run.title, f"{paper}: {ours}"), _latency_cells(point, ours, paper)))
    return _made(_LATENCY, ("Pool", "System"), _LATENCY_COLUMNS, rows, done, why)


def _single(point: Mapping[str, Any]) -> str:
    """What the study calls the best single target: it stands last."""
    return str(list(point["systems"])[-1])


def _latency_cells(point: Mapping[str, Any], ours: str, paper: str) -> tuple[Cell, ...]:
    cells = []
    for name, (_, unit) in _LATENCY_COLUMNS.items():
        value = point["systems"][ours][_OURS[name]]
        found = published()[_LATENCY].number_of("frontier", paper, name)
        one = known(value["value"]) if name == "routing_seconds" else read(value)
        cells.append(Cell(one, found, unit, why=str(value.get("reason", ""))))
    return tuple(cells)


def _made(
    label: str,
    keys: Sequence[str],
    columns: Mapping[str, tuple[str, Unit]],
    rows: Sequence[Row],
    done: Sequence[Run],
    why: str,
) -> Table:
    heads = [title for title, _ in columns.values()]
    if not done:
        rows = [
            Row(
                ("Frontier pool", str(row[published()[label].keys[-1]])),
                tuple(
                    Cell(
                        None,
                        published()[label].number_of(
                            "frontier", str(row[published()[label].keys[-1]]), name
                        ),
                        unit,
                    )
                    for name, (_, unit) in columns.items()
                ),
            )
            for row in published()[label].rows
        ]
    said = [line for run in done for line in _said(run)]
    return make(label, keys, heads, rows, said=said, missing="" if done else why)


def _said(run: Run) -> list[str]:
    study = run.parts["end_to_end"]
    said = [
        f"{run.title}: {study['queries']:,} test queries; the encoder is charged "
        f"{study['charges'][TRUNK]}; best single is {study['best_single']}."
    ]
    if run.pool != "frontier" or not run.found.is_counterpart:
        said.append("The paper's numbers are its frontier pool's: context and no counterpart.")
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
