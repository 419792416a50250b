"""Which encoder each target's features come from: `single`, `per_model`, `auto` (section 3.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Pooling
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError
from prefill_router.layers import (
    Method,
    Pinned,
    Scope,
    Selection,
    SiteChoice,
    auc_of_selection,
    candidate_sites,
    enough_labels,
    select,
)
from prefill_router.progress import Progress

Mode = Literal["single", "per_model", "auto"]


@final
@dataclass(frozen=True, eq=False)
class Assignment:
    """The store and the site of each target.

    Attributes:
        stores: One store per target.
        choices: One choice of a site per target.
        report: How they were chosen, as plain values.
    """

    stores: tuple[Activations, ...]
    choices: tuple[SiteChoice, ...]
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
    pinned: Pinned | None,
    assignments: Mapping[str, Activations] | None,
    seed: int,
    progress: Progress | None,
) -> Assignment:
    """Select sites within each store, then stores; the arguments are `FeatureExtractor.fit`'s."""
    _check_stores(stores)
    _check_assignments(mode, assignments, train.pool.names, stores)
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
            seed=seed,
            progress=progress,
        )
        for store in stores
    ]
    if assignments is not None:
        provenances = [store.provenance for store in stores]
        of = [provenances.index(assignments[name].provenance) for name in train.pool.names]
        return _gather(mode, stores, selections, of, None)
    if len(stores) == 1:
        return _gather(mode, stores, selections, [0] * len(train.pool), None)
    auc = np.stack(
        [
            auc_of_selection(store, train, selection, seed=seed)
            for store, selection in zip(stores, selections, strict=True)
        ]
    )
    return _gather(mode, stores, selections, _best_encoders(auc, train, mode), auc)


def _best_encoders(
    auc: Float64[NDArray[np.float64], "encoder target"], train: RoutingDataset, mode: Mode
) -> list[int]:
    """The encoder of each target: the best for the pool, or for each target with enough labels."""
    usable = ~np.isnan(auc).any(axis=0)
    if not usable.any():
        raise FitError(
            "no target has enough right and wrong answers to compare encoders; add labelled "
            "queries, or give one store"
        )
    pool = int(auc[:, usable].mean(axis=1).argmax())
    alone = usable & enough_labels(train) & (mode == "auto")
    return [int(auc[:, k].argmax()) if alone[k] else pool for k in range(auc.shape[1])]


def _check_stores(stores: Sequence[Activations]) -> None:
    if not stores:
        raise ConfigError("no store is given; features need the states of at least one encoder")
    distinct = {store.provenance for store in stores}
    if len(distinct) < len(stores):
        names = ", ".join(store.name for store in stores)
        raise ConfigError(f"two stores have the same encoder and settings: {names}; give one")


def _check_assignments(
    mode: Mode,
    assignments: Mapping[str, Activations] | None,
    targets: Sequence[str],
    stores: Sequence[Activations],
) -> None:
    if (mode == "per_model") != (assignments is not None):
        what = "missing" if assignments is None else "given"
        raise ConfigError(
            f"the mode is {mode!r} and assignments are {what}; per_model needs them, and only it"
        )
    if assignments is None:
        return
    if set(assignments) != set(targets):
        raise ConfigError(
            f"assignments name {sorted(assignments)}; they must name every target of the pool, "
            f"{sorted(targets)}, and no other"
        )
    given = {store.provenance for store in stores}
    for name, store in assignments.items():
        if store.provenance not in given:
            raise ConfigError(f"{name!r} is assigned {store.name}, which isn't among the stores")


def _gather(
    mode: Mode,
    stores: Sequence[Activations],
    selections: Sequence[Selection],
    of: Sequence[int],
    auc: Float64[NDArray[np.float64], "encoder target"] | None,
) -> Assignment:
    targets = selections[0].targets
    encoders = [
        {"encoder": store.provenance.encoder, **selection.to_dict()}
        for store, selection in zip(stores, selections, strict=True)
    ]
    report: dict[str, Any] = {
        "mode": mode,
        "encoders": encoders,
        "encoder_of": dict(zip(targets, of, strict=True)),
    }
    if auc is not None:
        report["auc"] = [
            {name: None if np.isnan(v) else v for name, v in zip(targets, row, strict=True)}
            for row in auc.tolist()
        ]
    return Assignment(
        tuple(stores[i] for i in of),
        tuple(selections[i].choices[k] for k, i in enumerate(of)),
        report,
    )
