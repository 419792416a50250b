"""Training curves: the losses of each seed, its best epoch, and whether it was kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float64, Int
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.errors import CorruptError


@brief
@final
@dataclass(frozen=True, eq=False)
class TrainingCurves:
    """Losses by seed and epoch, in nats per label; NaN after a seed has stopped.

    Attributes:
        train: Mean over the epoch's batches, with dropout, as the weights moved.
        validation: After the epoch, without dropout.
        best_epoch: The epoch, from 0, of each seed's least validation loss, whose weights it has.
        kept: Whether a seed is in the ensemble.
    """

    train: Float64[NDArray[np.float64], "seed epoch"]
    validation: Float64[NDArray[np.float64], "seed epoch"]
    best_epoch: Int[NDArray[np.int64], " seed"]
    kept: Bool[NDArray[np.bool_], " seed"]

    @property
    def best(self) -> Float64[NDArray[np.float64], " seed"]:
        """Each seed's least validation loss."""
        least: NDArray[np.float64] = self.validation[np.arange(len(self.kept)), self.best_epoch]
        return least

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TrainingCurves":
        """The curves of `to_dict`.

        Raises:
            CorruptError: They aren't.
        """
        try:
            seeds = sorted(value["seeds"], key=lambda entry: entry["seed"])
            train, validation = (
                [list(map(float, entry[name])) for entry in seeds]
                for name in ("train_loss", "validation_loss")
            )
            best = np.array([entry["best_epoch"] for entry in seeds], dtype=np.int64)
            kept = np.array([entry["kept"] for entry in seeds], dtype=np.bool_)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"these aren't training curves: {error!r}") from None
        return cls(losses_table(train), losses_table(validation), best, kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: one entry per seed, with its epochs alone."""
        seeds = []
        for seed, epoch in enumerate(self.best_epoch.tolist()):
            ran = ~np.isnan(self.validation[seed])
            seeds.append(
                {
                    "seed": seed,
                    "kept": bool(self.kept[seed]),
                    "best_epoch": epoch,
                    "train_loss": self.train[seed, ran].tolist(),
                    "validation_loss": self.validation[seed, ran].tolist(),
                }
            )
        return {"seeds": seeds}


def losses_table(losses: Sequence[Sequence[float]]) -> Float64[NDArray[np.float64], "seed epoch"]:
    """The losses of each seed as rows of a table, NaN after its last epoch."""
    table = np.full((len(losses), max(map(len, losses), default=0)), np.nan)
    for row, seed in zip(table, losses, strict=True):
        row[: len(seed)] = seed
    return table
