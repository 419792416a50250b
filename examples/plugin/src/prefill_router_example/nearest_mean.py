"""A predictor by distance: is a query nearer to those that a target got right, or got wrong?

Distances are counted in standard deviations of each feature. Half the difference of the squared
distances is added to the log-odds of the target's base rate.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit, logit

from prefill_router.predictors import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
    left_out_note,
    usable_rows,
)
from prefill_router.progress import Progress
from prefill_router.statistics import column_spread

_ROUNDING = 1e-9
"""A standard deviation below this share of the mean is rounding error in float32 features."""

Rates = Annotated[Float32[NDArray[np.float32], " target"], Field(ge=0, le=1)]
Means = Float32[NDArray[np.float32], "target feature"]
Spread = Annotated[Float32[NDArray[np.float32], " feature"], Field(gt=0)]


@final
@dataclass(frozen=True, eq=False)
class NearestMean(Predictor):
    """The fitted means; its fields are what is saved.

    Attributes:
        rates: The base rate of each target.
        right: The mean features of the queries that each target got right.
        wrong: The mean features of those that it got wrong.
        spread: The standard deviation of each feature.
    """

    kind: ClassVar[str] = "nearest_mean"
    rates: Rates
    right: Means
    wrong: Means
    spread: Spread

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return len(self.spread)

    def correctness(self, features: Features) -> Correctness:
        """The probability that each target answers each query correctly."""
        check_features(features, width=self.width)
        queries = features / self.spread.astype(np.float64)
        right, wrong = self.right / self.spread, self.wrong / self.spread
        middle = (right.astype(np.float64) + wrong) / 2
        direction = right.astype(np.float64) - wrong
        nearer = queries @ direction.T - (middle * direction).sum(axis=1)
        with np.errstate(divide="ignore"):  # a base rate of 0 or 1 has infinite log-odds
            return np.asarray(expit(logit(self.rates.astype(np.float64)) + nearer))


@final
@dataclass(frozen=True, kw_only=True)
class NearestMeanConfig(PredictorConfig):
    """The options of nearest means: none."""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Take the means over the train rows, weighted by the labels, without missing ones."""
        del seed, progress  # nothing is drawn, and it takes no time
        rows = usable_rows(examples)
        learns = examples.learnable
        _, spread, varies = column_spread(rows.features, rounding=_ROUNDING)
        predictor = NearestMean(
            examples.targets,
            examples.base_rates.astype(np.float32),
            _mean_features(rows.features, np.nan_to_num(rows.correct), learns),
            _mean_features(rows.features, np.nan_to_num(1 - rows.correct), learns),
            np.where(varies, spread, 1.0).astype(np.float32),
        )
        notes = (*examples.target_notes(), *left_out_note(examples, len(rows.features)))
        return PredictorFit(predictor, notes=notes)


def _mean_features(features: Features, weights: Correctness, learns: NDArray[np.bool_]) -> Means:
    """The weighted mean of the features for each target; zero for one that can't be learned."""
    weights = weights * learns
    total = np.maximum(weights.sum(axis=0), np.finfo(np.float64).tiny)
    means = (weights / total).T @ features.astype(np.float64)
    return np.asarray(means, dtype=np.float32)


ENTRY = PredictorEntry(NearestMeanConfig, NearestMean, "Nearest mean", "Fisher 1936")
