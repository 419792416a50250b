"""Predictors that average networks, evaluated with NumPy alone, and the options of their training.

`NetworkConfig` has the options that all networks share.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from scipy.special import expit

from prefill_router.errors import ConfigError
from prefill_router.options import Count, Dropout, NotNegative, Positive, Validation
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorFit,
    check_features,
)
from prefill_router.predictors.networks.network import Arrays, Logits, Network, Rows
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Shape

if TYPE_CHECKING:
    from prefill_router.predictors.networks.architectures import Architecture

_MANY = 64


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(PredictorConfig):
    """Options that all networks share.

    Attributes:
        predictor: The class of the fitted ensemble.
        learning_rate: AdamW's learning rate.
        weight_decay: AdamW's weight decay, for weights but not for biases.
        dropout: The dropout rate after each hidden layer.
        input_dropout: The dropout rate of the features. None for 0.5 with 64 features or more, and
            0 with fewer, each of which may be needed.
        batch_size: Queries per step.
        max_epochs: The greatest number of epochs.
        patience: Epochs without a better validation loss after which a network stops.
        seeds: The number of networks that are averaged; each holds out different rows.
        validation: The share of the rows that is held out for the validation loss.
        disagreement_weight: The weight of a query on which targets disagree, where others have 1.
    """

    predictor: ClassVar[type["NetworkEnsemble"]]
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 0.01
    dropout: Dropout = 0.3
    input_dropout: Dropout | None = None
    batch_size: Count = 256
    max_epochs: Count = 60
    patience: Count = 7
    seeds: Count = 4
    validation: Validation = 0.15
    disagreement_weight: Positive = 1.0

    @property
    @abstractmethod
    def inner(self) -> tuple[int, ...]:
        """The widths of the layers between the features and the outputs."""

    @abstractmethod
    def architecture(self, network: Network, rates: "Rates") -> "Architecture":
        """The training of a seed.

        Args:
            network: The network.
            rates: Base rates of the learned targets.
        """

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit an ensemble on train rows."""
        from prefill_router.predictors.networks.training import fit_ensemble

        return fit_ensemble(examples, self, seed=seed, progress=progress or SilentProgress())

    def lighter(self) -> "NetworkConfig":
        """The same options with at most two networks."""
        return replace(self, seeds=min(self.seeds, 2))

    def share_of(self, features: int) -> float:
        """The dropout rate of this number of features."""
        if self.input_dropout is not None:
            return self.input_dropout
        return 0.5 if features >= _MANY else 0.0


_ROWS = 1024  # rows per batch; bounds the memory
_SURE = 30.0
"""Logits are clipped to this distance from 0, a probability of about 1e-13."""

Rates = Float64[NDArray[np.float64], " learned"]


@dataclass(frozen=True, eq=False)
class NetworkEnsemble(Predictor):
    """The mean of the probabilities of several networks of one kind.

    Attributes:
        fixed: The probabilities of targets that couldn't be learned; the networks have the others.
        widths: The number of features, and the width of each layer before the outputs.
        arrays: The stacked arrays of all networks, by name.
    """

    axes: ClassVar[Mapping[str, str]] = {"network": "networks"}
    fixed: Mapping[str, Annotated[float, Field(ge=0, le=1)]]
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=2)]
    arrays: Mapping[str, Float32[NDArray[np.float32], "network ..."]]

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return self.widths[0]

    @property
    def networks(self) -> int:
        """The number of networks that are averaged."""
        return len(next(iter(self.arrays.values())))

    @property
    def learned(self) -> tuple[str, ...]:
        """The targets that were learned, in order."""
        return tuple(name for name in self.targets if name not in self.fixed)

    @classmethod
    @abstractmethod
    def describe(cls, widths: Shape, targets: int) -> Network:
        """One of the networks, for this number of learned targets."""

    @cached_property
    def network(self) -> Network:
        """One of the networks."""
        return self.describe(self.widths, len(self.learned))

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """The shapes of the stacked arrays of all networks."""
        learned = len(plain["targets"]) - len(plain["fixed"])
        shapes = cls.describe(plain["widths"], learned).shapes
        return {name: (plain["networks"], *shape) for name, shape in shapes.items()}

    @abstractmethod
    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        """The logits of one network for the learned targets."""

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        result = np.empty((len(features), len(self.targets)))
        learned = np.array([name not in self.fixed for name in self.targets])
        result[:, learned] = self._mean_sigmoid(features, self._logits, int(learned.sum()))
        result[:, ~learned] = [self.fixed[name] for name in self.targets if name in self.fixed]
        return result

    def _mean_sigmoid(
        self, features: Features, logits: Callable[[Arrays, Rows], Logits], outputs: int
    ) -> Float64[NDArray[np.float64], "query output"]:
        """The mean over the networks of the sigmoid of some outputs."""
        check_features(features, width=self.width)
        total = np.zeros((len(features), outputs))
        for start in range(0, len(features), _ROWS):
            part = slice(start, start + _ROWS)
            rows = features[part].astype(np.float64)
            for arrays in self._each:
                total[part] += expit(np.clip(logits(arrays, rows), -_SURE, _SURE))
        return total / self.networks

    @cached_property
    def _each(self) -> list[dict[str, NDArray[np.float64]]]:
        """Each network's arrays, in double precision so that batches hardly change results."""
        return [
            {name: array[n].astype(np.float64) for name, array in self.arrays.items()}
            for n in range(self.networks)
        ]

    def verify(self) -> None:
        """Check that the targets that couldn't be learned are some of the targets, but not all."""
        if not set(self.targets) > set(self.fixed):
            raise ConfigError(f"of the targets {self.targets}, {list(self.fixed)} are fixed")
