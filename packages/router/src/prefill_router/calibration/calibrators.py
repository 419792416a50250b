"""The calibrators, how they are fitted, and how they are found by their kind.

Isotonic regression is the non-decreasing curve with the least squared error to the labels: Zadrozny
and Elkan, "Transforming classifier scores into accurate multiclass probability estimates" (2002).
The least-squares fit is a step function, and all predictions on a step would become equal. So the
curve is linear from the centre of one step (its mean prediction) to that of the next: Oron and
Flournoy, "Centered isotonic regression" (2017). Beyond the outermost centres it is constant.

Percentile mapping gives the rank of a prediction among the target's calibration predictions. It
puts targets on one scale: 0.9 is higher than nine in ten of that target's predictions. It isn't
calibration: labels aren't used, and a target that is hardly ever right gets 0.9 as often as one
that mostly is.

Platt scaling is a logistic curve of the logit, two parameters for each target (Platt,
"Probabilistic outputs for support vector machines", 1999). Its labels are smoothed: right answers
count as (R + 1) / (R + 2) and wrong ones as 1 / (W + 2), for R right and W wrong answers, so that
the curve stays finite where the predictions separate the labels. Soft labels lie between the two.

A z-score is the number of standard deviations by which a logit is above the mean of its target's
logits. It goes through the normal distribution function, so that 0.5 is an average query for that
target. Like percentiles, z-scores put targets on one scale and aren't calibration: labels aren't
used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeAlias, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from prefill_router.calibration.base import (
    LEAST,
    Calibrator,
    CalibratorFit,
    Labelled,
    Scores,
    logits,
    round_to_single,
)
from prefill_router.errors import ConfigError, FitError
from prefill_router.predictors import Correctness
from prefill_router.serialization import Kinds, Tensors
from prefill_router.statistics import cross_entropy, log_odds, sigmoid

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
            result[:, k] = _interpolate(x, y, correctness[:, k].astype(np.float32))
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


def _interpolate(x: Knots, y: Knots, at: Knots) -> Column:
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
            curve, note = _fit_knots(Labelled.of(scores, labels))
            curves.append(curve)
            notes += [f"{name}: {note}"] if note else []
        return CalibratorFit(cls.of(targets, curves), tuple(notes))


def _fit_knots(rows: Labelled) -> tuple[tuple[Column, Column], str]:
    """The knots of a target's curve, and a note on them."""
    note = rows.note()
    if note:
        return _make_level(rows.rate) if rows.enough else IDENTITY, note
    curve = _fit_steps(rows)
    if curve[1][0] < curve[1][-1]:
        return curve, ""
    rate = float(curve[1][0])
    return curve, (
        "its calibration labels don't rise with its predictions, so its predictions become "
        f"{rate:.3f}"
    )


def _fit_steps(rows: Labelled) -> tuple[Column, Column]:
    """The centre and the height of each step."""
    from scipy.optimize import isotonic_regression

    x, place, count = np.unique(rows.scores, return_inverse=True, return_counts=True)
    mean = np.bincount(place, weights=rows.labels) / count
    fitted = isotonic_regression(mean, weights=count.astype(np.float64))
    first = fitted.blocks[:-1]
    middle = np.add.reduceat(x * count, first) / np.add.reduceat(count, first)
    return middle, np.clip(fitted.x[first], 0, 1)


def _make_level(height: float) -> tuple[Column, Column]:
    return np.array([0.5]), np.array([height])


NOTE = "puts the targets' predictions on one scale; its output isn't a probability"
"""What a fit says of a calibrator that doesn't use the labels."""


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
        curves = [_rank_predictions(scores) for scores in correctness.T]
        return CalibratorFit(cls.of(targets, curves), (f"{cls.label} {NOTE}",))


def _rank_predictions(scores: Scores) -> tuple[Column, Column]:
    """The distinct predictions, and the mid-rank of each as a share."""
    x, count = np.unique(round_to_single(scores), return_counts=True)
    y = (np.cumsum(count) - count / 2) / len(scores)
    if x[0] > 0:
        x, y = np.concatenate([[0.0], x]), np.concatenate([[0.0], y])
    if x[-1] < 1:
        x, y = np.concatenate([x, [1.0]]), np.concatenate([y, [1.0]])
    return x, y


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


_NEWTON_STEPS = 100
_HALVINGS = 40
_TOLERANCE = 1e-10
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
            pair, note = _fit_slope(Labelled.of(scores, labels))
            pairs.append(pair)
            notes += [f"{name}: {note}"] if note else []
        slope, intercept = np.array(pairs, dtype=np.float32).T.copy()
        return CalibratorFit(cls(targets, slope, intercept), tuple(notes))

    def _map(self, correctness: Correctness) -> Correctness:
        line = self.slope.astype(np.float64) * logits(correctness) + self.intercept
        return np.asarray(sigmoid(line))


def _fit_slope(rows: Labelled) -> tuple[tuple[float, float], str]:
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
    slope, intercept = _fit_line(rows, labels, start)
    return slope / spread, intercept - slope * centre / spread


def _fit_line(
    rows: Float64[NDArray[np.float64], "query 2"], labels: Scores, start: Pair
) -> tuple[float, float]:
    """Newton's method; steps are halved until the loss falls, which works since it is convex."""
    at, loss = start, cross_entropy(rows @ start, labels).sum()
    for _ in range(_NEWTON_STEPS):
        chances = sigmoid(rows @ at)
        gradient = rows.T @ (chances - labels)
        if np.abs(gradient).max() <= _TOLERANCE * len(rows):
            break
        curvature = rows.T @ (rows * (chances * (1 - chances) + 1e-12)[:, None])
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


CalibratorKind: TypeAlias = str
"""One of `KINDS`."""
_CALIBRATORS = Kinds[type[Calibrator]](
    "calibrator",
    "prefill_router.calibration",
    {
        "none": "calibrators:NoCalibration",
        "platt": "calibrators:Platt",
        "isotonic": "calibrators:Isotonic",
        "percentile": "calibrators:Percentile",
        "z_score": "calibrators:ZScore",
    },
)
KINDS = _CALIBRATORS.names
find = _CALIBRATORS.find
AnyTable = Float64[NDArray[np.float64], "_ _"]


def fit_calibrator(
    kind: CalibratorKind, correctness: AnyTable, correct: AnyTable, targets: tuple[str, ...]
) -> CalibratorFit:
    """Fit a calibrator on rows that neither the predictor nor a test has seen.

    Each target's map is fitted on its own labels. Where they are too few, its predictions stay as
    they are. Where all labels are the same, its predictions become the share of right answers by
    the rule of succession. The notes say so. With too few queries nothing is changed at all.

    Args:
        kind: The kind of calibrator.
        correctness: The predictor's probabilities on the calibration part, [query, target].
        correct: The labels, [query, target], in [0, 1], NaN where missing; soft ones as they are.
        targets: The targets' names.

    Raises:
        ConfigError: There is no such kind.
        FitError: The shapes differ, names repeat, or a prediction or a label is outside [0, 1].
    """
    calibrator = find(kind)
    _check_labels(correctness, correct, targets)
    if len(correctness) < LEAST and kind != "none":
        why = (
            f"the calibration part has {len(correctness)} queries and needs {LEAST}, so the "
            "predictions are left as they are"
        )
        return CalibratorFit(NoCalibration(targets), (why,))
    return calibrator.fit(correctness, correct, targets)


def load_calibrator(config: Mapping[str, Any], tensors: Tensors) -> Calibrator:
    """The calibrator that `Calibrator.to_dict` and `Calibrator.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return _CALIBRATORS.of_saved(config).from_dict(config, tensors)


def _check_labels(correctness: AnyTable, correct: AnyTable, targets: tuple[str, ...]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise FitError(f"the targets are {list(targets)}; name at least one, each once")
    if not correctness.shape == correct.shape == (len(correct), len(targets)):
        raise FitError(
            f"the predictions are {correctness.shape} and the labels {correct.shape} for "
            f"{len(targets)} targets; give one row per query, one column per target"
        )
    if not ((correctness >= 0) & (correctness <= 1)).all():
        raise FitError("the predictions must be probabilities in [0, 1]; check the predictor")
    if not (np.isnan(correct) | ((correct >= 0) & (correct <= 1))).all():
        raise FitError("the labels must be in [0, 1], or NaN where missing; check the dataset")
