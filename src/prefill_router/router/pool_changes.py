"""Targets that joined or left a router after its fit.

The log-odds of a target that joined are a linear function of those of the targets that the router
was fitted for,

    z_new = w[0] + w[1] * m + sum over j of w[j + 2] * (z[j] - m)

with `z` the log-odds of their shrunk and calibrated probabilities and `m` their mean. The weights
have a normal distribution, the posterior after the target's labels (`fitting.add_target`), so
that every prediction has a standard deviation, which few labels leave large. The probability is
the mean over this distribution, after its log-odds are lowered by `caution` standard deviations.

The fitted parts stay as they are: the other targets' probabilities and costs don't change.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from prefill_router.cost import Expected
from prefill_router.errors import ConfigError
from prefill_router.predictors import Correctness
from prefill_router.serialization import Names, Part
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_odds, sigmoid

Table = Float64[NDArray[np.float64], "query target"]
Present = Float64[NDArray[np.float64], "query present"]
Inputs = Float64[NDArray[np.float64], "query column"]
Weights = Float64[NDArray[np.float64], " column"]
Covariance = Float64[NDArray[np.float64], "column column"]
_SURE = 0.02
"""The least distance of a probability from 0 and 1 as an input; beyond it log-odds are noise."""


class TargetHead(NamedTuple):
    """What was learned of a target that joined.

    Attributes:
        weights: The posterior mean, one per column of `head_inputs`.
        covariance: The posterior covariance.
        caution: The standard deviations by which its log-odds are lowered.
        labels: The number of labels that it was learned from.
        output_ratio: Its output tokens for one of `shared_output`; None where unknown.
    """

    weights: Weights
    covariance: Covariance
    caution: float
    labels: int
    output_ratio: float | None


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PoolChanges(Part):
    """Which targets joined and left, and the heads of those that joined.

    Attributes:
        fitted: The targets that the router was fitted for.
        targets: The targets that it has now: some of the fitted ones in order, then those that
            joined.
        caution: For each that joined, see `TargetHead`; likewise the other attributes.
        labels: The number of labels.
        output_ratio: The output tokens for one of `shared_output`.
        weights: The posterior means.
        covariance: The posterior covariances.
    """

    noun: ClassVar[str] = "changed targets"
    axes: ClassVar = {"head": "labels"}
    fitted: Names
    targets: Names
    caution: tuple[NonNegativeFloat, ...]
    labels: tuple[NonNegativeInt, ...]
    output_ratio: tuple[Annotated[float, Field(gt=0)] | None, ...]
    weights: Float64[NDArray[np.float64], "head column"]
    covariance: Float64[NDArray[np.float64], "head column column"]

    @classmethod
    def none(cls, fitted: tuple[str, ...]) -> "PoolChanges":
        """No change."""
        width = len(fitted) + 2
        nothing = np.zeros((0, width)), np.zeros((0, width, width))
        return cls(fitted, fitted, (), (), (), *nothing)

    def __post_init__(self) -> None:
        heads = {len(self.caution), len(self.labels), len(self.output_ratio), len(self.weights)}
        if heads != {len(self.joined)} or self.weights.shape[1] != len(self.fitted) + 2:
            raise ConfigError(
                f"{len(self.joined)} targets joined {len(self.fitted)}; the heads are "
                f"{self.weights.shape}, and need {len(self.fitted) + 2} weights each"
            )

    @property
    def joined(self) -> tuple[str, ...]:
        """The targets that joined, in order."""
        return tuple(name for name in self.targets if name not in self.fitted)

    @property
    def stayed(self) -> list[int]:
        """The positions of the fitted targets that are still there."""
        return [self.fitted.index(name) for name in self.targets if name in self.fitted]

    def with_head(self, name: str, head: TargetHead) -> "PoolChanges":
        """The same with one more target."""
        return replace(
            self,
            targets=(*self.targets, name),
            caution=(*self.caution, head.caution),
            labels=(*self.labels, head.labels),
            output_ratio=(*self.output_ratio, head.output_ratio),
            weights=np.concatenate([self.weights, head.weights[None]]),
            covariance=np.concatenate([self.covariance, head.covariance[None]]),
        )

    def without(self, name: str) -> "PoolChanges":
        """The same without one of the targets."""
        rows = [i for i, other in enumerate(self.joined) if other != name]
        return replace(
            self,
            targets=tuple(other for other in self.targets if other != name),
            caution=tuple(self.caution[i] for i in rows),
            labels=tuple(self.labels[i] for i in rows),
            output_ratio=tuple(self.output_ratio[i] for i in rows),
            weights=self.weights[rows],
            covariance=self.covariance[rows],
        )

    def correctness(self, fitted: Correctness) -> Present:
        """The probabilities of the present targets from those of the fitted ones."""
        inputs, added = head_inputs(fitted), []
        for weights, covariance, caution in zip(
            self.weights, self.covariance, self.caution, strict=True
        ):
            spread = np.sqrt(np.maximum(((inputs @ covariance) * inputs).sum(axis=1), 0))
            lowered = inputs @ weights - caution * spread
            added.append(sigmoid(lowered / np.sqrt(1 + np.pi / 8 * spread**2)))  # MacKay 1992
        return np.column_stack([fitted[:, self.stayed], *added])

    def expected(self, fitted: Expected) -> Expected:
        """The predicted outputs of the present targets from those of the fitted ones."""
        shared = shared_output(fitted.mean), shared_output(fitted.high)
        ratios = [np.nan if ratio is None else ratio for ratio in self.output_ratio]
        return Expected(
            *(
                np.column_stack([table[:, self.stayed], np.multiply.outer(column, ratios)])
                for table, column in zip(fitted, shared, strict=True)
            )
        )


def head_inputs(correctness: Correctness) -> Inputs:
    """The columns that a head weights: 1, the mean log-odds, and each target's distance to it."""
    each = log_odds(np.clip(correctness, _SURE, 1 - _SURE))
    mean = each.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(mean), mean, each - mean])


def shared_output(expected: Table) -> Float64[NDArray[np.float64], " query"]:
    """The geometric mean of the targets' predicted outputs of each query; NaN without any."""
    known = ~np.isnan(expected)
    logs = np.log(np.where(known, expected, 1))
    count = known.sum(axis=1)
    return np.where(count > 0, np.exp(logs.sum(axis=1) / np.maximum(count, 1)), np.nan)
