"""Fits a GraphRouter: several networks, each trained on a graph of the train rows.

In every step the queries asked about are out of the graph.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from prefill_router.errors import FitError
from prefill_router.predictors.base import Examples, PredictorFit
from prefill_router.predictors.graph import (
    GraphConfig,
    GraphRouter,
    choose_temperature,
    find_centroids,
    number_tasks,
    share_of_tasks,
)
from prefill_router.predictors.graph_network import Graph, GraphNetwork, Matrix, build_graph
from prefill_router.predictors.training import hold_out
from prefill_router.progress import Advance, Progress

Numbers = Int[Tensor, " _"]


@final
@dataclass(frozen=True, eq=False)
class GraphRows:
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
class TrainedGraph:
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
    rows: GraphRows,
    fit: Numbers,
    held: Numbers,
    first: Float[Tensor, " target"],
    config: GraphConfig,
    *,
    random: torch.Generator,
    advance: Advance,
) -> TrainedGraph:
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
    return TrainedGraph(network, losses, validation, best_epoch)


def _epoch(
    network: GraphNetwork,
    rows: GraphRows,
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
def _validate(network: GraphNetwork, rows: GraphRows, graph: Graph, held: Numbers) -> float:
    frozen = network.freeze(graph)
    logits = network.logits(rows.features[held], rows.shares[held], frozen)
    return float(rows.loss(logits, held))


Scale = Float64[NDArray[np.float64], " feature"]


def fit_graph(
    examples: Examples, config: GraphConfig, *, seed: int, progress: Progress
) -> PredictorFit:
    """Fit a GraphRouter on train rows.

    Rows without a usable label are left out. The networks train on most rows and stop by the
    others; the graph that new queries meet is then built of them all.

    Raises:
        FitError: The losses aren't finite.
        MissingExtraError: torch-geometric isn't installed.
    """
    usable, notes = _usable(examples)
    learned = usable.learnable
    mean, deviation = _scale(usable.features)
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
        _costs(usable, learned),
        *_texts(usable, names, learned),
    )
    networks = _train(rows, usable, config, seed, progress)
    predictor = GraphRouter(
        examples.targets,
        names,
        temperature,
        {"mean": mean.astype(np.float32), "deviation": deviation.astype(np.float32)}
        | {"centroids": centroids}
        | _stacked([_arrays(t, rows, learned, examples.base_rates) for t in networks]),
    )
    return PredictorFit(predictor, notes, {"networks": [t.to_dict() for t in networks]})


def _train(
    rows: GraphRows, usable: Examples, config: GraphConfig, seed: int, progress: Progress
) -> list[TrainedGraph]:
    parts = hold_out(usable.features, share=config.validation, seed=seed)
    fit, held = torch.from_numpy(parts.fit), torch.from_numpy(parts.held)
    rates = usable.base_rates[usable.learnable]
    first = torch.from_numpy(logit(rates).astype(np.float32))
    trained = []
    total = config.networks * config.max_epochs
    with _one_core(), progress.task("training", total=total) as advance:
        for number in range(config.networks):
            draw = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
            random = torch.Generator().manual_seed(int(draw[0] >> np.uint64(1)))
            trained.append(train(rows, fit, held, first, config, random=random, advance=advance))
    return trained


@contextmanager
def _one_core() -> Iterator[None]:
    """Steps this small only wait for each other on several cores; and no bit depends on them."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def _usable(examples: Examples) -> tuple[Examples, tuple[str, ...]]:
    """The rows with a label to learn from, in an order that theirs doesn't change, and notes."""
    rows = np.flatnonzero((examples.present & examples.learnable).any(axis=1)).tolist()
    notes = examples.target_notes()
    if len(rows) < len(examples.features):
        gone = len(examples.features) - len(rows)
        notes = (*notes, f"{gone} queries without a usable label were left out")

    def content(row: int) -> tuple[bytes, bytes, str, bytes]:
        labels = np.nan_to_num(examples.correct[row], nan=-1.0)
        paid = b"" if examples.costs is None else examples.costs[row].tobytes()
        return examples.features[row].tobytes(), labels.tobytes(), examples.groups[row], paid

    rows.sort(key=content)
    usable = replace(
        examples,
        features=examples.features[rows],
        correct=examples.correct[rows],
        groups=tuple(examples.groups[row] for row in rows),
        costs=None if examples.costs is None else examples.costs[rows],
    )
    return usable, notes


def _scale(features: NDArray[np.float32]) -> tuple[Scale, Scale]:
    """Each feature's mean and deviation, as float32 holds them; 1 where it doesn't vary."""
    exact = features.astype(np.float64)
    mean = exact.mean(axis=0).astype(np.float32).astype(np.float64)
    deviation = exact.std(axis=0).astype(np.float32).astype(np.float64)
    small = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)  # rounding alone makes as much
    return mean, np.where(small, 1.0, deviation)


def _arrays(
    trained: TrainedGraph,
    rows: GraphRows,
    learned: Bool[NDArray[np.bool_], " target"],
    rates: Float64[NDArray[np.float64], " target"],
) -> dict[str, NDArray[np.float32]]:
    """All that one network needs of itself and of the graph of all rows."""
    network, parameters = trained.network, trained.network.parameters
    with torch.no_grad():
        frozen = network.freeze(rows.graph(torch.arange(len(rows.features))))
    vectors = np.zeros((len(learned), frozen.vectors.shape[1]), dtype=np.float32)
    biases = logit(rates).astype(np.float32)
    vectors[learned], biases[learned] = frozen.vectors.numpy(), frozen.biases.numpy()
    names = ["enter", *(f"query.{layer}" for layer in range(network.layers))]
    arrays = {f"{name}.weight": parameters[name].detach().numpy() for name in names}
    arrays |= {f"{name}.bias": parameters[f"{name}.bias"].detach().numpy() for name in names}
    arrays |= {f"task.{i}": told.numpy() for i, told in enumerate(frozen.from_tasks)}
    return arrays | {"targets": vectors, "biases": biases}


def _costs(usable: Examples, learned: Bool[NDArray[np.bool_], " target"]) -> Tensor | None:
    """Logarithms of the costs, with mean 0 and deviation 1; NaN where unknown or free."""
    if usable.costs is None:
        return None
    paid = usable.costs[:, learned]
    logs = np.log(np.where(paid > 0, paid, np.nan))
    known = logs[~np.isnan(logs)]
    if not len(known) or known.std() < 1e-9:
        return None
    return torch.from_numpy(((logs - known.mean()) / known.std()).astype(np.float32))


def _texts(
    usable: Examples, tasks: tuple[str, ...], learned: Bool[NDArray[np.bool_], " target"]
) -> tuple[Tensor | None, Tensor | None]:
    """What is said of tasks and of targets: centred among themselves, deviation 1 over all."""
    said = usable.descriptions
    if said is None:
        return None, None
    about = np.stack([said.groups[name] for name in tasks]), said.targets[learned]
    centred = [vectors - vectors.mean(axis=0) for vectors in about]
    spreads = [max(float(vectors.std()), 1e-9) for vectors in centred]
    task, target = (
        torch.from_numpy((vectors / spread).astype(np.float32))
        for vectors, spread in zip(centred, spreads, strict=True)
    )
    return task, target


def _stacked(networks: list[dict[str, Any]]) -> dict[str, NDArray[np.float32]]:
    return {name: np.stack([arrays[name] for arrays in networks]) for name in networks[0]}
