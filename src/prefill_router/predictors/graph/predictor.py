"""GraphRouter: a graph of queries, tasks and targets (Feng et al. 2025, arXiv 2410.03834).

A new query joins the finished graph: it hears the tasks that it seems to belong to and is heard by
nobody, so that queries don't depend on each other. All that it can hear is kept, the graph's own
queries aren't. It is used through NumPy alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float64
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
from prefill_router.predictors.graph.tasks import share_of_tasks

_ROWS = 4096  # of one pass; bounds the memory of a large set of queries


class _Saved(BaseModel):
    """What is saved beside the arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["graph"]
    targets: Annotated[list[str], Field(min_length=1)]
    tasks: Annotated[list[str], Field(min_length=1)]
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    width: PositiveInt
    hidden: PositiveInt
    layers: PositiveInt
    networks: PositiveInt


@final
@dataclass(frozen=True, eq=False)
class GraphRouter(Predictor):
    """The mean of the probabilities of several networks on one graph.

    Attributes:
        names: The targets' names.
        tasks: The tasks' names.
        temperature: How softly a query is given to tasks, see `share_of_tasks`.
        arrays: By name: `mean`, `deviation` [feature] and `centroids` [task, feature] of the train
            rows; and of each network `enter.weight` [feature, hidden], `enter.bias`, for each round
            `query.L.weight` [hidden, hidden], `query.L.bias` and `task.L` [task, hidden], then
            `targets` [target, hidden] and `biases` [target].
    """

    kind: ClassVar[str] = "graph"
    names: tuple[str, ...]
    tasks: tuple[str, ...]
    temperature: float
    arrays: Mapping[str, NDArray[np.float32]]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return len(self.arrays["mean"])

    @property
    def layers(self) -> int:
        """Rounds of messages."""
        return sum(name.startswith("task.") for name in self.arrays)

    @property
    def networks(self) -> int:
        """How many networks are averaged."""
        return len(self.arrays["biases"])

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        check_features(features, width=self.width)
        result = np.empty((len(features), len(self.names)))
        for start in range(0, len(features), _ROWS):
            part = slice(start, start + _ROWS)
            result[part] = self._mean(features[part].astype(np.float64))
        return result

    def _mean(self, features: Float64[NDArray[np.float64], "query feature"]) -> Correctness:
        a = self._exact
        rows = (features - a["mean"]) / a["deviation"]
        shares = share_of_tasks(rows, a["centroids"], temperature=self.temperature)
        total = np.zeros((len(rows), len(self.names)))
        for n in range(self.networks):
            states = np.maximum(rows @ a["enter.weight"][n] + a["enter.bias"][n], 0)
            for i in range(self.layers):
                own = states @ a[f"query.{i}.weight"][n] + a[f"query.{i}.bias"][n]
                states = states + np.maximum(own + shares @ a[f"task.{i}"][n], 0)
            total += expit(states @ a["targets"][n].T + a["biases"][n])
        return total / self.networks

    @cached_property
    def _exact(self) -> dict[str, NDArray[np.float64]]:
        """In double precision a row's result hardly knows its batch."""
        return {name: array.astype(np.float64) for name, array in self.arrays.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind,
            "targets": list(self.names),
            "tasks": list(self.tasks),
            "temperature": self.temperature,
            "width": self.width,
            "hidden": int(self.arrays["targets"].shape[2]),
            "layers": self.layers,
            "networks": self.networks,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, see `arrays`."""
        return dict(self.arrays)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "GraphRouter":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        try:
            saved = _Saved.model_validate(dict(config))
        except ValidationError as error:
            raise CorruptError(
                f"not a graph router: {error}; copy or make the router again"
            ) from None
        for names in (saved.targets, saved.tasks):
            if len(set(names)) < len(names):
                raise CorruptError(f"the graph router names {names}; copy or make it again")
        shapes = _shapes(saved)
        arrays = dict(zip(shapes, take_tensors(tensors, shapes), strict=True))
        if not (arrays["deviation"] > 0).all():
            raise CorruptError("the graph router's deviations aren't positive; make it again")
        return cls(tuple(saved.targets), tuple(saved.tasks), saved.temperature, arrays)


def _shapes(saved: _Saved) -> dict[str, tuple[int, ...]]:
    networks, hidden, tasks = saved.networks, saved.hidden, len(saved.tasks)
    shapes: dict[str, tuple[int, ...]] = {
        "mean": (saved.width,),
        "deviation": (saved.width,),
        "centroids": (tasks, saved.width),
        "enter.weight": (networks, saved.width, hidden),
        "enter.bias": (networks, hidden),
        "targets": (networks, len(saved.targets), hidden),
        "biases": (networks, len(saved.targets)),
    }
    for layer in range(saved.layers):
        shapes[f"query.{layer}.weight"] = (networks, hidden, hidden)
        shapes[f"query.{layer}.bias"] = (networks, hidden)
        shapes[f"task.{layer}"] = (networks, tasks, hidden)
    return shapes
