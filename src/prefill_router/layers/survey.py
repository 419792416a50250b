"""The geometry of every site of an encoder, on the train rows (section 6 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.brief import brief
from prefill_router.data import RoutingDataset
from prefill_router.geometry import (
    ClassSums,
    Directions,
    Moments,
    SiteStates,
    anisotropy,
    effective_dimensionality,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reduction import Reducer

PerSite = Float64[NDArray[np.float64], " site"]


@brief
@final
@dataclass(frozen=True, eq=False)
class Survey:
    """The geometry of sites.

    Attributes:
        targets: The targets' names.
        sites: What was surveyed, sorted.
        dim: Components that J was computed on.
        effective_dimensionality: Of the raw states.
        anisotropy: Of the raw states.
        fisher: J of each target; NaN where a class has fewer than two queries.
    """

    targets: tuple[str, ...]
    sites: tuple[Site, ...]
    dim: int
    effective_dimensionality: PerSite
    anisotropy: PerSite
    fisher: Float64[NDArray[np.float64], "site target"]

    def rows(self) -> list[dict[str, Any]]:
        """One row per site, for a table; what isn't defined is None."""
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
    """Survey sites; each is read once, and one is in memory at a time.

    Args:
        activations: The states of all train queries.
        train: The train part.
        sites: What to survey.
        dim: Components that J is computed on.
        progress: Shows how many sites are done.

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
    """The mean over the targets that have a value; NaN where none has."""
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
