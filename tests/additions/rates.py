"""A calibrator that knows how often each target is right, and forgets the prediction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prefill_router.calibration.base import Calibrator, CalibratorFit
from prefill_router.predictors.base import Correctness, Tensors


@dataclass(frozen=True, eq=False)
class Rates(Calibrator):
    kind: ClassVar[str] = "rates"
    label: ClassVar[str] = "rates"
    source: ClassVar[str] = "nowhere"
    probabilistic: ClassVar[bool] = True
    names: tuple[str, ...]
    rates: tuple[float, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        return self.names

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        return CalibratorFit(cls(targets, tuple(np.nanmean(correct, axis=0).tolist())))

    def _map(self, correctness: Correctness) -> Correctness:
        return np.tile(self.rates, (len(correctness), 1))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": list(self.names), "rates": list(self.rates)}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Rates":
        return cls(tuple(config["names"]), tuple(config["rates"]))
