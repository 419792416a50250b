"""Cross-validated probe AUC of sites and dimensions: the paper's grid search (section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.brief import brief
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import ConfigError
from prefill_router.probes import FOLDS, cross_validated_auc
from prefill_router.progress import Progress, SilentProgress

GRID_DIMS = (50, 100, 150, 200, 300)


@brief
@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Mean five-fold AUC of L2 logistic probes.

    Attributes:
        targets: The targets' names.
        sites: What was probed, sorted.
        dims: Components kept, rising.
        auc: NaN for a target that has no fold with both classes.
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
        train: The train part.
        sites: What to probe.
        dims: Components to keep; more than the states have are as many as they have.
        c: The inverse of the probes' regularisation.
        seed: Of the folds.
        progress: Shows how many sites are done.

    Raises:
        ConfigError: There are no sites or dimensions, or a dimension is below 1.
        DataError: There are fewer distinct prompts than folds.
        StoreError: States are missing.
    """
    ordered, rising = tuple(sorted(set(sites))), tuple(sorted(set(dims)))
    if not ordered or not rising or rising[0] < 1:
        raise ConfigError(f"sites are {ordered} and dims {rising}; give at least one, from 1 up")
    folds = stratified_folds(train, count=FOLDS, seed=seed)
    tables = []
    with (progress or SilentProgress()).task("probes", total=len(ordered)) as advance:
        for site in ordered:
            tables.append(
                cross_validated_auc(activations, train, site=site, dims=rising, folds=folds, c=c)
            )
            advance()
    return Grid(train.pool.names, ordered, rising, np.stack(tables))
