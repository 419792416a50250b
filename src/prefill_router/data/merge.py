"""Several datasets as one: their queries join by id, their targets by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from prefill_router.data.dataset import RoutingDataset, Table
from prefill_router.data.query import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.targets import Pool, Provider, RequestOptions, Target

Prefer = Literal["first", "last"]
_Named = TypeVar("_Named", Target, Provider)
_TABLES: Final = ("correct", "runs", "input_tokens", "output_tokens", "recorded_cost")
_LABEL: Final = 2
"""So many of them, the first, are of the label; the others are of the answer."""
_ADVICE: Final = "leave one out, or say which one counts (--prefer first or --prefer last)"


def merge(
    datasets: Mapping[str, RoutingDataset], *, prefer: Prefer | None = None
) -> RoutingDataset:
    """Join datasets; what none of them measured is missing.

    Queries and targets keep the order in which they first come. Token counts and cost of an answer
    come from one dataset, the first that has any, since they belong together.

    Args:
        datasets: By the names that errors call them.
        prefer: Whose label and answer count where two contradict each other; None refuses that.

    Raises:
        ConfigError: There are fewer than two.
        DataError: A query asks something else in two datasets, or, unless one is preferred, labels
            or prices contradict each other.
    """
    if len(datasets) < 2:
        raise ConfigError(f"{len(datasets)} dataset is given; name two or more to merge")
    queries: dict[str, Query] = {}
    for name, dataset in datasets.items():
        for query in dataset.queries:
            queries[query.id] = _same_query(queries.get(query.id, query), query, name)
    pool = _pool(datasets, prefer)
    tables = np.full((len(_TABLES), len(queries), len(pool)), np.nan)
    row = {query_id: i for i, query_id in enumerate(queries)}
    for name, dataset in datasets.items():
        cells = np.ix_(
            range(len(_TABLES)),
            [row[i] for i in dataset.query_ids],
            pool.indices(dataset.pool.names),
        )
        unknown = np.full(dataset.correct.shape, np.nan)
        held = (getattr(dataset, table) for table in _TABLES)
        found = np.stack([unknown if table is None else table for table in held])
        contradicted = _contradicted(tables[cells][0], found[0])
        if contradicted.any() and prefer is None:
            raise _conflict(name, dataset, tables[cells][0], contradicted)
        tables[cells] = _joined(tables[cells], found, contradicted, prefer)
    told = dict(zip(_TABLES, tables, strict=True))
    runs = None if np.isnan(told.pop("runs")).all() else tables[1]
    return RoutingDataset(tuple(queries.values()), pool, **told, runs=runs)


def _same_query(known: Query, query: Query, name: str) -> Query:
    if known.prompt != query.prompt:
        raise DataError(
            f"query {query.id!r} asks something else in {name} than in a dataset before it; give "
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
    """Keep what is told of a target or provider: the fuller of two, where they agree."""
    old = known.setdefault(new.name, new)
    fields: dict[str, Any] = _told(old)
    others: dict[str, Any] = _told(new)
    if fields.items() <= others.items():
        known[new.name] = new
    elif not others.items() <= fields.items():
        if prefer is None:
            differing = sorted(k for k in {*fields, *others} if fields.get(k) != others.get(k))
            raise DataError(
                f"{what} has another {', '.join(differing)} in {dataset} than in a dataset before "
                f"it; {_ADVICE}"
            )
        known[new.name] = old if prefer == "first" else new


def _told(one: Target | Provider) -> dict[str, Any]:
    nothing = (None, (), RequestOptions())
    return {name: value for name, value in vars(one).items() if value not in nothing}


def _contradicted(known: Table, found: Table) -> Bool[NDArray[np.bool_], "query target"]:
    differ: NDArray[np.bool_] = ~np.isnan(known) & ~np.isnan(found) & (known != found)
    return differ


def _joined(
    known: NDArray[np.float64],
    found: NDArray[np.float64],
    contradicted: Bool[NDArray[np.bool_], "query target"],
    prefer: Prefer | None,
) -> NDArray[np.float64]:
    """Two answers to each query of each target as one: labels first, then counts and cost."""
    first, second = (found, known) if prefer == "last" else (known, found)
    label = np.where(np.isnan(first[0]), second[:_LABEL], first[:_LABEL])
    # Of a contradiction the preferred answer counts as a whole.
    has_counts = contradicted | ~np.isnan(first[_LABEL:]).all(axis=0)
    return np.concatenate([label, np.where(has_counts, first[_LABEL:], second[_LABEL:])])


def _conflict(
    name: str,
    dataset: RoutingDataset,
    known: Table,
    contradicted: Bool[NDArray[np.bool_], "query target"],
) -> DataError:
    query, target = map(int, np.argwhere(contradicted)[0])
    return DataError(
        f"{int(contradicted.sum()):,} labels in {name} contradict a dataset before it, the first "
        f"of query {dataset.query_ids[query]!r} and target {dataset.pool.names[target]!r}: "
        f"{dataset.correct[query, target]:g}, where it was {known[query, target]:g}; {_ADVICE}"
    )
