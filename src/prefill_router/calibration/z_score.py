"""Z-scores: how many standard deviations a logit lies above the mean of the target's own.

The number goes through the normal distribution function, so that 0.5 is an ordinary query for that
target. Like percentiles it puts targets on one scale and is no calibration: labels aren't used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.calibration.base import Calibrator, CalibratorFit, logits
from prefill_router.calibration.percentile import NOTE
from prefill_router.calibration.saved import check_saved, require, take
from prefill_router.predictors.base import Correctness, Tensors

_SAME = 1e-6
"""Logits that differ by less don't differ."""
PerTarget = Float32[NDArray[np.float32], " target"]


@final
@dataclass(frozen=True, eq=False)
class ZScore(Calibrator):
    """The normal distribution function of (logit - mean) / deviation.

    Attributes:
        names: The targets' names.
        mean: Of the calibration predictions' logits.
        deviation: Their standard deviation; where it is 0 every prediction becomes 0.5.
    """

    kind: ClassVar[str] = "z_score"
    label: ClassVar[str] = "z-score"
    source: ClassVar[str] = "section 3.2 of the paper"
    probabilistic: ClassVar[bool] = False
    names: tuple[str, ...]
    mean: PerTarget
    deviation: PerTarget

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the columns."""
        return self.names

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Take mean and deviation over all queries, labelled or not."""
        del correct
        values = logits(np.sort(correctness, axis=0))
        deviation = values.std(axis=0)
        deviation[deviation < _SAME] = 0
        notes = [
            f"{targets[k]}: all its calibration predictions are the same; it is given 0.5"
            for k in np.flatnonzero(deviation == 0).tolist()
        ]
        arrays = values.mean(axis=0).astype(np.float32), deviation.astype(np.float32)
        return CalibratorFit(cls(targets, *arrays), (f"{cls.label} {NOTE}", *notes))

    def _map(self, correctness: Correctness) -> Correctness:
        from scipy.special import ndtr

        spread = self.deviation > 0
        distance = logits(correctness) - self.mean
        standard = distance / np.where(spread, self.deviation, 1).astype(np.float64)
        return np.asarray(ndtr(np.where(spread, standard, 0)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "targets": list(self.names)}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`mean` and `deviation`."""
        return {"mean": self.mean, "deviation": self.deviation}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "ZScore":
        """The calibrator of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other, or a deviation is negative.
        """
        names = tuple(check_saved(config, cls.kind).targets)
        mean, deviation = take(tensors, {n: (len(names),) for n in ("mean", "deviation")})
        require(bool((deviation >= 0).all()), "deviations aren't all 0 or more")
        return cls(names, mean, deviation)
