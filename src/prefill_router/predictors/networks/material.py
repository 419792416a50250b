"""The train rows as the networks learn from them."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.predictors.base import Features
from prefill_router.predictors.fitted import Examples
from prefill_router.predictors.weights import query_weights

_CONSTANT = 1e-6
"""A spread below this share of the mean is rounding, in single precision."""

PerFeature = Float64[NDArray[np.float64], " feature"]


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What is learned from, in an order that doesn't depend on the rows'.

    Attributes:
        features: Of the queries with a usable label: centred, all divided by the same number.
        labels: Of the targets that can be learned; 0 where missing.
        weights: What each label counts; 0 where missing.
        difficulty: 1 - the mean of all labels that were measured on the query.
        difficulty_weights: What each query's difficulty counts.
        rates: The targets' base rates.
        mean: What was subtracted of the features.
        scale: What they were divided by; infinite for those that are constant.
    """

    features: Float32[NDArray[np.float32], "row feature"]
    labels: Float32[NDArray[np.float32], "row learned"]
    weights: Float32[NDArray[np.float32], "row learned"]
    difficulty: Float32[NDArray[np.float32], " row"]
    difficulty_weights: Float32[NDArray[np.float32], " row"]
    rates: Float64[NDArray[np.float64], " learned"]
    mean: PerFeature
    scale: PerFeature

    @classmethod
    def of(cls, examples: Examples, *, disagreement_weight: float = 1.0) -> "Material":
        """The material of some examples."""
        learned = examples.learnable
        order = _order(examples, np.asarray(examples.present[:, learned].any(axis=1)))
        features, correct = examples.features[order], examples.correct[order]
        present = ~np.isnan(correct)
        each = query_weights(correct, disagreement_weight=disagreement_weight)
        mean, scale = _scaling(features)
        usable = correct[:, learned]
        return cls(
            ((features - mean) / scale).astype(np.float32),
            np.where(np.isnan(usable), 0, usable).astype(np.float32),
            (each[:, None] * ~np.isnan(usable)).astype(np.float32),
            (1 - np.nansum(correct, axis=1) / present.sum(axis=1)).astype(np.float32),
            each.astype(np.float32),
            examples.base_rates[learned],
            mean,
            scale,
        )


def _order(examples: Examples, usable: NDArray[np.bool_]) -> list[int]:
    """The usable rows sorted by what they hold."""
    correct = np.where(examples.present, examples.correct, -1)
    return sorted(
        np.flatnonzero(usable).tolist(),
        key=lambda row: (examples.features[row].tobytes(), correct[row].tobytes()),
    )


def _scaling(features: Features) -> tuple[PerFeature, PerFeature]:
    """The mean of each feature, and the number that gives those that vary a mean variance of 1.

    It is one number for all, since principal components are worse with equal variances (see
    docs/decisions/0002-no-whitening.md).
    """
    wide = features.astype(np.float64)
    mean, spread = wide.mean(axis=0), wide.std(axis=0)
    varies = spread > np.maximum(_CONSTANT * np.abs(mean), float(np.finfo(np.float32).tiny))
    if not varies.any():
        return mean, np.full(len(mean), np.inf)
    common = float(np.sqrt(np.square(spread[varies]).mean()))
    return mean, np.where(varies, common, np.inf)
