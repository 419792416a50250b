"""Several runs of the same questions as one dataset of mean labels."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from prefill_router.data.dataset import RoutingDataset, Table
from prefill_router.errors import DataError


def mean_of_runs(datasets: Sequence[RoutingDataset]) -> RoutingDataset:
    """Average datasets that hold a run each: labels, tokens and costs over the runs that have them.

    Args:
        datasets: Of the same queries and targets, in any order; with labels of single runs.

    Raises:
        DataError: There is none, their queries, prompts or targets differ, or one holds means.
    """
    if not datasets:
        raise DataError("there is no run; give at least one dataset")
    first = datasets[0]
    for one in datasets:
        same = set(zip(one.query_ids, one.prompt_keys, strict=True))
        if same != set(zip(first.query_ids, first.prompt_keys, strict=True)) or set(
            one.pool.names
        ) != set(first.pool.names):
            raise DataError(
                "the runs have different queries, prompts or targets; give runs of the same ones"
            )
        if one.runs is not None:
            raise DataError("a dataset holds means of several runs already; give single runs")
    aligned = [one.select(first.query_ids, targets=first.pool.names) for one in datasets]
    counted = np.sum([~np.isnan(one.correct) for one in aligned], axis=0).astype(np.float64)
    return replace(
        first,
        correct=_mean([one.correct for one in aligned]),
        input_tokens=_mean([one.input_tokens for one in aligned]),
        output_tokens=_mean([one.output_tokens for one in aligned]),
        recorded_cost=_mean([one.recorded_cost for one in aligned]),
        runs=np.where(counted > 0, counted, np.nan),
    )


def _mean(tables: Sequence[Table]) -> Table:
    known = np.sum([~np.isnan(table) for table in tables], axis=0)
    total = np.sum([np.nan_to_num(table) for table in tables], axis=0)
    return np.where(known > 0, total / np.maximum(known, 1), np.nan)
