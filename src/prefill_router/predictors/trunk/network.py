"""SharedTrunkNet: one trunk for all targets, an ensemble of seeds (section 3.1 of the paper).

It is used through NumPy alone, so that a router that only routes needs no training framework.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from prefill_router.brief import brief
from prefill_router.errors import CorruptError
from prefill_router.predictors.base import (
    Correctness,
    Features,
    Predictor,
    Tensors,
    check_features,
    take_tensors,
)
from prefill_router.predictors.sigmoid import sigmoid

_ROWS = 4096  # of one pass; bounds the memory of a large set of queries


class _Saved(BaseModel):
    """What is saved of a network beside its arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["shared_trunk"]
    targets: list[str]
    widths: list[PositiveInt]
    networks: PositiveInt


@brief
@final
@dataclass(frozen=True, eq=False)
class SharedTrunkNet(Predictor):
    """Mean of the probabilities of several networks of Linear and ReLU, the last layer linear.

    Attributes:
        names: The targets' names.
        weights: Of each layer; one matrix per network.
        biases: Of each layer.
    """

    kind: ClassVar[str] = "shared_trunk"
    names: tuple[str, ...]
    weights: tuple[Float32[NDArray[np.float32], "network _ _"], ...]
    biases: tuple[Float32[NDArray[np.float32], "network _"], ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return int(self.weights[0].shape[1])

    @property
    def networks(self) -> int:
        """How many networks are averaged."""
        return len(self.weights[0])

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        check_features(features, width=self.width)
        result = np.empty((len(features), len(self.names)))
        for start in range(0, len(features), _ROWS):
            part = slice(start, start + _ROWS)
            result[part] = self._mean(features[part].astype(np.float64))
        return result

    def _mean(self, rows: Float64[NDArray[np.float64], "query feature"]) -> Correctness:
        total = np.zeros((len(rows), len(self.names)))
        for layers in self._layers:
            hidden = rows
            for weight, bias in layers[:-1]:
                hidden = np.maximum(hidden @ weight + bias, 0)
            weight, bias = layers[-1]
            total += sigmoid(hidden @ weight + bias)
        return total / self.networks

    @cached_property
    def _layers(self) -> list[list[tuple[NDArray[np.float64], NDArray[np.float64]]]]:
        """Each network's layers; in double precision a row's result hardly knows its batch."""
        pairs = list(zip(self.weights, self.biases, strict=True))
        return [
            [(w[n].astype(np.float64), b[n].astype(np.float64)) for w, b in pairs]
            for n in range(self.networks)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind,
            "targets": list(self.names),
            "widths": [self.width, *(int(b.shape[1]) for b in self.biases)],
            "networks": self.networks,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`weight.0`, `bias.0`, ... from the first layer to the last."""
        result: dict[str, NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            result |= {f"weight.{i}": weight, f"bias.{i}": bias}
        return result

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "SharedTrunkNet":
        """The ensemble of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = _saved(config)
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(pairwise(saved.widths)):
            shapes[f"weight.{i}"] = (saved.networks, before, after)
            shapes[f"bias.{i}"] = (saved.networks, after)
        arrays = take_tensors(tensors, shapes)
        return cls(tuple(saved.targets), tuple(arrays[0::2]), tuple(arrays[1::2]))


def _saved(config: Mapping[str, Any]) -> _Saved:
    try:
        saved = _Saved.model_validate(dict(config))
    except ValidationError as error:
        raise CorruptError(f"not a shared trunk: {error}; copy or make the router again") from None
    distinct = len(set(saved.targets))
    if len(saved.widths) < 2 or not saved.widths[-1] == len(saved.targets) == distinct:
        raise CorruptError(
            f"the shared trunk's widths {saved.widths} don't end in one output for each of its "
            f"distinct targets {saved.targets}; copy or make the router again"
        )
    return saved
