"""Which layer and pooling (and how many components), per target or for the pool."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset, binary
from prefill_router.errors import ConfigError
from prefill_router.layers.candidates import candidate_sites
from prefill_router.layers.choice import LEAST, Choice, Method, Pinned, Scope, Selection, choose
from prefill_router.layers.grid import GRID_DIMS, search
from prefill_router.layers.survey import survey
from prefill_router.progress import Progress


def select(
    activations: Activations,
    train: RoutingDataset,
    *,
    method: Method = "fisher",
    scope: Scope = "target",
    dim: int = 100,
    sites: Sequence[Site] | None = None,
    dims: Sequence[int] = GRID_DIMS,
    pinned: Pinned | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Selection:
    """Select within one encoder, on the train rows alone.

    Among equally good sites the lowest layer wins, since it is the cheapest to reach.

    Args:
        activations: The states of all train queries.
        train: The train part.
        method: `fisher` takes the site of greatest J; `grid` the site and dimension of greatest
            five-fold probe AUC; `pinned` the given ones.
        scope: Whether each target has a site of its own, or the pool has one for all, by the mean
            of the criterion over targets.
        dim: Components, for `fisher` and `pinned`.
        sites: The candidates; `candidate_sites` of what is held unless given.
        dims: The candidate dimensions, for `grid`.
        pinned: The site, or that of each target by its name, for `pinned`.
        seed: Of the folds, for `grid`.
        progress: Shows how far it is.

    Raises:
        ConfigError: `pinned` is missing, given to another method, or doesn't name every target.
        FitError: No target can be judged.
        StoreError: States are missing.
    """
    if (method == "pinned") != (pinned is not None):
        raise ConfigError(
            f"the method is {method!r} and the pinned site {pinned}; give a site to pin with the "
            "method 'pinned', and only with it"
        )
    if pinned is not None:
        return _pin(activations, train, scope, pinned, dim)
    wanted = candidate_sites(activations) if sites is None else sites
    if method == "fisher":
        found = survey(activations, train, sites=wanted, dim=dim, progress=progress)
        candidates = tuple(Choice(site, dim) for site in found.sites)
        scores = found.fisher
    else:
        grid = search(activations, train, sites=wanted, dims=dims, seed=seed, progress=progress)
        candidates = tuple(Choice(site, kept) for site in grid.sites for kept in grid.dims)
        scores = grid.auc.reshape(len(candidates), -1)
    return choose(
        candidates,
        scores,
        judged=enough_labels(train),
        method=method,
        scope=scope,
        targets=train.pool.names,
    )


def _pin(
    activations: Activations, train: RoutingDataset, scope: Scope, pinned: Pinned, dim: int
) -> Selection:
    names = train.pool.names
    site_of = dict.fromkeys(names, pinned) if isinstance(pinned, Site) else dict(pinned)
    if set(site_of) != set(names):
        raise ConfigError(
            f"sites are pinned for {sorted(site_of)}; the targets are {sorted(names)}: pin one "
            "site for each of them, or one for all"
        )
    for site in set(site_of.values()):
        activations.require(site, train.prompt_keys)
    choices = tuple(Choice(site_of[name], dim) for name in names)
    return Selection("pinned", scope, names, choices, choices[0])


def enough_labels(train: RoutingDataset) -> NDArray[np.bool_]:
    """Which targets have at least `LEAST` labels of either class."""
    labels = binary(train.correct)
    fewest: NDArray[np.int64] = np.minimum((labels == 0).sum(axis=0), (labels == 1).sum(axis=0))
    enough: NDArray[np.bool_] = fewest >= LEAST
    return enough
