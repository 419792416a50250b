"""The graph's nodes and edges, as torch-geometric passes messages along them.

Three kinds of nodes: queries, tasks and targets. A query is joined to its task, and to each target
that has a label for it: by an edge weighed with the label ("right") and one weighed with what it
lacks to 1 ("wrong"). Where the cost of a target's answer is known, a third edge is weighed with it
("cost"), whether or not there is a label.
"""

import warnings
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prefill_router.errors import MissingExtraError

Matrix = Float[Tensor, "_ _"]


@final
@dataclass(frozen=True, eq=False)
class Edges:
    """Edges from nodes of one kind to nodes of another.

    Attributes:
        ends: The source's and the destination's number of each edge.
        weights: Of each edge.
    """

    ends: Int[Tensor, "2 edge"]
    weights: Float[Tensor, " edge"]

    @property
    def turned(self) -> Int[Tensor, "2 edge"]:
        """The same ends, the other way round."""
        return self.ends.flip(0)


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """Queries whose labels are known, their tasks, and the targets.

    Attributes:
        rows: The queries' features.
        tasks: The tasks' features.
        of_task: From each query to its task; the weights are one over the task's queries.
        right: From queries to targets, weighed by label over the target's number of labels.
        wrong: The same for 1 - label.
        right_back: From targets to queries, weighed by label over the query's number of labels.
        wrong_back: The same for 1 - label.
        cost: From queries to targets, weighed by cost over the target's number of costs; None where
            no costs are known.
        cost_back: From targets to queries, weighed by cost over the query's number of costs.
        task_text: What is said of each task; None where nothing is.
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
        task: Each query's task by number.
        tasks: The tasks' features.
        labels: In [0, 1]; any finite number where `present` is 0, [query, target].
        present: 1 where a label is known, else 0.
        costs: Standardised; NaN where unknown, [query, target].
        task_text: What is said of each task.
    """
    sizes = torch.bincount(task, minlength=len(tasks)).clamp_min(1)
    numbers = torch.arange(len(rows))
    of_task = Edges(torch.stack([numbers, task]), 1 / sizes[task].to(rows.dtype))
    by_target = present.sum(0).clamp_min(1)
    by_query = present.sum(1, keepdim=True).clamp_min(1)
    right, wrong = labels * present, (1 - labels) * present
    cost, cost_back = (None, None) if costs is None else _cost_edges(costs)
    return Graph(
        rows,
        tasks,
        of_task,
        _edges(right / by_target),
        _edges(wrong / by_target),
        _edges((right / by_query).T),
        _edges((wrong / by_query).T),
        cost,
        cost_back,
        task_text,
    )


def _cost_edges(costs: Matrix) -> tuple[Edges, Edges]:
    known = (~costs.isnan()).to(costs.dtype)
    weights = costs.nan_to_num()
    by_query = known.sum(1, keepdim=True).clamp_min(1)
    return _edges(weights / known.sum(0).clamp_min(1)), _edges((weights / by_query).T)


def _edges(weights: Matrix) -> Edges:
    ends = weights.nonzero().T.contiguous()
    return Edges(ends, weights[ends[0], ends[1]])


@final
class Messages:
    """Sums what the edges carry, by torch-geometric's `SimpleConv`."""

    def __init__(self) -> None:
        self._sum = _simple_conv()

    def along(self, edges: Edges, states: Matrix, *, nodes: int) -> Matrix:
        """The weighted sum of the sources' states at each of so many destinations."""
        size = (len(states), nodes)
        total: Tensor = self._sum((states, None), edges.ends, edges.weights, size=size)
        return total

    def from_task(self, graph: Graph, states: Matrix) -> Matrix:
        """What each query's task tells it."""
        size = (len(states), len(graph.rows))
        total: Tensor = self._sum((states, None), graph.of_task.turned, size=size)
        return total


def _simple_conv() -> Any:
    try:
        with warnings.catch_warnings():
            # While it is imported it compiles parts of itself in a way that torch will give up.
            warnings.filterwarnings("ignore", r".*torch\.jit\.", DeprecationWarning)
            from torch_geometric.nn import SimpleConv
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch_geometric":
            raise
        raise MissingExtraError(
            "torch-geometric", extra="graph", needed_for="the graph router"
        ) from None
    return SimpleConv(aggr="sum")
