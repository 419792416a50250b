"""Merging of datasets: different ones into one, or runs of the same questions into mean labels.

Queries are joined by id, targets by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from prefill_router.data.dataset import OPTIONAL_TABLES, Query, RoutingDataset, Table
from prefill_router.errors import ConfigError, DataError
from prefill_router.targets import Pool, Provider, RequestOptions, Target

Prefer = Literal["first", "last"]
_Named = TypeVar("_Named", Target, Provider)
_Placed: TypeAlias = tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]
_TABLES: Final = ("correct", *OPTIONAL_TABLES, "input_tokens", "output_tokens", "recorded_cost")
_LABEL: Final = 1 + len(OPTIONAL_TABLES)
"""The number of leading tables that describe the label; the others describe the answer."""
_ADVICE: Final = "leave one out, or choose which one counts (--prefer first or --prefer last)"
_RUNS: Final = "; if they are runs of the same questions, --repeats mean averages them"


def merge(
    datasets: Mapping[str, RoutingDataset],
    *,
    prefer: Prefer | None = None,
    repeats: Literal["mean"] | None = None,
) -> RoutingDataset:
    """Merge datasets; outcomes that none of them measured are missing.

    Queries and targets keep the order of first appearance. Token counts and cost of an answer come
    from one dataset, the first that has any, since they belong together.

    Args:
        datasets: The datasets by name; error messages use these names.
        prefer: Which dataset counts where two contradict each other; None makes that an error.
        repeats: `mean` where they are runs of the same questions: each label, count and cost is the
            mean of the runs that have it.

    Raises:
        ConfigError: There are fewer than two datasets.
        DataError: A query has different prompts in two datasets, or, without `prefer`, labels or
            prices contradict each other.
    """
    if len(datasets) < 2:
        raise ConfigError(f"{len(datasets)} dataset given; name two or more to merge")
    queries: dict[str, Query] = {}
    for name, dataset in datasets.items():
        for query in dataset.queries:
            queries[query.id] = _same_query(queries.get(query.id, query), query, name)
    pool = _pool(datasets, prefer)
    shape = (len(_TABLES), len(queries), len(pool))
    row = {query_id: i for i, query_id in enumerate(queries)}
    placed = [_placed(dataset, row, pool) for dataset in datasets.values()]
    if repeats is not None:
        _refuse_chance(datasets)
        tables = _means(placed, shape)
    else:
        tables = np.full(shape, np.nan)
        for (name, dataset), (cells, found) in zip(datasets.items(), placed, strict=True):
            contradicted = _contradictory_fields(tables[cells][0], found[0])
            if contradicted.any() and prefer is None:
                raise _conflict(name, dataset, tables[cells][0], contradicted)
            tables[cells] = _joined(tables[cells], found, contradicted, prefer)
    told = dict(zip(_TABLES, tables, strict=True))
    empty = [name for name in OPTIONAL_TABLES if np.isnan(told[name]).all()]
    return RoutingDataset(
        tuple(queries.values()),
        pool,
        **{name: table for name, table in told.items() if name not in empty},
    )


def _refuse_chance(datasets: Mapping[str, RoutingDataset]) -> None:
    """The mean of labels that chance selected has neither a known error nor a known propensity."""
    for name, dataset in datasets.items():
        if dataset.label_error is not None or dataset.propensity is not None:
            raise DataError(
                f"{name} has labels with an error or a propensity, which can't be averaged; "
                "leave out --repeats mean"
            )


def _placed(dataset: RoutingDataset, row: Mapping[str, int], pool: Pool) -> _Placed:
    """A dataset's tables, and their positions in the merged one."""
    rows = [row[query_id] for query_id in dataset.query_ids]
    unknown = np.full(dataset.correct.shape, np.nan)
    held = (getattr(dataset, table) for table in _TABLES)
    found = np.stack([unknown if table is None else table for table in held])
    return np.ix_(range(len(_TABLES)), rows, pool.indices(dataset.pool.names)), found


def _same_query(known: Query, query: Query, name: str) -> Query:
    if known.prompt != query.prompt:
        raise DataError(
            f"query {query.id!r} has another prompt in {name} than in an earlier dataset; give "
            "the queries of one of them other ids (prefill-router import --query-column)"
        )
    return replace(
        known, benchmark=known.benchmark or query.benchmark, domain=known.domain or query.domain
    )


def _pool(datasets: Mapping[str, RoutingDataset], prefer: Prefer | None) -> Pool:
    targets: dict[str, Target] = {}
    providers: dict[str, Provider] = {}
    for name, dataset in datasets.items():
        for provider in dataset.pool.providers:
            _take(provider, providers, f"provider {provider.name!r}", name, prefer)
        for target in dataset.pool:
            _take(target, targets, f"target {target.name!r}", name, prefer)
    dates = {dataset.pool.prices_date for dataset in datasets.values()}
    return Pool(
        tuple(targets.values()),
        dates.pop() if len(dates) == 1 else None,
        tuple(providers.values()),
    )


def _take(
    new: _Named, known: dict[str, _Named], what: str, dataset: str, prefer: Prefer | None
) -> None:
    """Keep a target or provider: the more complete of two that agree."""
    old = known.setdefault(new.name, new)
    fields: dict[str, Any] = _set_fields(old)
    others: dict[str, Any] = _set_fields(new)
    if fields.items() <= others.items():
        known[new.name] = new
    elif not others.items() <= fields.items():
        if prefer is None:
            differing = sorted(k for k in {*fields, *others} if fields.get(k) != others.get(k))
            raise DataError(
                f"{what} has another {', '.join(differing)} in {dataset} than in an earlier "
                f"dataset; {_ADVICE}"
            )
        known[new.name] = old if prefer == "first" else new


def _set_fields(one: Target | Provider) -> dict[str, Any]:
    nothing = (None, (), RequestOptions())
    return {name: value for name, value in vars(one).items() if value not in nothing}


def _contradictory_fields(known: Table, found: Table) -> Bool[NDArray[np.bool_], "query target"]:
    differ: NDArray[np.bool_] = ~np.isnan(known) & ~np.isnan(found) & (known != found)
    return differ


def _joined(
    known: NDArray[np.float64],
    found: NDArray[np.float64],
    contradicted: Bool[NDArray[np.bool_], "query target"],
    prefer: Prefer | None,
) -> NDArray[np.float64]:
    """Merge two answers to each query of each target: labels first, then counts and cost."""
    first, second = (found, known) if prefer == "last" else (known, found)
    is_only_second = np.isnan(first[0]) & ~np.isnan(second[0])
    label = np.where(is_only_second, second[:_LABEL], first[:_LABEL])
    # Where two contradict each other, the preferred answer is taken as a whole.
    has_counts = contradicted | ~np.isnan(first[_LABEL:]).all(axis=0)
    return np.concatenate([label, np.where(has_counts, first[_LABEL:], second[_LABEL:])])


def _means(placed: Sequence[_Placed], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The mean of each table over the runs that have it; for `runs`, the number with a label."""
    total, weight = np.zeros(shape), np.zeros(shape)
    for cells, found in placed:
        known = ~np.isnan(found)
        runs = np.fmax(np.nan_to_num(found[1]), 1)
        known[1] = known[0]
        total[cells] += np.where(known, np.nan_to_num(found) * runs, 0)
        weight[cells] += known * runs
    total[1] = weight[1] ** 2  # divided by the weight below, it is the number of runs
    return np.where(weight > 0, total / np.fmax(weight, 1), np.nan)


def _conflict(
    name: str,
    dataset: RoutingDataset,
    known: Table,
    contradicted: Bool[NDArray[np.bool_], "query target"],
) -> DataError:
    query, target = map(int, np.argwhere(contradicted)[0])
    return DataError(
        f"{int(contradicted.sum()):,} labels in {name} contradict an earlier dataset, the first "
        f"of query {dataset.query_ids[query]!r} and target {dataset.pool.names[target]!r}: "
        f"{dataset.correct[query, target]:g}, where it was {known[query, target]:g}; {_ADVICE}"
        + _RUNS
    )
