"""The estimated cost of an answer (Equation 1 of the paper) and the scale for Equation 2.

    C[k, q] = n_in[q] / 1e6 * r_in[k] + median_out[k] / 1e6 * r_out[k]        (US dollars)

`median_out` is target k's median number of output tokens on the train rows. A prediction for the
query itself (`cost.output`) replaces it where there is one. Where a target's own count of input
tokens isn't known, the encoder's count is used, times the median ratio of the two on the train
rows. A target that has recorded costs but no prices or token counts is estimated at its median
recorded cost. Reported costs are always the observed ones, `RoutingDataset.observed_cost`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float, Real
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool

_MILLION = 1e6
PerTarget = Float[NDArray[np.float64], " target"]


@final
@dataclass(frozen=True)
class CostScale:
    """Costs on the scale of the train rows (Equation 2): `low` is 0, `high` is 1; not clipped.

    It is the range of Equation 1 even where the length of each answer is predicted. The longest
    predicted answers would stretch the scale. The same lam would then spend more than the paper's
    (docs/decisions/0016-predicted-cost.md).

    Attributes:
        low: The lowest cost of a train row and target by Equation 1, US dollars.
        high: The highest, US dollars.
    """

    low: float
    high: float

    def normalise(
        self, cost: Float[NDArray[np.float64], "..."]
    ) -> Float[NDArray[np.float64], "..."]:
        """Normalised costs; all zero where every train cost was the same."""
        if self.high <= self.low:
            return np.zeros_like(cost)
        return (cost - self.low) / (self.high - self.low)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class CostEstimator:
    """Equation 1, fitted on train rows. Prices can be changed without refitting.

    Attributes:
        pool: The targets and their prices.
        median_output: Train median of output tokens; NaN where unknown.
        token_ratio: Input tokens of the target per token of the encoder (train median).
        least_input: Fewest input tokens of a train row; NaN leaves a target out of the scale.
        most_input: Most input tokens of a train row; likewise.
        fixed: Median recorded cost, US dollars, used for targets without prices; NaN where unknown.
    """

    pool: Pool
    median_output: PerTarget
    token_ratio: PerTarget
    least_input: PerTarget
    most_input: PerTarget
    fixed: PerTarget

    def __post_init__(self) -> None:
        lacking = [
            target.name
            for target, fixed, priced in zip(self.pool, self.fixed, self._has_equation, strict=True)
            if np.isnan(fixed) and not priced
        ]
        if lacking and not self.is_free:
            raise ConfigError(
                f"the costs of {lacking} can't be estimated: they need prices and output token "
                "counts, or recorded costs; add prices to the pool file, counts to the outcomes, "
                "or give an assumed number of output tokens"
            )

    @classmethod
    def fit(
        cls,
        train: RoutingDataset,
        encoder_tokens: Real[NDArray[Any], " query"],
        *,
        assumed_output_tokens: float | None = None,
    ) -> "CostEstimator":
        """Learn medians, ratios and ranges from the train rows.

        Args:
            train: The train rows.
            encoder_tokens: The encoder's token count of each query, before truncation.
            assumed_output_tokens: Output tokens assumed for targets without any known count.

        Raises:
            ConfigError: Some targets have prices or costs, and others have neither.
        """
        counts = np.asarray(encoder_tokens, dtype=np.float64)[:, None]
        ratio = _known_median(train.input_tokens / np.maximum(counts, 1))
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        inputs = np.where(np.isnan(train.input_tokens), counts * ratio, train.input_tokens)
        output = _known_median(train.output_tokens)
        if assumed_output_tokens is not None:
            output = np.where(np.isnan(output), assumed_output_tokens, output)
        return cls(
            train.pool,
            output,
            ratio,
            inputs.min(axis=0),
            inputs.max(axis=0),
            _known_median(train.recorded_cost),
        )

    @cached_property
    def is_free(self) -> bool:
        """Whether no cost is known: all are zero then, and lam has no effect."""
        return bool(np.isnan(self.fixed).all()) and not any(t.has_price for t in self.pool)

    @property
    def recorded_targets(self) -> tuple[str, ...]:
        """The targets that are estimated at their median recorded cost, whatever their prices."""
        return tuple(
            target.name
            for target, fixed, priced in zip(self.pool, self.fixed, self._has_equation, strict=True)
            if not np.isnan(fixed) and not priced
        )

    def estimate(
        self,
        encoder_tokens: Real[NDArray[Any], " query"],
        *,
        input_tokens: Float[NDArray[np.float64], "query target"] | None = None,
        most_output: float | None = None,
        expected: Float[NDArray[np.float64], "query target"] | None = None,
    ) -> Float[NDArray[np.float64], "query target"]:
        """Estimated cost of every target, in US dollars.

        Args:
            encoder_tokens: The encoder's token count of each query, before truncation.
            input_tokens: Each target's own count where known, else NaN.
            most_output: The limit on output tokens; longer estimates are clipped to it.
            expected: The predicted output of each answer (`cost.Expected`); Equation 1's median is
                used where it is None or NaN.
        """
        counts = np.asarray(encoder_tokens, dtype=np.float64)[:, None] * self.token_ratio
        if input_tokens is not None:
            counts = np.where(np.isnan(input_tokens), counts, input_tokens)
        most = math.inf if most_output is None else most_output
        return self._compute_cost(counts, most_output=most, expected=expected)

    @property
    def scale(self) -> CostScale:
        """Equation 1's range over the train rows, at the present prices."""
        ends = self._compute_cost(np.stack([self.least_input, self.most_input]))
        return CostScale(float(np.nanmin(ends)), float(np.nanmax(ends)))

    def with_pool(self, pool: Pool) -> "CostEstimator":
        """The same estimator with the prices of a pool with the same names in the same order.

        Raises:
            ConfigError: The names differ, or a target's cost can no longer be estimated.
        """
        if pool.names != self.pool.names:
            raise ConfigError(f"the pool has {pool.names}; the router needs {self.pool.names}")
        return replace(self, pool=pool)

    def with_target(
        self, pool: Pool, *, median_output: float, token_ratio: float, fixed: float
    ) -> "CostEstimator":
        """The same estimator with one more target, the last of `pool`; the scale stays.

        Args:
            pool: The targets so far, and the new one.
            median_output: See the attributes; likewise the others.
            token_ratio: Input tokens of the new target per token of the encoder.
            fixed: Its median recorded cost, US dollars.

        Raises:
            ConfigError: Its cost can't be estimated.
        """
        new = (median_output, token_ratio, np.nan, np.nan, fixed)
        return CostEstimator(
            pool,
            *(
                np.append(old, added)
                for old, added in zip(self._numbers_by_target, new, strict=True)
            ),
        )

    def select(self, names: Sequence[str]) -> "CostEstimator":
        """The same estimator with these of its targets alone."""
        columns = self.pool.indices(names)
        return CostEstimator(
            self.pool.select(names), *(old[columns] for old in self._numbers_by_target)
        )

    @property
    def _numbers_by_target(self) -> tuple[PerTarget, ...]:
        """The numbers per target, in the order of the attributes."""
        ratio, ends = self.token_ratio, (self.least_input, self.most_input)
        return self.median_output, ratio, *ends, self.fixed

    @property
    def _has_equation(self) -> list[bool]:
        """Whether Equation 1 can be computed for each target; free output needs no count."""
        return [
            target.has_price and (target.output_price == 0 or not np.isnan(output))
            for target, output in zip(self.pool, self.median_output, strict=True)
        ]

    @cached_property
    def _price_table(self) -> Float[NDArray[np.float64], "target 2"]:
        return np.array([(t.input_price, t.output_price) for t in self.pool], dtype=np.float64)

    def _compute_cost(
        self,
        inputs: Float[NDArray[np.float64], "row target"],
        *,
        most_output: float = math.inf,
        expected: Float[NDArray[np.float64], "row target"] | None = None,
    ) -> Float[NDArray[np.float64], "row target"]:
        if self.is_free:
            return np.zeros_like(inputs)
        prices = self._price_table
        fixed, counted = self.fixed, ~np.isnan(self.median_output)
        tokens = self.median_output
        if expected is not None:
            is_known = ~np.isnan(expected)
            usual = np.where(counted & (self.median_output > 0), self.median_output, 1)
            dollars = np.where(counted, self.fixed * expected / usual, expected)
            fixed = np.where(is_known, dollars, self.fixed)
            tokens = np.where(is_known & counted, expected, self.median_output)
        output = np.where(prices[:, 1] == 0, 0, np.minimum(tokens, most_output) * prices[:, 1])
        cost = (inputs * prices[:, 0] + output) / _MILLION
        return np.where(np.isnan(cost), fixed, cost)


def _known_median(table: Float[NDArray[np.float64], "query target"]) -> PerTarget:
    """Median of each column over its known values; NaN where there are none."""
    columns = [column[~np.isnan(column)] for column in table.T]
    return np.array([np.median(column) if len(column) else np.nan for column in columns])
