"""Criteria of sites: their geometry and probe AUC, and how well they agree.

`survey` measures the geometry of every site of an encoder on the train rows (section 6 of the
paper), `search` the cross-validated probe AUC of sites and dimensions (the paper's grid search,
section 3.1), and `ablation` how good the layers that each criterion selects are for probes (the
layer-selection ablation, appendix A).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Pooling, Site
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import ConfigError
from prefill_router.geometry import (
    ClassSums,
    Directions,
    Moments,
    SiteStates,
    anisotropy,
    effective_dimensionality,
)
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
                "effective_dimensionality": _known(self.effective_dimensionality[i]),
                "anisotropy": _known(self.anisotropy[i]),
                "fisher_mean": _known(mean_over_targets(self.fisher)[i]),
                **{f"fisher:{t}": _known(self.fisher[i, k]) for k, t in enumerate(self.targets)},
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
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0).sum(axis=1)
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


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


GRID_DIMS = (50, 100, 150, 200, 300)


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
        raise ConfigError(f"sites are {ordered} and dims {rising}; give at least one, 1 or more")
    folds = stratified_folds(train, count=FOLDS, seed=seed)
    tables = []
    with (progress or SilentProgress()).task("probes", total=len(ordered)) as advance:
        for site in ordered:
            tables.append(
                cross_validated_auc(activations, train, site=site, dims=rising, folds=folds, c=c)
            )
            advance()
    return Grid(train.pool.names, ordered, rising, np.stack(tables))


Scores = Float64[NDArray[np.float64], "site target"]


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
        _greatest("d_eff", spread, auc, sites),
        _greatest("alpha", -narrow, auc, sites),
        _greatest("Fisher J", fisher, auc, sites),
        _greatest("BestLR", auc, auc, sites),
    )
    return Ablation(tuple(poolings), dim, names, selectors)


def _greatest(name: str, criterion: Scores, auc: Scores, sites: tuple[Site, ...]) -> Selector:
    best = criterion.argmax(axis=0)
    reached = float(auc[best, np.arange(auc.shape[1])].mean())
    return Selector(name, reached, tuple(sites[i] for i in best))
