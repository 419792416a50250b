"""The common parts of the training of several predictors.

The held-out rows of the validation loss (the same for all seeds), the weights of queries in a loss,
the random numbers of one seed (initial weights, order of the rows, dropout), and the training
curves: the losses of each seed, its best epoch, and whether it was kept.

Each seed has its own generator and draws from it in the same order whether it is trained alone or
with others. So its losses don't depend on other seeds, but for dropout on a GPU (`train_seeds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int
from numpy.typing import NDArray

from prefill_router.data import Regime, regimes
from prefill_router.errors import CorruptError
from prefill_router.predictors.base import Features, Labels
from prefill_router.short_repr import short_repr
from prefill_router.statistics import row_numbers
from prefill_router.training import TrainingRun


@final
@dataclass(frozen=True, eq=False)
class Holdout:
    """Rows to fit on and held-out rows, both in ascending order."""

    fit: Int[NDArray[np.int64], " fitted"]
    validation: Int[NDArray[np.int64], " held"]

    @property
    def shared(self) -> bool:
        """Whether there was only one distinct row, so that both are all rows."""
        return len(self.fit) > 0 and np.array_equal(self.fit, self.validation)


def hold_out(features: Features, *, share: float, seed: int) -> Holdout:
    """Draw the held-out rows; rows with equal features stay together, conversations don't.

    At least one distinct row is held out and one is fitted on. A single distinct row is in both.

    Args:
        features: The rows, at least one.
        share: The share that is held out, in (0, 1).
        seed: The seed of the random draw.
    """
    group = row_numbers(features)
    order = np.random.default_rng(seed).permutation(int(group.max()) + 1)
    if len(order) == 1:
        everything = np.arange(len(features))
        return Holdout(everything, everything)
    sizes = np.bincount(group)[order]
    count = int(np.searchsorted(np.cumsum(sizes), share * len(features)))
    is_validation = np.isin(group, order[: min(max(count, 1), len(order) - 1)])
    return Holdout(np.flatnonzero(~is_validation), np.flatnonzero(is_validation))


def draw_folds(features: Features, *, count: int, seed: int) -> Int[NDArray[np.int64], " row"]:
    """Draw the fold of each row; rows with equal features share one, conversations don't.

    So these folds only choose strengths and weights. What is reported comes from folds that keep
    conversations whole, such as `Examples.folds`.

    Args:
        features: The rows, at least one.
        count: The number of folds; fewer where there are fewer distinct rows.
        seed: The seed of the random draw.
    """
    group = row_numbers(features)
    distinct = int(group.max()) + 1
    return np.random.default_rng(seed).permutation(distinct)[group] % min(count, distinct)


def query_weights(
    correct: Labels, *, disagreement_weight: float = 1.0
) -> Float64[NDArray[np.float64], " query"]:
    """Weights of the queries, 1 on average over the labels that were measured.

    Args:
        correct: Labels, NaN where missing.
        disagreement_weight: The weight of a query on which targets disagree (labels cut at 0.5),
            relative to other queries, positive.
    """
    differ = regimes(correct) == str(Regime.DISAGREEMENT)
    weights = np.where(differ, disagreement_weight, 1.0)
    measured = (~np.isnan(correct)).sum(axis=1)
    mean = np.average(weights, weights=measured) if measured.any() else 1.0
    return np.asarray(weights / mean)


_STEPS = 1 << 16  # sixteen random bits per unit are enough, and four times as fast as a double


@final
class Draws:
    """The random numbers of one seed."""

    def __init__(self, seed: int, index: int) -> None:
        self._bits = np.random.SFC64(np.random.SeedSequence([seed, index]))
        self._random = np.random.Generator(self._bits)

    def uniform(
        self, shape: tuple[int, ...], *, bound: float
    ) -> Float32[NDArray[np.float32], "..."]:
        """Uniform on [-bound, bound)."""
        draw = self._random.random(shape, dtype=np.float32)
        return (2 * draw - 1) * np.float32(bound)

    def normal(self, shape: tuple[int, ...]) -> Float32[NDArray[np.float32], "..."]:
        """Standard normal."""
        return self._random.standard_normal(shape, dtype=np.float32)

    def order(self, count: int) -> Int[NDArray[np.int64], " row"]:
        """The rows 0 to count - 1 in random order."""
        return self._random.permutation(count)

    def draw_mask(self, out: Bool[NDArray[np.bool_], "row unit"], *, dropout: float) -> None:
        """Draw which units are kept, each with `keep_probability(dropout)`, into `out`."""
        words = self._bits.random_raw(-(-out.size // 4))
        bits = words.view(np.uint16)[: out.size].reshape(out.shape)
        np.greater_equal(bits, np.uint16(_drop_steps(dropout)), out=out)


def keep_probability(dropout: float) -> float:
    """The probability with which a unit is kept: 1 - dropout, rounded to sixteen bits."""
    return 1 - _drop_steps(dropout) / _STEPS


def _drop_steps(dropout: float) -> int:
    return min(round(dropout * _STEPS), _STEPS - 1)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TrainingCurves:
    """Losses by seed and epoch, in nats per label; NaN after a seed has stopped.

    Attributes:
        train: Mean training loss during the epoch, with dropout.
        validation: Validation loss after the epoch, without dropout.
        best_epoch: The epoch, from 0, of each seed's least validation loss; its weights are kept.
        is_kept: Whether a seed is in the ensemble.
    """

    train: Float64[NDArray[np.float64], "seed epoch"]
    validation: Float64[NDArray[np.float64], "seed epoch"]
    best_epoch: Int[NDArray[np.int64], " seed"]
    is_kept: Bool[NDArray[np.bool_], " seed"]

    @property
    def best(self) -> Float64[NDArray[np.float64], " seed"]:
        """Each seed's least validation loss."""
        least: NDArray[np.float64] = self.validation[np.arange(len(self.is_kept)), self.best_epoch]
        return least

    @classmethod
    def of(
        cls, runs: Sequence[TrainingRun], is_kept: Bool[NDArray[np.bool_], " seed"]
    ) -> "TrainingCurves":
        """The curves of each seed's run."""
        return cls(
            _losses_table([run.train for run in runs]),
            _losses_table([run.validation for run in runs]),
            np.array([run.best_epoch for run in runs]),
            is_kept,
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TrainingCurves":
        """The curves that `to_dict` saved.

        Raises:
            CorruptError: The values aren't training curves.
        """
        try:
            seeds = sorted(value["seeds"], key=lambda entry: entry["seed"])
            train, validation = (
                [list(map(float, entry[name])) for entry in seeds]
                for name in ("train_loss", "validation_loss")
            )
            best = np.array([entry["best_epoch"] for entry in seeds], dtype=np.int64)
            is_kept = np.array([entry["kept"] for entry in seeds], dtype=np.bool_)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"these aren't training curves: {error!r}") from None
        return cls(_losses_table(train), _losses_table(validation), best, is_kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: one entry per seed, with its own epochs only."""
        seeds = []
        for seed, epoch in enumerate(self.best_epoch.tolist()):
            ran = ~np.isnan(self.validation[seed])
            seeds.append(
                {
                    "seed": seed,
                    "kept": bool(self.is_kept[seed]),
                    "best_epoch": epoch,
                    "train_loss": self.train[seed, ran].tolist(),
                    "validation_loss": self.validation[seed, ran].tolist(),
                }
            )
        return {"seeds": seeds}


def _losses_table(losses: Sequence[Sequence[float]]) -> Float64[NDArray[np.float64], "seed epoch"]:
    """The losses of each seed as rows of a table, NaN after its last epoch."""
    table = np.full((len(losses), max(map(len, losses), default=0)), np.nan)
    for row, seed in zip(table, losses, strict=True):
        row[: len(seed)] = seed
    return table
