"""GraphRouter: a graph of queries, tasks and targets (Feng et al. 2025, arXiv 2410.03834).

A new query is added to the fitted graph: it receives messages from the tasks that it seems to
belong to and sends none, so that queries don't depend on each other. The task of a query is known
while fitting and predicted from its features afterwards. Only the messages that a new query can
receive are saved, not the graph's own queries. Prediction uses NumPy alone: importing this loads
neither torch nor torch-geometric.
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
from prefill_router.predictors import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Names, Shape


@final
@dataclass(frozen=True, kw_only=True)
class GraphConfig(PredictorConfig):
    """Options of the graph router's training.

    Attributes:
        hidden: The width of every node's state.
        layers: The number of rounds of message passing.
        dropout: The dropout rate after each round.
        learning_rate: Adam's learning rate.
        weight_decay: Adam's weight decay, as an L2 penalty in the gradient.
        batch_size: Queries to predict per step; their own labels aren't in the graph.
        context: The most other queries per step, whose labels are in the graph.
        max_epochs: The greatest number of epochs.
        patience: Epochs without a better validation loss after which a network stops.
        networks: The number of networks that are averaged.
        validation: The share of the rows that is held out for the validation loss.
        text: The encoder of the descriptions of tasks and targets, such as `minilm`; None for no
            descriptions. Only fitting needs it.
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
        """The encoder of the descriptions."""
        return self.text

    def lighter(self) -> "GraphConfig":
        """The same options with one network."""
        return replace(self, networks=1)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit a GraphRouter.

        Raises:
            FitError: The losses aren't finite.
            MissingExtraError: torch-geometric isn't installed.
        """
        from prefill_router_lab.predictors.graph_network import fit_graph

        return fit_graph(examples, self, seed=seed, progress=progress or SilentProgress())


_MOST_LAYERS = 1000
_QUERIES_AT_ONCE = 4096  # queries per batch; bounds the memory


@final
@dataclass(frozen=True, eq=False)
class GraphRouter(Predictor):
    """The mean of the probabilities of several networks on one graph.

    Attributes:
        tasks: The tasks' names.
        temperature: The temperature of a query's softmax over tasks, see `share_of_tasks`.
        arrays: By name: `mean`, `deviation` [feature] and `centroids` [task, feature] of the train
            rows; and for each network `enter.weight` [feature, hidden], `enter.bias`, for each
            round `query.L.weight` [hidden, hidden], `query.L.bias` and `task.L` [task, hidden],
            then `targets` [target, hidden] and `biases` [target].
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
        """The number of features it was fitted on."""
        return len(self.arrays["mean"])

    @property
    def hidden(self) -> int:
        """The width of every node's state."""
        return int(self.arrays["targets"].shape[2])

    @property
    def layers(self) -> int:
        """The number of rounds of message passing."""
        return sum(name.startswith("task.") for name in self.arrays)

    @property
    def networks(self) -> int:
        """The number of networks that are averaged."""
        return len(self.arrays["biases"])

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        check_features(features, width=self.width)
        result = np.empty((len(features), len(self.targets)))
        for start in range(0, len(features), _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            result[part] = self._average_networks(features[part].astype(np.float64))
        return result

    def _average_networks(
        self, features: Float64[NDArray[np.float64], "query feature"]
    ) -> Correctness:
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
        """The arrays, in double precision so that batches hardly change results."""
        return {name: array.astype(np.float64) for name, array in self.arrays.items()}

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """The shapes of `arrays`."""
        width, hidden, networks = plain["width"], plain["hidden"], plain["networks"]
        targets, tasks = len(plain["targets"]), len(plain["tasks"])
        if plain["layers"] > _MOST_LAYERS:
            raise ConfigError(
                f"it has {plain['layers']} layers; at most {_MOST_LAYERS} are allowed"
            )
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
        """Check that the standard deviations are positive."""
        if not (self.arrays["deviation"] > 0).all():
            raise ConfigError("its standard deviations aren't positive")


Rows = Float64[NDArray[np.float64], "query feature"]
Centroids = Float64[NDArray[np.float64], "task feature"]
_TEMPERATURES = np.logspace(-2, 3, 41)  # times the number of features
_MOST_ROWS = 2000  # rows per batch; bounds the memory


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
    """The share of each task in each query: softmax of -distance^2 / (2 temperature)."""
    share: NDArray[np.float64] = softmax(_measure_closeness(rows, centroids) / temperature, axis=1)
    return share


def choose_temperature(rows: Rows, task: Int[NDArray[np.int64], " query"]) -> float:
    """The temperature with the highest likelihood of the rows' own tasks.

    Each row's distance is to its task's centroid without the row itself, as for a new query. Tasks
    with a single row, which have no such centroid, are left out.
    """
    centroids, sizes = find_centroids(rows, task), np.bincount(task)
    scale = float(rows.shape[1])
    comparable = np.flatnonzero(sizes[task] > 1)
    if len(sizes) == 1 or not len(comparable):
        return scale
    total = np.zeros(len(_TEMPERATURES))
    for start in range(0, len(comparable), _MOST_ROWS):
        part = comparable[start : start + _MOST_ROWS]
        closeness = _measure_closeness_to_others(rows[part], task[part], centroids, sizes)
        for i, temperature in enumerate(scale * _TEMPERATURES):
            chance = log_softmax(closeness / temperature, axis=1)
            total[i] += chance[np.arange(len(part)), task[part]].sum()
    return float(scale * _TEMPERATURES[int(total.argmax())])


def _measure_closeness(
    rows: Rows, centroids: Centroids
) -> Float64[NDArray[np.float64], "query task"]:
    """-distance^2 / 2, without the terms that are the same for all tasks."""
    closeness: NDArray[np.float64] = rows @ centroids.T - (centroids**2).sum(axis=1) / 2
    return closeness


def _measure_closeness_to_others(
    rows: Rows,
    task: Int[NDArray[np.int64], " query"],
    centroids: Centroids,
    sizes: Int[NDArray[np.int64], " task"],
) -> Float64[NDArray[np.float64], "query task"]:
    closeness = _measure_closeness(rows, centroids)
    count = sizes[task][:, None]
    own = (centroids[task] * count - rows) / (count - 1)
    closeness[np.arange(len(rows)), task] = (rows * own).sum(axis=1) - (own**2).sum(axis=1) / 2
    return closeness


ENTRY = PredictorEntry(GraphConfig, GraphRouter, "GraphRouter", "Feng et al. 2025, GraphRouter")
