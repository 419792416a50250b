"""Training of networks in NumPy: mini-batches, early stopping, and the ensemble of seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64, Int
from numpy.typing import NDArray

from prefill_router.accelerator import accelerator
from prefill_router.errors import FitError
from prefill_router.predictors.base import (
    Examples,
    Features,
    PredictorFit,
    left_out_note,
    usable_rows,
)
from prefill_router.predictors.networks.architectures import Architecture, Heads
from prefill_router.predictors.networks.ensemble import NetworkConfig
from prefill_router.predictors.networks.layers import Mask, ParameterBuffer, Pass, Workspace
from prefill_router.predictors.networks.losses import (
    NetworkLabels,
    Outputs,
    PerNetwork,
    compute_losses,
)
from prefill_router.predictors.networks.network import Network
from prefill_router.predictors.networks.optimiser import Adam
from prefill_router.predictors.training import (
    Draws,
    Holdout,
    TrainingCurves,
    hold_out,
    keep_probability,
)
from prefill_router.progress import Progress
from prefill_router.statistics import column_spread, row_blocks
from prefill_router.training import Trainer, TrainingRun, train_together

_CONSTANT = 1e-6
"""A standard deviation below this share of the mean is rounding error in single precision."""
_VALIDATION_ROWS = 1024  # held-out rows that go through the networks at once; bounds the memory

Arrays = dict[str, NDArray[Any]]
PerFeature = Float64[NDArray[np.float64], " feature"]
RowNumbers = Int[NDArray[np.int64], " row"]


@final
@dataclass(eq=False)
class NetworkRun(TrainingRun):
    """One seed: the mean losses of its networks, and the best parameters of each of them.

    Attributes:
        networks: The losses of each network, until it stopped.
        parameters: The stacked parameters, those of each network from its own best epoch.
    """

    networks: list[TrainingRun] = field(default_factory=list)
    parameters: Arrays = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class NetworkRows:
    """The rows to fit and to validate on.

    Attributes:
        features: Their precision, single or double, is that of the computation.
        labels: The labels of the same rows.
    """

    features: Float[NDArray[np.floating], "row feature"]
    labels: NetworkLabels


@final
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How networks are trained, whatever they are.

    Attributes:
        batch_size: Rows per step.
        patience: Epochs without a better validation loss after which a network stops.
        dropout: The dropout rate of the features, then of each hidden layer.
        learning_rate: Adam's learning rate.
        weight_decay: Adam's, as an L2 penalty of all parameters; or AdamW's, of weights alone.
        decoupled: Whether the decay is AdamW's.
    """

    batch_size: int
    patience: int
    dropout: Sequence[float]
    learning_rate: float
    weight_decay: float
    decoupled: bool

    @classmethod
    def of(cls, config: NetworkConfig, features: int) -> "Schedule":
        """The schedule of an ensemble's options."""
        return cls(
            batch_size=config.batch_size,
            patience=config.patience,
            dropout=(config.share_of(features), *[config.dropout] * len(config.inner)),
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            decoupled=True,
        )


@final
class NetworkTrainer(Trainer):
    """The networks of one seed in training, on one core.

    Args:
        rows: All rows.
        parts: Which of them are fitted on and which are held out.
        architecture: The networks.
        schedule: How they are trained.
        initial: The initial parameters.
        draws: The random numbers of the order of rows and of dropout.
    """

    def __init__(
        self,
        rows: NetworkRows,
        parts: Holdout,
        architecture: Architecture,
        schedule: Schedule,
        initial: Arrays,
        draws: Draws,
    ) -> None:
        self.run = NetworkRun(
            networks=[TrainingRun() for _ in range(architecture.network.side_by_side)]
        )
        self._architecture, self._schedule, self._draws = architecture, schedule, draws
        self._rows, self._fit, self._validation = rows, parts.fit, parts.validation
        self._validation_labels = rows.labels[parts.validation]
        dtype = rows.features.dtype
        self._parameters = ParameterBuffer({name: a.astype(dtype) for name, a in initial.items()})
        self._gradients = self._parameters.zeros()
        self._work = Workspace(dtype)
        self._adam = Adam(
            self._parameters,
            self._gradients,
            learning_rate=schedule.learning_rate,
            weight_decay=schedule.weight_decay,
            decoupled=schedule.decoupled,
        )

    @property
    def active(self) -> int:
        """1 until all networks have stopped, then 0."""
        return int(any(self._goes_on(network) for network in self.run.networks))

    def _goes_on(self, network: TrainingRun) -> bool:
        return network.epochs_since_best < self._schedule.patience

    def epoch(self) -> None:
        """Train on the fitting rows once, then compute the validation losses."""
        with np.errstate(all="ignore"):  # an overflow is found in the loss
            losses = np.mean([self._run_step(rows) for rows in self._draw_batches()], axis=0)
            self._record_epoch(losses, self._validate(losses))

    def settle(self) -> None:
        """Fit the parameters that are fitted on the held-out rows, after training."""
        if all(np.isfinite(network.best) for network in self.run.networks):
            features = self._rows.features[self._validation]
            self.run.parameters = self._architecture.fit_on_validation(
                self.run.parameters, features, self._validation_labels
            )

    def _draw_batches(self) -> Iterator[RowNumbers]:
        order = self._fit[self._draws.order(len(self._fit))]
        for start in range(0, len(order), self._schedule.batch_size):
            yield order[start : start + self._schedule.batch_size]

    def _take_features(self, rows: RowNumbers) -> Float[NDArray[np.floating], "row feature"]:
        features = self._rows.features
        out = self._work.array("features", (len(rows), features.shape[1]))
        return features.take(rows, axis=0, out=out, mode="clip")  # other modes copy once more

    def _run_step(self, rows: RowNumbers) -> PerNetwork:
        step = Pass(self._parameters.arrays, self._gradients.arrays, self._work, self._draw_mask)
        features = self._take_features(rows)
        step.dropout(features, 0)
        outputs, backward = self._architecture.forward(step, features)
        losses, slopes = compute_losses(outputs, self._rows.labels[rows])
        backward(slopes)
        self._adam.step()
        return losses

    def _draw_mask(self, layer: int, mask: Mask) -> float:
        dropout = self._schedule.dropout[layer]
        if not dropout:
            return 1.0
        self._draws.draw_mask(mask.reshape(-1, mask.shape[-1]), dropout=dropout)
        return keep_probability(dropout)

    def _validate(self, fitted: PerNetwork) -> PerNetwork:
        """The losses on the held-out rows; without labels there, a network's on the fitted rows."""
        labels, step = self._validation_labels, Pass(self._parameters.arrays, {}, self._work)
        blocks = []
        for start in range(0, len(self._validation), _VALIDATION_ROWS):
            rows = self._take_features(self._validation[start : start + _VALIDATION_ROWS])
            blocks.append(_copy_outputs(self._architecture.forward(step, rows)[0]))
        losses, _ = compute_losses(_join_outputs(blocks), labels)
        return np.where(labels.weights.any(axis=(1, 2)), losses, fitted)

    def _record_epoch(self, losses: PerNetwork, validation: PerNetwork) -> None:
        """Record an epoch's losses, and the parameters of the networks that improved."""
        run = self.run
        run.record(float(losses.mean()), float(validation.mean(dtype=np.float64)))
        each = zip(run.networks, losses.tolist(), validation.tolist(), strict=True)
        better = [self._goes_on(network) and network.record(*values) for network, *values in each]
        now = self._parameters.arrays
        if not run.parameters:
            run.parameters = {name: value.copy() for name, value in now.items()}
        for name, value in now.items():
            run.parameters[name][better] = value[better]


def _copy_outputs(outputs: Outputs) -> Outputs:
    """A copy of the outputs that are validated; their memory is that of the next block too."""
    scores = outputs.preference
    if scores is not None:
        scores = scores.copy()
    return replace(outputs, correct=outputs.correct.copy(), difficulty=None, preference=scores)


def _join_outputs(blocks: Sequence[Outputs]) -> Outputs:
    """The outputs of several blocks of rows."""
    scores = [block.preference for block in blocks if block.preference is not None]
    return replace(
        blocks[0],
        correct=np.concatenate([block.correct for block in blocks], axis=1),
        preference=np.concatenate(scores, axis=1) if scores else None,
    )


def train(
    rows: NetworkRows,
    architecture: Architecture,
    config: NetworkConfig,
    *,
    seed: int,
    progress: Progress,
) -> list[NetworkRun]:
    """Train the networks of all seeds.

    Args:
        rows: The train rows.
        architecture: The networks.
        config: The options.
        seed: The seed of all random numbers.
        progress: Shows the number of epochs done.
    """
    parts, initial, draws = [], [], []
    for index in range(config.seeds):
        first, then, split = np.random.SeedSequence([seed, index]).generate_state(3).tolist()
        parts.append(hold_out(rows.features, share=config.validation, seed=split))
        initial.append(architecture.initial(Draws(first, 0)))
        draws.append(Draws(then, 0))
    return train_seeds(
        rows,
        parts,
        architecture,
        Schedule.of(config, rows.features.shape[1]),
        initial,
        draws,
        max_epochs=config.max_epochs,
        seed=seed,
        progress=progress,
    )


_EPOCHS = 20
"""About as many as a seed takes, to estimate its work."""
_LEAST_WORK = 2e12
"""Multiplications from which on a GPU trains: half a minute of a processor.

It is fixed, since dropout is drawn otherwise there: the same fit gives the same router again.
"""


def train_seeds(
    rows: NetworkRows,
    parts: Sequence[Holdout],
    architecture: Architecture,
    schedule: Schedule,
    initial: Sequence[Arrays],
    draws: Sequence[Draws],
    *,
    max_epochs: int,
    seed: int,
    progress: Progress,
) -> list[NetworkRun]:
    """Train the networks of several seeds.

    Each trains on a core, and none depends on the others. Or all train on a GPU (`accelerator`), if
    they consist of heads. There dropout is drawn for all together.

    Args:
        rows: All rows.
        parts: The rows that each seed fits on and holds out.
        architecture: The networks.
        schedule: How they are trained.
        initial: Each seed's initial parameters.
        draws: Each seed's random numbers of the order of rows and of dropout.
        max_epochs: The greatest number of epochs.
        seed: The seed of dropout on a GPU.
        progress: Shows the number of epochs done.
    """
    numbers = sum(array.size for each in initial for array in each.values())
    device = accelerator(3.0 * len(rows.features) * numbers * _EPOCHS, least=_LEAST_WORK)
    if device is not None and isinstance(architecture, Heads):
        from prefill_router.predictors.networks.accelerated_training import train_on_device

        return train_on_device(
            rows,
            parts,
            architecture,
            schedule,
            initial,
            draws,
            max_epochs=max_epochs,
            seed=seed,
            device=device,
            progress=progress,
        )
    each = zip(parts, initial, draws, strict=True)
    trainers = [
        NetworkTrainer(rows, part, architecture, schedule, start, random)
        for part, start, random in each
    ]
    train_together(trainers, max_epochs=max_epochs, progress=progress)
    for trainer in trainers:
        trainer.settle()
    return [trainer.run for trainer in trainers]


def _fit_scaling(features: Features) -> tuple[PerFeature, PerFeature]:
    """The mean of each feature, and the multiplier that gives a mean variance of 1.

    It is the same for all features that vary, since principal components predict worse with equal
    variances (see docs/decisions/0002-no-whitening.md).
    """
    mean, spread, varies = column_spread(features, rounding=_CONSTANT)
    if not varies.any():
        return mean, np.full(len(mean), np.inf)
    common = float(np.sqrt(np.square(spread[varies]).mean()))
    return mean, np.where(varies, common, np.inf)


def fit_ensemble(
    examples: Examples,
    config: NetworkConfig,
    *,
    seed: int,
    progress: Progress,
) -> PredictorFit:
    """Train the networks of an ensemble.

    Args:
        examples: The train rows.
        config: The options.
        seed: The seed of all random numbers.
        progress: Shows the number of epochs done.

    Raises:
        FitError: The losses aren't finite.
    """
    used, rates = usable_rows(examples, missing=-1.0), examples.base_rates
    mean, scale = _fit_scaling(used.features)
    widths = (examples.features.shape[1], *config.inner)
    learned = rates[examples.learnable]
    network = config.predictor.describe(widths, len(learned))
    architecture = config.architecture(network, learned)
    scaled = np.empty_like(used.features)
    for block in row_blocks(len(scaled)):
        scaled[block] = (used.features[block] - mean) / scale
    labels = NetworkLabels.of(
        used,
        networks=network.side_by_side,
        disagreement_weight=config.disagreement_weight,
    )
    runs = train(NetworkRows(scaled, labels), architecture, config, seed=seed, progress=progress)
    if not np.isfinite([network.best for run in runs for network in run.networks]).all():
        raise FitError(
            "the losses aren't finite; check the features, which are up to "
            f"{np.abs(examples.features).max():.3g}, or lower learning_rate"
        )
    each = [_unscale_parameters(run.parameters, mean, scale, network) for run in runs]
    arrays = {name: np.stack([parameters[name] for parameters in each]) for name in each[0]}
    named = zip(examples.targets, rates.tolist(), examples.learnable, strict=True)
    fixed = {name: rate for name, rate, is_learned in named if not is_learned}
    predictor = config.predictor(examples.targets, fixed, widths, arrays)
    notes = (*examples.target_notes(), *left_out_note(examples, len(scaled)))
    if np.isinf(scale).all():
        notes += ("all train rows have the same features; they were validated on too",)
    curves = TrainingCurves.of(runs, np.ones(len(runs), dtype=np.bool_))
    return PredictorFit(predictor, notes, curves.to_dict())


def _unscale_parameters(
    parameters: Arrays, mean: PerFeature, scale: PerFeature, network: Network
) -> Arrays:
    """The parameters of the same network for unscaled features."""
    unscaled = dict(parameters)
    for layer in network.inputs:
        weight, bias = f"weight.{layer.name}", f"bias.{layer.name}"
        divided = parameters[weight] / scale[:, None]
        unscaled[weight] = divided.astype(np.float32)
        unscaled[bias] = (parameters[bias] - (mean @ divided)[:, None]).astype(np.float32)
    return unscaled
