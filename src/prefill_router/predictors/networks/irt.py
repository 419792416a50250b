"""`irt`: item response theory, with queries as items and targets as those who answer (2PL).

A target's probability is sigmoid(a(q) . theta - b(q)): how able it is, how far that matters for the
query, and how difficult the query is (IRT-Router and MIRT-Router, Song and others 2025). What is
estimated item by item in a test is here a function of the features, so that new queries have it.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.predictors.base import Examples, PredictorFit
from prefill_router.predictors.networks import ensemble
from prefill_router.predictors.networks.ensemble import (
    Arrays,
    Logits,
    NetworkConfig,
    NetworkEnsemble,
    Rows,
    at_least,
    require_option,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress
from prefill_router.serialization import Shape

_HEADS = "discrimination", "difficulty"


@final
@dataclass(frozen=True, eq=False)
class ItemResponse(NetworkEnsemble):
    """Abilities of the targets; discrimination and difficulty of a query from its features."""

    kind: ClassVar[str] = "irt"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        *before, dimensions = widths
        heads = list(zip(_HEADS, (dimensions, 1), strict=True))
        found = ensemble.perceptron_shapes(tuple(before), heads, side_by_side=1)
        return found | {"ability": (1, targets, dimensions)}

    @property
    def abilities(self) -> Float64[NDArray[np.float64], "learned dimension"]:
        """Those of the learned targets, mean over the networks; with one dimension, in order."""
        found: NDArray[np.float64] = self.arrays["ability"][:, 0].mean(axis=0, dtype=np.float64)
        return found

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        layers = len(self.widths) - 2
        matters, hard = (ensemble.perceptron_outputs(arrays, rows, layers, head) for head in _HEADS)
        if self.widths[-1] == 1:
            matters = np.logaddexp(matters, 0)
        return np.asarray(matters @ arrays["ability"][0].T - hard)


@final
@dataclass(frozen=True, kw_only=True)
class IRTConfig(NetworkConfig):
    """Options of the item response model.

    Attributes:
        dimensions: Of the abilities; 1 is IRT-2PL, whose discriminations are positive, and more is
            MIRT-2PL.
        hidden: Widths of hidden layers before discrimination and difficulty; none for linear ones.
    """

    dimensions: int = 1
    hidden: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        NetworkConfig.__post_init__(self)
        at_least(self, 1, ("dimensions",))
        positive = min(self.hidden, default=1) >= 1
        require_option(positive, f"hidden is {tuple(self.hidden)}", "of widths of at least 1")

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; missing cells are left out."""
        from prefill_router.predictors.networks.architectures import Items
        from prefill_router.predictors.networks.fit import fit_ensemble

        widths = (examples.features.shape[1], *self.hidden)
        return fit_ensemble(
            examples,
            self,
            ItemResponse,
            lambda material: Items(widths, self.dimensions, material.rates),
            inner=(*self.hidden, self.dimensions),
            inputs=("0",) if self.hidden else _HEADS,
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(
    IRTConfig, ItemResponse, "IRT", "IRT-Router and MIRT-Router, Song and others 2025"
)
