"""Subsets of the labels: fewer labelled queries, or fewer measured targets of each."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prefill_router.data import Part, RoutingDataset, Split
from prefill_router_lab.learning_curves.options import Size

_LEARNED: tuple[Part, ...] = ("train", "calibration")
_LEAST = 20
"""The smallest default size in queries, since fewer teach a router nothing."""
_SHARES = 5
"""The fewest default sizes of the query axis, since a power law has three parameters."""


def choose_sizes(dataset: RoutingDataset, split: Split) -> tuple[Size, ...]:
    """Default sizes on both axes: fewer queries, and the same labels as fewer targets per query.

    These are doubling numbers of targets up to all measured ones, shares of the queries with
    equally many labels, and halves of the smallest share until the query axis has five sizes.

    Args:
        dataset: Scored answers.
        split: The split whose train part is subsampled.
    """
    train = dataset.select(split["train"])
    each = count_labels(train) / len(train)
    counts = [1 << i for i in range(32) if (1 << i) < each - 0.5]
    shares = {1.0, *(round(m / each, 6) for m in counts)}
    while len(shares) < _SHARES and min(shares) * len(train) / 2 >= _LEAST:
        shares.add(round(min(shares) / 2, 6))
    enough = [share for share in shares if share * len(train) >= _LEAST or share == 1]
    return (
        *(Size(share) for share in sorted(enough)),
        *(Size(measured=m) for m in counts),
    )


def count_labels(dataset: RoutingDataset) -> int:
    """How many outcomes are measured."""
    return int((~np.isnan(dataset.correct)).sum())


def thin(
    dataset: RoutingDataset, split: Split, size: Size, *, seed: int
) -> tuple[RoutingDataset, Split]:
    """The dataset and split with fewer train and calibration labels; the test part is unchanged.

    With the same seed a smaller size is a subset of a larger one. The label, tokens and cost of
    outcomes that aren't kept are all missing, as if never measured. Row order doesn't matter.

    Args:
        dataset: Scored answers.
        split: The split.
        size: How much is kept.
        seed: Random seed of the draw of queries and outcomes.
    """
    parts = dict(split.parts)
    for part in _LEARNED:
        if part in parts:
            parts[part] = _sample_ids(parts[part], size.share, seed)
    thinned_split = Split(parts, split.seed, split.merged)
    if size.measured is None:
        return dataset, thinned_split
    ids = sorted(i for part in _LEARNED for i in parts.get(part, ()))
    return _mask_outcomes(dataset, ids, size.measured, seed), thinned_split


def _sample_ids(ids: tuple[str, ...], share: float, seed: int) -> tuple[str, ...]:
    ordered = sorted(ids)
    order = np.random.default_rng([seed, 1]).permutation(len(ordered))
    return tuple(sorted(ordered[i] for i in order[: max(1, round(share * len(ordered)))]))


def _mask_outcomes(
    dataset: RoutingDataset, ids: list[str], count: int, seed: int
) -> RoutingDataset:
    """Keep at most `count` random measured outcomes of each of these queries."""
    rows, columns = dataset.rows(ids), np.argsort(dataset.pool.names)
    keys = np.full((len(ids), len(columns)), np.inf)
    keys[:, columns] = np.random.default_rng([seed, 2]).random(keys.shape)
    keys[np.isnan(dataset.correct[rows])] = np.inf
    is_lost: NDArray[np.bool_] = np.zeros(dataset.correct.shape, dtype=np.bool_)
    is_lost[rows] = np.argsort(np.argsort(keys, axis=1), axis=1) >= count
    return replace(
        dataset,
        correct=np.where(is_lost, np.nan, dataset.correct),
        input_tokens=np.where(is_lost, np.nan, dataset.input_tokens),
        output_tokens=np.where(is_lost, np.nan, dataset.output_tokens),
        recorded_cost=np.where(is_lost, np.nan, dataset.recorded_cost),
    )
