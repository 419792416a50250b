"""The scorer of a cascade: the probability that an answer is right.

FrugalGPT's scorer is a DistilBERT that reads query and answer. This one is a logistic regression
for each target, on the router's prediction and on the length of the answer, which every log of
answers has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.errors import ConfigError
from prefill_router.policy.path import PerCell
from prefill_router.serialization import Part, Saved
from prefill_router.short_repr import short_repr
from prefill_router.statistics import shrunken_logistic

_FIRST = np.array([0.0, 1.0, 0.0, 0.0])
"""Weights of bias, logit, length and its square: the start is the prediction itself."""
_SURE = 1e-6

_Row = Annotated[tuple[float, ...], Field(min_length=6, max_length=6)]
_Rows = Annotated[dict[str, _Row], Field(min_length=1)]


@short_repr
@final
@dataclass(frozen=True)
class AnswerScorer(Part):
    """Scores answers by prediction and length. Made by `fit`.

    Attributes:
        rows: For each target: mean and standard deviation of log(1 + output tokens), then the
            weights of 1, the prediction's logit, the standardised length and its square.
    """

    noun: ClassVar[str] = "cascade's scorer"
    rows: Annotated[Mapping[str, tuple[float, ...]], Saved("targets", form=_Rows)]

    @classmethod
    def fit(
        cls, correctness: PerCell, tokens: PerCell, correct: PerCell, *, targets: tuple[str, ...]
    ) -> "AnswerScorer":
        """Fit to answers with known labels; a target without any keeps its predictions.

        Args:
            correctness: Out-of-fold predictions.
            tokens: Output tokens of the answers; NaN where unknown.
            correct: Labels in [0, 1]; NaN where missing.
            targets: The names of the columns.
        """
        rows = {}
        for k, name in enumerate(targets):
            known = ~np.isnan(correct[:, k])
            length = np.log1p(tokens[known, k])
            told = length[np.isfinite(length)]
            mean = float(told.mean()) if len(told) else 0.0
            spread = float(told.std()) if len(told) else 0.0
            about = (mean, spread if spread > 1e-9 else 1.0)
            columns = _columns(correctness[known, k], tokens[known, k], *about)
            weights = shrunken_logistic(
                _FIRST, columns.__matmul__, columns.T.__matmul__, correct[known, k]
            )
            rows[name] = (*about, *weights.tolist())
        return cls(rows)

    def scores(self, correctness: PerCell, tokens: PerCell, *, targets: tuple[str, ...]) -> PerCell:
        """The score of every answer, in [0, 1]; an unknown length counts as average.

        Args:
            correctness: Predicted probabilities.
            tokens: Output tokens of the answers; NaN where unknown.
            targets: The names of the columns.

        Raises:
            ConfigError: It wasn't fitted for one of the targets.
        """
        lacking = [name for name in targets if name not in self.rows]
        if lacking:
            raise ConfigError(f"the cascade's scorer doesn't know {lacking}; fit the router again")
        from scipy.special import expit

        found = np.empty(correctness.shape)
        for k, name in enumerate(targets):
            mean, spread, *weights = self.rows[name]
            columns = _columns(correctness[:, k], tokens[:, k], mean, spread)
            found[:, k] = expit(columns @ np.array(weights))
        return found

    def verify(self) -> None:
        """Check that lengths can be divided by their spreads."""
        if any(row[1] <= 0 for row in self.rows.values()):
            raise ConfigError("a standard deviation isn't positive")


def _columns(
    correctness: Float[NDArray[np.float64], " query"],
    tokens: Float[NDArray[np.float64], " query"],
    mean: float,
    spread: float,
) -> Float[NDArray[np.float64], "query 4"]:
    from scipy.special import logit

    length = np.clip(np.nan_to_num((np.log1p(tokens) - mean) / spread, nan=0.0), -4, 4)
    sure = logit(np.clip(correctness, _SURE, 1 - _SURE))
    return np.stack([np.ones(len(length)), sure, length, length**2], axis=1)
