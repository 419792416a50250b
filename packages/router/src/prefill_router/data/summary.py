"""A summary of a dataset: the paper's Table 1, overall and for each benchmark and domain."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.data.dataset import Query, Regime, RoutingDataset, Table, regimes
from prefill_router.data.meaning import LabelMeaning
from prefill_router.short_repr import short_repr

MEASURED = (Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.DISAGREEMENT)
"""The three consensus regimes, in the order of Table 1."""
_FEWEST = 2
LEAST_SHARE = 0.1
"""The least share of the labelled queries on which a target must be measured to be compared, since
only queries with the labels of all compared targets count."""


@final
@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """The results of one target.

    Attributes:
        name: The target.
        measured: The number of queries with its label.
        missing: The number of queries without.
        accuracy: Mean label over the measured queries; None without any.
        mean_cost: Mean observed cost in US dollars where known; None where it never is.
        costs_known: The number of queries with a known cost.
    """

    name: str
    measured: int
    missing: int
    accuracy: float | None
    mean_cost: float | None
    costs_known: int


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class PartSummary:
    """The summary of a dataset, or of the queries of one benchmark or domain.

    Attributes:
        queries: The number of queries.
        distinct_prompts: The number of different prompts.
        targets: One summary per target, in the pool's order.
        compared: The number of queries with the labels of all targets that have enough
            (`well_measured`); best single target and oracle are computed on these.
        best_single: The most accurate target on them, the first of equals. None for fewer than two
            queries, or where only one of several targets has enough labels.
        best_single_accuracy: Its accuracy on them.
        oracle_accuracy: Mean of each query's highest label on them.
        regimes: The number of queries in each consensus regime, over the targets measured on them.
        unmeasured: The number of queries without any label, which are in no regime.
        single_label: The number of queries with only one target's label, where there is nothing to
            compare.
    """

    queries: int
    distinct_prompts: int
    targets: tuple[TargetSummary, ...]
    compared: int
    best_single: str | None
    best_single_accuracy: float | None
    oracle_accuracy: float | None
    regimes: Mapping[Regime, int]
    unmeasured: int
    single_label: int

    def share(self, regime: Regime) -> float | None:
        """A regime's share of the queries with any label, from 0 to 1; None if there are none."""
        measured = sum(self.regimes.values())
        return self.regimes[regime] / measured if measured else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        counted = {
            regime.value.replace(" ", "_"): {"count": count, "share": self.share(regime)}
            for regime, count in self.regimes.items()
        }
        rows = [dict(vars(target)) for target in self.targets]
        return {**vars(self), "targets": rows, "regimes": counted}


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of a dataset and of its parts.

    Attributes:
        whole: The summary of all queries.
        by_benchmark: The summary of each benchmark, by name (empty where unknown).
        by_domain: The summary of each domain, by name (empty where unknown).
        fingerprint: SHA-256 of ids, prompts, targets and labels.
        meaning: What the labels mean; an accuracy is a mean label.
    """

    whole: PartSummary
    by_benchmark: Mapping[str, PartSummary]
    by_domain: Mapping[str, PartSummary]
    fingerprint: str
    meaning: LabelMeaning

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the whole's fields, `by_benchmark`, `by_domain`, `labels_mean`."""
        return {
            **self.whole.to_dict(),
            "by_benchmark": {name: part.to_dict() for name, part in self.by_benchmark.items()},
            "by_domain": {name: part.to_dict() for name, part in self.by_domain.items()},
            "fingerprint": self.fingerprint,
            "labels_mean": self.meaning.to_dict(),
        }


def summarise(dataset: RoutingDataset) -> Summary:
    """Summarise a dataset; soft labels count as they are, and regimes cut them at 0.5."""
    return Summary(
        whole=_summarise_part(dataset),
        by_benchmark=_summarise_parts(dataset, lambda query: query.benchmark),
        by_domain=_summarise_parts(dataset, lambda query: query.domain),
        fingerprint=dataset.fingerprint,
        meaning=dataset.meaning,
    )


def _summarise_parts(
    dataset: RoutingDataset, key: Callable[[Query], str]
) -> dict[str, PartSummary]:
    groups: dict[str, list[str]] = {}
    for query in dataset.queries:
        groups.setdefault(key(query), []).append(query.id)
    return {name: _summarise_part(dataset.select(ids)) for name, ids in sorted(groups.items())}


def well_measured(correct: Table) -> Bool[NDArray[np.bool_], " target"]:
    """Which targets are measured on enough of the labelled queries to be compared."""
    has_label = ~np.isnan(correct)
    enough: NDArray[np.bool_] = has_label.sum(axis=0) >= LEAST_SHARE * has_label.any(axis=1).sum()
    return enough & has_label.any(axis=0)


def _summarise_part(dataset: RoutingDataset) -> PartSummary:
    accuracy = _column_means(dataset.correct)
    regime_of_row = regimes(dataset.correct)
    labels = (~np.isnan(dataset.correct)).sum(axis=0)
    columns = np.flatnonzero(well_measured(dataset.correct) & (labels >= _FEWEST))
    compared = dataset.correct[~np.isnan(dataset.correct[:, columns]).any(axis=1)]
    is_comparable = len(columns) >= min(_FEWEST, len(dataset.pool)) and len(compared) >= _FEWEST
    single = compared[:, columns].mean(axis=0) if is_comparable else np.zeros(0)
    return PartSummary(
        queries=len(dataset),
        distinct_prompts=len(set(dataset.prompt_keys)),
        targets=_summarise_targets(dataset, accuracy),
        compared=len(compared) if is_comparable else 0,
        best_single=dataset.pool.names[columns[single.argmax()]] if is_comparable else None,
        best_single_accuracy=float(single.max()) if is_comparable else None,
        oracle_accuracy=float(np.fmax.reduce(compared, axis=1).mean()) if is_comparable else None,
        regimes={regime: int((regime_of_row == regime.value).sum()) for regime in MEASURED},
        unmeasured=int((regime_of_row == Regime.UNMEASURED.value).sum()),
        single_label=int(((~np.isnan(dataset.correct)).sum(axis=1) == 1).sum()),
    )


def _summarise_targets(
    dataset: RoutingDataset, accuracy: Float[NDArray[np.float64], " target"]
) -> tuple[TargetSummary, ...]:
    measured = (~np.isnan(dataset.correct)).sum(axis=0)
    with_cost = (~np.isnan(dataset.observed_cost)).sum(axis=0)
    cost = _column_means(dataset.observed_cost)
    return tuple(
        TargetSummary(
            name=name,
            measured=int(measured[i]),
            missing=len(dataset) - int(measured[i]),
            accuracy=_none_if_nan(accuracy[i]),
            mean_cost=_none_if_nan(cost[i]),
            costs_known=int(with_cost[i]),
        )
        for i, name in enumerate(dataset.pool.names)
    )


def _column_means(table: Table) -> Float[NDArray[np.float64], " target"]:
    """Mean of each column over its known values; NaN where there are none."""
    count = (~np.isnan(table)).sum(axis=0)
    return np.where(count > 0, np.nansum(table, axis=0) / np.maximum(count, 1), np.nan)


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
