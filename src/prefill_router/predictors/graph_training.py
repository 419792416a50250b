"""Training of a GraphRouter: several networks, each trained on a graph of the train rows.

In every step the queries to predict aren't in the graph.
"""

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
from prefill_router.predictors.base import (
    Examples,
    PredictorFit,
    left_out_note,
    usable_rows,
)
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
from prefill_router.progress import Progress
from prefill_router.training import Trainer, TrainingRun, train_together

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
        held: The held-out rows for the validation loss; their labels aren't in the graph.
        first: The initial logits of the network.
        config: The options.
        random: The random generator.
    """

    def __init__(
        self,
        rows: GraphRows,
        fit: Numbers,
        held: Numbers,
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
        self._rows, self._fit, self._held = rows, fit, held
        self._config, self._random = config, random
        self._everything = rows.graph(fit)
        self._best: dict[str, Tensor] = {}
        self._adam = torch.optim.Adam(
            list(self.network.parameters.values()),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
        )

    @property
    def active(self) -> int:
        """1 until the network has stopped, then 0."""
        return int(self.run.waited < self._config.patience)

    def epoch(self) -> None:
        """Train on the fitting rows once; in each step other rows make up the graph."""
        config, losses = self._config, []
        order = self._fit[torch.randperm(len(self._fit), generator=self._random)]
        for start in range(0, len(order), config.batch_size):
            others = torch.cat([order[:start], order[start + config.batch_size :]])
            chosen = torch.randperm(len(others), generator=self._random)[: config.context]
            graph = self._rows.graph(others[chosen])
            loss = self._loss(graph, order[start : start + config.batch_size], training=True)
            self._adam.zero_grad()
            torch.autograd.backward([loss])
            self._adam.step()
            losses.append(loss.item())
        with torch.no_grad():
            validation = self._loss(self._everything, self._held, training=False).item()
        if self.run.record(sum(losses) / len(losses), validation):
            parameters = self.network.parameters
            self._best = {name: value.detach().clone() for name, value in parameters.items()}

    def _loss(self, graph: Graph, asked: Numbers, *, training: bool) -> Tensor:
        rows, frozen = self._rows, self.network.freeze(graph, training=training)
        logits = self.network.logits(
            rows.features[asked], rows.shares[asked], frozen, training=training
        )
        return rows.loss(logits, asked)

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
    stopping on the others; the graph for new queries is then built from all of them.

    Raises:
        FitError: The losses aren't finite.
        MissingExtraError: torch-geometric isn't installed.
    """
    usable = usable_rows(examples, missing=-1.0)
    notes = (*examples.target_notes(), *left_out_note(examples, len(usable.features)))
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
    trainers = _train(rows, usable, config, seed, progress)
    predictor = GraphRouter(
        examples.targets,
        names,
        temperature,
        {"mean": mean.astype(np.float32), "deviation": deviation.astype(np.float32)}
        | {"centroids": centroids}
        | _stacked([_arrays(t.network, rows, learned, examples.base_rates) for t in trainers]),
    )
    return PredictorFit(predictor, notes, {"networks": [t.run.to_dict() for t in trainers]})


def _train(
    rows: GraphRows, usable: Examples, config: GraphConfig, seed: int, progress: Progress
) -> list[_GraphTrainer]:
    parts = hold_out(usable.features, share=config.validation, seed=seed)
    fit, held = torch.from_numpy(parts.fit), torch.from_numpy(parts.held)
    first = torch.from_numpy(logit(usable.base_rates[usable.learnable]).astype(np.float32))
    trainers = []
    for number in range(config.networks):
        draw = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
        random = torch.Generator().manual_seed(int(draw[0] >> np.uint64(1)))
        trainers.append(_GraphTrainer(rows, fit, held, first, config, random))
    train_together(trainers, max_epochs=config.max_epochs, progress=progress)
    for trainer in trainers:
        trainer.restore()
    return trainers


def _scale(features: NDArray[np.float32]) -> tuple[Scale, Scale]:
    """Each feature's mean and standard deviation, in float32; 1 where it doesn't vary."""
    exact = features.astype(np.float64)
    mean = exact.mean(axis=0).astype(np.float32).astype(np.float64)
    deviation = exact.std(axis=0).astype(np.float32).astype(np.float64)
    small = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)  # rounding error
    return mean, np.where(small, 1.0, deviation)


def _arrays(
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
    arrays |= {f"task.{i}": told.numpy() for i, told in enumerate(frozen.from_tasks)}
    return arrays | {"targets": vectors, "biases": biases}


def _costs(usable: Examples, learned: Bool[NDArray[np.bool_], " target"]) -> Tensor | None:
    """Standardised logarithms of the costs; NaN where unknown or free."""
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
    """The descriptions of tasks and of targets, each centred, with unit variance over all."""
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
