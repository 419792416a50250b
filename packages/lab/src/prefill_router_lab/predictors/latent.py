"""Networks that combine latent vectors of queries and of targets, in a space of few dimensions.

`matrix_factorisation`: the score w^T (v_t * (W q + b)) of a target t on a query q is RouteLLM's
(Ong and others, 2024). Here it is the logit of a correct answer, learned from the cells of the
table of labels, for a pool of any size.

`pairwise_factorisation`: in RouteLLM, target i beats target j on query q with the probability
sigmoid(w^T ((v_i - v_j) * (W q + b))). The targets' vectors have length one. It learns from
comparisons of two answers with a winner. Here a pair has a winner where one target was right and
the other wrong. The level that all targets share on a query, such as its difficulty, can't be
learned from pairs: it is a linear function of the features, fitted to the labels. A logistic
regression on level and score, with an offset for each target, fitted on held-out rows, turns them
into probabilities.

`irt`: item response theory, with queries as items and targets as respondents (2PL). A target's
probability is sigmoid(a(q) . theta - b(q)), with its ability theta, the query's discrimination a
and the query's difficulty b (IRT-Router and MIRT-Router, Song and others 2025). Discrimination and
difficulty are functions of the features, so that new queries have them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.options import Count, Dropout, NotNegative
from prefill_router.predictors import Features, PredictorEntry
from prefill_router.predictors.networks import (
    DIFFICULTY,
    Arrays,
    Logits,
    Network,
    NetworkConfig,
    NetworkEnsemble,
    Rates,
    Rows,
)
from prefill_router.serialization import Shape

if TYPE_CHECKING:
    from prefill_router.predictors.networks import Architecture

DISCRIMINATION = "discrimination"
"""The name of the head for a query's discrimination."""
_LEAST = 1e-12  # the least length that a vector is divided by


@dataclass(frozen=True, eq=False)
class LatentVectors(NetworkEnsemble):
    """Vectors of the targets, and a linear map from features to such vectors."""

    @classmethod
    def describe(cls, widths: Shape, targets: int) -> Network:
        """A linear map to the dimensions, and the targets' vectors."""
        features, *_, dimensions = widths
        tables = {"target": (1, targets, dimensions), "combine": (1, 1, dimensions)}
        return Network((features,), {"query": dimensions}, tables=tables)

    def _scores(
        self, arrays: Arrays, rows: Rows, vectors: Float64[NDArray[np.float64], "target dimension"]
    ) -> Logits:
        """The score of every query with each target's vector."""
        query = self.network.outputs(arrays, rows, "query")
        return np.asarray(query * arrays["combine"][0] @ vectors.T)


@final
@dataclass(frozen=True, eq=False)
class Factorisation(LatentVectors):
    """The score of query and target is the logit of a right answer."""

    kind: ClassVar[str] = "matrix_factorisation"

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        return self._scores(arrays, rows, arrays["target"][0])


@final
@dataclass(frozen=True, eq=False)
class PairwiseFactorisation(LatentVectors):
    """The score ranks the targets of a query; the level is what all targets share."""

    kind: ClassVar[str] = "pairwise_factorisation"

    @classmethod
    def describe(cls, widths: Shape, targets: int) -> Network:
        """The same, with a head for the level, and what is fitted on held-out rows."""
        network = super().describe(widths, targets)
        tables = {"slope": (1, 1, 1), "offset": (1, 1, targets)}
        return replace(
            network, heads={**network.heads, "level": 1}, tables={**network.tables, **tables}
        )

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        level, ahead = (
            self.network.outputs(arrays, rows, "level"),
            self._compare_with_mean(arrays, rows),
        )
        return np.asarray(level + arrays["slope"][0] * ahead + arrays["offset"][0])

    def _compare_with_mean(self, arrays: Arrays, rows: Rows) -> Logits:
        """Each target's score minus the mean over targets."""
        vectors = arrays["target"][0]
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST)
        scores = self._scores(arrays, rows, unit)
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))

    def win_rate(
        self, features: Features, strong: str, weak: str
    ) -> Float64[NDArray[np.float64], " query"]:
        """The probability that one target beats another where only one is right (RouteLLM's).

        Args:
            features: The same features that it was fitted on.
            strong: The name of the winner.
            weak: The name of the loser.

        Raises:
            ConfigError: One of them wasn't learned, or the features don't fit.
        """
        lacking = [name for name in (strong, weak) if name not in self.learned]
        if lacking:
            raise ConfigError(
                f"the predictor learned nothing about {lacking}; it can predict {self.learned}"
            )
        i, j = self.learned.index(strong), self.learned.index(weak)

        def gap(arrays: Arrays, rows: Rows) -> Logits:
            ahead = self._compare_with_mean(arrays, rows)
            return np.asarray(ahead[:, [i]] - ahead[:, [j]])

        return self._mean_sigmoid(features, gap, 1)[:, 0]


@final
@dataclass(frozen=True, eq=False)
class ItemResponse(NetworkEnsemble):
    """Abilities of the targets; discrimination and difficulty of a query from its features."""

    kind: ClassVar[str] = "irt"

    @classmethod
    def describe(cls, widths: Shape, targets: int) -> Network:
        """Hidden layers, a head for each function of the query, and the targets' abilities."""
        *before, dimensions = widths
        heads = {DISCRIMINATION: dimensions, DIFFICULTY: 1}
        return Network(tuple(before), heads, tables={"ability": (1, targets, dimensions)})

    @property
    def abilities(self) -> Float64[NDArray[np.float64], "learned dimension"]:
        """Abilities of the learned targets, mean over networks; comparable with one dimension."""
        mean: NDArray[np.float64] = self.arrays["ability"][:, 0].mean(axis=0, dtype=np.float64)
        return mean

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        discrimination = self.network.outputs(arrays, rows, DISCRIMINATION)
        difficulty = self.network.outputs(arrays, rows, DIFFICULTY)
        if self.widths[-1] == 1:
            discrimination = np.logaddexp(discrimination, 0)
        return np.asarray(discrimination @ arrays["ability"][0].T - difficulty)


@dataclass(frozen=True, kw_only=True)
class LatentConfig(NetworkConfig):
    """Options of the factorisations.

    Attributes:
        dimensions: The dimension of the vectors of targets and queries.
        dropout: The dropout rate of these dimensions.
    """

    dimensions: Count = 32
    dropout: Dropout = 0.0
    weight_decay: NotNegative = 1.0

    @property
    def inner(self) -> tuple[int, ...]:
        """The dimensions."""
        return (self.dimensions,)


@final
@dataclass(frozen=True, kw_only=True)
class FactorisationConfig(LatentConfig):
    """Options of the matrix factorisation; missing cells are left out."""

    predictor: ClassVar[type[NetworkEnsemble]] = Factorisation

    def architecture(self, network: Network, rates: Rates) -> "Architecture":
        """The training of a seed."""
        from prefill_router_lab.predictors.latent_architectures import Factors

        return Factors(network, rates)


@final
@dataclass(frozen=True, kw_only=True)
class PairwiseConfig(LatentConfig):
    """Options of the matrix factorisation on pairs; pairs with a missing label are left out."""

    predictor: ClassVar[type[NetworkEnsemble]] = PairwiseFactorisation

    def architecture(self, network: Network, rates: Rates) -> "Architecture":
        """The training of a seed."""
        from prefill_router_lab.predictors.latent_architectures import Preferences

        return Preferences(network, rates)


@final
@dataclass(frozen=True, kw_only=True)
class IRTConfig(NetworkConfig):
    """Options of the item response model; missing cells are left out.

    Attributes:
        dimensions: The dimension of the abilities; 1 is IRT-2PL, with positive discriminations,
            and more is MIRT-2PL.
        hidden: The widths of the hidden layers before discrimination and difficulty; empty for
            linear functions.
    """

    predictor: ClassVar[type[NetworkEnsemble]] = ItemResponse
    dimensions: Count = 1
    hidden: tuple[Count, ...] = (128,)

    @property
    def inner(self) -> tuple[int, ...]:
        """The hidden layers, then the dimensions."""
        return (*self.hidden, self.dimensions)

    def architecture(self, network: Network, rates: Rates) -> "Architecture":
        """The training of a seed."""
        from prefill_router_lab.predictors.latent_architectures import Items

        return Items(network, rates)


ROUTELLM = "RouteLLM, Ong and others 2024"
FACTORISATION = PredictorEntry(
    FactorisationConfig, Factorisation, "Matrix factorisation", f"after {ROUTELLM}"
)
PAIRWISE = PredictorEntry(
    PairwiseConfig, PairwiseFactorisation, "Matrix factorisation on pairs", ROUTELLM
)
IRT = PredictorEntry(
    IRTConfig, ItemResponse, "IRT", "IRT-Router and MIRT-Router, Song and others 2025"
)
