"""Fits ensembles of networks, on the train rows as networks learn from them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.errors import FitError
from prefill_router.predictors.base import Examples, Features, PredictorFit
from prefill_router.predictors.networks.ensemble import NetworkConfig, NetworkEnsemble
from prefill_router.predictors.training import TrainingCurves, query_weights
from prefill_router.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from prefill_router.predictors.networks.architectures import Architecture


_CONSTANT = 1e-6
"""A spread below this share of the mean is rounding, in single precision."""

PerFeature = Float64[NDArray[np.float64], " feature"]


@final
@dataclass(frozen=True, eq=False)
class TrainingArrays:
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
    def of(cls, examples: Examples, *, disagreement_weight: float = 1.0) -> "TrainingArrays":
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


Arrays = dict[str, NDArray[Any]]


def fit_ensemble(
    examples: Examples,
    config: NetworkConfig,
    kind: type[NetworkEnsemble],
    architecture: Callable[[TrainingArrays], "Architecture"],
    *,
    inner: tuple[int, ...],
    inputs: tuple[str, ...] = ("0",),
    difficulty_weight: float = 0.0,
    seed: int,
    progress: Progress | None,
) -> PredictorFit:
    """Train the networks of an ensemble and put them together.

    Args:
        examples: Train rows.
        config: The options.
        kind: What they make up.
        architecture: The networks, given what they learn from.
        inner: Widths of the layers between the features and the outputs.
        inputs: The layers that the features enter.
        difficulty_weight: What the loss of the difficulty counts.
        seed: Of all draws.
        progress: Told of every epoch.

    Raises:
        FitError: The losses grew beyond all bounds.
    """
    from prefill_router.predictors.networks.training import train

    material = TrainingArrays.of(examples, disagreement_weight=config.disagreement_weight)
    runs = train(
        material,
        architecture(material),
        config,
        difficulty_weight=difficulty_weight,
        seed=seed,
        progress=progress or SilentProgress(),
    )
    if not np.isfinite([network.best for run in runs for network in run.networks]).all():
        raise FitError(
            "the losses aren't finite; check the features, which are up to "
            f"{np.abs(examples.features).max():.3g}, or lower learning_rate"
        )
    each = [unscaled(run.parameters, material, inputs) for run in runs]
    arrays = {name: np.stack([one[name] for one in each]) for name in each[0]}
    rates = zip(examples.targets, examples.base_rates.tolist(), examples.learnable, strict=True)
    fixed = {name: rate for name, rate, learned in rates if not learned}
    widths = (examples.features.shape[1], *inner)
    predictor = kind(examples.targets, fixed, widths, arrays)
    curves = TrainingCurves.of(runs, np.ones(len(runs), dtype=np.bool_))
    return PredictorFit(predictor, _notes(examples, material), curves.to_dict())


def unscaled(parameters: Arrays, material: TrainingArrays, inputs: tuple[str, ...]) -> Arrays:
    """The parameters of a network that takes the features as they come, not centred and divided."""
    found = dict(parameters)
    for layer in inputs:
        weight, bias = f"weight.{layer}", f"bias.{layer}"
        divided = parameters[weight] / material.scale[:, None]
        found[weight] = divided.astype(np.float32)
        found[bias] = (parameters[bias] - (material.mean @ divided)[:, None]).astype(np.float32)
    return found


def _notes(examples: Examples, material: TrainingArrays) -> tuple[str, ...]:
    left = len(examples.features) - len(material.features)
    notes = list(examples.target_notes())
    if left:
        notes.append(f"{left} queries without a usable label were left out")
    if np.isinf(material.scale).all():
        notes.append("all training queries have the same features; they were validated on too")
    return tuple(notes)
