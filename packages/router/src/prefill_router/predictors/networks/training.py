"""Training of ensembles of networks: training data, mini-batches, and the ensemble of seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from prefill_router.errors import FitError
from prefill_router.predictors.base import (
    Examples,
    Features,
    PredictorFit,
    left_out_note,
    usable_rows,
)
from prefill_router.predictors.networks.architectures import Architecture, Outputs, Parameters
from prefill_router.predictors.networks.ensemble import NetworkConfig
from prefill_router.predictors.training import (
    Draws,
    TrainingCurves,
    hold_out,
    keep_probability,
    query_weights,
)
from prefill_router.progress import Progress
from prefill_router.statistics import column_spread, row_blocks
from prefill_router.training import Trainer, TrainingRun, train_together

_CONSTANT = 1e-6
"""A standard deviation below this share of the mean is rounding error in single precision."""

PerFeature = Float64[NDArray[np.float64], " feature"]


def _scaling(features: Features) -> tuple[PerFeature, PerFeature]:
    """The mean of each feature, and the multiplier that gives a mean variance of 1.

    It is the same for all features that vary, since principal components predict worse with equal
    variances (see docs/decisions/0002-no-whitening.md).
    """
    mean, spread, varies = column_spread(features, rounding=_CONSTANT)
    if not varies.any():
        return mean, np.full(len(mean), np.inf)
    common = float(np.sqrt(np.square(spread[varies]).mean()))
    return mean, np.where(varies, common, np.inf)


@final
@dataclass(frozen=True, eq=False)
class NetworkRows:
    """Rows to fit or to validate on, with the targets assigned to networks.

    Attributes:
        features: Centred, all divided by the same number.
        labels: The labels of the targets that can be learned; 0 where missing.
        weights: The weight of each label; 0 where missing.
        difficulty: 1 minus the mean of all labels that were measured on the query.
        difficulty_weights: The weight of each query's difficulty.
    """

    features: Float32[Tensor, "row feature"]
    labels: Float32[Tensor, "network row target"]
    weights: Float32[Tensor, "network row target"]
    difficulty: Float32[Tensor, " row"]
    difficulty_weights: Float32[Tensor, " row"]

    @classmethod
    def of(
        cls,
        used: Examples,
        scaled: Features,
        *,
        networks: int,
        disagreement_weight: float,
    ) -> "NetworkRows":
        """The rows of usable examples, with their features scaled."""
        labels, known = used.correct[:, used.learnable], used.present[:, used.learnable]
        each = query_weights(used.correct, disagreement_weight=disagreement_weight)
        right = np.nansum(used.correct, axis=1) / used.present.sum(axis=1)

        def tensor(values: NDArray[np.floating]) -> Tensor:
            return torch.from_numpy(values.astype(np.float32))

        cells, weights = (
            tensor(values).reshape(len(values), networks, -1).movedim(1, 0).contiguous()
            for values in (np.where(known, labels, 0), each[:, None] * known)
        )
        return cls(tensor(scaled), cells, weights, tensor(1 - right), tensor(each))

    def __getitem__(self, rows: Tensor) -> "NetworkRows":
        return NetworkRows(
            self.features[rows],
            self.labels[:, rows],
            self.weights[:, rows],
            self.difficulty[rows],
            self.difficulty_weights[rows],
        )

    def __len__(self) -> int:
        return len(self.features)


@final
@dataclass(eq=False)
class NetworkRun(TrainingRun):
    """One seed: the mean losses of its networks, and the best parameters of each of them.

    Attributes:
        networks: The losses of each network, until it stopped.
        parameters: The stacked parameters, those of each network from its own best epoch.
    """

    networks: list[TrainingRun] = field(default_factory=list)
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)


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
        rows: The training data.
        architecture: The networks.
        config: The options.
        seed: The seed of all random numbers.
        progress: Shows the number of epochs done.
    """
    numbers = [np.random.SeedSequence([seed, index]) for index in range(config.seeds)]
    trainers = [_NetworkTrainer(rows, architecture, config, number) for number in numbers]
    train_together(trainers, max_epochs=config.max_epochs, progress=progress)
    for trainer in trainers:
        trainer.settle()
    return [trainer.run for trainer in trainers]


@final
class _NetworkTrainer(Trainer):
    """One seed's networks in training."""

    def __init__(
        self,
        rows: NetworkRows,
        architecture: Architecture,
        config: NetworkConfig,
        number: np.random.SeedSequence,
    ) -> None:
        first, then, split = (int(word) for word in number.generate_state(3))
        self.run = NetworkRun(networks=[TrainingRun() for _ in range(architecture.networks)])
        self._architecture, self._config = architecture, config
        self._parameters = architecture.initial(torch.Generator().manual_seed(first))
        self._adam = _optimiser(self._parameters, config)
        self._draws = Draws(then, 0)
        parts = hold_out(rows.features.numpy(), share=config.validation, seed=split)
        self._rows, self._fit = rows, torch.from_numpy(parts.fit)
        self._held = rows[torch.from_numpy(parts.held)]

    @property
    def active(self) -> int:
        """1 until all networks have stopped, then 0."""
        return int(any(self._goes_on(network) for network in self.run.networks))

    def _goes_on(self, network: TrainingRun) -> bool:
        return network.waited < self._config.patience

    def epoch(self) -> None:
        """Train on the fitting rows once, then compute the validation losses."""
        self._validate(torch.stack([self._step(rows) for rows in self._batches()]).mean(0))

    @torch.no_grad()
    def settle(self) -> None:
        """Fit the parameters that are fitted on the held-out rows, after training."""
        best = {name: torch.from_numpy(value) for name, value in self.run.parameters.items()}
        if all(np.isfinite(network.best) for network in self.run.networks):
            held = self._held
            found = self._architecture.settled(best, held.features, held.labels, held.weights)
            self.run.parameters = {name: value.numpy() for name, value in found.items()}

    def _batches(self) -> Iterator[Tensor]:
        order = torch.from_numpy(self._draws.order(len(self._fit)))
        return iter(torch.split(self._fit[order], self._config.batch_size))

    def _step(self, rows: Tensor) -> Float[Tensor, " network"]:
        part = self._rows[rows]
        features = self._drop(part.features, self._config.share_of(part.features.shape[1]))
        outputs = self._architecture.outputs(
            self._parameters, features, lambda units: self._drop(units, self._config.dropout)
        )
        losses = _losses(outputs, part)
        total = losses.sum()
        if outputs.difficulty is not None:
            total = total + outputs.difficulty_weight * _difficulty_losses(outputs, part).sum()
        self._adam.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._adam.step()
        return losses.detach()

    def _drop(self, units: Tensor, share: float) -> Tensor:
        if not share:
            return units
        kept = np.empty((math.prod(units.shape[:-1]), units.shape[-1]), dtype=np.bool_)
        self._draws.kept(kept, dropout=share)
        scale = torch.from_numpy(kept).float().div_(keep_probability(share))
        return units * scale.view_as(units)

    @torch.no_grad()
    def _validate(self, losses: Float[Tensor, " network"]) -> None:
        """Record an epoch's losses, and the parameters of the networks that improved."""
        run, held = self.run, self._held
        outputs = self._architecture.outputs(self._parameters, held.features, lambda units: units)
        # A target without held-out labels only has the loss on the fitted rows.
        measured = held.weights.sum((1, 2)) > 0
        found = torch.where(measured, _losses(outputs, held), losses).double()
        run.record(float(losses.mean()), float(found.numpy().mean()))
        each = zip(run.networks, losses.tolist(), found.tolist(), strict=True)
        better = [self._goes_on(network) and network.record(*both) for network, *both in each]
        now = {name: value.detach().numpy() for name, value in self._parameters.items()}
        if not run.parameters:
            run.parameters = {name: value.copy() for name, value in now.items()}
        for name, value in now.items():
            run.parameters[name][better] = value[better]


def _optimiser(parameters: Parameters, config: NetworkConfig) -> torch.optim.AdamW:
    for value in parameters.values():
        value.requires_grad_()
    decay = [value for name, value in parameters.items() if name.startswith("weight")]
    rest = [value for name, value in parameters.items() if not name.startswith("weight")]
    groups = [
        {"params": decay, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def _losses(outputs: Outputs, rows: NetworkRows) -> Float[Tensor, " network"]:
    """The cross-entropy of each network, in nats per label, plus per pair if it learns those."""
    each = binary_cross_entropy_with_logits(outputs.correct, rows.labels, reduction="none")
    losses = _mean(each * rows.weights, rows.weights.sum((1, 2)))
    if outputs.preference is None:
        return losses
    return losses + outputs.preference_weight * pair_losses(outputs.preference, rows)


def pair_losses(
    preference: Float[Tensor, "network row target"], rows: NetworkRows
) -> Float[Tensor, " network"]:
    """The cross-entropy of each network, in nats per pair of a right and a wrong answer.

    Both labels of a pair must be measured. Soft labels are probabilities: with labels of 0.9 and
    0.2 the first is the winner with weight 0.9 x 0.8, the second with weight 0.2 x 0.1.
    """
    wins, loses = rows.labels * rows.weights, (1 - rows.labels) * (rows.weights > 0)
    weights = wins[..., :, None] * loses[..., None, :]
    weights.diagonal(dim1=-2, dim2=-1).zero_()
    ahead = preference[..., :, None] - preference[..., None, :]
    total = weights.sum((1, 2, 3))
    return (softplus(-ahead) * weights).sum((1, 2, 3)) / torch.where(total > 0, total, 1)


def _difficulty_losses(outputs: Outputs, rows: NetworkRows) -> Float[Tensor, " network"]:
    """The cross-entropy of each network's difficulty, in nats per query."""
    if outputs.difficulty is None:
        return torch.zeros(len(rows.labels))
    wanted = rows.difficulty.expand_as(outputs.difficulty)
    each = binary_cross_entropy_with_logits(outputs.difficulty, wanted, reduction="none")
    return _mean((each * rows.difficulty_weights)[..., None], rows.difficulty_weights.sum())


def _mean(cells: Float[Tensor, "network row _"], weight: Tensor) -> Float[Tensor, " network"]:
    return cells.sum((1, 2)) / torch.where(weight > 0, weight, 1)


Arrays = dict[str, NDArray[Any]]


def fit_ensemble(
    examples: Examples,
    config: NetworkConfig,
    *,
    seed: int,
    progress: Progress,
) -> PredictorFit:
    """Train the networks of an ensemble.

    Args:
        examples: The training data.
        config: The options.
        seed: The seed of all random numbers.
        progress: Shows the number of epochs done.

    Raises:
        FitError: The losses aren't finite.
    """
    used, rates = usable_rows(examples, missing=-1.0), examples.base_rates
    mean, scale = _scaling(used.features)
    widths = (examples.features.shape[1], *config.inner)
    learned = rates[examples.learnable]
    shapes = config.predictor.shapes(widths, len(learned))
    architecture = config.architecture(shapes, learned)
    scaled = np.empty_like(used.features)
    for block in row_blocks(len(scaled)):
        scaled[block] = (used.features[block] - mean) / scale
    rows = NetworkRows.of(
        used,
        scaled,
        networks=architecture.networks,
        disagreement_weight=config.disagreement_weight,
    )
    runs = train(rows, architecture, config, seed=seed, progress=progress)
    if not np.isfinite([network.best for run in runs for network in run.networks]).all():
        raise FitError(
            "the losses aren't finite; check the features, which are up to "
            f"{np.abs(examples.features).max():.3g}, or lower learning_rate"
        )
    each = [_unscaled(run.parameters, mean, scale, config.inputs) for run in runs]
    arrays = {name: np.stack([one[name] for one in each]) for name in each[0]}
    named = zip(examples.targets, rates.tolist(), examples.learnable, strict=True)
    fixed = {name: rate for name, rate, is_learned in named if not is_learned}
    predictor = config.predictor(examples.targets, fixed, widths, arrays)
    notes = (*examples.target_notes(), *left_out_note(examples, len(rows)))
    if np.isinf(scale).all():
        notes += ("all training queries have the same features; they were validated on too",)
    curves = TrainingCurves.of(runs, np.ones(len(runs), dtype=np.bool_))
    return PredictorFit(predictor, notes, curves.to_dict())


def _unscaled(
    parameters: Arrays, mean: PerFeature, scale: PerFeature, inputs: tuple[str, ...]
) -> Arrays:
    """The parameters of the same network for unscaled features."""
    found = dict(parameters)
    for layer in inputs:
        weight, bias = f"weight.{layer}", f"bias.{layer}"
        divided = parameters[weight] / scale[:, None]
        found[weight] = divided.astype(np.float32)
        found[bias] = (parameters[bias] - (mean @ divided)[:, None]).astype(np.float32)
    return found
