"""Percentile mapping: where a prediction stands among the target's calibration predictions.

It puts targets on one scale: 0.9 is better than nine in ten of the queries for that target. It is
no calibration: labels aren't used, and a target that is hardly ever right gets 0.9 as often as one
that mostly is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.calibration.base import Calibrator, CalibratorFit, Scores, rounded
from prefill_router.calibration.curves import Column, Curves
from prefill_router.predictors.base import Correctness, Tensors

NOTE = "puts the targets' predictions on one scale; what it gives are no probabilities"


@final
@dataclass(frozen=True, eq=False)
class Percentile(Calibrator):
    """The distribution function of each target's calibration predictions.

    Attributes:
        curves: One for each target. At a calibration prediction it is the share of those below, and
            half of those that are equal; it is straight in between, and towards 0 and 1 at the
            ends, so that no two predictions within become one.
    """

    kind: ClassVar[str] = "percentile"
    label: ClassVar[str] = "percentile mapping"
    source: ClassVar[str] = "section 3.2 of the paper"
    probabilistic: ClassVar[bool] = False
    curves: Curves

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the columns."""
        return self.curves.names

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Sort the predictions of all queries, labelled or not."""
        del correct
        curves = [_ranks(scores) for scores in correctness.T]
        return CalibratorFit(cls(Curves.of(targets, curves)), (f"{cls.label} {NOTE}",))

    def _map(self, correctness: Correctness) -> Correctness:
        return self.curves(correctness)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.curves.to_dict(self.kind)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Those of its curves."""
        return self.curves.tensors()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Percentile":
        """The calibrator of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        return cls(Curves.from_dict(config, tensors, cls.kind))


def _ranks(scores: Scores) -> tuple[Column, Column]:
    """The distinct predictions, and the mid-rank of each as a share."""
    x, count = np.unique(rounded(scores), return_counts=True)
    y = (np.cumsum(count) - count / 2) / len(scores)
    if x[0] > 0:
        x, y = np.concatenate([[0.0], x]), np.concatenate([[0.0], y])
    if x[-1] < 1:
        x, y = np.concatenate([x, [1.0]]), np.concatenate([y, [1.0]])
    return x, y
