"""Trains one network: in every step the queries asked about are out of the graph."""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from prefill_router.errors import FitError
from prefill_router.predictors.graph.config import GraphConfig
from prefill_router.predictors.graph.graph import Graph, Matrix, build_graph
from prefill_router.predictors.graph.network import GraphNetwork
from prefill_router.progress import Advance

Numbers = Int[Tensor, " _"]


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Train rows.

    Attributes:
        features: Standardised.
        task: Each row's task by number.
        shares: How much each row seems to belong to each task, [row, task].
        centroids: The tasks' features.
        labels: In [0, 1]; any finite number where `present` is 0.
        present: 1 where there is a label to learn from, else 0.
        costs: Standardised, NaN where unknown; None where none is known.
        task_text: What is said of each task; None where nothing is.
        target_text: What is said of each target; None where nothing is.
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
@dataclass(frozen=True, eq=False)
class Trained:
    """A network with the weights of its best epoch, and its losses."""

    network: GraphNetwork
    train: list[float]
    validation: list[float]
    best_epoch: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        return {
            "best_epoch": self.best_epoch,
            "train_loss": self.train,
            "validation_loss": self.validation,
        }


def train(
    rows: Rows,
    fit: Numbers,
    held: Numbers,
    first: Float[Tensor, " target"],
    config: GraphConfig,
    *,
    random: torch.Generator,
    advance: Advance,
) -> Trained:
    """Train one network until it has stopped.

    Args:
        rows: All train rows.
        fit: Those that are fitted on.
        held: Those whose loss tells when to stop; none of their labels is in the graph meanwhile.
        first: The logits that the network starts from.
        config: The options.
        random: Draws everything.
        advance: Told of every epoch.

    Raises:
        FitError: The losses aren't finite.
    """
    network = GraphNetwork(
        rows.features.shape[1],
        first,
        config,
        random,
        costs=rows.costs is not None,
        target_text=rows.target_text,
    )
    parameters = network.parameters
    adam = torch.optim.Adam(
        list(parameters.values()), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    everything = rows.graph(fit)
    losses, validation, best = list[float](), list[float](), dict[str, Tensor]()
    best_epoch = -1
    for epoch in range(config.max_epochs):
        losses.append(_epoch(network, rows, fit, config, adam, random))
        validation.append(_validate(network, rows, everything, held))
        advance()
        if validation[-1] < (validation[best_epoch] if best else math.inf):
            best_epoch = epoch
            best = {name: value.detach().clone() for name, value in parameters.items()}
        if not best or epoch - best_epoch >= config.patience:
            break
    if not best:
        raise FitError("the losses aren't finite; scale the features or lower learning_rate")
    advance(config.max_epochs - len(losses))
    with torch.no_grad():
        for name, value in best.items():
            parameters[name].copy_(value)
    return Trained(network, losses, validation, best_epoch)


def _epoch(
    network: GraphNetwork,
    rows: Rows,
    fit: Numbers,
    config: GraphConfig,
    adam: torch.optim.Adam,
    random: torch.Generator,
) -> float:
    """The mean loss of one pass over the rows that are fitted on."""
    order = fit[torch.randperm(len(fit), generator=random)]
    losses = []
    for start in range(0, len(order), config.batch_size):
        asked = order[start : start + config.batch_size]
        others = torch.cat([order[:start], order[start + config.batch_size :]])
        chosen = others[torch.randperm(len(others), generator=random)[: config.context]]
        frozen = network.freeze(rows.graph(chosen), training=True)
        logits = network.logits(rows.features[asked], rows.shares[asked], frozen, training=True)
        loss = rows.loss(logits, asked)
        adam.zero_grad()
        torch.autograd.backward([loss])
        adam.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def _validate(network: GraphNetwork, rows: Rows, graph: Graph, held: Numbers) -> float:
    frozen = network.freeze(graph)
    logits = network.logits(rows.features[held], rows.shares[held], frozen)
    return float(rows.loss(logits, held))
