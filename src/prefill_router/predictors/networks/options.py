"""What all networks here are told of their training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefill_router.errors import ConfigError
from prefill_router.predictors.fitted import PredictorConfig
from prefill_router.predictors.weights import check_disagreement_weight

_MANY = 64


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(PredictorConfig):
    """Options that all networks share.

    Attributes:
        learning_rate: AdamW's.
        weight_decay: AdamW's, on what the features or hidden units are multiplied by.
        dropout: The share of units that is dropped after each hidden layer.
        input_dropout: The share of features that is dropped; None for a half where there are 64 or
            more, and none where there are fewer, each of which may be needed.
        batch_size: Queries a step.
        max_epochs: Passes over the fitting rows, at most.
        patience: Epochs without a better validation loss after which a network stops.
        seeds: How many networks are averaged; each holds out other rows.
        validation: The share of the rows that is held out for the validation loss.
        disagreement_weight: What a query counts on which targets disagree, where others count 1.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: float = 0.3
    input_dropout: float | None = None
    batch_size: int = 256
    max_epochs: int = 60
    patience: int = 7
    seeds: int = 4
    validation: float = 0.15
    disagreement_weight: float = 1.0

    def __post_init__(self) -> None:
        at_least(self, 1, ("batch_size", "max_epochs", "patience", "seeds"))
        for name in ("dropout", "input_dropout"):
            rate = getattr(self, name)
            require(rate is None or 0 <= rate < 1, f"{name} is {rate}", "in [0, 1)")
        require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}", "positive")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}", "0 or more")
        require(0 < self.validation < 1, f"validation is {self.validation}", "in (0, 1)")
        check_disagreement_weight(self.disagreement_weight)

    def lighter(self) -> "NetworkConfig":
        """The same with two networks at most."""
        return replace(self, seeds=min(self.seeds, 2))

    def share_of(self, features: int) -> float:
        """The share of so many features that is dropped."""
        if self.input_dropout is not None:
            return self.input_dropout
        return 0.5 if features >= _MANY else 0.0


@dataclass(frozen=True, kw_only=True)
class MultiTaskConfig(NetworkConfig):
    """Options of networks that learn how difficult a query is, too.

    Attributes:
        hidden: Widths of the hidden layers, at least one.
        difficulty_weight: What the loss of the difficulty counts, where that of the correctness
            counts 1.
    """

    hidden: tuple[int, ...] = (32,)
    dropout: float = 0.5
    difficulty_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)
        weight = self.difficulty_weight
        require(0 <= weight < float("inf"), f"difficulty_weight is {weight}", "0 or more")


def check_hidden(hidden: Sequence[int]) -> None:
    """Check widths of hidden layers.

    Raises:
        ConfigError: There are none, or one has no unit.
    """
    require(min(hidden, default=0) >= 1, f"hidden is {tuple(hidden)}", "one width or more")


def at_least(config: object, least: int, names: Sequence[str]) -> None:
    """Check that these options are at least so large.

    Raises:
        ConfigError: One isn't.
    """
    for name in names:
        got = getattr(config, name)
        require(got >= least, f"{name} is {got}", f"at least {least}")


def require(holds: bool, got: str, wanted: str) -> None:
    """Check that an option makes sense.

    Raises:
        ConfigError: It doesn't.
    """
    if not holds:
        raise ConfigError(f"{got}; it must be {wanted}")
