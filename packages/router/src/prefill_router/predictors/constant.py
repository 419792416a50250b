"""The base rates of the train rows, for every query.

It is the baseline that every other predictor must beat: with it the choice between targets depends
only on their costs.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import PositiveInt

from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    Share,
    check_features,
)
from prefill_router.progress import Progress
from prefill_router.serialization import Saved


@final
@dataclass(frozen=True, eq=False)
class Constant(Predictor):
    """The same probabilities for every query.

    Attributes:
        ignored: The number of features, which aren't used.
        rates: Each target's probability.
    """

    kind: ClassVar[str] = "constant"
    ignored: Annotated[PositiveInt, Saved("width")]
    rates: Annotated[Float32[NDArray[np.float32], " target"], Share]

    @property
    def width(self) -> int:
        """The number of features it was fitted on, which aren't used."""
        return self.ignored

    def correctness(self, features: Features) -> Correctness:
        """The base rates, once per query."""
        check_features(features, width=self.width)
        return np.tile(self.rates.astype(np.float64), (len(features), 1))


@final
@dataclass(frozen=True, kw_only=True)
class ConstantConfig(PredictorConfig):
    """The options of base rates: none."""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Count each target's right answers (`Examples.base_rates`)."""
        del seed, progress
        rates = examples.base_rates.astype(np.float32)
        predictor = Constant(examples.targets, examples.features.shape[1], rates)
        return PredictorFit(predictor, examples.target_notes())


CONSTANT = PredictorEntry(
    ConstantConfig, Constant, "Constant (base rates)", "the reference that others must beat"
)
