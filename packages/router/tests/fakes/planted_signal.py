"""States whose useful site is known, for tests of what looks for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jaxtyping
import numpy as np

from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset
from prefill_router.testing import FakeEncoder

SITES = tuple(Site(layer, pooling) for layer in range(5) for pooling in ("last", "mean"))
PLANTED = 3
"""The layer at which `FakeEncoder` knows the difficulty."""


def states_of(
    dataset: RoutingDataset, *, sites: Sequence[Site] = SITES, encoder: FakeEncoder | None = None
) -> MemoryActivations:
    return (encoder or FakeEncoder()).encode(dataset.queries, sites, rounding="float32")


def shuffle_labels(dataset: RoutingDataset, *, seed: int = 0) -> RoutingDataset:
    """The same queries with the labels of others."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    return RoutingDataset.of(dataset.queries, dataset.pool, dataset.correct[order])


def relabel(dataset: RoutingDataset, correct: np.ndarray) -> RoutingDataset:
    return RoutingDataset.of(dataset.queries, dataset.pool, correct)


def permute_rows(dataset: RoutingDataset, *, seed: int = 0) -> RoutingDataset:
    """The same rows in another order."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    return dataset.select([dataset.query_ids[i] for i in order])


@contextmanager
def without_checks() -> Iterator[None]:
    """Switch off the checks of shapes, so that the package's own errors are raised."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
