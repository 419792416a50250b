"""Predictors that average networks, used through NumPy alone."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from scipy.special import expit

from prefill_router.errors import CorruptError
from prefill_router.predictors.base import (
    Correctness,
    Features,
    Predictor,
    Tensors,
    check_features,
    take_tensors,
)

_ROWS = 1024  # of one pass; bounds the memory of a large set of queries
_SURE = 30.0
"""No logit is taken for further from 0: nothing learned here is surer than 1 in 10**13."""

Arrays = Mapping[str, Float64[NDArray[np.float64], "..."]]
Rows = Float64[NDArray[np.float64], "query feature"]
Logits = Float64[NDArray[np.float64], "query output"]
Shape = tuple[int, ...]


class _Saved(BaseModel):
    """What is saved of an ensemble beside its arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    targets: list[str] = Field(min_length=1)
    fixed: dict[str, float]
    widths: list[PositiveInt] = Field(min_length=2)
    networks: PositiveInt


@dataclass(frozen=True, eq=False)
class NetworkEnsemble(Predictor):
    """The mean of the probabilities of several networks of one kind.

    Attributes:
        names: The targets' names.
        fixed: The probabilities of those that couldn't be learned; the networks know the others.
        widths: Of the features, and of each layer before the outputs.
        arrays: Of all networks together, by names.
    """

    names: tuple[str, ...]
    fixed: Mapping[str, float]
    widths: tuple[int, ...]
    arrays: Mapping[str, Float32[NDArray[np.float32], "network ..."]]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

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
        return tuple(name for name in self.names if name not in self.fixed)

    @staticmethod
    @abstractmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of one network's arrays, for so many targets that are learned."""

    @abstractmethod
    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        """What one network says of the learned targets."""

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        result = np.empty((len(features), len(self.names)))
        learned = np.array([name not in self.fixed for name in self.names])
        result[:, learned] = self._mean(features, self._logits, int(learned.sum()))
        result[:, ~learned] = [self.fixed[name] for name in self.names if name in self.fixed]
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind,
            "targets": list(self.names),
            "fixed": dict(self.fixed),
            "widths": list(self.widths),
            "networks": self.networks,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, such as `weight.0` and `bias.0`."""
        return dict(self.arrays)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "NetworkEnsemble":
        """The ensemble of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = _checked(config, cls.kind)
        widths, learned = tuple(saved.widths), len(saved.targets) - len(saved.fixed)
        shapes = {
            name: (saved.networks, *shape) for name, shape in cls.shapes(widths, learned).items()
        }
        arrays = dict(zip(shapes, take_tensors(tensors, shapes), strict=True))
        return cls(tuple(saved.targets), saved.fixed, widths, arrays)


def _checked(config: Mapping[str, Any], kind: str) -> _Saved:
    try:
        saved = _Saved.model_validate(dict(config))
    except ValidationError as error:
        raise CorruptError(f"not a {kind}: {error}; copy or make the router again") from None
    distinct = set(saved.targets)
    sound = (
        saved.kind == kind
        and len(distinct) == len(saved.targets)
        and distinct > set(saved.fixed)
        and all(0 <= rate <= 1 for rate in saved.fixed.values())
    )
    if not sound:
        raise CorruptError(
            f"a saved {saved.kind} of the targets {saved.targets}, of which {saved.fixed} are "
            f"fixed, is no {kind} of distinct targets; copy or make the router again"
        )
    return saved
