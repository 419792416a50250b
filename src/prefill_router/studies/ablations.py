"""The layer-selection ablation over pools and encoders (the paper's appendix A)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.activations import Activations, Pooling
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import plain
from prefill_router.layers import Ablation, ablation, candidate_sites, search, survey
from prefill_router.layers.sweep import encoder_labels
from prefill_router.progress import Progress, SilentProgress

FISHER, LIMIT = "Fisher J", "BestLR"
_TIED = 5e-5
"""The paper's four digits."""


@final
@dataclass(frozen=True)
class Ablated:
    """One pool read through one encoder.

    Attributes:
        pool: Its name.
        encoder: Its label.
        ways: What each way to select comes to.
    """

    pool: str
    encoder: str
    ways: Ablation

    @property
    def practical(self) -> dict[str, float]:
        """The mean AUC of every way but the limit, which needs all probes."""
        return {s.name: s.auc for s in self.ways.selectors if s.name != LIMIT}

    @property
    def behind(self) -> float:
        """How far Fisher J is below the best practical way; 0 where it is the best."""
        return max(self.practical.values()) - self.ways[FISHER].auc

    @property
    def short(self) -> float:
        """How far Fisher J is below the limit."""
        return self.ways[LIMIT].auc - self.ways[FISHER].auc

    def row(self) -> dict[str, Any]:
        """One row of the paper's table."""
        found = {s.name: s.auc for s in self.ways.selectors}
        return {"pool": self.pool, "encoder": self.encoder, **found}


@final
@dataclass(frozen=True)
class Ablations:
    """All pools and encoders.

    Attributes:
        rows: By pool, then encoder.
        skipped: Pools and encoders whose store lacks states of some queries.
        dim: Components of the probes.
        poolings: Those of the candidate sites.
        seed: Of the folds.
    """

    rows: tuple[Ablated, ...]
    skipped: tuple[tuple[str, str], ...]
    dim: int
    poolings: tuple[Pooling, ...]
    seed: int

    @property
    def best(self) -> int:
        """In how many rows Fisher J is the best practical way, or tied to four digits."""
        return sum(row.behind < _TIED for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "dim": self.dim,
            "poolings": list(self.poolings),
            "seed": self.seed,
            "fisher_best": self.best,
            "rows": [
                {
                    **{name: _plain(value) for name, value in row.row().items()},
                    "targets": list(row.ways.targets),
                    "fisher_behind": row.behind,
                    "fisher_short_of_limit": row.short,
                }
                for row in self.rows
            ],
            "skipped": [list(pair) for pair in self.skipped],
        }


def ablation_study(
    pools: Mapping[str, RoutingDataset],
    stores: Sequence[Activations],
    *,
    dim: int = 100,
    poolings: Sequence[Pooling] = ("last",),
    all_layers: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Ablations:
    """Compare the ways to select a layer for every pool under every encoder.

    Args:
        pools: The train part of each pool's dataset, by name.
        stores: States, one store per encoder; one that lacks queries of a pool is skipped for it.
        dim: Components of the probes.
        poolings: Last-token sites alone, as in the paper, unless asked otherwise.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        seed: Of the folds.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no pool or store, no store holds a pool's queries, or no target can
            be judged.
    """
    shown, labels = progress or SilentProgress(), encoder_labels(stores)
    rows, skipped = list[Ablated](), list[tuple[str, str]]()
    for pool, train in pools.items():
        for label, store in zip(labels, stores, strict=True):
            if store.missing(train.prompt_keys):
                skipped.append((pool, label))
                continue
            sites = candidate_sites(store, poolings=poolings, all_layers=all_layers)
            found = survey(store, train, sites=sites, dim=dim, progress=shown)
            grid = search(store, train, sites=sites, dims=(dim,), seed=seed, progress=shown)
            rows.append(Ablated(pool, label, ablation(found, grid, dim=dim, poolings=poolings)))
    if not rows:
        raise ConfigError(
            f"none of {len(stores)} stores holds the states of all train queries of a pool of "
            f"{list(pools)}; encode them, or name other stores"
        )
    return Ablations(tuple(rows), tuple(skipped), dim, tuple(poolings), seed)


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, float) else value
