"""The network: rounds of messages, then a score for each pair of a query and a target."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prefill_router.predictors.graph.config import GraphConfig
from prefill_router.predictors.graph.graph import Graph, Matrix, Messages

_PARTS = (
    *("query", "query_task", "query_right", "query_wrong"),
    *("task", "task_query", "target", "target_right", "target_wrong"),
)
_NEAR = 0.3
_COSTS = ("query_cost", "target_cost")
_NODES = ("query", "task", "target")


@final
@dataclass(frozen=True, eq=False)
class Frozen:
    """What remains of the graph when its queries are done sending: all that a new query needs.

    Attributes:
        from_tasks: What each task tells a query that is wholly of it, in each round.
        vectors: Of each target; a query's score is its state's product with it, plus the bias.
        biases: Of each target.
    """

    from_tasks: tuple[Float[Tensor, "task hidden"], ...]
    vectors: Float[Tensor, "target hidden"]
    biases: Float[Tensor, " target"]


@final
class GraphNetwork:
    """The parameters by name, and what is computed with them."""

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
        if costs or target_text is not None:  # what tells targets apart comes from there
            self.parameters["targets"] *= _NEAR
        if costs:
            names = [f"{part}.{i}" for i in range(config.layers) for part in _COSTS]
            self.parameters |= {name: self._draw((hidden, hidden)) for name in names}
        if target_text is not None:
            said = (target_text.shape[1], hidden)
            self.parameters |= {name: self._draw(said) for name in ("target_text", "task_text")}
        for parameter in self.parameters.values():
            parameter.requires_grad_()

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        bound = 1 / math.sqrt(shape[0])
        return torch.empty(shape).uniform_(-bound, bound, generator=self._random)

    def freeze(self, graph: Graph, *, training: bool = False) -> Frozen:
        """Let the graph's nodes exchange messages."""
        queries = self._act(self._own("enter", graph.rows), training)
        entered = self._own("enter_task", graph.tasks)
        targets = self.parameters["targets"]
        if graph.task_text is not None:
            entered = entered + graph.task_text @ self.parameters["task_text"]
        if self._target_text is not None:
            targets = targets + self._target_text @ self.parameters["target_text"]
        tasks = self._act(entered, training)
        told: list[Tensor] = []
        for layer in range(self.layers):
            told.append(tasks @ self.parameters[f"query_task.{layer}"])
            after = self._targets(graph, layer, queries, targets)
            if layer + 1 < self.layers:  # nobody hears their last states
                sent = self._queries(graph, layer, queries, tasks, targets)
                tasks = tasks + self._act(self._tasks(graph, layer, queries, tasks), training)
                queries = queries + self._act(sent, training)
            targets = targets + self._act(after, training)
        vectors = self._own("vector", targets) / math.sqrt(targets.shape[1])
        return Frozen(
            tuple(told), vectors, self.parameters["first"] + targets @ self.parameters["lean"]
        )

    def logits(
        self, rows: Matrix, shares: Matrix, frozen: Frozen, *, training: bool = False
    ) -> Matrix:
        """The logits of new queries, which hear their tasks and are heard by nobody.

        Args:
            rows: Their features.
            shares: How much each belongs to each task, [query, task].
            frozen: Of a graph without them.
            training: Whether units are dropped.
        """
        states = self._act(self._own("enter", rows), training)
        for layer in range(self.layers):
            heard = shares @ frozen.from_tasks[layer]
            states = states + self._act(self._own(f"query.{layer}", states) + heard, training)
        return states @ frozen.vectors.T + frozen.biases

    def _own(self, name: str, states: Tensor) -> Tensor:
        return states @ self.parameters[name] + self.parameters[f"{name}.bias"]

    def _act(self, states: Tensor, training: bool) -> Tensor:
        states = states.relu()
        return states * self._kept(states) / self._keep if training else states

    def _kept(self, states: Tensor) -> Bool[Tensor, "node hidden"]:
        return torch.empty_like(states).uniform_(generator=self._random) < self._keep

    def _targets(self, graph: Graph, layer: int, queries: Tensor, targets: Tensor) -> Tensor:
        result = self._own(f"target.{layer}", targets)
        for way, edges in (("right", graph.right), ("wrong", graph.wrong)):
            heard = self._messages.along(edges, queries, nodes=len(targets))
            result = result + heard @ self.parameters[f"target_{way}.{layer}"]
        if graph.cost is not None:
            heard = self._messages.along(graph.cost, queries, nodes=len(targets))
            result = result + heard @ self.parameters[f"target_cost.{layer}"]
        return result

    def _tasks(self, graph: Graph, layer: int, queries: Tensor, tasks: Tensor) -> Tensor:
        heard = self._messages.along(graph.of_task, queries, nodes=len(tasks))
        return self._own(f"task.{layer}", tasks) + heard @ self.parameters[f"task_query.{layer}"]

    def _queries(
        self, graph: Graph, layer: int, queries: Tensor, tasks: Tensor, targets: Tensor
    ) -> Tensor:
        told = tasks @ self.parameters[f"query_task.{layer}"]
        result = self._own(f"query.{layer}", queries) + self._messages.from_task(graph, told)
        for way, edges in (("right", graph.right_back), ("wrong", graph.wrong_back)):
            sent = targets @ self.parameters[f"query_{way}.{layer}"]
            result = result + self._messages.along(edges, sent, nodes=len(queries))
        if graph.cost_back is not None:
            sent = targets @ self.parameters[f"query_cost.{layer}"]
            result = result + self._messages.along(graph.cost_back, sent, nodes=len(queries))
        return result
