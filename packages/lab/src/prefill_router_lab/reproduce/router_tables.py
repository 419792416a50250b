"""The tables of the data and of the routers' metrics.

1          the data
3, 4, 5    the headline metrics
11 to 16   the three best and the three worst experiments, target by target
17 to 22   every target with each of the semantic baselines
24 to 26   the headline metrics with their bootstrap intervals
27         SharedTrunkNet minus Unified Multitask on the same resamples
30         the number of operating points on a grid of lam, by quarter of the range of cost
"""

import math
from collections.abc import Sequence

from prefill_router.comparison import by_number
from prefill_router.data import Regime, summarise
from prefill_router.evaluation import HEADLINE, Estimate, Step
from prefill_router_lab.reproduce.cells import (
    PaperTable,
    PublishedNumber,
    TableCell,
    TableRow,
    Unit,
    exact,
    exact_or_none,
    find_run,
    make_paper_only,
    make_table,
    name_experiment,
    note_absent_pools,
    note_differences,
    number,
    paper_table,
    read_published,
)
from prefill_router_lab.reproduce.systems import POOLS, SEMANTIC, SYSTEMS, TRUNK, UNIFIED, PoolRun

_TABLE_1 = "tab:dataset"
_REGIMES = (Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.DISAGREEMENT)
_COLUMNS = (
    *("Queries", "Targets", "Benchmarks", "All correct", "All fail", "Disagreement"),
    *("All correct, share", "All fail, share", "Disagreement, share", "Oracle accuracy"),
)


@paper_table
def table_1(runs: Sequence[PoolRun]) -> PaperTable:
    """Queries in each consensus regime, and the oracle's accuracy."""
    rows = [_make_data_row(run) for run in runs]
    return make_table(
        _TABLE_1,
        ("Pool",),
        _COLUMNS,
        rows,
        notes=(*note_differences(runs), *note_absent_pools(runs)),
    )


def _make_data_row(run: PoolRun) -> TableRow:
    summary = summarise(run.paper_pool.dataset).whole
    row = read_published()[_TABLE_1].find(run.pool, run.pool)
    counts = [
        read_published()[_TABLE_1].number_of(run.pool, run.pool, str(regime)) for regime in _REGIMES
    ]
    sizes = (
        float(len(run.paper_pool.dataset)),
        float(len(run.paper_pool.dataset.pool)),
        float(len({query.benchmark for query in run.paper_pool.dataset.queries})),
    )
    cells = [
        TableCell(exact(ours), _make_published(row.get(name)), "count")
        for ours, name in zip(sizes, ("queries", "targets", "benchmarks"), strict=True)
    ]
    cells += [
        TableCell(exact(summary.regimes[regime]), _take_count(paper), "count")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    cells += [
        TableCell(exact_or_none(summary.share(regime)), _take_share(paper), "share")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    oracle = read_published()[_TABLE_1].number_of(run.pool, run.pool, "oracle_accuracy")
    return TableRow(
        (run.title,), (*cells, TableCell(exact_or_none(summary.oracle_accuracy), oracle, "share"))
    )


def _make_published(value: object) -> PublishedNumber | None:
    return PublishedNumber(float(value)) if isinstance(value, int | float) else None


def _take_count(paper: PublishedNumber | None) -> PublishedNumber | None:
    return None if paper is None or paper.count is None else PublishedNumber(float(paper.count))


def _take_share(paper: PublishedNumber | None) -> PublishedNumber | None:
    return None if paper is None else PublishedNumber(paper.value)


BOOTSTRAPPED = ("auc_mean", "brier_mean", "max_lam_accuracy", "p_auccc")
"""The metrics whose intervals the paper gives."""
_KEYS = ("Pool", "Router")
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
_MODEL_ONLY = "Model-only Pareto"


@paper_table
def table_3(runs: Sequence[PoolRun]) -> PaperTable:
    """The ranking and calibration of each router's probabilities, and its routing accuracy."""
    names = ("auc_mean", "brier_mean", "argmax_accuracy")
    return _tabulate_systems("tab:per_llm_routing", runs, names)


@paper_table
def table_4(runs: Sequence[PoolRun]) -> PaperTable:
    """Gain, headroom and savings."""
    names = (
        *("oracle_accuracy", "best_single_accuracy", "accuracy_gain"),
        *("headroom_captured", "cost_savings"),
    )
    return _tabulate_systems("tab:headroom_summary", runs, names)


@paper_table
def table_5(runs: Sequence[PoolRun]) -> PaperTable:
    """The area under the curve and the distance to the oracle."""
    label = "tab:global_routing"
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    table = _tabulate_systems(label, runs, names)
    rows = [
        row
        for run in runs
        for row in (_make_model_only_row(run), *_make_router_rows(label, run, names))
    ]
    return make_table(
        label, _KEYS, table.columns, rows, notes=(*note_differences(runs), *note_absent_pools(runs))
    )


@paper_table
def bootstrap_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """Query-level bootstrap intervals, a table per pool."""
    tables = []
    for pool in POOLS:
        label, run = f"tab:bootstrap_{pool}", find_run(runs, pool)
        if run is None:
            units = {name: unit_of(name) for name in BOOTSTRAPPED}
            tables.append(make_paper_only(label, pool, units, ("Router",)))
        else:
            tables.append(_tabulate_systems(label, [run], BOOTSTRAPPED))
    return tables


def unit_of(name: str) -> Unit:
    """The unit of a headline metric."""
    return HEADLINE[name].unit


def heading(name: str) -> str:
    """The heading of a column: a headline metric's name, and which direction is better."""
    return HEADLINE[name].label + _ARROWS[HEADLINE[name].better]


def _tabulate_systems(label: str, runs: Sequence[PoolRun], names: Sequence[str]) -> PaperTable:
    rows = [row for run in runs for row in _make_router_rows(label, run, names)]
    notes = (
        *note_differences(runs),
        *(note_absent_pools(runs) if "bootstrap" not in label else ()),
    )
    return make_table(label, _KEYS, [heading(name) for name in names], rows, notes=notes)


def _make_router_rows(label: str, run: PoolRun, names: Sequence[str]) -> list[TableRow]:
    return [_make_router_row(label, run, system, names) for system in SYSTEMS]


def _make_router_row(label: str, run: PoolRun, system: str, names: Sequence[str]) -> TableRow:
    router = run.system(system)
    cells = tuple(
        TableCell(
            None if router is None else router.headline[name],
            read_published()[label].number_of(run.pool, system, name),
            unit_of(name),
            why="" if router is not None else run.why_not(system),
        )
        for name in names
    )
    return TableRow((run.title, system), cells)


def _make_model_only_row(run: PoolRun) -> TableRow:
    numbers = run.result.by_name[SYSTEMS[TRUNK]].headline
    paper = read_published()["tab:global_routing"]
    ours = ("model_only_p_auccc", None, "model_only_oracle_distance", None)
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    cells = tuple(
        TableCell(
            None if own_name is None else numbers[own_name],
            paper.number_of(run.pool, _MODEL_ONLY, name),
            unit_of(name),
            why="" if own_name else "this row is the reference",
        )
        for own_name, name in zip(ours, names, strict=True)
    )
    return TableRow((run.title, _MODEL_ONLY), cells)


_EXTREME_KEYS = ("Place", "Experiment")
_EDGE = 3


@paper_table
def extreme_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """By AUC and by Brier score, for each pool."""
    return [
        _make_extreme_table(pool, key, find_run(runs, pool))
        for pool in POOLS
        for key in ("auc", "brier")
    ]


def _make_extreme_table(pool: str, key: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_{key}"
    if run is None:
        return make_paper_only(label, pool, {}, _EXTREME_KEYS)
    targets = run.paper_pool.dataset.pool.names
    names = [run.paper_pool.paper_name(target) for target in targets]
    rows = _make_extreme_rows(run, key, targets)
    for row in read_published()[label].rows:
        cells = [TableCell(None, number(row, name), "number") for name in ("mean", *names)]
        rows.append(TableRow((f"{row['place']} (paper)", name_experiment(row)), tuple(cells)))
    notes = (
        f"Ours are the best and the worst of {len(run.result.routers)} routers; the paper's are "
        "those of its semantic experiments, more than 1,300 configurations.",
        *note_differences([run]),
    )
    return make_table(label, _EXTREME_KEYS, ("Mean", *names), rows, notes=notes)


def _make_extreme_rows(run: PoolRun, key: str, targets: Sequence[str]) -> list[TableRow]:
    best_first = by_number(run.result.routers, f"{key}_mean")
    count = len(best_first)
    places = [*range(min(_EDGE, count)), *range(max(_EDGE, count - _EDGE), count)]
    rows = []
    for place in places:
        router = best_first[place]
        values = [
            router.headline[f"{key}_mean"],
            *(router.evaluation.per_target[target][key] for target in targets),
        ]
        cells = tuple(TableCell(value, None, "number") for value in values)
        rows.append(TableRow((f"#{place + 1} of {count} (ours)", router.name), cells))
    return rows


_TARGET_KEYS = ("Target",)


@paper_table
def target_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """AUC and Brier score, for each pool."""
    return [
        _make_target_table(pool, key, find_run(runs, pool))
        for pool in POOLS
        for key in ("auc", "brier")
    ]


def _make_target_table(pool: str, key: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_permodel_{key}"
    if run is None:
        return make_paper_only(label, pool, {}, ("Router",))
    rows = [
        _make_target_row(label, run, target, key) for target in run.paper_pool.dataset.pool.names
    ]
    return make_table(
        label,
        _TARGET_KEYS,
        SEMANTIC,
        [*rows, _make_mean_row(label, run, key)],
        notes=note_differences([run]),
    )


def _make_target_row(label: str, run: PoolRun, target: str, key: str) -> TableRow:
    cells = []
    for system in SEMANTIC:
        judged, name = run.system(system), run.paper_pool.paper_name(target)
        ours = None if judged is None else judged.evaluation.per_target[target][key]
        if ours is not None and math.isnan(ours.value):
            ours = None
        paper = read_published()[label].number_of(run.pool, system, name)
        cells.append(TableCell(ours, paper, "number", why="" if ours else "not defined here"))
    return TableRow((run.paper_pool.paper_name(target),), tuple(cells))


def _make_mean_row(label: str, run: PoolRun, key: str) -> TableRow:
    cells = []
    for system in SEMANTIC:
        judged = run.system(system)
        ours = None if judged is None else judged.headline[f"{key}_mean"]
        paper = read_published()[label].number_of(run.pool, system, "mean")
        cells.append(TableCell(ours, paper, "number", why="" if ours else run.why_not(system)))
    return TableRow(("Mean",), tuple(cells))


_TABLE_27 = "tab:paired_bootstrap_unified"


@paper_table
def table_27(runs: Sequence[PoolRun]) -> PaperTable:
    """The paired differences, with intervals."""
    rows = [_make_paired_row(run, name) for run in runs for name in BOOTSTRAPPED]
    columns = (TRUNK, UNIFIED, "Difference")
    notes = (*note_differences(runs), *note_absent_pools(runs))
    return make_table(_TABLE_27, ("Pool", "Number"), columns, rows, notes=notes)


def _make_paired_row(run: PoolRun, name: str) -> TableRow:
    paper = {
        column: read_published()[_TABLE_27].number_of(run.pool, name, column)
        for column in (TRUNK, UNIFIED, "difference")
    }
    trunk, unified = run.system(TRUNK), run.system(UNIFIED)
    why = "" if unified is not None else run.why_not(UNIFIED)
    unit: Unit = unit_of(name)
    cells = (
        TableCell(None if trunk is None else trunk.headline[name], paper[TRUNK], unit),
        TableCell(
            None if unified is None else unified.headline[name], paper[UNIFIED], unit, why=why
        ),
        TableCell(
            None if unified is None else negate(unified.against[name]),
            paper["difference"],
            "points" if HEADLINE[name].unit == "share" else unit,
            why=why,
        ),
    )
    return TableRow((run.title, heading(name)), cells)


def negate(estimate: Estimate) -> Estimate:
    """The difference with the opposite sign."""
    return Estimate(
        -estimate.value, -estimate.upper, -estimate.lower, estimate.undefined, estimate.reason
    )


_TABLE_30 = "tab:lambda_operating_points"
_STEP_NAMES = ("points", "q1", "q2", "q3", "q4")
_EXACT = "exact path"


@paper_table
def table_30(runs: Sequence[PoolRun]) -> PaperTable:
    """Operating points of SharedTrunkNet by the step of lam."""
    rows = [_make_step_row(run, step) for run in runs for step in _list_steps(run)]
    columns = ("N", "Q1", "Q2", "Q3", "Q4")
    notes = (*note_differences(runs), *note_absent_pools(runs))
    return make_table(_TABLE_30, ("Pool", "Step"), columns, rows, notes=notes)


def _list_steps(run: PoolRun) -> Sequence[Step]:
    judged = run.system(TRUNK)
    return () if judged is None else judged.evaluation.steps


def _make_step_row(run: PoolRun, step: Step) -> TableRow:
    name = _EXACT if step.step is None else f"1e-{-round(math.log10(step.step))}"
    cells = tuple(
        TableCell(
            exact(float(getattr(step, column))),
            read_published()[_TABLE_30].number_of(run.pool, name, column),
            "count",
        )
        for column in _STEP_NAMES
    )
    return TableRow((run.title, name), cells)
