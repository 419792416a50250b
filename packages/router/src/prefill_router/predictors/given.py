"""A predictor for features that are the targets' logits already.

`given` is for features, one column per target, that were trained to predict correctness themselves,
such as networks on the text, or for a judge's scores.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.special import expit, logit

from prefill_router.errors import ConfigError
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
)
from prefill_router.progress import Progress


@final
@dataclass(frozen=True, eq=False)
class GivenLogits(Predictor):
    """The sigmoid of each target's own column.

    Attributes:
        slope: 1, or 0 for a target that can't be learned.
        shift: 0, or the logit of the base rate for a target that can't be learned.
    """

    kind: ClassVar[str] = "given"
    slope: Float32[NDArray[np.float32], " feature"]
    shift: Float32[NDArray[np.float32], " target"]

    @property
    def width(self) -> int:
        """The number of features, equal to that of targets."""
        return len(self.targets)

    def correctness(self, features: Features) -> Correctness:
        """The sigmoid of the features."""
        check_features(features, width=self.width)
        logits = features.astype(np.float64) * self.slope + self.shift
        probability: Correctness = expit(logits)
        return probability

    def verify(self) -> None:
        """Check that there is one feature per target."""
        if len(self.slope) != self.width:
            raise ConfigError(f"{len(self.slope)} features for {self.width} targets")


@final
@dataclass(frozen=True, kw_only=True)
class GivenConfig(PredictorConfig):
    """The options of given logits: none."""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Use the features as they are, with base rates for targets that can't be learned.

        Raises:
            ConfigError: There isn't one feature per target.
        """
        del seed, progress
        width, count = examples.features.shape[1], len(examples.targets)
        if width != count:
            raise ConfigError(
                f"the features are {width} wide for {count} targets; the predictor 'given' takes "
                "one logit per target, such as the features 'text_network' alone"
            )
        learned = examples.learnable
        shift = np.where(learned, 0, logit(examples.base_rates)).astype(np.float32)
        predictor = GivenLogits(examples.targets, learned.astype(np.float32), shift)
        return PredictorFit(predictor, examples.target_notes())


GIVEN = PredictorEntry(
    GivenConfig, GivenLogits, "Given logits", "the features' own network or judge"
)
