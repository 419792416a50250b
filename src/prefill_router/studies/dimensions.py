"""Pooling and PCA dimension: how well linear probes read the targets' correctness at each.

Five-fold probe AUC on the train rows, as the paper's grid search has it, at the layer that Fisher J
chooses for each target and at the best layer there is; for every encoder, pooling and dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.activations import POOLINGS, Activations, Pooling
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import plain
from prefill_router.layers import Ablation, ablation, candidate_sites, search, survey
from prefill_router.layers.grid import GRID_DIMS
from prefill_router.layers.sweep import encoder_labels
from prefill_router.progress import Progress, SilentProgress

USUAL = 100
"""The components that a router keeps unless it is told otherwise."""


@final
@dataclass(frozen=True)
class Cell:
    """One encoder, choice of poolings and dimension.

    Attributes:
        encoder: Its label.
        poolings: Those that layers were chosen among.
        dim: Components kept.
        ways: What each way to select a layer comes to there (`layers.ablation`).
    """

    encoder: str
    poolings: tuple[Pooling, ...]
    dim: int
    ways: Ablation

    @property
    def fisher(self) -> float:
        """Mean AUC over the targets, each at the layer of its greatest J."""
        return self.ways["Fisher J"].auc

    @property
    def best(self) -> float:
        """Mean AUC over the targets, each at its best layer; nothing can exceed it."""
        return self.ways["BestLR"].auc

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "encoder": self.encoder,
            "poolings": list(self.poolings),
            "dim": self.dim,
            "fisher": plain(self.fisher),
            "best": plain(self.best),
        }


@final
@dataclass(frozen=True)
class Dimensions:
    """All encoders, poolings and dimensions.

    Attributes:
        cells: By encoder, then poolings, then rising dimension.
        widths: The size of each encoder's states; more components than that there are none.
        targets: The targets.
        queries: Train queries.
        seed: Of the folds.
    """

    cells: tuple[Cell, ...]
    widths: tuple[tuple[str, int], ...]
    targets: tuple[str, ...]
    queries: int
    seed: int

    @property
    def top(self) -> Cell:
        """The cell of the greatest AUC at the Fisher-chosen layers; the smallest of equals."""
        return max(self.cells, key=lambda cell: (cell.fisher, -cell.dim))

    def line(self, encoder: str, poolings: Sequence[Pooling]) -> list[Cell]:
        """The cells of one encoder and choice of poolings, by rising dimension."""
        return [c for c in self.cells if c.encoder == encoder and c.poolings == tuple(poolings)]

    @property
    def lines(self) -> list[tuple[str, tuple[Pooling, ...]]]:
        """Every encoder and choice of poolings."""
        return list(dict.fromkeys((cell.encoder, cell.poolings) for cell in self.cells))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "targets": list(self.targets),
            "queries": self.queries,
            "seed": self.seed,
            "widths": dict(self.widths),
            "top": self.top.to_dict(),
            "cells": [cell.to_dict() for cell in self.cells],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell."""
        rows = []
        for cell in self.cells:
            row = {**cell.to_dict(), "poolings": "+".join(cell.poolings)}
            rows.append({**row, **{f"auc:{s.name}": s.auc for s in cell.ways.selectors}})
        return rows


def dimension_study(
    stores: Sequence[Activations],
    train: RoutingDataset,
    *,
    dims: Sequence[int] = GRID_DIMS,
    poolings: Sequence[Pooling] = POOLINGS,
    all_layers: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dimensions:
    """Probe every encoder, pooling and dimension; only train rows are used.

    Args:
        stores: The states of all train queries, one store per encoder.
        train: The train part.
        dims: Components to keep.
        poolings: Each alone, and together where there are two.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        seed: Of the folds.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no store, pooling or dimension, or no target can be judged.
        DataError: There are fewer distinct prompts than folds.
        StoreError: States are missing.
    """
    rising = sorted(set(dims))
    if not stores or not rising or rising[0] < 1 or not poolings:
        raise ConfigError(
            f"{len(stores)} stores, the dimensions {rising} and the poolings {list(poolings)}; "
            "give at least one of each, dimensions from 1 up"
        )
    shown, labels = progress or SilentProgress(), encoder_labels(stores)
    cells: list[Cell] = []
    for label, store in zip(labels, stores, strict=True):
        sites = candidate_sites(store, poolings=poolings, all_layers=all_layers)
        grid = search(store, train, sites=sites, dims=rising, seed=seed, progress=shown)
        found = {d: survey(store, train, sites=sites, dim=d, progress=shown) for d in rising}
        cells += [
            Cell(label, kind, dim, ablation(found[dim], grid, dim=dim, poolings=kind))
            for kind in _choices([site.pooling for site in sites])
            for dim in rising
        ]
    widths = tuple((n, s.provenance.hidden_size) for n, s in zip(labels, stores, strict=True))
    return Dimensions(tuple(cells), widths, train.pool.names, len(train), seed)


def _choices(held: Sequence[Pooling]) -> list[tuple[Pooling, ...]]:
    """Each pooling alone, and all of them where there are several."""
    kinds = [pooling for pooling in POOLINGS if pooling in held]
    return [(kind,) for kind in kinds] + ([tuple(kinds)] if len(kinds) > 1 else [])
