"""Calibrators that interpolate linearly between knots: isotonic and percentile maps.

Isotonic regression: the non-decreasing curve with the least squared error to the labels. Zadrozny
and Elkan, "Transforming classifier scores into accurate multiclass probability estimates" (2002).
The least-squares fit is a step function, and all predictions on a step would become equal. So the
curve is linear from the centre of one step (its mean prediction) to that of the next: Oron and
Flournoy, "Centered isotonic regression" (2017). Beyond the outermost centres it is constant.

Percentile mapping: the rank of a prediction among the target's calibration predictions. It puts
targets on one scale: 0.9 is higher than nine in ten of that target's predictions. It isn't
calibration: labels aren't used, and a target that is hardly ever right gets 0.9 as often as one
that mostly is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from prefill_router.calibration.base import (
    Calibrator,
    CalibratorFit,
    Labelled,
    Scores,
    rounded,
)
from prefill_router.errors import ConfigError
from prefill_router.predictors import Correctness

Knots = Float32[NDArray[np.float32], "_"]
Column = Float64[NDArray[np.float64], "_"]
IDENTITY = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""The curve that changes nothing."""


@final
@dataclass(frozen=True, eq=False)
class Curves:
    """One non-decreasing curve per target, constant beyond its first and last knot.

    Attributes:
        x: Each curve's knots, strictly increasing; predictions are rounded to their precision.
        y: The value of the curve at each knot.
    """

    x: tuple[Knots, ...]
    y: tuple[Knots, ...]

    def __call__(self, correctness: Correctness) -> Correctness:
        """Map each column by its curve."""
        result = np.empty_like(correctness)
        for k, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
            result[:, k] = _between(x, y, correctness[:, k].astype(np.float32))
        return result


@dataclass(frozen=True, eq=False)
class CurveCalibrator(Calibrator):
    """A calibrator with one curve per target.

    Attributes:
        knots: The number of knots of each target's curve.
        x: The knots of all curves, concatenated; strictly increasing within each curve.
        y: The value at each knot; non-decreasing within each curve.
    """

    knots: tuple[PositiveInt, ...]
    x: Annotated[Float32[NDArray[np.float32], " knot"], Field(ge=0, le=1)]
    y: Annotated[Float32[NDArray[np.float32], " knot"], Field(ge=0, le=1)]

    @classmethod
    def of(
        cls, targets: tuple[str, ...], curves: Sequence[tuple[Column, Column]]
    ) -> "CurveCalibrator":
        """The calibrator with these knots, x and y of each curve."""
        x, y = (np.concatenate(side).astype(np.float32) for side in zip(*curves, strict=True))
        return cls(targets, tuple(len(side) for side, _ in curves), x, y)

    @cached_property
    def curves(self) -> Curves:
        """The curve of each target."""
        ends = np.cumsum(self.knots)[:-1]
        return Curves(tuple(np.split(self.x, ends)), tuple(np.split(self.y, ends)))

    def verify(self) -> None:
        """Check that there is a curve for each target, and that all are non-decreasing."""
        if len(self.knots) != len(self.targets) or sum(self.knots) != len(self.x):
            raise ConfigError("it doesn't have one curve for each of its targets")
        rising = all((np.diff(x) > 0).all() for x in self.curves.x)
        if not rising or any((np.diff(y) < 0).any() for y in self.curves.y):
            raise ConfigError("its curves aren't sorted, or they decrease")

    def _map(self, correctness: Correctness) -> Correctness:
        return self.curves(correctness)


def _between(x: Knots, y: Knots, at: Knots) -> Column:
    """Linear interpolation that, unlike `np.interp`, can't decrease by rounding."""
    after = np.searchsorted(x, at, side="right")
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(x) - 1)
    low, high = y[left].astype(np.float64), y[right].astype(np.float64)
    run = x[right].astype(np.float64) - x[left]
    share = np.clip((at - x[left].astype(np.float64)) / np.where(run > 0, run, 1), 0, 1)
    return np.asarray(np.minimum(low + share * (high - low), high))


@final
@dataclass(frozen=True, eq=False)
class Isotonic(CurveCalibrator):
    """A non-decreasing step function, interpolated between the centres of its steps."""

    kind: ClassVar[str] = "isotonic"
    label: ClassVar[str] = "isotonic"
    source: ClassVar[str] = "Zadrozny and Elkan 2002"
    probabilistic: ClassVar[bool] = True

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
        return CalibratorFit(cls.of(targets, curves), tuple(notes))


def _fit(rows: Labelled) -> tuple[tuple[Column, Column], str]:
    """The knots of a target's curve, and a note on them."""
    note = rows.note()
    if note:
        return _level(rows.rate) if rows.enough else IDENTITY, note
    curve = _steps(rows)
    if curve[1][0] < curve[1][-1]:
        return curve, ""
    rate = float(curve[1][0])
    return curve, (
        "its calibration labels don't rise with its predictions, so its predictions become "
        f"{rate:.3f}"
    )


def _steps(rows: Labelled) -> tuple[Column, Column]:
    """The centre and the height of each step."""
    from scipy.optimize import isotonic_regression

    x, place, count = np.unique(rows.scores, return_inverse=True, return_counts=True)
    mean = np.bincount(place, weights=rows.labels) / count
    fitted = isotonic_regression(mean, weights=count.astype(np.float64))
    first = fitted.blocks[:-1]
    middle = np.add.reduceat(x * count, first) / np.add.reduceat(count, first)
    return middle, np.clip(fitted.x[first], 0, 1)


def _level(height: float) -> tuple[Column, Column]:
    return np.array([0.5]), np.array([height])


NOTE = "puts the targets' predictions on one scale; its output isn't a probability"


@final
@dataclass(frozen=True, eq=False)
class Percentile(CurveCalibrator):
    """The empirical distribution function of each target's calibration predictions.

    At a calibration prediction the curve is the share of predictions below it plus half the share
    of equal ones. It is linear in between, and up to 0 and 1 at the ends, so that different
    predictions stay different.
    """

    kind: ClassVar[str] = "percentile"
    label: ClassVar[str] = "percentile mapping"
    source: ClassVar[str] = "section 3.2 of the paper"
    probabilistic: ClassVar[bool] = False

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Sort the predictions of all queries, labelled or not."""
        del correct
        curves = [_ranks(scores) for scores in correctness.T]
        return CalibratorFit(cls.of(targets, curves), (f"{cls.label} {NOTE}",))


def _ranks(scores: Scores) -> tuple[Column, Column]:
    """The distinct predictions, and the mid-rank of each as a share."""
    x, count = np.unique(rounded(scores), return_counts=True)
    y = (np.cumsum(count) - count / 2) / len(scores)
    if x[0] > 0:
        x, y = np.concatenate([[0.0], x]), np.concatenate([[0.0], y])
    if x[-1] < 1:
        x, y = np.concatenate([x, [1.0]]), np.concatenate([y, [1.0]])
    return x, y
