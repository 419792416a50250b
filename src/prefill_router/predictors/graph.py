"""GraphRouter: a graph of queries, tasks and targets (Feng et al. 2025, arXiv 2410.03834).

A new query joins the finished graph: it hears the tasks that it seems to belong to and is heard by
nobody, so that queries don't depend on each other. The task of a query is known while fitting and
told from its features afterwards. All that a query can hear is kept, the graph's own queries
aren't. It is used through NumPy alone: importing this loads neither torch nor torch-geometric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float64, Int
from numpy.typing import NDArray
from pydantic import PositiveFloat
from scipy.special import expit, log_softmax, softmax

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
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Names, Shape


@final
@dataclass(frozen=True, kw_only=True)
class GraphConfig(PredictorConfig):
    """Options of the graph router's training.

    Attributes:
        hidden: Width of every node's state.
        layers: Rounds of messages.
        dropout: The share of units that is dropped after each round.
        learning_rate: Adam's.
        weight_decay: Adam's, as an L2 penalty in the gradient.
        batch_size: Queries that are asked about in a step; their own labels are out of the graph.
        context: Other queries of a step, at most, whose labels are in the graph.
        max_epochs: Passes over the fitting rows, at most.
        patience: Epochs without a better validation loss after which a network stops.
        networks: How many networks are averaged.
        validation: The share of the rows that is held out for the validation loss.
        text: The encoder that embeds what is said of tasks and targets, such as `minilm`; None for
            nothing. Only fitting needs it.
    """

    hidden: Count = 96
    layers: Count = 2
    dropout: Dropout = 0.4
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-4
    batch_size: Count = 512
    context: Count = 768
    max_epochs: Count = 60
    patience: Count = 8
    networks: Count = 3
    validation: Validation = 0.15
    text: str | None = None

    @property
    def describes_with(self) -> str | None:
        """The encoder of the texts."""
        return self.text

    def lighter(self) -> "GraphConfig":
        """The same with one network."""
        return replace(self, networks=1)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit a GraphRouter.

        Raises:
            FitError: The losses grew beyond all bounds.
            MissingExtraError: torch-geometric isn't installed.
        """
        from prefill_router.predictors.graph_training import fit_graph

        return fit_graph(examples, self, seed=seed, progress=progress or SilentProgress())


_MOST_LAYERS = 1000
_QUERIES_AT_ONCE = 4096  # of one pass; bounds the memory of a large set of queries


@final
@dataclass(frozen=True, eq=False)
class GraphRouter(Predictor):
    """The mean of the probabilities of several networks on one graph.

    Attributes:
        tasks: The tasks' names.
        temperature: How softly a query is given to tasks, see `share_of_tasks`.
        arrays: By name: `mean`, `deviation` [feature] and `centroids` [task, feature] of the train
            rows; and of each network `enter.weight` [feature, hidden], `enter.bias`, for each round
            `query.L.weight` [hidden, hidden], `query.L.bias` and `task.L` [task, hidden], then
            `targets` [target, hidden] and `biases` [target].
    """

    kind: ClassVar[str] = "graph"
    axes: ClassVar[Mapping[str, str]] = {
        **Predictor.axes,
        "hidden": "hidden",
        "layer": "layers",
        "network": "networks",
    }
    tasks: Names
    temperature: PositiveFloat
    arrays: Mapping[str, NDArray[np.float32]]

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return len(self.arrays["mean"])

    @property
    def hidden(self) -> int:
        """Width of every node's state."""
        return int(self.arrays["targets"].shape[2])

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
        result = np.empty((len(features), len(self.targets)))
        for start in range(0, len(features), _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            result[part] = self._mean(features[part].astype(np.float64))
        return result

    def _mean(self, features: Float64[NDArray[np.float64], "query feature"]) -> Correctness:
        a = self._exact
        rows = (features - a["mean"]) / a["deviation"]
        shares = share_of_tasks(rows, a["centroids"], temperature=self.temperature)
        total = np.zeros((len(rows), len(self.targets)))
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

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """See `arrays`."""
        width, hidden, networks = plain["width"], plain["hidden"], plain["networks"]
        targets, tasks = len(plain["targets"]), len(plain["tasks"])
        if plain["layers"] > _MOST_LAYERS:
            raise ConfigError(f"it has {plain['layers']} layers; {_MOST_LAYERS} are read at most")
        shapes: dict[str, Shape] = {
            "mean": (width,),
            "deviation": (width,),
            "centroids": (tasks, width),
            "enter.weight": (networks, width, hidden),
            "enter.bias": (networks, hidden),
            "targets": (networks, targets, hidden),
            "biases": (networks, targets),
        }
        for layer in range(plain["layers"]):
            shapes[f"query.{layer}.weight"] = (networks, hidden, hidden)
            shapes[f"query.{layer}.bias"] = (networks, hidden)
            shapes[f"task.{layer}"] = (networks, tasks, hidden)
        return shapes

    def verify(self) -> None:
        """Check that the rows can be divided by their deviations."""
        if not (self.arrays["deviation"] > 0).all():
            raise ConfigError("its deviations aren't positive")


Rows = Float64[NDArray[np.float64], "query feature"]
Centroids = Float64[NDArray[np.float64], "task feature"]
_TEMPERATURES = np.logspace(-2, 3, 41)  # in units of the features' number
_MOST_ROWS = 2000  # of one pass; bounds the memory


def number_tasks(
    groups: Sequence[str],
) -> tuple[tuple[str, ...], Int[NDArray[np.int64], " query"]]:
    """The tasks' names, sorted, and each query's task by number."""
    names = tuple(sorted(set(groups)))
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.array([numbers[group] for group in groups], dtype=np.int64)


def find_centroids(rows: Rows, task: Int[NDArray[np.int64], " query"]) -> Centroids:
    """The mean row of every task."""
    total = np.zeros((int(task.max()) + 1, rows.shape[1]))
    np.add.at(total, task, rows)
    mean: Centroids = total / np.bincount(task)[:, None]
    return mean


def share_of_tasks(
    rows: Rows, centroids: Centroids, *, temperature: float
) -> Float64[NDArray[np.float64], "query task"]:
    """How much each query belongs to each task: softmax of -distance^2 / (2 temperature)."""
    share: NDArray[np.float64] = softmax(_closeness(rows, centroids) / temperature, axis=1)
    return share


def choose_temperature(rows: Rows, task: Int[NDArray[np.int64], " query"]) -> float:
    """The temperature under which the rows' own tasks are likeliest.

    Each row is measured against its task's centroid without the row itself, as a new query would
    be; tasks of a single row, which have none, are left out.
    """
    centroids, sizes = find_centroids(rows, task), np.bincount(task)
    scale = float(rows.shape[1])
    known = np.flatnonzero(sizes[task] > 1)
    if len(sizes) == 1 or not len(known):
        return scale
    total = np.zeros(len(_TEMPERATURES))
    for start in range(0, len(known), _MOST_ROWS):
        part = known[start : start + _MOST_ROWS]
        closeness = _without_itself(rows[part], task[part], centroids, sizes)
        for i, temperature in enumerate(scale * _TEMPERATURES):
            chance = log_softmax(closeness / temperature, axis=1)
            total[i] += chance[np.arange(len(part)), task[part]].sum()
    return float(scale * _TEMPERATURES[int(total.argmax())])


def _closeness(rows: Rows, centroids: Centroids) -> Float64[NDArray[np.float64], "query task"]:
    """-distance^2 / 2, less what is the same for all tasks."""
    close: NDArray[np.float64] = rows @ centroids.T - (centroids**2).sum(axis=1) / 2
    return close


def _without_itself(
    rows: Rows,
    task: Int[NDArray[np.int64], " query"],
    centroids: Centroids,
    sizes: Int[NDArray[np.int64], " task"],
) -> Float64[NDArray[np.float64], "query task"]:
    closeness = _closeness(rows, centroids)
    count = sizes[task][:, None]
    own = (centroids[task] * count - rows) / (count - 1)
    closeness[np.arange(len(rows)), task] = (rows * own).sum(axis=1) - (own**2).sum(axis=1) / 2
    return closeness


ENTRY = PredictorEntry(GraphConfig, GraphRouter, "GraphRouter", "Feng et al. 2025, GraphRouter")

__all__ = ["ENTRY", "GraphConfig", "GraphRouter"]
