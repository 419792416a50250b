"""Calibrators with few parameters: none, Platt scaling, z-scores.

Platt scaling is a logistic curve of the logit, two parameters for each target: Platt,
"Probabilistic outputs for support vector machines" (1999), with its smoothed labels: right answers
count as (R + 1) / (R + 2) and wrong ones as 1 / (W + 2), for R right and W wrong answers, so that
the curve stays finite where the predictions separate the labels. Soft labels lie between the two.

A z-score is the number of standard deviations by which a logit is above the mean of its target's
logits. It goes through the normal distribution function, so that 0.5 is an average query for that
target. Like percentiles, z-scores put targets on one scale and aren't calibration: labels aren't
used.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.calibration.base import (
    Calibrator,
    CalibratorFit,
    Labelled,
    Scores,
    logits,
)
from prefill_router.calibration.curves import NOTE
from prefill_router.predictors import Correctness
from prefill_router.statistics import cross_entropy, log_odds, sigmoid


@final
@dataclass(frozen=True, eq=False)
class NoCalibration(Calibrator):
    """Leaves every prediction as it is."""

    kind: ClassVar[str] = "none"
    label: ClassVar[str] = "none"
    source: ClassVar[str] = ""
    probabilistic: ClassVar[bool] = True

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Return the calibrator; the data isn't used."""
        del correctness, correct
        return CalibratorFit(cls(targets))

    def _map(self, correctness: Correctness) -> Correctness:
        return correctness.copy()


_STEPS = 100
_HALVINGS = 40
_DONE = 1e-10
"""The norm of the gradient per row at which a fit has converged."""
TargetNumbers = Float32[NDArray[np.float32], " target"]
Pair = Float64[NDArray[np.float64], "2"]


@final
@dataclass(frozen=True, eq=False)
class Platt(Calibrator):
    """sigmoid(slope * logit + intercept).

    Attributes:
        slope: Never negative; below 1 where the predictions were overconfident.
        intercept: Above 0 where the predictions were too low.
    """

    kind: ClassVar[str] = "platt"
    label: ClassVar[str] = "Platt scaling"
    source: ClassVar[str] = "Platt 1999"
    probabilistic: ClassVar[bool] = True
    slope: Annotated[TargetNumbers, Field(ge=0)]
    intercept: TargetNumbers

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Fit each target's curve to its labels by maximum likelihood.

        A decreasing curve is replaced by the best constant: the share of right answers.
        """
        pairs, notes = [], []
        for name, scores, labels in zip(targets, correctness.T, correct.T, strict=True):
            pair, note = _fit(Labelled.of(scores, labels))
            pairs.append(pair)
            notes += [f"{name}: {note}"] if note else []
        slope, intercept = np.array(pairs, dtype=np.float32).T.copy()
        return CalibratorFit(cls(targets, slope, intercept), tuple(notes))

    def _map(self, correctness: Correctness) -> Correctness:
        line = self.slope.astype(np.float64) * logits(correctness) + self.intercept
        return np.asarray(sigmoid(line))


def _fit(rows: Labelled) -> tuple[tuple[float, float], str]:
    """Slope and intercept, and a note on them."""
    note = rows.note()
    if note:
        return (0.0, float(logits(np.array(rows.rate)))) if rows.enough else (1.0, 0.0), note
    right = rows.labels.sum()
    high, low = (right + 1) / (right + 2), 1 / (len(rows) - right + 2)
    smoothed = low + rows.labels * (high - low)
    slope, intercept = _maximum_likelihood(logits(rows.scores), smoothed)
    if slope > 0:
        return (slope, intercept), ""
    rate = float(smoothed.mean())
    level = (0.0, float(log_odds(np.array(rate))))
    fall = "don't rise" if slope == 0 else f"fall, with a slope of {slope:.3g},"
    return level, (
        f"its calibration labels {fall} with its predictions, so its predictions become {rate:.3f}"
    )


def _maximum_likelihood(x: Scores, labels: Scores) -> tuple[float, float]:
    """The two parameters of a logistic regression on one variable, by Newton's method."""
    centre, spread = float(x.mean()), float(x.std())
    start = np.array([0.0, float(log_odds(np.array(labels.mean())))])
    if spread < 1e-9:  # all predictions are equal
        return 0.0, float(start[1])
    rows = np.stack([(x - centre) / spread, np.ones_like(x)], axis=1)
    slope, intercept = _newton(rows, labels, start)
    return slope / spread, intercept - slope * centre / spread


def _newton(
    rows: Float64[NDArray[np.float64], "query 2"], labels: Scores, start: Pair
) -> tuple[float, float]:
    """Newton's method; steps are halved until the loss falls, which works since it is convex."""
    at, loss = start, cross_entropy(rows @ start, labels).sum()
    for _ in range(_STEPS):
        given = sigmoid(rows @ at)
        gradient = rows.T @ (given - labels)
        if np.abs(gradient).max() <= _DONE * len(rows):
            break
        curvature = rows.T @ (rows * (given * (1 - given) + 1e-12)[:, None])
        step = np.linalg.solve(curvature, gradient)
        for halving in range(_HALVINGS):
            tried = at - step / 2**halving
            new = cross_entropy(rows @ tried, labels).sum()
            if new < loss:
                break
        else:
            break  # the loss is at its minimum, up to rounding
        at, loss = tried, new
    return float(at[0]), float(at[1])


_SAME = 1e-6
"""Logits that differ by less count as equal."""


@final
@dataclass(frozen=True, eq=False)
class ZScore(Calibrator):
    """The normal distribution function of (logit - mean) / deviation.

    Attributes:
        mean: The mean of the calibration predictions' logits.
        deviation: Their standard deviation; where it is 0 every prediction becomes 0.5.
    """

    kind: ClassVar[str] = "z_score"
    label: ClassVar[str] = "z-score"
    source: ClassVar[str] = "section 3.2 of the paper"
    probabilistic: ClassVar[bool] = False
    mean: TargetNumbers
    deviation: Annotated[TargetNumbers, Field(ge=0)]

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Compute mean and deviation over all queries, labelled or not."""
        del correct
        values = logits(np.sort(correctness, axis=0))
        deviation = values.std(axis=0)
        deviation[deviation < _SAME] = 0
        notes = [
            f"{targets[k]}: all its calibration predictions are the same; they become 0.5"
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
