"""Base rates: each target's share of right answers, whatever the query.

It is the reference that every other predictor must beat. Under it the policy sends all queries to
one target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.errors import CorruptError
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


@final
@dataclass(frozen=True, eq=False)
class Constant(Predictor):
    """The same probabilities for every query.

    Attributes:
        names: The targets' names.
        ignored: How many features it was given.
        rates: Each target's probability.
    """

    kind: ClassVar[str] = "constant"
    names: tuple[str, ...]
    ignored: int
    rates: Float32[NDArray[np.float32], " target"]

    @property
    def width(self) -> int:
        """How many features it was given."""
        return self.ignored

    def correctness(self, features: Features) -> Correctness:
        """The base rates, once per query."""
        check_features(features, width=self.width)
        return np.tile(self.rates.astype(np.float64), (len(features), 1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "targets": list(self.names), "width": self.width}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`rates`."""
        return {"rates": self.rates}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Constant":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = read_saved(SavedPredictor, config, kind=cls.kind)
        [rates] = take_tensors(tensors, {"rates": (len(saved.targets),)})
        check_rates(rates)
        return cls(tuple(saved.targets), saved.width, rates)


@final
@dataclass(frozen=True, kw_only=True)
class ConstantConfig(PredictorConfig):
    """It has no options."""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Count each target's right answers (`Examples.base_rates`)."""
        del seed, progress
        rates = examples.base_rates.astype(np.float32)
        predictor = Constant(examples.targets, examples.features.shape[1], rates)
        return PredictorFit(predictor, examples.target_notes())


def check_rates(rates: NDArray[np.float32]) -> None:
    """Check probabilities that were saved.

    Raises:
        CorruptError: One is outside [0, 1].
    """
    if not ((rates >= 0) & (rates <= 1)).all():
        raise CorruptError(
            f"the predictor's probabilities are from {rates.min()} to {rates.max()}; they must be "
            "in [0, 1]; copy or make the router again"
        )


ENTRY = PredictorEntry(
    ConstantConfig, Constant, "Constant (base rates)", "the reference that others must beat"
)
