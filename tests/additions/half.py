"""A predictor that is never sure: every target is right half of the time."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import PositiveInt

from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
)
from prefill_router.progress import Progress
from prefill_router.serialization import Saved


@dataclass(frozen=True, eq=False)
class Half(Predictor):
    kind: ClassVar[str] = "half"
    columns: Annotated[PositiveInt, Saved("width")]

    @property
    def width(self) -> int:
        return self.columns

    def correctness(self, features: Features) -> Correctness:
        return np.full((len(features), len(self.targets)), 0.5)


@dataclass(frozen=True, kw_only=True)
class HalfConfig(PredictorConfig):
    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        return PredictorFit(Half(examples.targets, examples.features.shape[1]))


ENTRY = PredictorEntry(HalfConfig, Half, "Half", "nowhere")
