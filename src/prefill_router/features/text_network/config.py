"""Options of a network tuned on the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features.base import Family, FamilyConfig
from prefill_router.progress import Progress, SilentProgress

Sharing = Literal["shared", "per_target"]
Pool = Literal["first", "mean", "last"]


@final
@dataclass(frozen=True, kw_only=True)
class TextNetworkConfig(FamilyConfig):
    """Options of a pretrained network that is tuned, by LoRA, to predict the labels from the text.

    Attributes:
        network: A hub id, a local folder, or a packaged encoder such as `minilm`.
        revision: Branch, tag or commit of a hub id.
        mode: `shared` tunes one network with an output for each target, `per_target` one network
            for each.
        pool: Which state the outputs are read from: of the `first` token, the `mean` over the
            tokens, or of the `last`.
        modules: Names of the linear layers that are adapted; by default those that make an
            attention's queries and values (DeBERTa: `query_proj` and `value_proj`).
        rank: Of each adaption.
        alpha: An adaption is scaled by alpha / rank.
        dropout: The share of an adaption's inputs, and of the outputs' inputs, that is dropped.
        epochs: Passes over the fitting rows, at most.
        batch_size: Queries a step.
        learning_rate: AdamW's at its highest, after the warm-up; it falls to 0 from there.
        weight_decay: AdamW's.
        warmup: The share of the steps in which the learning rate rises.
        max_tokens: Longer prompts lose their middle.
        validation: The share of the rows that is held out for the validation loss.
        patience: Epochs without a better validation loss after which training stops.
    """

    network: str = "microsoft/deberta-v3-base"
    revision: str | None = None
    mode: Sharing = "shared"
    pool: Pool = "mean"
    modules: tuple[str, ...] | None = None
    rank: int = 8
    alpha: int = 16
    dropout: float = 0.1
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    warmup: float = 0.1
    max_tokens: int = 512
    validation: float = 0.1
    patience: int = 2

    def __post_init__(self) -> None:
        for name in ("rank", "alpha", "epochs", "batch_size", "max_tokens", "patience"):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}", "at least 1")
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}", "positive")
        _require(0 <= self.dropout < 1, f"dropout is {self.dropout}", "in [0, 1)")
        _require(0 <= self.warmup < 1, f"warmup is {self.warmup}", "in [0, 1)")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}", "0 or more")
        _require(0 < self.validation < 1, f"validation is {self.validation}", "in (0, 1)")
        _require(self.mode in ("shared", "per_target"), f"mode is {self.mode!r}", "one of these")
        _require(self.pool in ("first", "mean", "last"), f"pool is {self.pool!r}", "one of these")
        _require(self.modules != (), "modules is empty", "left out, or name at least one")

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Family:
        """Tune the network on the train part.

        Raises:
            ConfigError: The network can't be loaded, or an option doesn't suit it.
            FitError: There is nothing to learn from, or the losses aren't finite.
            MissingExtraError: peft isn't installed.
        """
        del states
        from prefill_router.features.text_network.fit import fit_text_network

        return fit_text_network(train, self, seed=seed, progress=progress or SilentProgress())


def _require(holds: bool, got: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{got}; it must be {wanted}")
