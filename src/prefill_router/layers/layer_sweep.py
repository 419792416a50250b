"""The encoder-target sweep: which encoder predicts which target best (section 5.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Pooling, Site
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import ConfigError
from prefill_router.geometry import SiteStates
from prefill_router.layers.criteria import fit_reducer, mean_over_targets
from prefill_router.layers.selection import Scope, Selection, candidate_sites, select
from prefill_router.probes import FOLDS, Probes, cross_validated_auc
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reduction import Reducer
from prefill_router.short_repr import short_repr
from prefill_router.statistics import auc_by_target

Table = Float64[NDArray[np.float64], "encoder target"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EncoderSweep:
    """AUC of every target under every encoder.

    Attributes:
        encoders: A distinct label for each encoder.
        targets: The targets' names.
        sites: The site of each encoder for each target.
        auc: AUC on the test part of probes fitted on the train part; NaN where undefined.
        cross_validated: Five-fold AUC on the train part.
    """

    encoders: tuple[str, ...]
    targets: tuple[str, ...]
    sites: tuple[tuple[Site, ...], ...]
    auc: Table
    cross_validated: Table

    def rows(self) -> list[dict[str, Any]]:
        """One row per encoder and target, for a table; undefined values are None."""
        return [
            {
                "encoder": encoder,
                "target": target,
                "site": self.sites[e][k].name,
                "auc": _known(self.auc[e, k]),
                "cross_validated_auc": _known(self.cross_validated[e, k]),
            }
            for e, encoder in enumerate(self.encoders)
            for k, target in enumerate(self.targets)
        ]

    def mean(self) -> Float64[NDArray[np.float64], " encoder"]:
        """The mean test AUC over the targets that have one."""
        return mean_over_targets(self.auc)


def sweep(
    stores: Sequence[Activations],
    train: RoutingDataset,
    test: RoutingDataset,
    *,
    dim: int = 100,
    poolings: Sequence[Pooling] = ("last",),
    scope: Scope = "target",
    all_layers: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> EncoderSweep:
    """Probe every target under every encoder, at the site with the greatest Fisher J.

    The test part is only scored: sites, scaler, PCA and probes come from the train part.

    Args:
        stores: The states of all queries, one store per encoder.
        train: The train part.
        test: The test part, with the same targets.
        dim: The number of components.
        poolings: The candidate poolings; by default the last token only, as in the paper.
        scope: Whether each target has its own site, or the pool has one for all.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        seed: The seed of the folds.
        progress: Shows the number of encoders done.

    Raises:
        ConfigError: No store is given, or the parts have different targets.
        FitError: No target has enough labels.
        StoreError: States are missing.
    """
    if not stores or train.pool.names != test.pool.names:
        raise ConfigError(
            f"{len(stores)} stores, and targets {train.pool.names} and {test.pool.names}; give a "
            "store, and parts of one dataset"
        )
    selections, tested, folded = [], [], []
    with (progress or SilentProgress()).task("encoders", total=len(stores)) as advance:
        for store in stores:
            sites = candidate_sites(store, poolings=poolings, all_layers=all_layers)
            selections.append(select(store, train, dim=dim, sites=sites, scope=scope))
            tested.append(_test_auc(store, train, test, selections[-1]))
            folded.append(auc_of_selection(store, train, selections[-1], seed=seed))
            advance()
    return EncoderSweep(
        encoder_labels(stores),
        train.pool.names,
        tuple(tuple(choice.site for choice in s.choices) for s in selections),
        np.stack(tested),
        np.stack(folded),
    )


def auc_of_selection(
    store: Activations, train: RoutingDataset, selection: Selection, *, seed: int = 0
) -> Float64[NDArray[np.float64], " target"]:
    """The five-fold probe AUC of each target at its selected site.

    J depends on each encoder's own scale, so it ranks the sites of one encoder but not encoders;
    the AUC of the same probe on the same folds ranks both.
    """
    folds = stratified_folds(train, count=FOLDS, seed=seed)
    result = np.empty(len(selection.targets))
    for (site, dim), mine in _by_site(selection).items():
        part = train.select(targets=[selection.targets[k] for k in mine])
        result[mine] = cross_validated_auc(store, part, site=site, dims=(dim,), folds=folds)[0]
    return result


def encoder_labels(stores: Sequence[Activations]) -> tuple[str, ...]:
    """Short names of the stores' encoders, numbered where they would be equal."""
    names = [store.provenance.encoder.rstrip("/").rsplit("/", 1)[-1] for store in stores]
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(f"{name} ({seen[name]})" if names.count(name) > 1 else name)
    return tuple(labels)


def _test_auc(
    store: Activations, train: RoutingDataset, test: RoutingDataset, selection: Selection
) -> Float64[NDArray[np.float64], " target"]:
    result = np.empty(len(selection.targets))
    for (site, dim), mine in _by_site(selection).items():
        reducer = fit_reducer(store, train, site=site, dim=dim)
        probes = Probes.fit(_reduced(store, train, site, reducer), train.correct[:, mine])
        fitted = ~np.isnan(probes.intercepts)
        scores = np.nan_to_num(probes.scores(_reduced(store, test, site, reducer)))
        result[mine] = np.where(fitted, auc_by_target(scores, test.correct[:, mine]), np.nan)
    return result


def _reduced(
    store: Activations, part: RoutingDataset, site: Site, reducer: Reducer
) -> NDArray[np.float32]:
    chunks = SiteStates(store, site, part.prompt_keys)
    return np.concatenate([reducer.transform(states) for _, states in chunks])


def _by_site(selection: Selection) -> dict[tuple[Site, int], list[int]]:
    """The columns of the targets that are read at each site and dimension."""
    columns: dict[tuple[Site, int], list[int]] = {}
    for k, choice in enumerate(selection.choices):
        columns.setdefault((choice.site, choice.dim), []).append(k)
    return columns


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
