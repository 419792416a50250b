"""What every predictor is: from features to each target's probability of a correct answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError

Tensors = Mapping[str, NDArray[Any]]
Features = Float32[NDArray[np.float32], "query feature"]
Correctness = Float64[NDArray[np.float64], "query target"]


class Predictor(ABC):
    """A fitted, frozen predictor.

    A row of the result depends on that row of the features alone: not on the other rows, nor on
    their order or number.
    """

    kind: ClassVar[str]
    """What a saved predictor is told by; see `load_predictor`."""

    @property
    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features it was fitted on."""

    @abstractmethod
    def correctness(self, features: Features) -> Correctness:
        """The probability that each target answers each query correctly, in [0, 1].

        Args:
            features: As it was fitted on (Equation 3), finite.

        Raises:
            ConfigError: The width is another one, or a feature isn't finite.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with its `kind`; together with `tensors` they are all of it."""

    @abstractmethod
    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, by names that are unique in it."""

    @classmethod
    @abstractmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Predictor":
        """The predictor of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """


def check_features(features: Features, *, width: int) -> None:
    """Check features before they are used.

    Raises:
        ConfigError: The width is another one, or a feature isn't finite.
    """
    if features.shape[1] != width:
        raise ConfigError(
            f"the features are {features.shape[1]} wide; the predictor was fitted on {width}; "
            "make them with the feature extractor that it was fitted with"
        )
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise ConfigError(
            f"row {row} of the features isn't finite; check the encoder's states of that query"
        )


def take_tensors(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> list[NDArray[Any]]:
    """The named arrays of a saved predictor, in order.

    Args:
        tensors: What was read.
        shapes: The name and shape of every array that must be there; all are float32 and finite.

    Raises:
        CorruptError: A name is missing or unknown, or a shape, type or value is wrong.
    """
    if set(tensors) != set(shapes):
        raise CorruptError(
            f"the predictor's arrays are {sorted(tensors)}; they must be {sorted(shapes)}; "
            "copy or make the router again"
        )
    for name, shape in shapes.items():
        array = tensors[name]
        if array.shape != shape or array.dtype != np.float32:
            raise CorruptError(
                f"the predictor's array {name} is {array.dtype} {array.shape}; it must be float32 "
                f"{shape}; copy or make the router again"
            )
        if not np.isfinite(array).all():
            raise CorruptError(
                f"the predictor's array {name} holds numbers that aren't finite; "
                "copy or make the router again"
            )
    return [tensors[name] for name in shapes]
