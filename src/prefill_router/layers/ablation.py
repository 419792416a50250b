"""The layer-selection ablation of the paper (appendix A): is J's layer the one that probes like?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Pooling, Site
from prefill_router.brief import brief
from prefill_router.errors import ConfigError
from prefill_router.layers.grid import Grid
from prefill_router.layers.survey import Survey

Scores = Float64[NDArray[np.float64], "site target"]


@brief
@final
@dataclass(frozen=True)
class Selector:
    """What one way to select comes to.

    Attributes:
        name: As in the paper's table.
        auc: Mean five-fold probe AUC over the targets.
        sites: The site of each target; None where it is a draw.
    """

    name: str
    auc: float
    sites: tuple[Site, ...] | None


@brief
@final
@dataclass(frozen=True)
class Ablation:
    """The ways to select, from the least informed to the oracle.

    Attributes:
        poolings: Those of the candidates.
        dim: Components of the probes.
        targets: The targets that have both classes in some fold, which the means are over.
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
    """Compare ways to select a site, by the probe AUC where they select.

    `Random` is the expectation over the candidates, `Last` the deepest layer (the mean of its
    poolings), `d_eff` the site of most effective dimensions, `alpha` the least anisotropic, one for
    all targets; `Fisher J` is each target's site of greatest J, `BestLR` each target's site of
    greatest AUC, which nothing can exceed.

    Args:
        survey: The geometry of the candidates.
        grid: Their probe AUC, at `dim` among others.
        dim: Components of the probes.
        poolings: Last-token candidates alone, as in the paper, unless asked otherwise.

    Raises:
        ConfigError: No candidate has these poolings, or no target can be judged.
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
