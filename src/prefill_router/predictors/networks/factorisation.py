"""`matrix_factorisation`: targets and queries meet in a space of few dimensions.

The score w^T (v_t * (W q + b)) of a target t on a query q is RouteLLM's (Ong and others, 2024).
Here it is the logit of a correct answer, learned from the cells of the table of labels, for a pool
of any size; `pairwise` learns from pairs, as RouteLLM does.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from prefill_router.predictors.base import Examples, PredictorFit
from prefill_router.predictors.networks.ensemble import (
    Arrays,
    Logits,
    NetworkConfig,
    NetworkEnsemble,
    Rows,
    at_least,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress
from prefill_router.serialization import Shape


@final
@dataclass(frozen=True, eq=False)
class Factorisation(NetworkEnsemble):
    """Vectors of the targets, and a linear map of the features to such vectors."""

    kind: ClassVar[str] = "matrix_factorisation"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        features, *_, dimensions = widths
        return {
            "weight.query": (1, features, dimensions),
            "bias.query": (1, 1, dimensions),
            "target": (1, targets, dimensions),
            "combine": (1, 1, dimensions),
        }

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        query = rows @ arrays["weight.query"][0] + arrays["bias.query"][0]
        return np.asarray(query * arrays["combine"][0] @ arrays["target"][0].T)


@final
@dataclass(frozen=True, kw_only=True)
class FactorisationConfig(NetworkConfig):
    """Options of the matrix factorisation.

    Attributes:
        dimensions: Of the vectors of targets and queries.
        dropout: The share of dimensions that is dropped.
    """

    dimensions: int = 32
    dropout: float = 0.0
    weight_decay: float = 1.0

    def __post_init__(self) -> None:
        NetworkConfig.__post_init__(self)
        at_least(self, 1, ("dimensions",))

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; missing cells are left out."""
        from prefill_router.predictors.networks.architectures import Factors
        from prefill_router.predictors.networks.fit import fit_ensemble

        width = examples.features.shape[1]
        return fit_ensemble(
            examples,
            self,
            Factorisation,
            lambda material: Factors(width, self.dimensions, material.rates),
            inner=(self.dimensions,),
            inputs=("query",),
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(
    FactorisationConfig,
    Factorisation,
    "Matrix factorisation",
    "after RouteLLM, Ong and others 2024",
)
