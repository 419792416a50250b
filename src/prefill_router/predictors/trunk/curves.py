"""Training curves: the losses of each seed, its best epoch, and whether it was kept."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float64, Int
from numpy.typing import NDArray


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
