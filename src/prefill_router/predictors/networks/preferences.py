"""The matrix factorisation that learns from pairs, while it trains."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import Tensor
from torch.nn.functional import normalize

from prefill_router.predictors.networks.architecture import (
    Architecture,
    Drop,
    Outputs,
    Parameters,
    Rows,
    apply,
    linear,
)

Numbers = Float64[NDArray[np.float64], " parameter"]
Cells = Float64[NDArray[np.float64], "row target"]


@final
@dataclass(frozen=True, eq=False)
class Preferences(Architecture):
    """See `pairwise`.

    Attributes:
        width: How many features there are.
        dimensions: Of the vectors.
        rates: The targets' base rates; the level begins at their mean.
    """

    width: int
    dimensions: int
    rates: Float64[NDArray[np.float64], " target"]

    @property
    def networks(self) -> int:
        """One for all targets."""
        return 1

    def initial(self, draw: torch.Generator) -> Parameters:
        """What is multiplied by features is drawn as torch's Linear is."""
        weight, bias = linear(draw, 1, self.width, self.dimensions)
        level, _ = linear(draw, 1, self.width, 1)
        mean = torch.full((1, 1, 1), float(logit(self.rates.mean())))
        target = torch.empty(1, len(self.rates), self.dimensions).normal_(generator=draw)
        return {
            "weight.query": weight,
            "bias.query": bias,
            "target": target,
            "combine": torch.ones(1, 1, self.dimensions),
            "weight.level": level,
            "bias.level": mean,
            "slope": torch.ones(1, 1, 1),
            "offset": torch.zeros(1, 1, len(self.rates)),
        }

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The level learns from labels, the rest from pairs alone."""
        level, ahead = self._parts(parameters, rows, drop)
        return Outputs(level.expand_as(ahead), preference=ahead)

    def _parts(self, parameters: Parameters, rows: Rows, drop: Drop) -> tuple[Tensor, Tensor]:
        query = drop(apply(parameters, rows, "query"))
        vectors = normalize(parameters["target"], dim=-1)
        scores = query * parameters["combine"] @ vectors.mT
        return apply(parameters, rows, "level"), scores - scores.mean(-1, keepdim=True)

    def settled(
        self, parameters: Parameters, rows: Rows, labels: Tensor, weights: Tensor
    ) -> Parameters:
        """With the scale of level and scores, and each target's offset, that suit held-out rows."""
        level, ahead = self._parts(parameters, rows, lambda units: units)
        found = combine(
            *(part[0].numpy().astype(np.float64) for part in (level, ahead, labels, weights))
        )
        return parameters | {
            "weight.level": parameters["weight.level"] * float(found[0]),
            "bias.level": parameters["bias.level"] * float(found[0]),
            "slope": torch.full((1, 1, 1), float(found[1])),
            "offset": torch.from_numpy(found[2:]).float().reshape(1, 1, -1),
        }


def combine(
    level: Float64[NDArray[np.float64], "row 1"], ahead: Cells, labels: Cells, weights: Cells
) -> Numbers:
    """The scale of the level, that of the scores, and each target's offset.

    They have the least cross-entropy, with a penalty of one label's weight for leaving 1, 1 and 0,
    so that few labels change little. Neither scale is negative.

    Args:
        level: Logits that all targets share.
        ahead: How far each target's score is ahead of the mean of all.
        labels: In [0, 1].
        weights: What each label counts; 0 where missing.
    """
    first = np.concatenate([[1.0, 1.0], np.zeros(ahead.shape[1])])

    def loss(now: Numbers) -> tuple[float, Numbers]:
        logits = now[0] * level + now[1] * ahead + now[2:]
        each = np.logaddexp(0, logits) - labels * logits
        miss = weights * (expit(logits) - labels)
        slopes = [(miss * level).sum(), (miss * ahead).sum()]
        gradient = np.concatenate([slopes, miss.sum(axis=0)]) + now - first
        return float((weights * each).sum() + np.square(now - first).sum() / 2), gradient

    bounds = [(0, None), (0, None), *[(None, None)] * ahead.shape[1]]
    found: Numbers = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds).x
    return found
