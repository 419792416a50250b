"""`mlp`: one small network per target (the paper's plain MLP, section 3.2)."""

from dataclasses import dataclass
from typing import ClassVar, final

from prefill_router.predictors.base import Examples, PredictorFit
from prefill_router.predictors.networks import ensemble
from prefill_router.predictors.networks.ensemble import (
    CORRECTNESS,
    Arrays,
    Logits,
    NetworkConfig,
    NetworkEnsemble,
    Rows,
    check_hidden,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress
from prefill_router.serialization import Shape


@final
@dataclass(frozen=True, eq=False)
class TargetNetworks(NetworkEnsemble):
    """A network of its own for each target."""

    kind: ClassVar[str] = "mlp"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        return ensemble.perceptron_shapes(widths, [(CORRECTNESS, 1)], side_by_side=targets)

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        return ensemble.perceptron_outputs(arrays, rows, len(self.widths) - 1, CORRECTNESS)


@final
@dataclass(frozen=True, kw_only=True)
class MLPConfig(NetworkConfig):
    """Options of one small network per target.

    Attributes:
        hidden: Widths of the hidden layers, at least one.
    """

    hidden: tuple[int, ...] = (32,)
    dropout: float = 0.5
    seeds: int = 3

    def __post_init__(self) -> None:
        NetworkConfig.__post_init__(self)
        check_hidden(self.hidden)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; each target's network stops when its own validation loss does."""
        from prefill_router.predictors.networks.architectures import Heads
        from prefill_router.predictors.networks.fit import fit_ensemble

        widths = (examples.features.shape[1], *self.hidden)
        return fit_ensemble(
            examples,
            self,
            TargetNetworks,
            lambda material: Heads(widths, material.rates[:, None], difficulty=False),
            inner=tuple(self.hidden),
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(MLPConfig, TargetNetworks, "MLP", "section 3.2 of the paper")
