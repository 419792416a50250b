"""Which layer and pooling (and how many components), per target or for the pool."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset, binary
from prefill_router.errors import ConfigError
from prefill_router.layers.candidates import candidate_sites
from prefill_router.layers.choice import LEAST, Choice, Method, Scope, Selection, choose
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
    pinned: Site | None = None,
    progress: Progress | None = None,
) -> Selection:
    """Select within one encoder, on the train rows alone.

    Among equally good sites the lowest layer wins, since it is the cheapest to reach.

    Args:
        activations: The states of all train queries.
        train: The train part.
        method: `fisher` takes the site of greatest J; `pinned` the given one.
        scope: Whether each target has a site of its own, or the pool has one for all, by the mean
            of the criterion over targets.
        dim: Components, for `fisher` and `pinned`.
        sites: The candidates; `candidate_sites` of what is held unless given.
        pinned: The site, for `pinned`.
        progress: Shows how far it is.

    Raises:
        ConfigError: `pinned` is missing, or given to another method.
        FitError: No target can be judged.
        StoreError: States are missing.
    """
    if (method == "pinned") != (pinned is not None):
        raise ConfigError(
            f"the method is {method!r} and the pinned site {pinned}; give a site to pin with the "
            "method 'pinned', and only with it"
        )
    if pinned is not None:
        activations.require(pinned, train.prompt_keys)
        choice = Choice(pinned, dim)
        names = train.pool.names
        return Selection(method, scope, names, (choice,) * len(names), choice)
    found = survey(
        activations,
        train,
        sites=candidate_sites(activations) if sites is None else sites,
        dim=dim,
        progress=progress,
    )
    return choose(
        tuple(Choice(site, dim) for site in found.sites),
        found.fisher,
        judged=enough_labels(train),
        method=method,
        scope=scope,
        targets=train.pool.names,
    )


def enough_labels(train: RoutingDataset) -> NDArray[np.bool_]:
    """Which targets have at least `LEAST` labels of either class."""
    labels = binary(train.correct)
    fewest: NDArray[np.int64] = np.minimum((labels == 0).sum(axis=0), (labels == 1).sum(axis=0))
    enough: NDArray[np.bool_] = fewest >= LEAST
    return enough
