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
    context,
    exact,
    experiment,
    known,
    left_out,
    make,
    no_pool,
    number,
    of_pool,
    paper_table,
    published,
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
    rows = [_data_row(run) for run in runs]
    return make(_TABLE_1, ("Pool",), _COLUMNS, rows, said=(*context(runs), *left_out(runs)))


def _data_row(run: PoolRun) -> TableRow:
    whole = summarise(run.found.dataset).whole
    found = published()[_TABLE_1].find(run.pool, run.pool)
    counts = [published()[_TABLE_1].number_of(run.pool, run.pool, str(one)) for one in _REGIMES]
    sizes = (
        float(len(run.found.dataset)),
        float(len(run.found.dataset.pool)),
        float(len({query.benchmark for query in run.found.dataset.queries})),
    )
    cells = [
        TableCell(exact(ours), _plain(found.get(name)), "count")
        for ours, name in zip(sizes, ("queries", "targets", "benchmarks"), strict=True)
    ]
    cells += [
        TableCell(exact(whole.regimes[regime]), _count(paper), "count")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    cells += [
        TableCell(known(whole.share(regime)), _share(paper), "share")
        for regime, paper in zip(_REGIMES, counts, strict=True)
    ]
    oracle = published()[_TABLE_1].number_of(run.pool, run.pool, "oracle_accuracy")
    return TableRow(
        (run.title,), (*cells, TableCell(known(whole.oracle_accuracy), oracle, "share"))
    )


def _plain(value: object) -> PublishedNumber | None:
    return PublishedNumber(float(value)) if isinstance(value, int | float) else None


def _count(paper: PublishedNumber | None) -> PublishedNumber | None:
    return None if paper is None or paper.count is None else PublishedNumber(float(paper.count))


def _share(paper: PublishedNumber | None) -> PublishedNumber | None:
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
    return _by_system("tab:per_llm_routing", runs, names)


@paper_table
def table_4(runs: Sequence[PoolRun]) -> PaperTable:
    """Gain, headroom and savings."""
    names = (
        *("oracle_accuracy", "best_single_accuracy", "accuracy_gain"),
        *("headroom_captured", "cost_savings"),
    )
    return _by_system("tab:headroom_summary", runs, names)


@paper_table
def table_5(runs: Sequence[PoolRun]) -> PaperTable:
    """The area under the curve and the distance to the oracle."""
    label = "tab:global_routing"
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    made = _by_system(label, runs, names)
    rows = [row for run in runs for row in (_model_only(run), *_router_rows(label, run, names))]
    return make(label, _KEYS, made.columns, rows, said=(*context(runs), *left_out(runs)))


@paper_table
def bootstrap_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """Query-level bootstrap intervals, a table per pool."""
    made = []
    for pool in POOLS:
        label, run = f"tab:bootstrap_{pool}", of_pool(runs, pool)
        if run is None:
            units = {name: unit_of(name) for name in BOOTSTRAPPED}
            made.append(no_pool(label, pool, units, ("Router",)))
        else:
            made.append(_by_system(label, [run], BOOTSTRAPPED))
    return made


def unit_of(name: str) -> Unit:
    """The unit of a headline metric."""
    return HEADLINE[name].unit


def heading(name: str) -> str:
    """The heading of a column: a headline metric's name, and which direction is better."""
    return HEADLINE[name].label + _ARROWS[HEADLINE[name].better]


def _by_system(label: str, runs: Sequence[PoolRun], names: Sequence[str]) -> PaperTable:
    rows = [row for run in runs for row in _router_rows(label, run, names)]
    said = (*context(runs), *(left_out(runs) if "bootstrap" not in label else ()))
    return make(label, _KEYS, [heading(name) for name in names], rows, said=said)


def _router_rows(label: str, run: PoolRun, names: Sequence[str]) -> list[TableRow]:
    return [_router_row(label, run, system, names) for system in SYSTEMS]


def _router_row(label: str, run: PoolRun, system: str, names: Sequence[str]) -> TableRow:
    judged = run.system(system)
    cells = tuple(
        TableCell(
            None if judged is None else judged.headline[name],
            published()[label].number_of(run.pool, system, name),
            unit_of(name),
            why="" if judged is not None else run.why_not(system),
        )
        for name in names
    )
    return TableRow((run.title, system), cells)


def _model_only(run: PoolRun) -> TableRow:
    numbers = run.result.by_name[SYSTEMS[TRUNK]].headline
    paper = published()["tab:global_routing"]
    ours = ("model_only_p_auccc", None, "model_only_oracle_distance", None)
    names = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
    cells = tuple(
        TableCell(
            None if mine is None else numbers[mine],
            paper.number_of(run.pool, _MODEL_ONLY, name),
            unit_of(name),
            why="" if mine else "this row is the reference",
        )
        for mine, name in zip(ours, names, strict=True)
    )
    return TableRow((run.title, _MODEL_ONLY), cells)


_EXTREME_KEYS = ("Place", "Experiment")
_EDGE = 3


@paper_table
def extreme_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """By AUC and by Brier score, for each pool."""
    return [
        _extreme_table(pool, key, of_pool(runs, pool)) for pool in POOLS for key in ("auc", "brier")
    ]


def _extreme_table(pool: str, key: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_{key}"
    if run is None:
        return no_pool(label, pool, {}, _EXTREME_KEYS)
    targets = run.found.dataset.pool.names
    names = [run.found.paper_name(target) for target in targets]
    rows = _extreme_rows(run, key, targets)
    for row in published()[label].rows:
        cells = [TableCell(None, number(row, name), "number") for name in ("mean", *names)]
        rows.append(TableRow((f"{row['place']} (paper)", experiment(row)), tuple(cells)))
    said = (
        f"Ours are the best and the worst of {len(run.result.routers)} routers; the paper's are "
        "those of its semantic experiments, more than 1,300 configurations.",
        *context([run]),
    )
    return make(label, _EXTREME_KEYS, ("Mean", *names), rows, said=said)


def _extreme_rows(run: PoolRun, key: str, targets: Sequence[str]) -> list[TableRow]:
    ordered = by_number(run.result.routers, f"{key}_mean")
    count = len(ordered)
    places = [*range(min(_EDGE, count)), *range(max(_EDGE, count - _EDGE), count)]
    rows = []
    for place in places:
        one = ordered[place]
        values = [
            one.headline[f"{key}_mean"],
            *(one.evaluation.per_target[target][key] for target in targets),
        ]
        cells = tuple(TableCell(value, None, "number") for value in values)
        rows.append(TableRow((f"#{place + 1} of {count} (ours)", one.name), cells))
    return rows


_TARGET_KEYS = ("Target",)


@paper_table
def target_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """AUC and Brier score, for each pool."""
    return [
        _target_table(pool, key, of_pool(runs, pool)) for pool in POOLS for key in ("auc", "brier")
    ]


def _target_table(pool: str, key: str, run: PoolRun | None) -> PaperTable:
    label = f"tab:{pool}_permodel_{key}"
    if run is None:
        return no_pool(label, pool, {}, ("Router",))
    rows = [_target_row(label, run, target, key) for target in run.found.dataset.pool.names]
    return make(label, _TARGET_KEYS, SEMANTIC, [*rows, _mean(label, run, key)], said=context([run]))


def _target_row(label: str, run: PoolRun, target: str, key: str) -> TableRow:
    cells = []
    for system in SEMANTIC:
        judged, name = run.system(system), run.found.paper_name(target)
        ours = None if judged is None else judged.evaluation.per_target[target][key]
        if ours is not None and math.isnan(ours.value):
            ours = None
        paper = published()[label].number_of(run.pool, system, name)
        cells.append(TableCell(ours, paper, "number", why="" if ours else "not defined here"))
    return TableRow((run.found.paper_name(target),), tuple(cells))


def _mean(label: str, run: PoolRun, key: str) -> TableRow:
    cells = []
    for system in SEMANTIC:
        judged = run.system(system)
        ours = None if judged is None else judged.headline[f"{key}_mean"]
        paper = published()[label].number_of(run.pool, system, "mean")
        cells.append(TableCell(ours, paper, "number", why="" if ours else run.why_not(system)))
    return TableRow(("Mean",), tuple(cells))


_TABLE_27 = "tab:paired_bootstrap_unified"


@paper_table
def table_27(runs: Sequence[PoolRun]) -> PaperTable:
    """The paired differences, with intervals."""
    rows = [_paired_row(run, name) for run in runs for name in BOOTSTRAPPED]
    columns = (TRUNK, UNIFIED, "Difference")
    said = (*context(runs), *left_out(runs))
    return make(_TABLE_27, ("Pool", "Number"), columns, rows, said=said)


def _paired_row(run: PoolRun, name: str) -> TableRow:
    found = {
        column: published()[_TABLE_27].number_of(run.pool, name, column)
        for column in (TRUNK, UNIFIED, "difference")
    }
    trunk, unified = run.system(TRUNK), run.system(UNIFIED)
    why = "" if unified is not None else run.why_not(UNIFIED)
    unit: Unit = unit_of(name)
    cells = (
        TableCell(None if trunk is None else trunk.headline[name], found[TRUNK], unit),
        TableCell(
            None if unified is None else unified.headline[name], found[UNIFIED], unit, why=why
        ),
        TableCell(
            None if unified is None else minus(unified.against[name]),
            found["difference"],
            "points" if HEADLINE[name].unit == "share" else unit,
            why=why,
        ),
    )
    return TableRow((run.title, heading(name)), cells)


def minus(estimate: Estimate) -> Estimate:
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
    rows = [_step_row(run, step) for run in runs for step in _steps(run)]
    columns = ("N", "Q1", "Q2", "Q3", "Q4")
    said = (*context(runs), *left_out(runs))
    return make(_TABLE_30, ("Pool", "Step"), columns, rows, said=said)


def _steps(run: PoolRun) -> Sequence[Step]:
    judged = run.system(TRUNK)
    return () if judged is None else judged.evaluation.steps


def _step_row(run: PoolRun, step: Step) -> TableRow:
    name = _EXACT if step.step is None else f"1e-{-round(math.log10(step.step))}"
    cells = tuple(
        TableCell(
            exact(float(getattr(step, one))),
            published()[_TABLE_30].number_of(run.pool, name, one),
            "count",
        )
        for one in _STEP_NAMES
    )
    return TableRow((run.title, name), cells)
