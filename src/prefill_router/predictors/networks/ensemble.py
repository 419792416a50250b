"""Predictors that average networks, used through NumPy alone, and the options of their training.

`NetworkConfig` has the options that all networks share. A network of hidden layers with heads is
the commonest: what the arrays of one are called, and what it computes, is settled here for all.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
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
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Shape

if TYPE_CHECKING:
    from prefill_router.predictors.networks.architectures import Architecture

_MANY = 64


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(PredictorConfig):
    """Options that all networks share.

    Attributes:
        predictor: What the networks make up.
        learning_rate: AdamW's.
        weight_decay: AdamW's, on what the features or hidden units are multiplied by.
        dropout: The share of units that is dropped after each hidden layer.
        input_dropout: The share of features that is dropped; None for a half where there are 64 or
            more, and none where there are fewer, each of which may be needed.
        batch_size: Queries a step.
        max_epochs: Passes over the fitting rows, at most.
        patience: Epochs without a better validation loss after which a network stops.
        seeds: How many networks are averaged; each holds out other rows.
        validation: The share of the rows that is held out for the validation loss.
        disagreement_weight: What a query counts on which targets disagree, where others count 1.
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
        """Widths of the layers between the features and the outputs."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The layers that the features enter."""
        return ("0",)

    @abstractmethod
    def architecture(self, shapes: Mapping[str, "Shape"], rates: "Rates") -> "Architecture":
        """The networks of a seed.

        Args:
            shapes: Of the arrays, see `NetworkEnsemble.shapes`.
            rates: Base rates of the targets that are learned.
        """

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit an ensemble on train rows."""
        from prefill_router.predictors.networks.training import fit_ensemble

        return fit_ensemble(examples, self, seed=seed, progress=progress or SilentProgress())

    def lighter(self) -> "NetworkConfig":
        """The same with two networks at most."""
        return replace(self, seeds=min(self.seeds, 2))

    def share_of(self, features: int) -> float:
        """The share of so many features that is dropped."""
        if self.input_dropout is not None:
            return self.input_dropout
        return 0.5 if features >= _MANY else 0.0


_ROWS = 1024  # of one pass; bounds the memory of a large set of queries
_SURE = 30.0
"""No logit is taken for further from 0: nothing learned here is surer than 1 in 10**13."""

Arrays = Mapping[str, Float64[NDArray[np.float64], "..."]]
Rows = Float64[NDArray[np.float64], "query feature"]
Logits = Float64[NDArray[np.float64], "query output"]
Rates = Float64[NDArray[np.float64], " learned"]


@dataclass(frozen=True, eq=False)
class NetworkEnsemble(Predictor):
    """The mean of the probabilities of several networks of one kind.

    Attributes:
        fixed: The probabilities of those that couldn't be learned; the networks know the others.
        widths: Of the features, and of each layer before the outputs.
        arrays: Of all networks together, by names.
    """

    axes: ClassVar[Mapping[str, str]] = {"network": "networks"}
    fixed: Mapping[str, Annotated[float, Field(ge=0, le=1)]]
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=2)]
    arrays: Mapping[str, Float32[NDArray[np.float32], "network ..."]]

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return self.widths[0]

    @property
    def networks(self) -> int:
        """How many networks are averaged."""
        return len(next(iter(self.arrays.values())))

    @property
    def learned(self) -> tuple[str, ...]:
        """The targets that the networks know, in order."""
        return tuple(name for name in self.targets if name not in self.fixed)

    @classmethod
    @abstractmethod
    def shapes(cls, widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of one network's arrays, for so many targets that are learned."""

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """Those of all networks together."""
        learned = len(plain["targets"]) - len(plain["fixed"])
        shapes = cls.shapes(plain["widths"], learned)
        return {name: (plain["networks"], *shape) for name, shape in shapes.items()}

    @abstractmethod
    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        """What one network says of the learned targets."""

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        result = np.empty((len(features), len(self.targets)))
        learned = np.array([name not in self.fixed for name in self.targets])
        result[:, learned] = self._mean(features, self._logits, int(learned.sum()))
        result[:, ~learned] = [self.fixed[name] for name in self.targets if name in self.fixed]
        return result

    def _mean(
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
        """Each network's arrays; in double precision a row's result hardly knows its batch."""
        return [
            {name: array[n].astype(np.float64) for name, array in self.arrays.items()}
            for n in range(self.networks)
        ]

    def verify(self) -> None:
        """Check that those that couldn't be learned are some of the targets, not all of them."""
        if not set(self.targets) > set(self.fixed):
            raise ConfigError(f"of the targets {self.targets}, {list(self.fixed)} are fixed")


CORRECTNESS, DIFFICULTY, DISCRIMINATION = "correctness", "difficulty", "discrimination"


def perceptron_shapes(
    widths: Shape, heads: Sequence[tuple[str, int]], *, side_by_side: int
) -> dict[str, Shape]:
    """The names and shapes of the arrays.

    Args:
        widths: Of the features and each hidden layer.
        heads: Names and widths of the last layers.
        side_by_side: How many such networks stand beside each other, each with its own layers.
    """
    found: dict[str, Shape] = {}
    for name, before, after in (
        *((f"{i}", before, after) for i, (before, after) in enumerate(pairwise(widths))),
        *((name, widths[-1], width) for name, width in heads),
    ):
        found[f"weight.{name}"] = (side_by_side, before, after)
        found[f"bias.{name}"] = (side_by_side, 1, after)
    return found


def perceptron_outputs(
    arrays: Arrays, rows: Rows, layers: int, head: str
) -> Float64[NDArray[np.float64], "query output"]:
    """The outputs of one head after so many hidden layers; those of each network in turn."""
    units = rows
    for i in range(layers):
        units = np.maximum(units @ arrays[f"weight.{i}"] + arrays[f"bias.{i}"], 0)
    found = units @ arrays[f"weight.{head}"] + arrays[f"bias.{head}"]
    return np.moveaxis(found, 0, 1).reshape(len(rows), -1)
