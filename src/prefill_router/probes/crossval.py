"""Cross-validated AUC of probes at one site, with the scaler and PCA fitted in each fold."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Float64, Int
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset
from prefill_router.geometry import Moments, SiteStates
from prefill_router.probes.logistic import Probes
from prefill_router.probes.ranking import auc_by_target
from prefill_router.reduction import Reducer

FOLDS = 5
_TOLERANCE = 1e-6
"""Of a probe's loss per query; the AUC doesn't see what lies below."""


def cross_validated_auc(
    activations: Activations,
    train: RoutingDataset,
    *,
    site: Site,
    dims: Sequence[int],
    folds: Int[NDArray[np.int64], " query"],
    c: float = 1.0,
) -> Float64[NDArray[np.float64], "dim target"]:
    """Mean AUC over folds of the probes at a site, for several dimensions from one PCA.

    The moments of each fold are computed once; those of a fold's train rows are the others' sum.

    Args:
        activations: The states of all train queries.
        train: The train part.
        site: Where to read.
        dims: Components to keep, in any order.
        folds: The fold of each query (`data.stratified_folds`).
        c: The inverse of the probes' regularisation.

    Returns:
        NaN for a target that has no fold with both classes on both sides.
    """
    chunks = SiteStates(activations, site, train.prompt_keys)
    hidden = activations.provenance.hidden_size
    count = int(folds.max()) + 1
    moments = _moments_by_fold(chunks, folds, count, hidden)
    table = np.empty((count, len(dims), len(train.pool)))
    for fold in range(count):
        others = (part for number, part in enumerate(moments) if number != fold)
        reducer = Reducer.fit(Moments.total(others, hidden=hidden), max(dims))
        features = _reduce(chunks, reducer, len(train))
        table[fold] = _fold_auc(features, train.correct, folds == fold, dims, c)
    return _mean_known(table)


def _moments_by_fold(
    chunks: SiteStates, folds: NDArray[np.int64], count: int, hidden: int
) -> list[Moments]:
    moments = [Moments.empty(hidden)] * count
    for rows, states in chunks:
        moments = [
            part + Moments.of(states[folds[rows] == fold]) for fold, part in enumerate(moments)
        ]
    return moments


def _reduce(
    chunks: SiteStates, reducer: Reducer, count: int
) -> Float32[NDArray[np.float32], "query dim"]:
    features = np.empty((count, reducer.dim), dtype=np.float32)
    for rows, states in chunks:
        features[rows] = reducer.transform(states)
    return features


def _fold_auc(
    features: NDArray[np.float32],
    correct: NDArray[np.float64],
    held: NDArray[np.bool_],
    dims: Sequence[int],
    c: float,
) -> NDArray[np.float64]:
    """The AUC on the rows held out, of probes fitted to the others; [dim, target]."""
    result = np.empty((len(dims), correct.shape[1]))
    probes = None
    for i in np.argsort(dims, kind="stable"):
        kept = np.ascontiguousarray(features[:, : dims[i]])
        probes = Probes.fit(kept[~held], correct[~held], c=c, tolerance=_TOLERANCE, start=probes)
        fitted = ~np.isnan(probes.intercepts)
        scores = np.nan_to_num(probes.scores(kept[held]))
        result[i] = np.where(fitted, auc_by_target(scores, correct[held]), np.nan)
    return result


def _mean_known(table: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(table)
    count = known.sum(axis=0)
    total = np.where(known, table, 0).sum(axis=0)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
