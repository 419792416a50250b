"""Fits ensembles of networks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prefill_router.errors import FitError
from prefill_router.predictors.fitted import Examples, PredictorFit
from prefill_router.predictors.networks.ensemble import NetworkEnsemble
from prefill_router.predictors.networks.material import Material
from prefill_router.predictors.networks.options import NetworkConfig
from prefill_router.predictors.trunk.curves import TrainingCurves, losses_table
from prefill_router.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from prefill_router.predictors.networks.architecture import Architecture
    from prefill_router.predictors.networks.loop import Run

Arrays = dict[str, NDArray[Any]]


def fit_ensemble(
    examples: Examples,
    config: NetworkConfig,
    kind: type[NetworkEnsemble],
    architecture: Callable[[Material], "Architecture"],
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
    from prefill_router.predictors.networks.loop import train

    material = Material.of(examples, disagreement_weight=config.disagreement_weight)
    runs = train(
        material,
        architecture(material),
        config,
        difficulty_weight=difficulty_weight,
        seed=seed,
        progress=progress or SilentProgress(),
    )
    if not np.isfinite([run.best for run in runs]).all():
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
    return PredictorFit(predictor, _notes(examples, material), _curves(runs).to_dict())


def unscaled(parameters: Arrays, material: Material, inputs: tuple[str, ...]) -> Arrays:
    """The parameters of a network that takes the features as they come, not centred and divided."""
    found = dict(parameters)
    for layer in inputs:
        weight, bias = f"weight.{layer}", f"bias.{layer}"
        divided = parameters[weight] / material.scale[:, None]
        found[weight] = divided.astype(np.float32)
        found[bias] = (parameters[bias] - (material.mean @ divided)[:, None]).astype(np.float32)
    return found


def _curves(runs: "list[Run]") -> TrainingCurves:
    validation = losses_table([run.validation for run in runs])
    return TrainingCurves(
        losses_table([run.train for run in runs]),
        validation,
        np.nanargmin(validation, axis=1),
        np.ones(len(runs), dtype=np.bool_),
    )


def _notes(examples: Examples, material: Material) -> tuple[str, ...]:
    left = len(examples.features) - len(material.features)
    notes = list(examples.target_notes())
    if left:
        notes.append(f"{left} queries without a usable label were left out")
    if np.isinf(material.scale).all():
        notes.append("all training queries have the same features; they were validated on too")
    return tuple(notes)
