"""Tunes one network on tokenised prompts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from prefill_router.encoders.base import TokenizedPrompt
from prefill_router.encoders.batches import batches
from prefill_router.errors import FitError
from prefill_router.features.text_network.adapted import AdaptedNetwork
from prefill_router.features.text_network.config import TextNetworkConfig
from prefill_router.progress import Advance

Rows = Int[NDArray[np.int64], " _"]
_BATCHES_SORTED = 16
"""So many batches are sorted by length together: less padding, and still a random order."""
_LONGEST_GRADIENT = 1.0


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """Train rows.

    Attributes:
        prompts: As the network reads them.
        correct: Labels in [0, 1], NaN where missing.
        fit: The rows that are fitted on.
        held: The rows whose loss tells when to stop.
    """

    prompts: Sequence[TokenizedPrompt]
    correct: Float64[NDArray[np.float64], "query target"]
    fit: Rows
    held: Rows

    @property
    def present(self) -> Bool[NDArray[np.bool_], "query target"]:
        """Which labels are there."""
        return ~np.isnan(self.correct)

    def only(self, target: int) -> "Texts":
        """The rows with labels of one target; both parts have all of them if one had none."""
        labelled = self.present[:, target]
        fit, held = self.fit[labelled[self.fit]], self.held[labelled[self.held]]
        if not len(fit) or not len(held):
            fit = held = np.flatnonzero(labelled)
        return Texts(self.prompts, self.correct[:, target : target + 1], fit, held)


@final
@dataclass(frozen=True, eq=False)
class Tuned:
    """What training one network gave.

    Attributes:
        arrays: See `AdaptedNetwork.arrays`; of the best epoch.
        train: Mean loss of each epoch, in nats per label, with dropout, as the weights moved.
        validation: After each epoch, without dropout.
        best_epoch: The epoch, from 0, of the least validation loss.
    """

    arrays: dict[str, NDArray[np.float32]]
    train: list[float]
    validation: list[float]
    best_epoch: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        return {
            "best_epoch": self.best_epoch,
            "train_loss": self.train,
            "validation_loss": self.validation,
        }


def steps_of(texts: Texts, config: TextNetworkConfig) -> int:
    """How many steps an epoch has."""
    return math.ceil(len(texts.fit) / config.batch_size)


def tune(
    network: AdaptedNetwork,
    texts: Texts,
    config: TextNetworkConfig,
    *,
    seed: int,
    advance: Advance,
) -> Tuned:
    """Train from where the network stands.

    Raises:
        FitError: The losses aren't finite.
    """
    random = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(
        network.parameters, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    total = steps_of(texts, config) * config.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _rate(total, config.warmup))
    losses, validation, best = list[float](), list[float](), dict[str, NDArray[np.float32]]()
    best_epoch = -1
    with network.training(seed):
        for epoch in range(config.epochs):
            step = _Step(network, texts, optimiser, schedule)
            each = []
            for rows in _orders(texts, config.batch_size, random):
                each.append(step(rows))
                advance(note=f"loss {each[-1]:.3f}")
            losses.append(float(np.mean(each)))
            validation.append(_validate(network, texts))
            if not math.isfinite(losses[-1] + validation[-1]):
                raise FitError("the losses aren't finite; lower learning_rate")
            if validation[-1] < (validation[best_epoch] if best else math.inf):
                best_epoch, best = epoch, network.arrays()
            if epoch - best_epoch >= config.patience:
                break
    advance(total - steps_of(texts, config) * len(losses))
    return Tuned(best, losses, validation, best_epoch)


def _rate(total: int, warmup: float) -> Callable[[int], float]:
    """The learning rate as a share of its highest: up during the warm-up, then down to 0."""
    rising = max(1, round(total * warmup))

    def rate(step: int) -> float:
        return min((step + 1) / rising, (total - step) / max(1, total - rising))

    return rate


@final
@dataclass(frozen=True, eq=False)
class _Step:
    """One step of the optimiser."""

    network: AdaptedNetwork
    texts: Texts
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    def __call__(self, rows: Sequence[int]) -> float:
        loss, count = _loss(self.network, self.texts, rows)
        self.optimiser.zero_grad()
        torch.autograd.backward([loss / count])
        torch.nn.utils.clip_grad_norm_(self.network.parameters, _LONGEST_GRADIENT)
        self.optimiser.step()
        self.schedule.step()
        return loss.item() / count


def _orders(texts: Texts, batch_size: int, random: np.random.Generator) -> Iterator[Sequence[int]]:
    """The fitting rows in batches, those of a batch of similar length, in random order."""
    order = random.permutation(texts.fit)
    lengths = np.array([len(prompt.ids) for prompt in texts.prompts])
    parts: list[list[int]] = []
    for start in range(0, len(order), batch_size * _BATCHES_SORTED):
        pool = order[start : start + batch_size * _BATCHES_SORTED]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        parts += [pool[i : i + batch_size].tolist() for i in range(0, len(pool), batch_size)]
    for number in random.permutation(len(parts)).tolist():
        yield parts[number]


def _loss(network: AdaptedNetwork, texts: Texts, rows: Sequence[int]) -> tuple[Tensor, int]:
    """The cross-entropy in nats summed over the labels of these rows, and how many there are."""
    logits = network.logits([texts.prompts[row] for row in rows])
    present = texts.present[rows]
    labels = torch.from_numpy(np.nan_to_num(texts.correct[rows])).to(logits)
    each = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    mask = torch.from_numpy(present).to(logits)
    return (each * mask).sum(), max(1, int(present.sum()))


def _validate(network: AdaptedNetwork, texts: Texts) -> float:
    """The mean loss of the held-out rows, without dropout."""
    prompts = [texts.prompts[row] for row in texts.held]
    lengths = [len(prompt.ids) for prompt in prompts]
    total, labels = 0.0, 0
    with network.evaluating(), torch.no_grad():
        for part in batches(lengths, network.encoder.batch_tokens):
            rows = [int(texts.held[place]) for place in part]
            loss, _ = _loss(network, texts, rows)
            total, labels = total + loss.item(), labels + int(texts.present[rows].sum())
    return total / max(1, labels)
