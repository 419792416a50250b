"""The training of networks that combine vectors of queries and of targets; see `latent`."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.special import expit, logit

from prefill_router.predictors import Draws
from prefill_router.predictors.networks import (
    DIFFICULTY,
    Architecture,
    Backward,
    NetworkLabels,
    Outputs,
    Parameters,
    Pass,
    Slopes,
    Workspace,
)
from prefill_router.statistics import shrunken_logistic
from prefill_router_lab.predictors.latent import DISCRIMINATION

_SPREAD = 0.1  # standard deviation of the random part of initial values
_UNIT = float(np.log(np.e - 1))  # where softplus is 1
_SHORTEST = 1e-12  # as in `latent`

Rows = Float[NDArray[np.floating], "row feature"]
Vectors = Float[NDArray[np.floating], "network target dimension"]
Scores = Float[NDArray[np.floating], "network row target"]
Levels = Float[NDArray[np.floating], "network row 1"]
Queries = Float[NDArray[np.floating], "network row dimension"]


def _forward_products(
    step: Pass, rows: Rows, vectors: Vectors
) -> tuple[Scores, "_ProductsBackward"]:
    """Each target's score with each query, and the backward pass."""
    query = step.linear(rows, "query")
    mask = step.dropout(query, 1)
    combined = query * step.parameters["combine"]
    return combined @ vectors.swapaxes(1, 2), _ProductsBackward(
        step, rows, vectors, query, mask, combined
    )


@final
@dataclass(frozen=True, eq=False)
class _ProductsBackward:
    """The gradients of the scores of queries with vectors of targets."""

    step: Pass
    rows: Rows
    vectors: Vectors
    query: Queries
    mask: Queries | None
    combined: Queries

    def __call__(self, slopes: Scores) -> Vectors:
        """Keep the gradients of the queries' map; returns the slopes of the targets' vectors."""
        back = slopes @ self.vectors
        np.sum(back * self.query, axis=1, keepdims=True, out=self.step.gradients["combine"])
        back *= self.step.parameters["combine"]
        if self.mask is not None:
            back *= self.mask
        self.step.keep_gradients(self.rows, "query", back)
        return slopes.swapaxes(1, 2) @ self.combined


@final
@dataclass(frozen=True, eq=False)
class Factors(Architecture):
    """Matrix factorisation; see `latent`."""

    def initial(self, draws: Draws) -> Parameters:
        """The first dimension holds the base rates, the others are random."""
        parameters = self._draw_layers(draws)
        target = draws.normal(self.network.shapes["target"])
        combine = np.full(self.network.shapes["combine"], target.shape[-1] ** -0.5, np.float32)
        parameters["weight.query"][..., 0] = 0
        parameters["bias.query"][..., 0] = combine[..., 0] = 1
        target[..., 0] = logit(self.rates)
        return parameters | {"target": target, "combine": combine}

    def forward(self, step: Pass, rows: Rows) -> tuple[Outputs, Backward]:
        """The logits; dropout applies to the dimensions."""
        scores, products_back = _forward_products(step, rows, step.parameters["target"])

        def backward(slopes: Slopes) -> None:
            step.gradients["target"][...] = products_back(slopes.correct)

        return Outputs(scores), backward


@final
@dataclass(frozen=True, eq=False)
class Items(Architecture):
    """Item response theory; see `latent`."""

    @property
    def _dimensions(self) -> int:
        return self.network.heads[DISCRIMINATION]

    def initial(self, draws: Draws) -> Parameters:
        """Discriminations of 1, and abilities near those that the base rates imply."""
        parameters, dimensions = self._draw_layers(draws), self._dimensions
        parameters[f"bias.{DISCRIMINATION}"].fill(_UNIT if dimensions == 1 else 1.0)
        parameters[f"bias.{DIFFICULTY}"].fill(0.0)
        shares = logit(self.rates).astype(np.float32) / dimensions
        noise = draws.normal(self.network.shapes["ability"])
        return parameters | {
            "ability": shares[:, None] + np.float32(_SPREAD * (dimensions > 1)) * noise
        }

    def forward(self, step: Pass, rows: Rows) -> tuple[Outputs, Backward]:
        """The logits of a right answer; the difficulty has no label of its own."""
        units, ability = step.hidden(rows, self.network), step.parameters["ability"]
        raw = step.linear(units[-1], DISCRIMINATION)
        discrimination = np.logaddexp(raw, 0) if self._dimensions == 1 else raw
        difficulty = step.linear(units[-1], DIFFICULTY)

        def backward(slopes: Slopes) -> None:
            np.matmul(slopes.correct.swapaxes(1, 2), discrimination, out=step.gradients["ability"])
            back = slopes.correct @ ability
            if self._dimensions == 1:
                back *= expit(raw)
            difficulty_slopes = -slopes.correct.sum(axis=2, keepdims=True)
            below = step.linear_back(units[-1], DISCRIMINATION, back)
            below += step.linear_back(units[-1], DIFFICULTY, difficulty_slopes)
            step.hidden_back(units, below)

        return Outputs(discrimination @ ability.swapaxes(1, 2) - difficulty), backward


@final
@dataclass(frozen=True, eq=False)
class Preferences(Architecture):
    """Matrix factorisation on pairs; see `latent`. The level begins at the mean rate."""

    def initial(self, draws: Draws) -> Parameters:
        """The weights of features are initialised like torch's Linear."""
        parameters, shapes = self._draw_layers(draws), self.network.shapes
        parameters["bias.level"].fill(float(logit(self.rates.mean())))
        return parameters | {
            "target": draws.normal(shapes["target"]),
            "combine": np.ones(shapes["combine"], np.float32),
            "slope": np.ones(shapes["slope"], np.float32),
            "offset": np.zeros(shapes["offset"], np.float32),
        }

    def forward(self, step: Pass, rows: Rows) -> tuple[Outputs, Backward]:
        """The outputs; the level learns from labels, the rest from pairs only."""
        level, ahead, backward = self._forward_scores(step, rows)
        return Outputs(np.broadcast_to(level, ahead.shape), preference=ahead), backward

    def _forward_scores(self, step: Pass, rows: Rows) -> tuple[Levels, Scores, Backward]:
        """The level, each target's score minus the mean over targets, and the backward pass."""
        target = step.parameters["target"]
        length = np.maximum(np.linalg.norm(target, axis=-1, keepdims=True), _SHORTEST)
        unit = target / length
        level = step.linear(rows, "level")
        scores, products_back = _forward_products(step, rows, unit)
        ahead = scores - scores.mean(axis=-1, keepdims=True)

        def backward(slopes: Slopes) -> None:
            step.keep_gradients(rows, "level", slopes.correct.sum(axis=2, keepdims=True))
            if slopes.preference is None:
                return
            back = slopes.preference - slopes.preference.mean(axis=-1, keepdims=True)
            target_slopes = products_back(back)
            target_slopes -= unit * (target_slopes * unit).sum(axis=-1, keepdims=True)
            np.divide(target_slopes, length, out=step.gradients["target"])

        return level, ahead, backward

    def fit_on_validation(
        self, parameters: Parameters, rows: Rows, labels: NetworkLabels
    ) -> Parameters:
        """The parameters with scales and offsets fitted on the held-out rows, see `combine`."""
        step = Pass(parameters, {}, Workspace(rows.dtype))
        level, ahead, _ = self._forward_scores(step, rows)
        parts = level, ahead, labels.correct, labels.weights
        solution = combine(*(part[0].astype(np.float64) for part in parts))
        return parameters | {
            "weight.level": parameters["weight.level"] * np.float32(solution[0]),
            "bias.level": parameters["bias.level"] * np.float32(solution[0]),
            "slope": np.full((1, 1, 1), solution[1], np.float32),
            "offset": solution[2:].astype(np.float32).reshape(1, 1, -1),
        }


Numbers = Float64[NDArray[np.float64], " parameter"]
Cells = Float64[NDArray[np.float64], "row target"]


def combine(
    level: Float64[NDArray[np.float64], "row 1"], ahead: Cells, labels: Cells, weights: Cells
) -> Numbers:
    """The scale of the level, that of the scores, and each target's offset.

    They minimise the cross-entropy plus a penalty, of one label's weight, for leaving 1, 1 and 0,
    so that few labels change little. Neither scale is negative.

    Args:
        level: Logits that all targets share.
        ahead: Each target's score minus the mean over targets.
        labels: In [0, 1].
        weights: The weight of each label; 0 where missing.
    """
    first = np.concatenate([[1.0, 1.0], np.zeros(ahead.shape[1])])

    def logits(now: Numbers) -> Cells:
        return np.asarray(now[0] * level + now[1] * ahead + now[2:])

    def slopes(miss: Cells) -> Numbers:
        return np.concatenate([[(miss * level).sum(), (miss * ahead).sum()], miss.sum(axis=0)])

    bounds = [(0, None), (0, None), *[(None, None)] * ahead.shape[1]]
    return shrunken_logistic(first, logits, slopes, labels, weights=weights, bounds=bounds)
