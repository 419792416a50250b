"""Options of the shared trunk's training; the defaults are those of the method's authors."""

from dataclasses import asdict, dataclass, replace
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.predictors.fitted import Examples, PredictorConfig, PredictorFit
from prefill_router.predictors.weights import check_disagreement_weight
from prefill_router.progress import Progress


@final
@dataclass(frozen=True, kw_only=True)
class TrunkConfig(PredictorConfig):
    """Options of the shared trunk's training.

    Attributes:
        hidden: Widths of the two hidden layers.
        dropout: The share of units that is dropped after each of them.
        learning_rate: Adam's.
        weight_decay: Adam's, as an L2 penalty in the gradient.
        batch_size: Queries a step.
        max_epochs: Passes over the fitting rows, at most.
        patience: Epochs without a better validation loss after which a seed stops.
        seeds: How many networks are trained.
        keep: How many of them, those of least validation loss, make up the ensemble.
        validation: The share of the rows that is held out for the validation loss.
        disagreement_weight: What a query counts on which targets disagree, where others count 1.
        seed: Another number, another hold-out and other networks.
    """

    hidden: tuple[int, int] = (256, 128)
    dropout: tuple[float, float] = (0.3, 0.2)
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 512
    max_epochs: int = 150
    patience: int = 15
    seeds: int = 10
    keep: int = 5
    validation: float = 0.15
    disagreement_weight: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "patience", "seeds", "keep"):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}", "at least 1")
        _require(min(self.hidden) >= 1, f"hidden is {self.hidden}", "at least 1 each")
        _require(
            all(0 <= rate < 1 for rate in self.dropout), f"dropout is {self.dropout}", "in [0, 1)"
        )
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}", "positive")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}", "0 or more")
        _require(0 < self.validation < 1, f"validation is {self.validation}", "in (0, 1)")
        check_disagreement_weight(self.disagreement_weight)
        _require(self.seed >= 0, f"seed is {self.seed}", "0 or more")
        _require(
            self.keep <= self.seeds,
            f"keep is {self.keep} of {self.seeds} seeds",
            "no more than seeds",
        )

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit a SharedTrunkNet; `seed` is added to the options' own."""
        from prefill_router.predictors.trunk.fit import fit_trunk

        found = fit_trunk(
            examples.features,
            examples.correct,
            examples.targets,
            config=replace(self, seed=self.seed + seed),
            progress=progress,
        )
        return PredictorFit(found.predictor, found.notes, found.curves.to_dict())

    def lighter(self) -> "TrunkConfig":
        """The same with three networks at most."""
        return replace(self, seeds=min(self.seeds, 3), keep=min(self.keep, 3))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def _require(holds: bool, got: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{got}; it must be {wanted}")
