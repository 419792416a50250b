"""Isotonic regression: of all curves that never fall, the one nearest to the labels.

Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability estimates"
(2002). The least-squares fit is a flight of steps, and equal predictions on a step would no longer
tell queries apart. So the curve goes straight from the middle of one step (its mean prediction) to
that of the next: Oron and Flournoy, "Centered isotonic regression" (2017). Beyond the outermost
middles it is level.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.calibration.base import Calibrator, CalibratorFit, Labelled
from prefill_router.calibration.curves import IDENTITY, Column, Curves
from prefill_router.predictors.base import Correctness, Tensors


@final
@dataclass(frozen=True, eq=False)
class Isotonic(Calibrator):
    """Steps that never fall, joined in their middles.

    Attributes:
        curves: One for each target.
    """

    kind: ClassVar[str] = "isotonic"
    label: ClassVar[str] = "isotonic"
    source: ClassVar[str] = "Zadrozny and Elkan 2002"
    probabilistic: ClassVar[bool] = True
    curves: Curves

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the columns."""
        return self.curves.names

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Fit each target's steps to its labels by least squares."""
        curves, notes = [], []
        for name, scores, labels in zip(targets, correctness.T, correct.T, strict=True):
            curve, note = _fit(Labelled.of(scores, labels))
            curves.append(curve)
            notes += [f"{name}: {note}"] if note else []
        return CalibratorFit(cls(Curves.of(targets, curves)), tuple(notes))

    def _map(self, correctness: Correctness) -> Correctness:
        return self.curves(correctness)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.curves.to_dict(self.kind)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Those of its curves."""
        return self.curves.tensors()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Isotonic":
        """The calibrator of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        return cls(Curves.from_dict(config, tensors, cls.kind))


def _fit(rows: Labelled) -> tuple[tuple[Column, Column], str]:
    """The knots of a target's curve, and what there is to say of it."""
    note = rows.note()
    if note:
        return _level(rows.rate) if rows.enough else IDENTITY, note
    curve = _steps(rows)
    if curve[1][0] < curve[1][-1]:
        return curve, ""
    rate = float(curve[1][0])
    return curve, f"its calibration labels don't rise with its predictions; it is given {rate:.3f}"


def _steps(rows: Labelled) -> tuple[Column, Column]:
    """The middle and the height of each step."""
    from scipy.optimize import isotonic_regression

    x, place, count = np.unique(rows.scores, return_inverse=True, return_counts=True)
    mean = np.bincount(place, weights=rows.labels) / count
    fitted = isotonic_regression(mean, weights=count.astype(np.float64))
    first = fitted.blocks[:-1]
    middle = np.add.reduceat(x * count, first) / np.add.reduceat(count, first)
    return middle, np.clip(fitted.x[first], 0, 1)


def _level(height: float) -> tuple[Column, Column]:
    return np.array([0.5]), np.array([height])
