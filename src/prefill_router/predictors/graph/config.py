"""Options of the graph router."""

from dataclasses import dataclass, replace
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.predictors.fitted import Examples, PredictorConfig, PredictorFit
from prefill_router.progress import Progress, SilentProgress


@final
@dataclass(frozen=True, kw_only=True)
class GraphConfig(PredictorConfig):
    """Options of the graph router's training.

    Attributes:
        hidden: Width of every node's state.
        layers: Rounds of messages.
        dropout: The share of units that is dropped after each round.
        learning_rate: Adam's.
        weight_decay: Adam's, as an L2 penalty in the gradient.
        batch_size: Queries that are asked about in a step; their own labels are out of the graph.
        context: Other queries of a step, at most, whose labels are in the graph.
        max_epochs: Passes over the fitting rows, at most.
        patience: Epochs without a better validation loss after which a network stops.
        networks: How many networks are averaged.
        validation: The share of the rows that is held out for the validation loss.
        text: The encoder that embeds what is said of tasks and targets, such as `minilm`; None for
            nothing. Only fitting needs it.
    """

    hidden: int = 96
    layers: int = 2
    dropout: float = 0.4
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 512
    context: int = 768
    max_epochs: int = 60
    patience: int = 8
    networks: int = 3
    validation: float = 0.15
    text: str | None = None

    @property
    def describes_with(self) -> str | None:
        """The encoder of the texts."""
        return self.text

    def __post_init__(self) -> None:
        for name in (
            *("hidden", "layers", "batch_size", "context"),
            *("max_epochs", "patience", "networks"),
        ):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}", "at least 1")
        _require(0 <= self.dropout < 1, f"dropout is {self.dropout}", "in [0, 1)")
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}", "positive")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}", "0 or more")
        _require(0 < self.validation < 1, f"validation is {self.validation}", "in (0, 1)")

    def lighter(self) -> "GraphConfig":
        """The same with one network."""
        return replace(self, networks=1)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit a GraphRouter.

        Raises:
            FitError: The losses grew beyond all bounds.
            MissingExtraError: torch-geometric isn't installed.
        """
        from prefill_router.predictors.graph.fit import fit_graph

        return fit_graph(examples, self, seed=seed, progress=progress or SilentProgress())


def _require(holds: bool, got: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{got}; it must be {wanted}")
