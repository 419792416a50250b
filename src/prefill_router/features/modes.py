"""Which encoder each target's features come from: `single`, `per_model`, `auto` (section 3.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.activations import Activations, Pooling, Site
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.layers import Choice, Method, Scope, Selection, candidate_sites, select
from prefill_router.progress import Progress

Mode = Literal["single", "per_model", "auto"]


@final
@dataclass(frozen=True, eq=False)
class Assignment:
    """The store and the choice of each target.

    Attributes:
        stores: One per target.
        choices: One per target.
        report: How it came about, as plain values.
    """

    stores: tuple[Activations, ...]
    choices: tuple[Choice, ...]
    report: Mapping[str, Any]


def assign(
    stores: Sequence[Activations],
    train: RoutingDataset,
    *,
    mode: Mode,
    method: Method,
    scope: Scope,
    dim: int,
    poolings: Sequence[Pooling],
    all_layers: bool,
    pinned: Site | None,
    assignments: Mapping[str, Activations] | None,
    seed: int,
    progress: Progress | None,
) -> Assignment:
    """Select within each store, then between them; the arguments are `FeatureExtractor.fit`'s."""
    del seed, assignments
    _check_stores(stores)
    if mode != "single" or len(stores) > 1:
        raise ConfigError("only one encoder for all targets yet")
    selections = [
        select(
            store,
            train,
            method=method,
            scope=scope,
            dim=dim,
            sites=None
            if method == "pinned"
            else candidate_sites(store, poolings=poolings, all_layers=all_layers),
            pinned=pinned,
            progress=progress,
        )
        for store in stores
    ]
    return _gather(mode, stores, selections, [0] * len(train.pool))


def _check_stores(stores: Sequence[Activations]) -> None:
    if not stores:
        raise ConfigError("no store is given; features need the states of at least one encoder")
    distinct = {store.provenance for store in stores}
    if len(distinct) < len(stores):
        names = ", ".join(store.name for store in stores)
        raise ConfigError(f"two stores are of one encoder, made in one way: {names}; give one")


def _gather(
    mode: Mode, stores: Sequence[Activations], selections: Sequence[Selection], of: Sequence[int]
) -> Assignment:
    encoders = [store.provenance.encoder for store in stores]
    report = {
        "mode": mode,
        "encoders": [
            {"encoder": name, **selection.to_dict()}
            for name, selection in zip(encoders, selections, strict=True)
        ],
        "encoder_of": dict(zip(selections[0].targets, of, strict=True)),
    }
    return Assignment(
        tuple(stores[i] for i in of),
        tuple(selections[i].choices[k] for k, i in enumerate(of)),
        report,
    )
