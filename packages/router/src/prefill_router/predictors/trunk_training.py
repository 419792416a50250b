"""Training of the seeds of a shared trunk."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.predictors.networks import (
    CORRECTNESS,
    Heads,
    Network,
    NetworkLabels,
    NetworkRows,
    NetworkRun,
    Parameters,
    Schedule,
    train_seeds,
)
from prefill_router.predictors.training import Draws, Holdout
from prefill_router.predictors.trunk import TrunkConfig
from prefill_router.progress import Progress

Table = Float[NDArray[np.floating], "query target"]


@final
@dataclass(frozen=True, eq=False)
class Trunk(Heads):
    """Hidden layers and a head for all targets."""

    def initial(self, draws: Draws) -> Parameters:
        """Initialised like torch's Linear."""
        return self._draw_layers(draws)


def trunk_rows(
    features: Float[NDArray[np.floating], "query feature"], labels: Table, present: Table
) -> NetworkRows:
    """The train rows of a trunk.

    Args:
        features: Finite; their precision, single or double, is that of the computation.
        labels: In [0, 1]; any finite number where `present` is 0.
        present: The weight of each label, 1 on average; 0 where there is none.
    """
    correct, weights = (values[None].astype(features.dtype) for values in (labels, present))
    nothing = np.zeros(len(features), features.dtype)
    return NetworkRows(features, NetworkLabels(correct, weights, nothing, nothing))


def train(
    rows: NetworkRows,
    parts: Holdout,
    config: TrunkConfig,
    *,
    seeds: list[int],
    progress: Progress,
) -> list[NetworkRun]:
    """Train the networks of these seeds until each has stopped (`train_seeds`).

    Args:
        rows: All rows.
        parts: Which rows are fitted on and which are held out.
        config: The options.
        seeds: Indices of the config's seeds, from 0.
        progress: Shows the number of epochs done.
    """
    targets = rows.labels.correct.shape[2]
    network = Network((rows.features.shape[1], *config.hidden), {CORRECTNESS: targets})
    trunk = Trunk(network, np.zeros(0))
    schedule = Schedule(
        batch_size=config.batch_size,
        patience=config.patience,
        dropout=(0.0, *config.dropout),
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        decoupled=False,
    )
    draws = [Draws(config.seed, seed) for seed in seeds]
    initial = [trunk.initial(each) for each in draws]
    return train_seeds(
        rows,
        [parts] * len(seeds),
        trunk,
        schedule,
        initial,
        draws,
        max_epochs=config.max_epochs,
        seed=config.seed,
        progress=progress,
    )
