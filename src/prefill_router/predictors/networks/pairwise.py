"""`pairwise_factorisation`: RouteLLM's matrix factorisation, which learns from pairs of answers.

RouteLLM (Ong and others, 2024) says that target i beats target j on query q with the probability
sigmoid(w^T ((v_i - v_j) * (W q + b))), the targets' vectors being of length one, and learns it from
comparisons of two answers with a winner. Here a pair has a winner where one target was right and
the other wrong. What all targets have in common on a query, such as its difficulty, no pair can
tell: that level is a linear function of the features, fitted to the labels. On rows held out, a
logistic regression on level and score, with an offset for each target, makes probabilities of them.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.predictors.base import Examples, Features, PredictorFit
from prefill_router.predictors.networks.ensemble import (
    Arrays,
    Logits,
    NetworkConfig,
    NetworkEnsemble,
    Rows,
    at_least,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress
from prefill_router.serialization import Shape

_LEAST = 1e-12  # as torch's normalize


@final
@dataclass(frozen=True, eq=False)
class PairwiseFactorisation(NetworkEnsemble):
    """Vectors of the targets, a linear map of the features to such vectors, and a level."""

    kind: ClassVar[str] = "pairwise_factorisation"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        features, *_, dimensions = widths
        return {
            "weight.query": (1, features, dimensions),
            "bias.query": (1, 1, dimensions),
            "target": (1, targets, dimensions),
            "combine": (1, 1, dimensions),
            "weight.level": (1, features, 1),
            "bias.level": (1, 1, 1),
            "slope": (1, 1, 1),
            "offset": (1, 1, targets),
        }

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        level = rows @ arrays["weight.level"][0] + arrays["bias.level"][0]
        return np.asarray(level + arrays["slope"][0] * _ahead(arrays, rows) + arrays["offset"][0])

    def win_rate(
        self, features: Features, strong: str, weak: str
    ) -> Float64[NDArray[np.float64], " query"]:
        """The probability that one target beats another where only one is right (RouteLLM's).

        Args:
            features: As it was fitted on.
            strong: The one whose win it is.
            weak: The other.

        Raises:
            ConfigError: One of them wasn't learned, or the features don't suit.
        """
        lacking = [name for name in (strong, weak) if name not in self.learned]
        if lacking:
            raise ConfigError(f"no pairs were learned of {lacking}; known are {self.learned}")
        i, j = self.learned.index(strong), self.learned.index(weak)

        def gap(arrays: Arrays, rows: Rows) -> Logits:
            ahead = _ahead(arrays, rows)
            return np.asarray(ahead[:, [i]] - ahead[:, [j]])

        return self._mean(features, gap, 1)[:, 0]


def _ahead(arrays: Arrays, rows: Rows) -> Logits:
    """How far each target's score is ahead of the mean of all."""
    vectors = arrays["target"][0]
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST)
    query = rows @ arrays["weight.query"][0] + arrays["bias.query"][0]
    scores = query * arrays["combine"][0] @ unit.T
    return np.asarray(scores - scores.mean(axis=1, keepdims=True))


@final
@dataclass(frozen=True, kw_only=True)
class PairwiseConfig(NetworkConfig):
    """Options of the matrix factorisation on pairs.

    Attributes:
        dimensions: Of the vectors of targets and queries.
        dropout: The share of dimensions that is dropped.
    """

    dimensions: int = 32
    dropout: float = 0.0
    weight_decay: float = 1.0

    def __post_init__(self) -> None:
        NetworkConfig.__post_init__(self)
        at_least(self, 1, ("dimensions",))

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; a pair of which one label is missing is left out."""
        from prefill_router.predictors.networks.architectures import Preferences
        from prefill_router.predictors.networks.fit import fit_ensemble

        width = examples.features.shape[1]
        return fit_ensemble(
            examples,
            self,
            PairwiseFactorisation,
            lambda material: Preferences(width, self.dimensions, material.rates),
            inner=(self.dimensions,),
            inputs=("query", "level"),
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(
    PairwiseConfig,
    PairwiseFactorisation,
    "Matrix factorisation on pairs",
    "RouteLLM, Ong and others 2024",
)
