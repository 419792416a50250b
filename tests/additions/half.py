"""A predictor that is never sure: every target is right half of the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorFit,
    Tensors,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress


@dataclass(frozen=True)
class Half(Predictor):
    kind: ClassVar[str] = "half"
    names: tuple[str, ...]
    columns: int

    @property
    def targets(self) -> tuple[str, ...]:
        return self.names

    @property
    def width(self) -> int:
        return self.columns

    def correctness(self, features: Features) -> Correctness:
        return np.full((len(features), len(self.names)), 0.5)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": list(self.names), "columns": self.columns}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Half":
        return cls(tuple(config["names"]), config["columns"])


@dataclass(frozen=True, kw_only=True)
class HalfConfig(PredictorConfig):
    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        return PredictorFit(Half(examples.targets, examples.features.shape[1]))


ENTRY = PredictorEntry(HalfConfig, Half, "Half", "nowhere")
