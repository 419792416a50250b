"""Learning curves: metrics, the sizes and trends of a curve, and a power law through each.

    err(n) = a + b n^-c

The error of most learners falls with the amount of data in this form (Hestness et al. 2017, "Deep
learning scaling is predictable, empirically"). For each exponent the best non-negative a and b have
a closed form; the exponent is searched on a grid. Outliers count less (Huber's weights), so that
one unlucky fit doesn't bend the curve.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.comparison import RecipeFailure
from prefill_router.errors import FitError
from prefill_router.evaluation import (
    SAME,
    Estimate,
    LambdaSweep,
    PerResample,
    Trial,
    Weights,
    auc_by_target,
    best_point,
    brier_by_target,
    divide,
    estimates_to_dict,
    known_mean,
    macro_mean,
    mean_over,
    plain,
    rankings,
)
from prefill_router_lab.learning_curves.options import Size

Number = Literal["auc_mean", "brier_mean", "argmax_accuracy", "headroom_captured"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""Names of metrics in `evaluation.HEADLINE`."""


@final
class FitJudge:
    """Computes the metrics of one fit on the test queries, which are sorted once."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._ranking, self._sweep = trial, rankings(trial), LambdaSweep.of(trial)

    def numbers(self, weights: Weights) -> dict[Number, PerResample]:
        """Each metric in each resample."""
        trial, same = self._trial, weights * self._trial.compared
        top, _ = best_point(self._sweep.points(weights))
        single = np.fmax.reduce(known_mean(same, trial.single_label), axis=1)
        room = mean_over(same, trial.best_label) - single
        label = trial.of_choice(trial.correct, trial.most_probable)
        return {
            "auc_mean": macro_mean(auc_by_target(self._ranking, weights)),
            "brier_mean": macro_mean(brier_by_target(trial, weights)),
            "argmax_accuracy": mean_over(same, label),
            "headroom_captured": divide(top - single, np.where(room > SAME, room, 0)),
        }


def direction(number: Number) -> int:
    """1 where higher is better, else -1."""
    return -1 if number == "brier_mean" else 1


Sizes = Float[NDArray[np.float64], " size"]
_EXPONENTS = np.linspace(0.05, 2.0, 79)
_ROUNDS = 8
_HUBER = 1.345
"""95 % as efficient as least squares where errors are normal (Huber 1964)."""
_MAD = 1.4826
_LEAST = 4
"""The fewest sizes for a fit: three parameters fit any three points exactly."""


@final
@dataclass(frozen=True)
class PowerLaw:
    """An error that falls with the number of labels.

    Attributes:
        floor: a, the error with infinitely many labels.
        scale: b n^-c at the largest size.
        exponent: c.
        largest: The largest fitted size; beyond it the law is an extrapolation.
    """

    floor: float
    scale: float
    exponent: float
    largest: float

    @classmethod
    def fit(cls, sizes: Sizes, errors: Sizes) -> "PowerLaw":
        """Fit the power law robustly.

        Args:
            sizes: Numbers of labels, positive.
            errors: The mean error at each size; NaN where unknown.

        Raises:
            FitError: Fewer than four sizes are known.
        """
        is_known = np.isfinite(errors)
        if is_known.sum() < _LEAST:
            raise FitError(f"a power law needs {_LEAST} sizes; {is_known.sum()} are known")
        x, y = sizes[is_known], errors[is_known]
        largest = float(x.max())
        table = (x / largest)[:, None] ** -_EXPONENTS
        weight = np.ones(len(x))
        for _ in range(_ROUNDS):
            a, b, best = _solve(table, y, weight)
            residuals = np.abs(y - a - b * table[:, best])
            scale = _HUBER * _MAD * float(np.median(residuals))
            weight = np.minimum(1, scale / np.maximum(residuals, 1e-12)) if scale > 0 else weight
        return cls(a, b, float(_EXPONENTS[best]), largest)

    def at(self, labels: Float[NDArray[np.float64], "..."]) -> Float[NDArray[np.float64], "..."]:
        """The error at these numbers of labels."""
        value: NDArray[np.float64] = (
            self.floor + self.scale * (labels / self.largest) ** -self.exponent
        )
        return value

    def labels_for(self, gain: float) -> float:
        """The total number of labels that lowers the error at `largest` by `gain`; may be inf."""
        remaining = self.scale - gain
        if remaining <= 0 or self.scale <= 0:
            return math.inf
        with np.errstate(over="ignore"):
            return float(self.largest * np.float64(self.scale / remaining) ** (1 / self.exponent))

    def gain(self, times: float) -> float:
        """How much lower the error is with `times` as many labels as the largest size."""
        return self.scale * (1 - float(times**-self.exponent))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; b refers to labels relative to `largest`."""
        return {"a": self.floor, "b": self.scale, "c": self.exponent, "largest": self.largest}


def r_squared(law: PowerLaw, sizes: Sizes, errors: Sizes) -> float:
    """R squared: the share of the errors' variance that the law explains; NaN where there is none.

    Args:
        law: The law.
        sizes: Numbers of labels.
        errors: The mean error at each size; NaN where unknown.
    """
    is_known = np.isfinite(errors)
    x, y = sizes[is_known], errors[is_known]
    spread = float(((y - y.mean()) ** 2).sum())
    if spread <= 1e-16:
        return math.nan
    return 1 - float(((y - law.at(x)) ** 2).sum()) / spread


def _solve(
    table: Float[NDArray[np.float64], "size exponent"], y: Sizes, weight: Sizes
) -> tuple[float, float, int]:
    """The a, b and exponent index with the smallest weighted sum of squares."""
    total = weight.sum()
    mean_u, mean_y = weight @ table / total, float(weight @ y / total)
    centred = table - mean_u
    variance = weight @ centred**2
    b = (weight * (y - mean_y)) @ centred / np.maximum(variance, 1e-300)
    b = np.maximum(b, 0)
    a = mean_y - b * mean_u
    through = (weight * y) @ table / (weight @ table**2)
    b = np.where(a < 0, np.maximum(through, 0), b)
    a = np.maximum(a, 0)
    residuals = weight @ (y[:, None] - a - b * table) ** 2
    at = int(np.argmin(residuals))
    return float(a[at]), float(b[at]), at


Verdict = Literal["more labels help", "more labels won't help", "can't tell"]
STEP = 0.01
"""One point of accuracy, headroom, AUC or Brier score."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SizePoint:
    """A router learned from fewer labels.

    Attributes:
        size: How much of the labels was used.
        queries: Number of labelled queries in training.
        labels: Number of their measured outcomes, averaged over the draws.
        numbers: Metrics averaged over the draws, with intervals over draws and test queries.
        draws: Each draw's metrics; NaN where a fit failed.
    """

    size: Size
    queries: int
    labels: float
    numbers: Mapping[Number, Estimate]
    draws: Mapping[Number, tuple[float, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "share": self.size.share,
            "measured": self.size.measured,
            "queries": self.queries,
            "labels": self.labels,
            "numbers": estimates_to_dict(self.numbers),
            "draws": {name: [plain(v) for v in values] for name, values in self.draws.items()},
        }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Trend:
    """The trend of one metric with more labelled queries.

    Attributes:
        law: The power law of its error; None where too few sizes are known.
        per_doubling: Improvement per doubling of the labels over the largest sizes; measured, not
            from the power law.
        next_doubling: Improvement that the power law predicts for the next doubling.
        explained: R squared of the power law on the sizes.
        held_out: The largest size's error minus the prediction of a law fitted to the other sizes.
        labels_for_step: Total labels that the power law needs for an improvement of `STEP`; may be
            infinite.
        why_poor: Why the power law is unreliable; empty where it isn't.
    """

    law: PowerLaw | None
    per_doubling: Estimate
    next_doubling: Estimate
    explained: float
    held_out: Estimate
    labels_for_step: Estimate
    why_poor: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None also for an infinite number of labels."""
        return {
            "law": None if self.law is None else self.law.to_dict(),
            "per_doubling": self.per_doubling.to_dict(),
            "next_doubling": self.next_doubling.to_dict(),
            "explained": plain(self.explained),
            "held_out": self.held_out.to_dict(),
            "labels_for_step": self.labels_for_step.to_dict(),
            "never": math.isinf(self.labels_for_step.value),
            "why_poor": self.why_poor,
        }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LearningCurve:
    """The learning curves of one recipe.

    Attributes:
        name: The recipe's name.
        points: Every size, shares of the queries first.
        trends: The trend of each metric over shares of the queries.
        spread: The improvement of each metric if the same labels are few targets of all queries and
            not all targets of few queries, averaged over the sizes where both are known.
        verdict: Whether more labels help.
        because: The reason.
        failures: The fits that couldn't be made.
    """

    name: str
    points: tuple[SizePoint, ...]
    trends: Mapping[Number, Trend]
    spread: Mapping[Number, Estimate]
    verdict: Verdict
    because: str
    failures: tuple[RecipeFailure, ...]

    @property
    def queries_axis(self) -> tuple[SizePoint, ...]:
        """Shares of the queries with every measured target, by rising size."""
        return tuple(p for p in self.points if p.size.measured is None)

    @property
    def targets_axis(self) -> tuple[SizePoint, ...]:
        """All queries with fewer measured targets per query, by rising size; all targets last."""
        few = [p for p in self.points if p.size.measured is not None]
        return (*few, *(p for p in self.points if p.size == Size()))

    @property
    def full(self) -> SizePoint:
        """The point with all labels."""
        return next(p for p in self.points if p.size == Size())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "verdict": self.verdict,
            "because": self.because,
            "points": [point.to_dict() for point in self.points],
            "trends": {name: trend.to_dict() for name, trend in self.trends.items()},
            "spread": estimates_to_dict(self.spread),
            "failed": {failure.name: failure.why for failure in self.failures},
        }
