"""Training of networks on a device of torch: all seeds at once, with gradients by autograd.

It is the training of `training`, with the same options, initial parameters, held-out rows and order
of rows. Without dropout the two differ by rounding alone. What dropout keeps is drawn on the
device, for all seeds together. Tensors have the axes seed, network, row and unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prefill_router.accelerator import memory_errors, send
from prefill_router.predictors.networks.architectures import Heads, Parameters
from prefill_router.predictors.networks.losses import NetworkLabels
from prefill_router.predictors.networks.network import CORRECTNESS, DIFFICULTY
from prefill_router.predictors.networks.training import NetworkRows, NetworkRun, Schedule
from prefill_router.predictors.training import Draws, Holdout, keep_probability
from prefill_router.progress import Progress
from prefill_router.training import Trainer, TrainingRun, train_together

_VALIDATION_ROWS = 8192


@final
@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels on the device, as `NetworkLabels`: seed, network, row and target."""

    correct: Tensor
    weights: Tensor
    difficulty: Tensor
    difficulty_weights: Tensor

    @classmethod
    def of(cls, labels: NetworkLabels, device: torch.device) -> "_Labels":
        """The labels of all rows, without the axis of seeds."""
        arrays = labels.correct, labels.weights, labels.difficulty, labels.difficulty_weights
        correct, weights, hard, hard_weights = (send(array, device) for array in arrays)
        return cls(correct, weights, hard, hard_weights)

    def take(self, rows: Tensor) -> "_Labels":
        """The labels of each seed's rows."""
        return _Labels(
            self.correct[:, rows].transpose(0, 1),
            self.weights[:, rows].transpose(0, 1),
            self.difficulty[rows],
            self.difficulty_weights[rows],
        )


@final
class DeviceTrainer(Trainer):
    """The networks of several seeds in training, on one device.

    Args:
        rows: All rows.
        parts: Each seed's rows; all seeds fit on equally many, and hold equally many out.
        architecture: The networks.
        schedule: How they are trained.
        initial: Each seed's initial parameters.
        draws: Each seed's random numbers, for the order of rows.
        seed: The seed of dropout.
        device: Where it computes.

    Attributes:
        runs: Each seed's losses, and after `settle` its best parameters.
    """

    def __init__(
        self,
        rows: NetworkRows,
        parts: Sequence[Holdout],
        architecture: Heads,
        schedule: Schedule,
        initial: Sequence[Parameters],
        draws: Sequence[Draws],
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        networks = architecture.network.side_by_side
        self.runs = [NetworkRun(networks=[TrainingRun() for _ in range(networks)]) for _ in initial]
        self._architecture, self._schedule, self._draws = architecture, schedule, draws
        self._features = send(rows.features, device)
        self._labels = _Labels.of(rows.labels, device)
        self._fit = np.stack([part.fit for part in parts])
        self._validation = self._send(np.stack([part.validation for part in parts]))
        self._validation_labels = self._labels.take(self._validation)
        self._has_validation = self._validation_labels.weights.flatten(2).any(dim=2)
        self._parameters = {
            name: self._send(np.stack([each[name] for each in initial])).to(self._features.dtype)
            for name in initial[0]
        }
        for parameter in self._parameters.values():
            parameter.requires_grad_()
        self._best = {name: value.detach().clone() for name, value in self._parameters.items()}
        self._optimiser = _make_optimiser(self._parameters, schedule)
        self._random = torch.Generator(device)
        self._random.manual_seed(seed)

    @property
    def active(self) -> int:
        """The number of seeds of which a network hasn't stopped."""
        return sum(any(map(self._goes_on, run.networks)) for run in self.runs)

    def _goes_on(self, network: TrainingRun) -> bool:
        return network.epochs_since_best < self._schedule.patience

    def epoch(self) -> None:
        """Train on the fitting rows once, then compute the validation losses."""
        losses = torch.stack([self._run_step(rows) for rows in self._draw_batches()]).mean(dim=0)
        self._record_epoch(losses.cpu().numpy(), self._validate(losses).cpu().numpy())

    def settle(self) -> None:
        """Give each run its best parameters."""
        for number, run in enumerate(self.runs):
            run.parameters = {
                name: value[number].cpu().numpy() for name, value in self._best.items()
            }

    def _send(self, array: NDArray[Any]) -> Tensor:
        return send(array, self._features.device)

    def _draw_batches(self) -> Iterator[Tensor]:
        """The rows of each step: those of every seed."""
        orders = [
            rows[draws.order(len(rows))] for rows, draws in zip(self._fit, self._draws, strict=True)
        ]
        yield from torch.split(self._send(np.stack(orders)), self._schedule.batch_size, dim=1)

    def _run_step(self, rows: Tensor) -> Tensor:
        """A step of the optimiser on each seed's rows; returns the losses before it."""
        self._optimiser.zero_grad()
        outputs = self._compute_outputs(rows, is_training=True)
        labels = self._labels.take(rows)
        losses = self._compute_losses(outputs, labels)
        total = losses.sum()
        if self._architecture.difficulty is not None:
            total = total + self._architecture.difficulty * _difficulty_loss(outputs, labels)
        total.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return losses.detach()

    def _compute_outputs(self, rows: Tensor, *, is_training: bool) -> dict[str, Tensor]:
        """The outputs of each head."""
        units = self._drop(self._features[rows][:, None], 0, is_training=is_training)
        for number, layer in enumerate(self._architecture.network.hidden):
            units = functional.relu(self._apply_linear(units, layer.name))
            units = self._drop(units, number + 1, is_training=is_training)
        return {name: self._apply_linear(units, name) for name in self._architecture.network.heads}

    def _apply_linear(self, units: Tensor, name: str) -> Tensor:
        return units @ self._parameters[f"weight.{name}"] + self._parameters[f"bias.{name}"]

    def _drop(self, units: Tensor, layer: int, *, is_training: bool) -> Tensor:
        dropout = self._schedule.dropout[layer]
        if not dropout or not is_training:
            return units
        keep = keep_probability(dropout)
        mask = torch.empty_like(units, requires_grad=False).bernoulli_(keep, generator=self._random)
        return units * mask.div_(keep)

    def _compute_losses(self, outputs: dict[str, Tensor], labels: _Labels) -> Tensor:
        """The loss of each seed's networks (`losses.compute_losses`)."""
        logits = outputs[CORRECTNESS]
        losses = _cross_entropy(logits, labels.correct, labels.weights)
        if self._architecture.pairs:
            losses = losses + self._architecture.pairs * _pair_losses(logits, labels)
        return losses

    @torch.no_grad()
    def _validate(self, fitted: Tensor) -> Tensor:
        """The losses on the held-out rows; without labels there, a network's on the fitted rows."""
        parts = [
            self._compute_outputs(some, is_training=False)[CORRECTNESS]
            for some in torch.split(self._validation, _VALIDATION_ROWS, dim=1)
        ]
        outputs = {CORRECTNESS: torch.cat(parts, dim=2)}
        losses = self._compute_losses(outputs, self._validation_labels)
        return torch.where(self._has_validation, losses, fitted)

    def _record_epoch(self, losses: NDArray[np.floating], validation: NDArray[np.floating]) -> None:
        """Record an epoch's losses, and the parameters of the networks that improved."""
        is_better = np.zeros(losses.shape, dtype=np.bool_)
        for seed, run in enumerate(self.runs):
            if not any(map(self._goes_on, run.networks)):
                continue
            run.record(float(losses[seed].mean()), float(validation[seed].mean(dtype=np.float64)))
            for place, network in enumerate(run.networks):
                values = float(losses[seed, place]), float(validation[seed, place])
                is_better[seed, place] = self._goes_on(network) and network.record(*values)
        chosen = self._send(is_better)[..., None, None]
        for name, best in self._best.items():
            torch.where(chosen, self._parameters[name].detach(), best, out=best)


def _make_optimiser(parameters: dict[str, Tensor], schedule: Schedule) -> torch.optim.Optimizer:
    """Adam with an L2 penalty of all parameters, or AdamW with the decay of weights alone."""
    is_fused = next(iter(parameters.values())).device.type == "cuda"
    options: dict[str, Any] = {"lr": schedule.learning_rate, "fused": is_fused}
    if not schedule.decoupled:
        return torch.optim.Adam(parameters.values(), weight_decay=schedule.weight_decay, **options)
    groups = [
        {
            "params": [
                value
                for name, value in parameters.items()
                if name.startswith("weight") == is_weight
            ],
            "weight_decay": schedule.weight_decay if is_weight else 0.0,
        }
        for is_weight in (True, False)
    ]
    return torch.optim.AdamW(groups, **options)


def _cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over each network's cells, 0 without any (`losses.cross_entropy`)."""
    each = functional.binary_cross_entropy_with_logits(logits, labels, weights, reduction="none")
    return each.flatten(2).sum(dim=2) / _positive_totals(weights)


def _positive_totals(weights: Tensor) -> Tensor:
    total = weights.flatten(2).sum(dim=2)
    return torch.where(total > 0, total, torch.ones_like(total))


def _pair_losses(scores: Tensor, labels: _Labels) -> Tensor:
    """The cross-entropy per pair of a right and a wrong answer (`losses.pair_losses`)."""
    first, second = torch.triu_indices(scores.shape[-1], scores.shape[-1], 1, device=scores.device)
    wins = labels.correct * labels.weights
    loses = (1 - labels.correct) * (labels.weights > 0)
    ahead = wins[..., first] * loses[..., second]
    either = ahead + wins[..., second] * loses[..., first]
    gap = scores[..., first] - scores[..., second]
    losses = either * functional.softplus(gap) - ahead * gap
    return losses.flatten(2).sum(dim=2) / _positive_totals(either)


def _difficulty_loss(outputs: dict[str, Tensor], labels: _Labels) -> Tensor:
    """The cross-entropy of the difficulty, in nats per query, of all networks."""
    logits = outputs[DIFFICULTY]
    hard, weights = (
        values[:, None, :, None].expand_as(logits)
        for values in (labels.difficulty, labels.difficulty_weights)
    )
    return _cross_entropy(logits, hard, weights).sum()


@memory_errors()
def train_on_device(
    rows: NetworkRows,
    parts: Sequence[Holdout],
    architecture: Heads,
    schedule: Schedule,
    initial: Sequence[Parameters],
    draws: Sequence[Draws],
    *,
    max_epochs: int,
    seed: int,
    device: torch.device,
    progress: Progress,
) -> list[NetworkRun]:
    """Train the networks of all seeds until each has stopped.

    Args:
        rows: All rows.
        parts: The rows that each seed fits on and holds out.
        architecture: The networks.
        schedule: How they are trained.
        initial: Each seed's initial parameters.
        draws: Each seed's random numbers, for the order of rows.
        max_epochs: The greatest number of epochs.
        seed: The seed of dropout.
        device: Where they are trained.
        progress: Shows the number of epochs done.

    Returns:
        Each seed's run, in order.

    Raises:
        ConfigError: The device has too little memory.
    """
    runs: dict[int, NetworkRun] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for number, part in enumerate(parts):  # seeds with equally many rows fit one tensor
        groups.setdefault((len(part.fit), len(part.validation)), []).append(number)
    for numbers in groups.values():
        trainer = DeviceTrainer(
            rows,
            [parts[n] for n in numbers],
            architecture,
            schedule,
            [initial[n] for n in numbers],
            [draws[n] for n in numbers],
            seed=seed + numbers[0],
            device=device,
        )
        train_together([trainer], max_epochs=max_epochs, progress=progress)
        trainer.settle()
        runs |= dict(zip(numbers, trainer.runs, strict=True))
    return [runs[number] for number in range(len(parts))]
