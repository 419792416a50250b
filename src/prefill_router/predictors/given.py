"""Features that are the targets' logits already, one column each.

It goes with features that were trained to predict correctness themselves, such as networks on the
text, or with a judge's scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import model_validator
from scipy.special import expit, logit

from prefill_router.errors import ConfigError
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorFit,
    SavedPredictor,
    Tensors,
    check_features,
    read_saved,
    take_tensors,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress

Line = Float32[NDArray[np.float32], " target"]


@final
@dataclass(frozen=True, eq=False)
class GivenLogits(Predictor):
    """The sigmoid of each target's own column.

    Attributes:
        names: The targets' names, in the order of the columns.
        slope: 1; 0 for a target that can't be learned.
        shift: 0; the logit of its base rate for a target that can't be learned.
    """

    kind: ClassVar[str] = "given"
    names: tuple[str, ...]
    slope: Line
    shift: Line

    @property
    def width(self) -> int:
        """As many features as targets."""
        return len(self.names)

    def correctness(self, features: Features) -> Correctness:
        """The sigmoid of the features."""
        check_features(features, width=self.width)
        logits = features.astype(np.float64) * self.slope + self.shift
        probability: Correctness = expit(logits)
        return probability

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "targets": list(self.names), "width": self.width}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`slope` and `shift`."""
        return {"slope": self.slope, "shift": self.shift}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "GivenLogits":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = read_saved(_SavedGivenLogits, config, kind=cls.kind)
        shape = (len(saved.targets),)
        slope, shift = take_tensors(tensors, {"slope": shape, "shift": shape})
        return cls(tuple(saved.targets), slope, shift)


class _SavedGivenLogits(SavedPredictor):
    """One feature per target."""

    @model_validator(mode="after")
    def _square(self) -> "_SavedGivenLogits":
        if self.width != len(self.targets):
            raise ValueError(f"{self.width} features for {len(self.targets)} targets")
        return self


@final
@dataclass(frozen=True, kw_only=True)
class GivenConfig(PredictorConfig):
    """It has no options."""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Take the features as they are; only targets that can't be learned are looked at.

        Raises:
            ConfigError: There isn't one feature per target.
        """
        del seed, progress
        width, count = examples.features.shape[1], len(examples.targets)
        if width != count:
            raise ConfigError(
                f"the features are {width} wide for {count} targets; the predictor 'given' takes "
                "one logit per target, such as the features 'text_network' alone give"
            )
        learned = examples.learnable
        shift = np.where(learned, 0, logit(examples.base_rates)).astype(np.float32)
        predictor = GivenLogits(examples.targets, learned.astype(np.float32), shift)
        return PredictorFit(predictor, examples.target_notes())


ENTRY = PredictorEntry(
    GivenConfig, GivenLogits, "Given logits", "the features' own network or judge"
)
