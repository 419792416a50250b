"""What a target that joins a router is expected to be, and what its labels tell.

Its log-odds z are a linear function of the fitted targets' (`router.PoolChanges`). Before any
label the weights have a normal prior whose mean is the mean of the others' log-odds, and whose
covariance is such that the new target differs from that mean as the others do from each other.
Labels give the posterior by Laplace's approximation. On a train row the others' answers are known,
and tell how much harder it was than predicted; with e the mean over the others of label minus
probability, the label y of the new target is modelled as

    logit p(y) = slope * z + surprise * e

where `slope` and `surprise` are those that the fitted targets have with respect to each other. So
the labels are freed of most of the noise that targets share.

Questions are chosen one after another, each the one that takes most off the posterior variance of
the predicted log-odds over the train rows, weighted by p(1 - p) (V-optimal design).
docs/decisions/0022-adding-targets.md has what it reaches.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.router import head_inputs
from prefill_router.short_repr import short_repr
from prefill_router.statistics import sigmoid

Inputs = Float64[NDArray[np.float64], "row column"]
Column = Float64[NDArray[np.float64], " _"]
Rows = Int64[NDArray[np.int64], " _"]
Weights = Float64[NDArray[np.float64], " column"]
Matrix = Float64[NDArray[np.float64], "column column"]
Table = Float64[NDArray[np.float64], "row target"]
_INTERCEPT, _SLOPE, _DIFFERENCE = 0.05, 0.01, 1.0
"""Prior variances of the weights of `head_inputs`, the last divided among the targets; confirmed on
train rows of MMLU-Pro, each target in turn as the new one."""
_STEPS = 12
_FLAT = 1e-4  # the least p (1 - p) of a row in Newton's steps


@short_repr
@final
@dataclass(frozen=True, eq=False)
class HeadPrior:
    """What is known of the train rows before the new target is asked.

    Attributes:
        inputs: The inputs of a head.
        surprise: How much better the fitted targets did than was predicted, times its weight.
        slope: How much steeper the log-odds are where the surprise is known.
        precision: The prior precisions of the weights.
    """

    inputs: Inputs
    surprise: Column
    slope: float
    precision: Weights

    @classmethod
    def of(
        cls,
        correctness: Table,
        correct: Table,
    ) -> "HeadPrior":
        """The prior, from the fitted targets' probabilities and labels (NaN: missing)."""
        inputs, known = head_inputs(correctness), ~np.isnan(correct)
        residual = np.where(known, correct - correctness, 0)
        count = correctness.shape[1]
        others = (residual.sum(axis=1, keepdims=True) - residual) / max(count - 1, 1)
        odds = inputs[:, 2:] + inputs[:, 1:2]
        slope, surprise = _logistic(
            np.column_stack([odds[known], others[known]]),
            correct[known],
            offset=0.0,
            prior=np.array([1.0, 0.0]),
            precision=np.ones(2),
        )[0]
        variances = [_INTERCEPT, _SLOPE, *[_DIFFERENCE / count] * count]
        return cls(
            inputs,
            surprise * residual.mean(axis=1),
            max(float(slope), 0.1),
            1 / np.array(variances),
        )

    @property
    def prior(self) -> Weights:
        """The prior mean of the weights: the mean of the others' log-odds."""
        return np.asarray(np.eye(len(self.precision))[1])

    def posterior(self, rows: Rows, labels: Column) -> tuple[Weights, Matrix]:
        """The mean and covariance of the weights after these labels; NaN is left out."""
        there = ~np.isnan(labels)
        weights, precision = _logistic(
            self.slope * self.inputs[rows[there]],
            labels[there],
            offset=self.surprise[rows[there]],
            prior=self.prior,
            precision=self.precision,
        )
        return weights, np.linalg.inv(precision).astype(np.float64)

    def choose(
        self,
        open_rows: Rows,
        count: int,
        posterior: tuple[Weights, Matrix],
    ) -> Rows:
        """The questions that take most off the variance of the predictions, one after another."""
        weights, covariance = posterior
        chances = sigmoid(self.inputs @ weights)
        matters = (self.inputs.T * (chances * (1 - chances))) @ self.inputs / len(self.inputs)
        rows = self.slope * self.inputs[open_rows]
        told = sigmoid(
            (rows @ weights + self.surprise[open_rows])
            / np.sqrt(1 + np.pi / 8 * ((rows @ covariance) * rows).sum(axis=1))
        )
        noise = 1 / np.maximum(told * (1 - told), _FLAT)
        left, chosen = np.ones(len(rows), dtype=np.bool_), []
        for _ in range(count):
            reach = rows @ covariance
            gain = ((reach @ matters) * reach).sum(axis=1) / (noise + (reach * rows).sum(axis=1))
            best = int(np.where(left, gain, -1).argmax())
            left[best] = False
            chosen.append(best)
            scale = noise[best] + reach[best] @ rows[best]
            covariance = covariance - np.outer(reach[best], reach[best]) / scale
        return open_rows[chosen]


def _logistic(
    rows: Inputs,
    labels: Column,
    *,
    offset: Column | float,
    prior: Weights,
    precision: Weights,
) -> tuple[Weights, Matrix]:
    """The weights with the greatest posterior probability, and the precision there."""
    weights, curvature = prior, np.diag(precision)
    for _ in range(_STEPS):
        chances = sigmoid(rows @ weights + offset)
        flat = np.maximum(chances * (1 - chances), _FLAT)
        curvature = (rows.T * flat) @ rows + np.diag(precision)
        downhill = rows.T @ (labels - chances) - precision * (weights - prior)
        step = np.linalg.solve(curvature, downhill)
        weights = weights + step / max(1.0, float(np.abs(step).max()))
    return weights, curvature
