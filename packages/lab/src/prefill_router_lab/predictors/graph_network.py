"""The graph of a GraphRouter, its network, and the training of several such networks.

torch-geometric passes messages along the graph's edges. There are three kinds of nodes: queries,
tasks and targets. A query has an edge to its task, and to each target that has a label for it two
edges: one with the label as its weight ("right") and one with 1 minus the label ("wrong"). Where
the cost of a target's answer is known, a third edge has it as its weight ("cost"), whether or not
there is a label. After some rounds of message passing each pair of a query and a target gets a
score.

Each network is trained on a graph of train rows, from which the queries to predict are left out in
every step.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from prefill_router.errors import FitError
from prefill_router.lazy_imports import optional_imports
from prefill_router.predictors import Examples, PredictorFit, hold_out, left_out_note, usable_rows
from prefill_router.progress import Progress
from prefill_router.training import Trainer, TrainingRun, train_together
from prefill_router_lab.predictors.graph import (
    GraphConfig,
    GraphRouter,
    choose_temperature,
    find_centroids,
    number_tasks,
    share_of_tasks,
)

Matrix = Float[Tensor, "_ _"]


@final
@dataclass(frozen=True, eq=False)
class Edges:
    """Edges from nodes of one kind to nodes of another.

    Attributes:
        ends: The index of the source and of the destination of each edge.
        weights: The weight of each edge.
    """

    ends: Int[Tensor, "2 edge"]
    weights: Float[Tensor, " edge"]

    @property
    def reversed_ends(self) -> Int[Tensor, "2 edge"]:
        """The same edges in the other direction."""
        return self.ends.flip(0)


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """Queries whose labels are known, their tasks, and the targets.

    Attributes:
        rows: The queries' features.
        tasks: The tasks' features.
        of_task: From each query to its task; the weight is 1 / the number of the task's queries.
        right: From queries to targets; the weight is label / the target's number of labels.
        wrong: The same for 1 - label.
        right_back: From targets to queries; the weight is label / the query's number of labels.
        wrong_back: The same for 1 - label.
        cost: From queries to targets; the weight is cost / the target's number of costs; None where
            no costs are known.
        cost_back: From targets to queries; the weight is cost / the query's number of costs.
        task_text: The embedded description of each task; None without descriptions.
    """

    rows: Matrix
    tasks: Matrix
    of_task: Edges
    right: Edges
    wrong: Edges
    right_back: Edges
    wrong_back: Edges
    cost: Edges | None = None
    cost_back: Edges | None = None
    task_text: Matrix | None = None


def build_graph(
    rows: Matrix,
    task: Int[Tensor, " query"],
    tasks: Matrix,
    labels: Matrix,
    present: Matrix,
    *,
    costs: Matrix | None = None,
    task_text: Matrix | None = None,
) -> Graph:
    """The graph of some queries.

    Args:
        rows: The queries' features.
        task: The index of each query's task.
        tasks: The tasks' features.
        labels: In [0, 1]; any finite number where `present` is 0, [query, target].
        present: 1 where a label is known, else 0.
        costs: Standardised costs; NaN where unknown, [query, target].
        task_text: The embedded description of each task.
    """
    sizes = torch.bincount(task, minlength=len(tasks)).clamp_min(1)
    numbers = torch.arange(len(rows))
    of_task = Edges(torch.stack([numbers, task]), 1 / sizes[task].to(rows.dtype))
    by_target = present.sum(0).clamp_min(1)
    by_query = present.sum(1, keepdim=True).clamp_min(1)
    right, wrong = labels * present, (1 - labels) * present
    cost, cost_back = (None, None) if costs is None else _make_cost_edges(costs)
    return Graph(
        rows,
        tasks,
        of_task,
        _make_edges(right / by_target),
        _make_edges(wrong / by_target),
        _make_edges((right / by_query).T),
        _make_edges((wrong / by_query).T),
        cost,
        cost_back,
        task_text,
    )


def _make_cost_edges(costs: Matrix) -> tuple[Edges, Edges]:
    is_known = (~costs.isnan()).to(costs.dtype)
    weights = costs.nan_to_num()
    by_query = is_known.sum(1, keepdim=True).clamp_min(1)
    return _make_edges(weights / is_known.sum(0).clamp_min(1)), _make_edges((weights / by_query).T)


def _make_edges(weights: Matrix) -> Edges:
    ends = weights.nonzero().T.contiguous()
    return Edges(ends, weights[ends[0], ends[1]])


@final
class Messages:
    """Message passing by torch-geometric's `SimpleConv`."""

    def __init__(self) -> None:
        self._sum = _load_simple_conv()

    def along(self, edges: Edges, states: Matrix, *, nodes: int) -> Matrix:
        """The weighted sum of the sources' states at each of `nodes` destinations."""
        size = (len(states), nodes)
        total: Tensor = self._sum((states, None), edges.ends, edges.weights, size=size)
        return total

    def from_task(self, graph: Graph, states: Matrix) -> Matrix:
        """The message from each query's task to the query."""
        size = (len(states), len(graph.rows))
        total: Tensor = self._sum((states, None), graph.of_task.reversed_ends, size=size)
        return total


def _load_simple_conv() -> Any:
    with optional_imports("the graph router"), warnings.catch_warnings():
        # Its import uses a way to compile that torch has deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.", DeprecationWarning)
        from torch_geometric.nn import SimpleConv
    return SimpleConv(aggr="sum")


_PARTS = (
    *("query", "query_task", "query_right", "query_wrong"),
    *("task", "task_query", "target", "target_right", "target_wrong"),
)
_NEAR = 0.3
_COSTS = ("query_cost", "target_cost")
_NODES = ("query", "task", "target")


@final
@dataclass(frozen=True, eq=False)
class GraphMessages:
    """The result of message passing in the graph: all that a new query needs.

    Attributes:
        from_tasks: The message of each task to a query that belongs to it alone, in each round.
        vectors: One per target; a score is the product of the query's state with it, plus the bias.
        biases: One per target.
    """

    from_tasks: tuple[Float[Tensor, "task hidden"], ...]
    vectors: Float[Tensor, "target hidden"]
    biases: Float[Tensor, " target"]


@final
class GraphNetwork:
    """The network: its parameters by name, and the forward pass."""

    def __init__(
        self,
        width: int,
        first: Float[Tensor, " target"],
        config: GraphConfig,
        random: torch.Generator,
        *,
        costs: bool = False,
        target_text: Matrix | None = None,
    ) -> None:
        hidden, targets = config.hidden, len(first)
        self._random, self._keep, self.layers = random, 1 - config.dropout, config.layers
        self._messages = Messages()
        shapes = {"enter": (width, hidden), "enter_task": (width, hidden), "vector": (hidden,) * 2}
        for layer in range(config.layers):
            shapes |= {f"{part}.{layer}": (hidden, hidden) for part in _PARTS}
        self.parameters = {name: self._draw(shape) for name, shape in shapes.items()}
        biases = ["enter", "enter_task", "vector"]
        biases += [f"{node}.{layer}" for layer in range(config.layers) for node in _NODES]
        self.parameters |= {f"{name}.bias": torch.zeros(hidden) for name in biases}
        self.parameters["targets"] = torch.empty(targets, hidden).normal_(generator=random)
        self.parameters["first"] = first.clone()
        self.parameters["lean"] = torch.zeros(hidden)
        self._target_text = target_text
        if costs or target_text is not None:  # these tell targets apart
            self.parameters["targets"] *= _NEAR
        if costs:
            names = [f"{part}.{i}" for i in range(config.layers) for part in _COSTS]
            self.parameters |= {name: self._draw((hidden, hidden)) for name in names}
        if target_text is not None:
            shape = (target_text.shape[1], hidden)
            self.parameters |= {name: self._draw(shape) for name in ("target_text", "task_text")}
        for parameter in self.parameters.values():
            parameter.requires_grad_()

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        bound = 1 / math.sqrt(shape[0])
        return torch.empty(shape).uniform_(-bound, bound, generator=self._random)

    def freeze(self, graph: Graph, *, training: bool = False) -> GraphMessages:
        """Pass the messages of the graph."""
        queries = self._activate(self._transform("enter", graph.rows), training)
        task_inputs = self._transform("enter_task", graph.tasks)
        targets = self.parameters["targets"]
        if graph.task_text is not None:
            task_inputs = task_inputs + graph.task_text @ self.parameters["task_text"]
        if self._target_text is not None:
            targets = targets + self._target_text @ self.parameters["target_text"]
        tasks = self._activate(task_inputs, training)
        from_tasks: list[Tensor] = []
        for layer in range(self.layers):
            from_tasks.append(tasks @ self.parameters[f"query_task.{layer}"])
            after = self._update_targets(graph, layer, queries, targets)
            if layer + 1 < self.layers:  # their last states aren't sent
                query_messages = self._update_queries(graph, layer, queries, tasks, targets)
                tasks = tasks + self._activate(
                    self._update_tasks(graph, layer, queries, tasks), training
                )
                queries = queries + self._activate(query_messages, training)
            targets = targets + self._activate(after, training)
        vectors = self._transform("vector", targets) / math.sqrt(targets.shape[1])
        return GraphMessages(
            tuple(from_tasks), vectors, self.parameters["first"] + targets @ self.parameters["lean"]
        )

    def logits(
        self, rows: Matrix, shares: Matrix, frozen: GraphMessages, *, training: bool = False
    ) -> Matrix:
        """The logits of new queries, which receive messages of their tasks and send none.

        Args:
            rows: The queries' features.
            shares: The share of each task in each query, [query, task].
            frozen: The result of message passing in a graph without these queries.
            training: Whether to apply dropout.
        """
        states = self._activate(self._transform("enter", rows), training)
        for layer in range(self.layers):
            message = shares @ frozen.from_tasks[layer]
            states = states + self._activate(
                self._transform(f"query.{layer}", states) + message, training
            )
        return states @ frozen.vectors.T + frozen.biases

    def _transform(self, name: str, states: Tensor) -> Tensor:
        return states @ self.parameters[name] + self.parameters[f"{name}.bias"]

    def _activate(self, states: Tensor, training: bool) -> Tensor:
        states = states.relu()
        return states * self._draw_mask(states) / self._keep if training else states

    def _draw_mask(self, states: Tensor) -> Bool[Tensor, "node hidden"]:
        return torch.empty_like(states).uniform_(generator=self._random) < self._keep

    def _update_targets(self, graph: Graph, layer: int, queries: Tensor, targets: Tensor) -> Tensor:
        result = self._transform(f"target.{layer}", targets)
        for way, edges in (("right", graph.right), ("wrong", graph.wrong)):
            message = self._messages.along(edges, queries, nodes=len(targets))
            result = result + message @ self.parameters[f"target_{way}.{layer}"]
        if graph.cost is not None:
            message = self._messages.along(graph.cost, queries, nodes=len(targets))
            result = result + message @ self.parameters[f"target_cost.{layer}"]
        return result

    def _update_tasks(self, graph: Graph, layer: int, queries: Tensor, tasks: Tensor) -> Tensor:
        message = self._messages.along(graph.of_task, queries, nodes=len(tasks))
        return (
            self._transform(f"task.{layer}", tasks)
            + message @ self.parameters[f"task_query.{layer}"]
        )

    def _update_queries(
        self, graph: Graph, layer: int, queries: Tensor, tasks: Tensor, targets: Tensor
    ) -> Tensor:
        task_messages = tasks @ self.parameters[f"query_task.{layer}"]
        result = self._transform(f"query.{layer}", queries) + self._messages.from_task(
            graph, task_messages
        )
        for way, edges in (("right", graph.right_back), ("wrong", graph.wrong_back)):
            messages = targets @ self.parameters[f"query_{way}.{layer}"]
            result = result + self._messages.along(edges, messages, nodes=len(queries))
        if graph.cost_back is not None:
            messages = targets @ self.parameters[f"query_cost.{layer}"]
            result = result + self._messages.along(graph.cost_back, messages, nodes=len(queries))
        return result


Numbers = Int[Tensor, " _"]


@final
@dataclass(frozen=True, eq=False)
class GraphRows:
    """The train rows.

    Attributes:
        features: The standardised features.
        task: The index of each row's task.
        shares: The predicted share of each task in each row, [row, task].
        centroids: The tasks' features.
        labels: In [0, 1]; any finite number where `present` is 0.
        present: 1 where there is a label to learn from, else 0.
        costs: Standardised costs, NaN where unknown; None where none is known.
        task_text: The embedded description of each task; None without descriptions.
        target_text: The embedded description of each target; None without descriptions.
    """

    features: Float[Tensor, "row feature"]
    task: Int[Tensor, " row"]
    shares: Float[Tensor, "row task"]
    centroids: Float[Tensor, "task feature"]
    labels: Float[Tensor, "row target"]
    present: Float[Tensor, "row target"]
    costs: Float[Tensor, "row target"] | None = None
    task_text: Float[Tensor, "task dimension"] | None = None
    target_text: Float[Tensor, "target dimension"] | None = None

    def graph(self, rows: Numbers) -> Graph:
        """The graph of some of the rows."""
        return build_graph(
            self.features[rows],
            self.task[rows],
            self.centroids,
            self.labels[rows],
            self.present[rows],
            costs=None if self.costs is None else self.costs[rows],
            task_text=self.task_text,
        )

    def loss(self, logits: Matrix, rows: Numbers) -> Tensor:
        """Cross-entropy in nats, the mean over the labels of these rows."""
        each = binary_cross_entropy_with_logits(logits, self.labels[rows], reduction="none")
        present = self.present[rows]
        return (each * present).sum() / present.sum().clamp_min(1)


@final
class _GraphTrainer(Trainer):
    """One network in training.

    Args:
        rows: All train rows.
        fit: The rows that are fitted on.
        held_out: The held-out rows for the validation loss; their labels aren't in the graph.
        first: The initial logits of the network.
        config: The options.
        random: The random generator.
    """

    def __init__(
        self,
        rows: GraphRows,
        fit: Numbers,
        held_out: Numbers,
        first: Float[Tensor, " target"],
        config: GraphConfig,
        random: torch.Generator,
    ) -> None:
        self.run = TrainingRun()
        self.network = GraphNetwork(
            rows.features.shape[1],
            first,
            config,
            random,
            costs=rows.costs is not None,
            target_text=rows.target_text,
        )
        self._rows, self._fit, self._held_out = rows, fit, held_out
        self._config, self._random = config, random
        self._whole_graph = rows.graph(fit)
        self._best: dict[str, Tensor] = {}
        self._adam = torch.optim.Adam(
            list(self.network.parameters.values()),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
        )

    @property
    def active(self) -> int:
        """1 until the network has stopped, then 0."""
        return int(self.run.epochs_since_best < self._config.patience)

    def epoch(self) -> None:
        """Train on the fitting rows once; in each step other rows make up the graph."""
        torch.set_num_threads(1)  # of this thread; the others train other networks
        config, losses = self._config, []
        order = self._fit[torch.randperm(len(self._fit), generator=self._random)]
        for start in range(0, len(order), config.batch_size):
            others = torch.cat([order[:start], order[start + config.batch_size :]])
            chosen = torch.randperm(len(others), generator=self._random)[: config.context]
            graph = self._rows.graph(others[chosen])
            loss = self._compute_loss(
                graph, order[start : start + config.batch_size], training=True
            )
            self._adam.zero_grad()
            torch.autograd.backward([loss])
            self._adam.step()
            losses.append(loss.item())
        with torch.no_grad():
            validation = self._compute_loss(
                self._whole_graph, self._held_out, training=False
            ).item()
        if self.run.record(sum(losses) / len(losses), validation):
            parameters = self.network.parameters
            self._best = {name: value.detach().clone() for name, value in parameters.items()}

    def _compute_loss(self, graph: Graph, numbers: Numbers, *, training: bool) -> Tensor:
        rows, frozen = self._rows, self.network.freeze(graph, training=training)
        logits = self.network.logits(
            rows.features[numbers], rows.shares[numbers], frozen, training=training
        )
        return rows.loss(logits, numbers)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the weights of the best epoch.

        Raises:
            FitError: The losses weren't finite.
        """
        if not self._best:
            raise FitError("the losses aren't finite; scale the features or lower learning_rate")
        for name, value in self._best.items():
            self.network.parameters[name].copy_(value)


Scale = Float64[NDArray[np.float64], " feature"]


def fit_graph(
    examples: Examples, config: GraphConfig, *, seed: int, progress: Progress
) -> PredictorFit:
    """Fit a GraphRouter on train rows.

    Rows without a usable label are left out. The networks are trained on most rows, with early
    stopping on the others. The graph for new queries is then built from all of them.

    Raises:
        FitError: The losses aren't finite.
        MissingExtraError: torch-geometric isn't installed.
    """
    usable = usable_rows(examples, missing=-1.0)
    notes = (*examples.target_notes(), *left_out_note(examples, len(usable.features)))
    learned = usable.learnable
    mean, deviation = _measure_scale(usable.features)
    scaled = (usable.features - mean) / deviation
    names, task = number_tasks(usable.groups)
    temperature = choose_temperature(scaled, task)
    centroids = find_centroids(scaled, task).astype(np.float32)
    shares = share_of_tasks(scaled, centroids.astype(np.float64), temperature=temperature)
    rows = GraphRows(
        torch.from_numpy(scaled.astype(np.float32)),
        torch.from_numpy(task),
        torch.from_numpy(shares.astype(np.float32)),
        torch.from_numpy(centroids),
        torch.from_numpy(np.nan_to_num(usable.correct[:, learned]).astype(np.float32)),
        torch.from_numpy(usable.present[:, learned].astype(np.float32)),
        _standardise_costs(usable, learned),
        *_standardise_texts(usable, names, learned),
    )
    trainers = _train_networks(rows, usable, config, seed, progress)
    predictor = GraphRouter(
        examples.targets,
        names,
        temperature,
        {"mean": mean.astype(np.float32), "deviation": deviation.astype(np.float32)}
        | {"centroids": centroids}
        | _stack_arrays(
            [_collect_arrays(t.network, rows, learned, examples.base_rates) for t in trainers]
        ),
    )
    return PredictorFit(predictor, notes, {"networks": [t.run.to_dict() for t in trainers]})


def _train_networks(
    rows: GraphRows, usable: Examples, config: GraphConfig, seed: int, progress: Progress
) -> list[_GraphTrainer]:
    parts = hold_out(usable.features, share=config.validation, seed=seed)
    fit, held_out = torch.from_numpy(parts.fit), torch.from_numpy(parts.validation)
    first = torch.from_numpy(logit(usable.base_rates[usable.learnable]).astype(np.float32))
    trainers = []
    for number in range(config.networks):
        draw = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
        random = torch.Generator().manual_seed(int(draw[0] >> np.uint64(1)))
        trainers.append(_GraphTrainer(rows, fit, held_out, first, config, random))
    cores = torch.get_num_threads()
    try:
        train_together(trainers, max_epochs=config.max_epochs, progress=progress)
    finally:
        torch.set_num_threads(cores)  # the training threads have set it to one
    for trainer in trainers:
        trainer.restore()
    return trainers


def _measure_scale(features: NDArray[np.float32]) -> tuple[Scale, Scale]:
    """Each feature's mean and standard deviation, in float32; 1 where it doesn't vary."""
    exact = features.astype(np.float64)
    mean = exact.mean(axis=0).astype(np.float32).astype(np.float64)
    deviation = exact.std(axis=0).astype(np.float32).astype(np.float64)
    small = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)  # rounding error
    return mean, np.where(small, 1.0, deviation)


def _collect_arrays(
    network: GraphNetwork,
    rows: GraphRows,
    learned: Bool[NDArray[np.bool_], " target"],
    rates: Float64[NDArray[np.float64], " target"],
) -> dict[str, NDArray[np.float32]]:
    """The arrays of one network and of the graph of all rows that prediction needs."""
    parameters = network.parameters
    with torch.no_grad():
        frozen = network.freeze(rows.graph(torch.arange(len(rows.features))))
    vectors = np.zeros((len(learned), frozen.vectors.shape[1]), dtype=np.float32)
    biases = logit(rates).astype(np.float32)
    vectors[learned], biases[learned] = frozen.vectors.numpy(), frozen.biases.numpy()
    names = ["enter", *(f"query.{layer}" for layer in range(network.layers))]
    arrays = {f"{name}.weight": parameters[name].detach().numpy() for name in names}
    arrays |= {f"{name}.bias": parameters[f"{name}.bias"].detach().numpy() for name in names}
    arrays |= {f"task.{i}": message.numpy() for i, message in enumerate(frozen.from_tasks)}
    return arrays | {"targets": vectors, "biases": biases}


def _standardise_costs(
    usable: Examples, learned: Bool[NDArray[np.bool_], " target"]
) -> Tensor | None:
    """Standardised logarithms of the costs; NaN where unknown or free."""
    if usable.costs is None:
        return None
    paid = usable.costs[:, learned]
    logs = np.log(np.where(paid > 0, paid, np.nan))
    finite = logs[~np.isnan(logs)]
    if not len(finite) or finite.std() < 1e-9:
        return None
    return torch.from_numpy(((logs - finite.mean()) / finite.std()).astype(np.float32))


def _standardise_texts(
    usable: Examples, tasks: tuple[str, ...], learned: Bool[NDArray[np.bool_], " target"]
) -> tuple[Tensor | None, Tensor | None]:
    """The descriptions of tasks and of targets, each centred, with unit variance over all."""
    descriptions = usable.descriptions
    if descriptions is None:
        return None, None
    embeddings = (
        np.stack([descriptions.groups[name] for name in tasks]),
        descriptions.targets[learned],
    )
    centred = [vectors - vectors.mean(axis=0) for vectors in embeddings]
    spreads = [max(float(vectors.std()), 1e-9) for vectors in centred]
    task, target = (
        torch.from_numpy((vectors / spread).astype(np.float32))
        for vectors, spread in zip(centred, spreads, strict=True)
    )
    return task, target


def _stack_arrays(networks: list[dict[str, Any]]) -> dict[str, NDArray[np.float32]]:
    return {name: np.stack([arrays[name] for arrays in networks]) for name in networks[0]}
