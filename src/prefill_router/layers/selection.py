"""Selection of the layer, pooling and number of components, per target or for the pool.

The candidates are the sites of a store, and the best by a criterion is chosen. A selection has a
site and a dimension for every target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import DEFAULT_POOLINGS, Activations, Pooling, Site
from prefill_router.data import RoutingDataset, binary
from prefill_router.encoders import candidate_layers
from prefill_router.errors import ConfigError, FitError
from prefill_router.layers.criteria import GRID_DIMS, search, survey
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr


def candidate_sites(
    activations: Activations,
    *,
    poolings: Sequence[Pooling] = DEFAULT_POOLINGS,
    all_layers: bool = False,
) -> tuple[Site, ...]:
    """The available sites with these poolings, by default from layer ceil(L/2) to L (section 3.1).

    Args:
        activations: The states.
        poolings: Any of `last`, `mean` and `rest`.
        all_layers: Whether layers below ceil(L/2) are candidates too.

    Raises:
        ConfigError: No available site is a candidate.
    """
    upper = candidate_layers(activations.provenance.num_layers)
    sites = tuple(
        site
        for site in sorted(activations.sites)
        if site.pooling in poolings and (all_layers or site.layer in upper)
    )
    if not sites:
        held = ", ".join(site.name for site in activations.sites)
        wanted = "any layer" if all_layers else f"layers {upper[0]} to {upper[-1]}"
        raise ConfigError(
            f"{activations.name} holds {held or 'no site'}, which has none of {wanted} with the "
            f"poolings {list(poolings)}; encode those, choose other poolings, or allow all layers"
        )
    return sites


Method = Literal["fisher", "grid", "pinned"]
Scope = Literal["target", "pool"]
Pinned = Site | Mapping[str, Site]
"""One site for all targets, or a site for each target by name."""
LEAST = 10
"""The fewest labels of either class with which a target has its own choice."""


@final
@dataclass(frozen=True)
class SiteChoice:
    """The site of one target's features.

    Attributes:
        site: The layer and pooling.
        dim: The number of components to keep.
        score: The criterion's value there; None where the site was pinned, or it is undefined.
        note: Why it isn't the target's own choice; empty where it is.
    """

    site: Site
    dim: int
    score: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "site": self.site.name,
            "dim": self.dim,
            "score": None if self.score is None or np.isinf(self.score) else self.score,
            "note": self.note,
        }


@short_repr
@final
@dataclass(frozen=True)
class Selection:
    """The choices of a pool's targets within one encoder.

    Attributes:
        method: `fisher`: greatest J; `grid`: greatest five-fold probe AUC; `pinned`: given.
        scope: Whether each `target` has its own choice, or the `pool` one for all.
        targets: The targets' names.
        choices: One choice per target.
        pool: The choice for the pool as a whole, by the mean over targets.
    """

    method: Method
    scope: Scope
    targets: tuple[str, ...]
    choices: tuple[SiteChoice, ...]
    pool: SiteChoice

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        choices = zip(self.targets, self.choices, strict=True)
        return {
            "method": self.method,
            "scope": self.scope,
            "pool": self.pool.to_dict(),
            "targets": {name: choice.to_dict() for name, choice in choices},
        }


def choose(
    candidates: tuple[SiteChoice, ...],
    scores: Float64[NDArray[np.float64], "candidate target"],
    *,
    judged: NDArray[np.bool_],
    method: Method,
    scope: Scope,
    targets: tuple[str, ...],
) -> Selection:
    """Choose the best candidate for each target or for the pool.

    The first of equal candidates wins, so order them by preference.

    Args:
        candidates: The candidate sites and dimensions.
        scores: The criterion, NaN where it is undefined.
        judged: Which targets have enough labels for their own choice.
        method: The criterion's name.
        scope: Whether to choose for each target or for the pool.
        targets: The targets' names.

    Raises:
        FitError: No target has enough labels.
    """
    usable = scores[:, judged] if judged.any() else scores
    usable = usable[:, ~np.isnan(usable).any(axis=0)]
    if not usable.shape[1]:
        raise FitError(
            "no target has enough right and wrong answers to select a layer; add labelled "
            "queries, or pin the site"
        )
    pool = _best(candidates, usable.mean(axis=1))
    note = "the pool's choice" if scope == "pool" else "too few labels: the pool's choice"
    shared = SiteChoice(pool.site, pool.dim, pool.score, note)
    alone = judged & ~np.isnan(scores).any(axis=0) & (scope == "target")
    choices = tuple(
        _best(candidates, scores[:, k]) if alone[k] else shared for k in range(len(targets))
    )
    return Selection(method, scope, targets, choices, pool)


def _best(candidates: tuple[SiteChoice, ...], scores: NDArray[np.float64]) -> SiteChoice:
    best = int(np.argmax(scores))
    return SiteChoice(candidates[best].site, candidates[best].dim, float(scores[best]))


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
    """Select sites within one encoder, on the train rows alone.

    The lowest of equally good layers wins, since it is the cheapest to compute.

    Args:
        activations: The states of all train queries.
        train: The train rows.
        method: `fisher` takes the site with the greatest J; `grid` the site and dimension with the
            greatest five-fold probe AUC; `pinned` the given ones.
        scope: Whether each target has its own site, or the pool has one for all, by the mean of the
            criterion over targets.
        dim: The number of components, for `fisher` and `pinned`.
        sites: The candidates; by default `candidate_sites` of the states.
        dims: The candidate dimensions, for `grid`.
        pinned: The site, or the site of each target by name, for `pinned`.
        seed: The seed of the folds, for `grid`.
        progress: Shows the progress.

    Raises:
        ConfigError: `pinned` is missing, given to another method, or doesn't name every target.
        FitError: No target has enough labels.
        StoreError: States are missing.
    """
    if (method == "pinned") != (pinned is not None):
        raise ConfigError(
            f"the method is {method!r} and the pinned site {pinned}; give a pinned site with the "
            "method 'pinned', and only with it"
        )
    if pinned is not None:
        return _pin(activations, train, scope, pinned, dim)
    wanted = candidate_sites(activations) if sites is None else sites
    if method == "fisher":
        found = survey(activations, train, sites=wanted, dim=dim, progress=progress)
        candidates = tuple(SiteChoice(site, dim) for site in found.sites)
        scores = found.fisher
    else:
        grid = search(activations, train, sites=wanted, dims=dims, seed=seed, progress=progress)
        candidates = tuple(SiteChoice(site, kept) for site in grid.sites for kept in grid.dims)
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
    choices = tuple(SiteChoice(site_of[name], dim) for name in names)
    return Selection("pinned", scope, names, choices, choices[0])


def enough_labels(train: RoutingDataset) -> NDArray[np.bool_]:
    """Which targets have at least `LEAST` labels of either class."""
    labels = binary(train.correct)
    fewest: NDArray[np.int64] = np.minimum((labels == 0).sum(axis=0), (labels == 1).sum(axis=0))
    enough: NDArray[np.bool_] = fewest >= LEAST
    return enough
