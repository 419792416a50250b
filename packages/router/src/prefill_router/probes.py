"""Linear probes: how well a plain logistic regression predicts each target's correctness.

`Probes` are L2-regularised logistic regressions for all targets at once, by Newton's method with
each step solved by conjugate gradients: the Hessian is never formed, and one product with the
features serves all targets. Features that come from PCA are nearly uncorrelated, so the Hessian is
nearly diagonal and its diagonal is a sufficient preconditioner: it takes about five steps of five
products.

`out_of_fold_scores` are those of probes at one site, with the scaler and PCA fitted in each fold;
`cross_validated_auc` is their AUC.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float32, Float64, Int
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset, Table, binary
from prefill_router.errors import ConfigError, FitError
from prefill_router.geometry import Moments, SiteStates
from prefill_router.reduction import Reducer
from prefill_router.short_repr import short_repr
from prefill_router.statistics import auc_by_target, cross_entropy, known_mean, learnable

Array = NDArray[np.floating]
_STEPS = 100
_PRODUCTS = 500
_INNER = 1e-3
"""The relative residual, in the preconditioner's norm, at which conjugate gradients stop."""
_LEAST_STRIDE = 1e-6


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Probes:
    """One logistic regression per target.

    Attributes:
        weights: One column per target; NaN for targets whose labels were all the same.
        intercepts: One per target, not regularised.
    """

    weights: Float[NDArray[np.floating], "feature target"]
    intercepts: Float[NDArray[np.floating], " target"]

    @classmethod
    def fit(
        cls,
        features: Float[NDArray[np.floating], "query feature"],
        correct: Table,
        *,
        c: float = 1.0,
        tolerance: float = 1e-8,
        start: "Probes | None" = None,
        soft: bool = False,
    ) -> "Probes":
        """Fit each target on the queries for which it was measured.

        The minimised loss is c times the summed cross-entropy, plus half the squared weights, as in
        scikit-learn. With float32 features the computation is in float32.

        Args:
            features: The train rows, finite.
            correct: Labels, cut at 0.5 unless `soft`; NaN (not measured) is left out.
            c: The inverse of the regularisation's strength.
            tolerance: Stop when a step would reduce the loss per query by less than this.
            start: Probes fitted on the leading features, as a warm start.
            soft: Whether labels between 0 and 1 are learned as they are.

        Raises:
            ConfigError: The shapes differ, or `c` isn't positive.
            FitError: A target didn't converge.
        """
        if len(features) != len(correct) or not c > 0:
            raise ConfigError(
                f"{len(features)} rows of features, {len(correct)} of labels, c = {c}; there must "
                "be as many rows of both, and c must be positive"
            )
        labels = correct if soft else binary(correct)
        usable = learnable(labels)
        weights = np.full((features.shape[1], correct.shape[1]), np.nan, dtype=features.dtype)
        intercepts = np.full(correct.shape[1], np.nan, dtype=features.dtype)
        if usable.any():
            problem = _Problem.of(features, labels[:, usable], c)
            solution = problem.solve(problem.begin(start, usable), tolerance)
            weights[:, usable] = solution[:-1]
            intercepts[usable] = solution[-1] - problem.mean @ solution[:-1]
        return cls(weights, intercepts)

    def scores(
        self, features: Float[NDArray[np.floating], "query feature"]
    ) -> Float[NDArray[np.floating], "query target"]:
        """The log-odds of a correct answer; NaN for targets that weren't fitted."""
        logits: Float[NDArray[np.floating], "query target"] = features @ self.weights
        return logits + self.intercepts


@final
@dataclass(frozen=True, eq=False)
class _Problem:
    """The loss of all targets; the parameters are one column per target, the intercept last.

    Attributes:
        mean: The features' mean, subtracted so that the intercept is nearly uncorrelated to them.
        inputs: The centred features, then a column of ones.
        labels: 1 or 0; 0 also where missing.
        mask: 1 where measured, else 0.
        ridge: The L2 penalty of each parameter.
    """

    mean: Array
    inputs: Array
    labels: Array
    mask: Array
    ridge: Array

    @classmethod
    def of(cls, features: Array, labels: Array, c: float) -> "_Problem":
        dtype = features.dtype
        mean = features.mean(axis=0, dtype=np.float64).astype(dtype)
        inputs = np.concatenate([features - mean, np.ones((len(features), 1), dtype)], axis=1)
        ridge = np.full((inputs.shape[1], 1), 1 / c, dtype)
        ridge[-1] = 0
        is_measured = ~np.isnan(labels)
        return cls(
            mean, inputs, np.nan_to_num(labels).astype(dtype), is_measured.astype(dtype), ridge
        )

    def begin(self, start: Probes | None, usable: NDArray[np.bool_]) -> Array:
        begin: Array = np.zeros((self.inputs.shape[1], self.labels.shape[1]), self.inputs.dtype)
        if start is not None:
            weights = np.nan_to_num(start.weights[:, usable])
            begin[: len(weights)] = weights
            lifted = start.intercepts[usable] + self.mean[: len(weights)] @ weights
            begin[-1] = np.nan_to_num(lifted)
        return begin

    def solve(self, point: Array, tolerance: float) -> Array:
        from scipy.special import expit

        logits: Array = self.inputs @ point
        loss = self._compute_loss(point, logits)
        for _ in range(_STEPS):
            chance = expit(logits)
            slope = self.inputs.T @ (self.mask * (chance - self.labels)) + self.ridge * point
            step = self._solve_newton(slope, self.mask * chance * (1 - chance))
            gain = -(slope * step).sum(axis=0) / 2
            point, logits, loss = self._halve_step(point, logits, loss, step)
            if (gain <= tolerance * self.mask.sum(axis=0)).all():
                return point
        raise FitError(
            f"a probe didn't converge in {_STEPS} steps; scale the features to unit variance, or "
            "lower c"
        )

    def _solve_newton(self, slope: Array, curvature: Array) -> Array:
        """Solve the Newton system of each target by preconditioned conjugate gradients."""
        diagonal = (self.inputs**2).T @ curvature + self.ridge
        inverse = 1 / np.maximum(diagonal, np.finfo(slope.dtype).tiny)
        step, rest = np.zeros_like(slope), -slope
        way = inverse * rest
        size = (rest * way).sum(axis=0)
        enough = _INNER**2 * size
        for _ in range(_PRODUCTS):
            image = self.inputs.T @ (curvature * (self.inputs @ way)) + self.ridge * way
            length = _divide(size, (way * image).sum(axis=0))
            step, rest = step + length * way, rest - length * image
            scaled = inverse * rest
            before, size = size, (rest * scaled).sum(axis=0)
            if (size <= enough).all():
                break
            way = scaled + _divide(size, before) * way
        return step

    def _halve_step(
        self, point: Array, logits: Array, loss: Array, step: Array
    ) -> tuple[Array, Array, Array]:
        """The point after a step, its logits and loss; the step is halved until none gets worse."""
        change = self.inputs @ step
        slack = 100 * np.finfo(loss.dtype).eps * np.abs(loss)
        stride = np.ones_like(loss)
        while True:
            there, logits_there = point + stride * step, logits + stride * change
            after = self._compute_loss(there, logits_there)
            harmful = (after > loss + slack) & (stride > _LEAST_STRIDE)
            if not harmful.any():
                return there, logits_there, after
            stride = np.where(harmful, stride / 2, stride)

    def _compute_loss(self, point: Array, logits: Array) -> Array:
        entropy = self.mask * cross_entropy(logits, self.labels)
        loss: Array = entropy.sum(axis=0) + (self.ridge * point**2).sum(axis=0) / 2
        return loss


def _divide(above: Array, below: Array) -> Array:
    ratio: Array = np.where(below > 0, above / np.where(below > 0, below, 1), 0)
    return ratio


FOLDS = 5
_TOLERANCE = 1e-6
"""Tolerance of a probe's loss per query; smaller differences don't change the AUC."""


def cross_validated_auc(
    activations: Activations,
    train: RoutingDataset,
    *,
    site: Site,
    dims: Sequence[int],
    folds: Int[NDArray[np.int64], " query"],
    c: float = 1.0,
) -> Float64[NDArray[np.float64], "dim target"]:
    """Cross-validated AUC of the probes at a site; the arguments are `out_of_fold_scores`'.

    Returns:
        The mean over folds; NaN for a target without a fold that has both classes on both sides.
    """
    scores = out_of_fold_scores(activations, train, site=site, dims=dims, folds=folds, c=c)
    return np.stack([auc_over_folds(rows, train.correct, folds) for rows in scores])


def auc_over_folds(
    scores: Float[NDArray[np.floating], "query target"],
    correct: Table,
    folds: Int[NDArray[np.int64], " query"],
) -> Float64[NDArray[np.float64], " target"]:
    """The mean over the folds of the AUC within each; NaN for a target that has none in any.

    Args:
        scores: NaN in the folds for which a target has no probe.
        correct: Labels; NaN (not measured) is left out.
        folds: The fold of each query.
    """
    fold_rows = [folds == fold for fold in range(int(folds.max()) + 1)]
    return known_mean(np.stack([known_auc(scores[rows], correct[rows]) for rows in fold_rows]))


def known_auc(
    scores: Float[NDArray[np.floating], "query target"], correct: Table
) -> Float64[NDArray[np.float64], " target"]:
    """The AUC of each target over the rows that have both a score and a label; NaN where none."""
    has_score = ~np.isnan(scores)
    return auc_by_target(np.nan_to_num(scores), np.where(has_score, correct, np.nan))


def out_of_fold_scores(
    activations: Activations,
    train: RoutingDataset,
    *,
    site: Site,
    dims: Sequence[int],
    folds: Int[NDArray[np.int64], " query"],
    c: float = 1.0,
) -> Float32[NDArray[np.float32], "dim query target"]:
    """The score of every query by probes that were fitted on the other folds.

    There are several dimensions of one PCA per fold. The moments of each fold are computed once;
    those of a fold's train rows are the sum of the other folds'.

    Args:
        activations: The states of all train queries.
        train: The train rows.
        site: The site to read.
        dims: Numbers of components to keep, in any order.
        folds: The fold of each query (`data.stratified_folds`).
        c: The inverse of the probes' regularisation.

    Returns:
        Log-odds; NaN in the folds for which a target's other labels are all the same.
    """
    chunks = SiteStates(activations, site, train.prompt_keys)
    hidden = activations.provenance.hidden_size
    count = int(folds.max()) + 1
    moments = _moments_by_fold(chunks, folds, count, hidden)
    scores = np.empty((len(dims), *train.correct.shape), dtype=np.float32)
    for fold in range(count):
        others = (part for number, part in enumerate(moments) if number != fold)
        reducer = Reducer.fit(Moments.total(others, hidden=hidden), max(dims))
        features = _reduce_chunks(chunks, reducer, len(train))
        is_held_out = folds == fold
        scores[:, is_held_out] = _fold_scores(features, train.correct, is_held_out, dims, c)
    return scores


def _moments_by_fold(
    chunks: SiteStates, folds: NDArray[np.int64], count: int, hidden: int
) -> list[Moments]:
    moments = [Moments.empty(hidden)] * count
    for rows, states in chunks:
        moments = [
            part + Moments.of(states[folds[rows] == fold]) for fold, part in enumerate(moments)
        ]
    return moments


def _reduce_chunks(
    chunks: SiteStates, reducer: Reducer, count: int
) -> Float32[NDArray[np.float32], "query dim"]:
    features = np.empty((count, reducer.dim), dtype=np.float32)
    for rows, states in chunks:
        features[rows] = reducer.transform(states)
    return features


def _fold_scores(
    features: NDArray[np.float32],
    correct: NDArray[np.float64],
    is_held: NDArray[np.bool_],
    dims: Sequence[int],
    c: float,
) -> NDArray[np.float32]:
    """The scores [dim, query, target] of the held-out rows by probes fitted on the others."""
    result = np.empty((len(dims), int(is_held.sum()), correct.shape[1]), dtype=np.float32)
    probes = None
    for i in np.argsort(dims, kind="stable"):
        columns = np.ascontiguousarray(features[:, : dims[i]])
        probes = Probes.fit(
            columns[~is_held], correct[~is_held], c=c, tolerance=_TOLERANCE, start=probes
        )
        result[i] = probes.scores(columns[is_held])
    return result
