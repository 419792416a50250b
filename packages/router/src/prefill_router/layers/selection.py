"""Selection of the layer, pooling and number of components, by criteria of each site.

The candidates are the sites of a store, and the best by a criterion is chosen. A selection has a
site and a dimension for every target.

The criteria are the geometry of the sites and their probe AUC: `survey` measures the geometry of
every site of an encoder on the train rows (section 6 of the paper). `search` measures the
cross-validated probe AUC of sites and dimensions (the paper's grid search, section 3.1). `ablation`
says how good the layers that each criterion selects are for probes (the layer-selection ablation,
appendix A).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import DEFAULT_POOLINGS, Activations, Pooling, Site
from prefill_router.data import RoutingDataset, binary, stratified_folds
from prefill_router.encoders import candidate_layers
from prefill_router.errors import ConfigError, FitError
from prefill_router.geometry import (
    ClassSums,
    Directions,
    Moments,
    SiteStates,
    anisotropy,
    effective_dimensionality,
)
from prefill_router.layers.grid_dims import GRID_DIMS
from prefill_router.probes import FOLDS, cross_validated_auc
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reduction import Reducer
from prefill_router.short_repr import short_repr

PerSite = Float64[NDArray[np.float64], " site"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Survey:
    """The geometry of sites.

    Attributes:
        targets: The targets' names.
        sites: The surveyed sites, sorted.
        dim: The number of components that J was computed on.
        effective_dimensionality: Effective dimensionality of the raw states at each site.
        anisotropy: Anisotropy of the raw states at each site.
        fisher: J of each target; NaN where a class has fewer than two queries.
    """

    targets: tuple[str, ...]
    sites: tuple[Site, ...]
    dim: int
    effective_dimensionality: PerSite
    anisotropy: PerSite
    fisher: Float64[NDArray[np.float64], "site target"]

    def rows(self) -> list[dict[str, Any]]:
        """One row per site, for a table; undefined values are None."""
        return [
            {
                "layer": site.layer,
                "pooling": site.pooling,
                "effective_dimensionality": plain(self.effective_dimensionality[i]),
                "anisotropy": plain(self.anisotropy[i]),
                "fisher_mean": plain(mean_over_targets(self.fisher)[i]),
                **{f"fisher:{t}": plain(self.fisher[i, k]) for k, t in enumerate(self.targets)},
            }
            for i, site in enumerate(self.sites)
        ]


def survey(
    activations: Activations,
    train: RoutingDataset,
    *,
    sites: Sequence[Site],
    dim: int = 100,
    progress: Progress | None = None,
) -> Survey:
    """Survey sites; each is read once, and only one is in memory at a time.

    Args:
        activations: The states of all train queries.
        train: The train rows.
        sites: The sites to survey.
        dim: The number of components that J is computed on.
        progress: Shows the number of sites done.

    Raises:
        StoreError: States are missing or not finite.
        FitError: There are fewer than two rows, or the states of a site are all the same.
    """
    ordered = tuple(sorted(set(sites)))
    rows = []
    with (progress or SilentProgress()).task("geometry", total=len(ordered)) as advance:
        for site in ordered:
            rows.append(_survey_site(SiteStates(activations, site, train.prompt_keys), train, dim))
            advance()
    spread, narrow, fisher = zip(*rows, strict=True)
    return Survey(
        train.pool.names, ordered, dim, np.array(spread), np.array(narrow), np.stack(fisher)
    )


def fit_reducer(
    activations: Activations, train: RoutingDataset, *, site: Site, dim: int
) -> Reducer:
    """The scaler and PCA of one site, fitted on the train rows."""
    hidden = activations.provenance.hidden_size
    chunks = SiteStates(activations, site, train.prompt_keys)
    return Reducer.fit(Moments.total((Moments.of(x) for _, x in chunks), hidden=hidden), dim)


def mean_over_targets(
    values: Float64[NDArray[np.float64], "site target"],
) -> PerSite:
    """The mean over the targets with a value; NaN where there are none."""
    is_finite = np.isfinite(values)
    count = is_finite.sum(axis=1)
    total = np.where(is_finite, values, 0).sum(axis=1)
    mean: PerSite = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def _survey_site(
    chunks: SiteStates, train: RoutingDataset, dim: int
) -> tuple[float, float, NDArray[np.float64]]:
    parts = [(Moments.of(states), Directions.of(states)) for _, states in chunks]
    moments, directions = (reduce(add, part) for part in zip(*parts, strict=True))
    reducer = Reducer.fit(moments, dim)
    sums = [ClassSums.of(reducer.transform(states), train.correct[rows]) for rows, states in chunks]
    return (
        effective_dimensionality(moments),
        anisotropy(directions),
        reduce(add, sums).fisher(),
    )


def plain(value: float) -> float | None:
    """The number, or None where it isn't finite: JSON has no NaN."""
    return float(value) if np.isfinite(value) else None


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Mean five-fold AUC of L2 logistic probes.

    Attributes:
        targets: The targets' names.
        sites: The probed sites, sorted.
        dims: The numbers of components, increasing.
        auc: The AUC; NaN for a target without a fold that has both classes.
    """

    targets: tuple[str, ...]
    sites: tuple[Site, ...]
    dims: tuple[int, ...]
    auc: Float64[NDArray[np.float64], "site dim target"]

    def at(self, site: Site, dim: int) -> Float64[NDArray[np.float64], " target"]:
        """The AUC of each target at one site and dimension."""
        auc: Float64[NDArray[np.float64], " target"] = self.auc[
            self.sites.index(site), self.dims.index(dim)
        ]
        return auc


def search(
    activations: Activations,
    train: RoutingDataset,
    *,
    sites: Sequence[Site],
    dims: Sequence[int] = GRID_DIMS,
    c: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Grid:
    """Probe every site with every dimension; each site is read once.

    Args:
        activations: The states of all train queries.
        train: The train rows.
        sites: The sites to probe.
        dims: The numbers of components to keep, limited to those that the states have.
        c: The inverse of the probes' regularisation.
        seed: The seed of the folds.
        progress: Shows the number of sites done.

    Raises:
        ConfigError: There are no sites or dimensions, or a dimension is below 1.
        DataError: There are fewer distinct prompts than folds.
        StoreError: States are missing.
    """
    ordered, rising = tuple(sorted(set(sites))), tuple(sorted(set(dims)))
    if not ordered or not rising or rising[0] < 1:
        raise ConfigError(
            f"sites are {ordered} and dims are {rising}; give at least one of "
            "each, and dims of 1 or more"
        )
    folds = stratified_folds(train, count=FOLDS, seed=seed)
    tables = []
    with (progress or SilentProgress()).task("probes", total=len(ordered)) as advance:
        for site in ordered:
            tables.append(
                cross_validated_auc(activations, train, site=site, dims=rising, folds=folds, c=c)
            )
            advance()
    return Grid(train.pool.names, ordered, rising, np.stack(tables))


SiteScores = Float64[NDArray[np.float64], "site target"]


@short_repr
@final
@dataclass(frozen=True)
class Selector:
    """The result of one selection criterion.

    Attributes:
        name: The name in the paper's table.
        auc: Mean five-fold probe AUC over the targets.
        sites: The site of each target; None for a random choice.
    """

    name: str
    auc: float
    sites: tuple[Site, ...] | None


@short_repr
@final
@dataclass(frozen=True)
class Ablation:
    """The selection criteria, from the least informed to the oracle.

    Attributes:
        poolings: The poolings of the candidates.
        dim: The number of components of the probes.
        targets: The targets with both classes in some fold, over which the means are.
        selectors: Random, Last, d_eff, alpha, Fisher J, BestLR.
    """

    poolings: tuple[Pooling, ...]
    dim: int
    targets: tuple[str, ...]
    selectors: tuple[Selector, ...]

    def __getitem__(self, name: str) -> Selector:
        return next(s for s in self.selectors if s.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "poolings": list(self.poolings),
            "dim": self.dim,
            "targets": list(self.targets),
            "auc": {s.name: s.auc for s in self.selectors},
            "sites": {
                s.name: dict(zip(self.targets, (site.name for site in s.sites), strict=True))
                for s in self.selectors
                if s.sites is not None
            },
        }


def ablation(
    survey: Survey, grid: Grid, *, dim: int = 100, poolings: Sequence[Pooling] = ("last",)
) -> Ablation:
    """Compare selection criteria by the probe AUC of the sites that they select.

    `Random` is the mean over the candidates, and `Last` the deepest layer (the mean of its
    poolings). `d_eff` is the site with the most effective dimensions and `alpha` the least
    anisotropic, one for all targets. `Fisher J` is each target's site with the greatest J, and
    `BestLR` each target's site with the greatest AUC, the upper bound.

    Args:
        survey: The geometry of the candidates.
        grid: Their probe AUC, with `dim` among its dimensions.
        dim: The number of components of the probes.
        poolings: The poolings of the candidates; by default the last token only, as in the paper.

    Raises:
        ConfigError: No candidate has these poolings, or no target has enough labels.
    """
    rows = [i for i, site in enumerate(survey.sites) if site.pooling in poolings]
    sites = tuple(survey.sites[i] for i in rows)
    if not sites:
        raise ConfigError(f"no surveyed site has the poolings {list(poolings)}")
    auc = np.stack([grid.at(site, dim) for site in sites])
    undefined = np.isnan(auc) | np.isnan(survey.fisher[rows])
    judged = np.flatnonzero(~undefined.any(axis=0))
    if not len(judged):
        raise ConfigError("no target has both classes in any fold; add labelled queries")
    auc, fisher = auc[:, judged], survey.fisher[rows][:, judged]
    deepest = max(site.layer for site in sites)
    last = [i for i, site in enumerate(sites) if site.layer == deepest]
    names = tuple(survey.targets[k] for k in judged.tolist())
    spread = np.full_like(auc, survey.effective_dimensionality[rows, None])
    narrow = np.full_like(auc, survey.anisotropy[rows, None])
    selectors = (
        Selector("Random", float(auc.mean()), None),
        Selector("Last", float(auc[last].mean()), None),
        _select_greatest("d_eff", spread, auc, sites),
        _select_greatest("alpha", -narrow, auc, sites),
        _select_greatest("Fisher J", fisher, auc, sites),
        _select_greatest("BestLR", auc, auc, sites),
    )
    return Ablation(tuple(poolings), dim, names, selectors)


def _select_greatest(
    name: str, criterion: SiteScores, auc: SiteScores, sites: tuple[Site, ...]
) -> Selector:
    best = criterion.argmax(axis=0)
    reached = float(auc[best, np.arange(auc.shape[1])].mean())
    return Selector(name, reached, tuple(sites[i] for i in best))


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
        stored = ", ".join(site.name for site in activations.sites)
        wanted = "any layer" if all_layers else f"layers {upper[0]} to {upper[-1]}"
        raise ConfigError(
            f"{activations.name} holds {stored or 'no site'}; it needs a site of {wanted} with "
            f"the poolings {list(poolings)}; encode these, choose other poolings, or allow all "
            "layers"
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
    pool = _choose_best(candidates, usable.mean(axis=1))
    note = "the pool's choice" if scope == "pool" else "too few labels: the pool's choice"
    shared = SiteChoice(pool.site, pool.dim, pool.score, note)
    alone = judged & ~np.isnan(scores).any(axis=0) & (scope == "target")
    choices = tuple(
        _choose_best(candidates, scores[:, k]) if alone[k] else shared for k in range(len(targets))
    )
    return Selection(method, scope, targets, choices, pool)


def _choose_best(candidates: tuple[SiteChoice, ...], scores: NDArray[np.float64]) -> SiteChoice:
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
            f"the method is {method!r} and the pinned site is {pinned}; give a pinned site "
            "with the method 'pinned', and leave it out with other methods"
        )
    if pinned is not None:
        return _pin_sites(activations, train, scope, pinned, dim)
    wanted = candidate_sites(activations) if sites is None else sites
    if method == "fisher":
        found = survey(activations, train, sites=wanted, dim=dim, progress=progress)
        candidates = tuple(SiteChoice(site, dim) for site in found.sites)
        scores = found.fisher
    else:
        grid = search(activations, train, sites=wanted, dims=dims, seed=seed, progress=progress)
        candidates = tuple(SiteChoice(site, dim) for site in grid.sites for dim in grid.dims)
        scores = grid.auc.reshape(len(candidates), -1)
    return choose(
        candidates,
        scores,
        judged=enough_labels(train),
        method=method,
        scope=scope,
        targets=train.pool.names,
    )


def _pin_sites(
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


def auc_of_selection(
    store: Activations, train: RoutingDataset, selection: Selection, *, seed: int = 0
) -> Float64[NDArray[np.float64], " target"]:
    """The five-fold probe AUC of each target at its selected site.

    J depends on each encoder's own scale, so it ranks the sites of one encoder but not encoders.
    The AUC of the same probe on the same folds ranks both.
    """
    folds = stratified_folds(train, count=FOLDS, seed=seed)
    result = np.empty(len(selection.targets))
    for (site, dim), mine in columns_by_site(selection).items():
        part = train.select(targets=[selection.targets[k] for k in mine])
        result[mine] = cross_validated_auc(store, part, site=site, dims=(dim,), folds=folds)[0]
    return result


def columns_by_site(selection: Selection) -> dict[tuple[Site, int], list[int]]:
    """The columns of the targets that are read at each site and dimension."""
    columns: dict[tuple[Site, int], list[int]] = {}
    for k, choice in enumerate(selection.choices):
        columns.setdefault((choice.site, choice.dim), []).append(k)
    return columns
