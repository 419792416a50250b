"""The logits of networks fine-tuned on the text itself, one column per target.

The base network isn't saved: it is loaded again, from the hub or a folder, when it is first needed,
and must be the one that was fine-tuned. Importing this loads neither torch nor peft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PositiveInt

from prefill_router.activations import Activations, Provenance
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features import (
    Columns,
    Family,
    FamilyConfig,
    FamilyEntry,
    PromptStates,
    SavedProvenance,
)
from prefill_router.options import (
    Count,
    Dropout,
    NotNegative,
    Positive,
    Validation,
    check_options,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Names, Part, Saved, Shape, StrictModel

if TYPE_CHECKING:
    from prefill_router_lab.features.text_network_training import AdaptedNetwork


Sharing = Literal["shared", "per_target"]
Pool = Literal["first", "mean", "last"]


@final
@dataclass(frozen=True, kw_only=True)
class TextNetworkConfig(FamilyConfig):
    """Options of a pretrained network that is fine-tuned, by LoRA, to predict labels from the text.

    Attributes:
        network: A hub id, a local folder, or a packaged encoder such as `minilm`.
        revision: Branch, tag or commit of a hub id.
        mode: `shared` fine-tunes one network with an output for each target, `per_target` one
            network for each.
        layer: The last block that is computed, before the network's last norm; all by default.
        pool: The state that the outputs are computed from: of the `first` token, of the `last`, or
            the `mean` over the tokens.
        modules: Names of the linear layers with adapters; by default the query and value
            projections of the attention (DeBERTa: `query_proj` and `value_proj`).
        rank: The rank of each adapter.
        alpha: An adapter is scaled by alpha / rank.
        dropout: The dropout rate of the adapters' inputs and of the outputs' inputs.
        epochs: The greatest number of epochs.
        batch_size: Queries per step.
        learning_rate: AdamW's peak learning rate, after the warm-up; it then decays to 0.
        weight_decay: AdamW's weight decay.
        warmup: The share of the steps in which the learning rate rises.
        max_tokens: The limit to which longer prompts are truncated, in the middle.
        validation: The share of the rows that is held out for the validation loss.
        patience: Epochs without a better validation loss after which training stops.
    """

    network: str = "microsoft/deberta-v3-base"
    revision: str | None = None
    mode: Sharing = "shared"
    layer: Count | None = None
    pool: Pool = "mean"
    modules: tuple[str, ...] | None = None
    rank: Count = 8
    alpha: Count = 16
    dropout: Dropout = 0.1
    epochs: Count = 8
    batch_size: Count = 32
    learning_rate: Positive = 5e-4
    weight_decay: NotNegative = 0.01
    warmup: Dropout = 0.1
    max_tokens: Count = 512
    validation: Validation = 0.1
    patience: Count = 2

    def __post_init__(self) -> None:
        check_options(self)
        if self.modules == ():
            raise ConfigError("modules is empty; it must be left out, or name at least one")

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Family:
        """Fine-tune the network on the train rows.

        Raises:
            ConfigError: The network can't be loaded, or an option doesn't fit it.
            FitError: There is nothing to learn from, or the losses aren't finite.
            MissingExtraError: peft isn't installed.
        """
        del states
        from prefill_router_lab.features.text_network_training import fit_text_network

        return fit_text_network(train, self, seed=seed, progress=progress or SilentProgress())


class _SavedBase(SavedProvenance):
    dtype: Literal["float32"]


class _SavedLayer(StrictModel):
    name: str
    inputs: PositiveInt
    outputs: PositiveInt


_Layers = Annotated[list[_SavedLayer], Field(min_length=1)]


def _read_layers(saved_layers: list[_SavedLayer]) -> tuple[tuple[str, int, int], ...]:
    return tuple((layer.name, layer.inputs, layer.outputs) for layer in saved_layers)


def _write_layers(layers: tuple[tuple[str, int, int], ...]) -> list[dict[str, Any]]:
    return [{"name": n, "inputs": i, "outputs": o} for n, i, o in layers]


@final
@dataclass(frozen=True)
class Adaption(Part):
    """The shape of a network's LoRA adapters.

    Attributes:
        rank: The rank of each adapter.
        alpha: An adapter is scaled by alpha / rank.
        layers: The full name, number of inputs and number of outputs of each adapted layer.
    """

    rank: PositiveInt
    alpha: PositiveInt
    layers: Annotated[
        tuple[tuple[str, int, int], ...],
        Saved(form=Annotated[_Layers, AfterValidator(_read_layers)], write=_write_layers),
    ]

    @classmethod
    def of(cls, network: "AdaptedNetwork", *, rank: int, alpha: int) -> "Adaption":
        """The shape of the adapters of a network."""
        arrays = network.arrays()
        layers = [
            (name, int(arrays[f"lora_a.{i}"].shape[1]), int(arrays[f"lora_b.{i}"].shape[0]))
            for i, name in enumerate(network.modules)
        ]
        return cls(rank, alpha, tuple(layers))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TextNetwork(Family):
    """Fine-tuned networks: one for all targets, or one for each.

    Attributes:
        targets: The targets' names.
        made_by: The provenance of the base network and its tokenizer.
        mode: Whether one network serves all targets.
        layer: The last block that is computed; None for all.
        pool: The state that the outputs are computed from.
        adaption: The shape of the adapters.
        arrays: The arrays of `AdaptedNetwork.arrays`, with the networks as a first axis.
        report: The losses, and which targets couldn't be learned.
        source: The path of the base network; None for the hub, or for a folder of its name in the
            working folder. It isn't saved, since it is valid on this machine only.
    """

    kind: ClassVar[str] = "text_network"
    targets: Names
    made_by: Annotated[
        Provenance,
        Saved(
            "base",
            form=Annotated[_SavedBase, AfterValidator(_SavedBase.provenance)],
            write=Provenance.to_dict,
        ),
    ]
    mode: Sharing
    pool: Pool
    adaption: Adaption
    arrays: Mapping[str, NDArray[np.float32]]
    report: Mapping[str, Any] = field(default_factory=dict)
    source: Annotated[str | None, Saved(never=True)] = None
    layer: Annotated[PositiveInt | None, Saved(sparse=True)] = None

    @property
    def width(self) -> int:
        """The number of columns: one per target."""
        return len(self.targets)

    def at(self, source: Path | str) -> "TextNetwork":
        """The same family with the base network at another path, which is checked."""
        return replace(self, source=str(source))

    def with_folders(self, folders: Mapping[str, Path | str]) -> "TextNetwork":
        """The same family, with the base network loaded from one of these folders, by name."""
        place = folders.get(self.made_by.encoder)
        return self if place is None else self.at(place)

    def read(self, reading: PromptStates) -> Columns:
        """The logits of these queries.

        Raises:
            ConfigError: The base network isn't found, or doesn't fit the adapters.
            ProvenanceError: It isn't the network that was fine-tuned.
            PromptError: A prompt can't be encoded; the message names its content key.
            MissingExtraError: peft isn't installed.
        """
        if not len(reading):
            return np.empty((0, self.width), dtype=np.float32)
        places = {key: place for place, key in enumerate(dict.fromkeys(reading.keys))}
        prompts = dict(zip(reading.keys, reading.prompts, strict=True))
        network = self._network
        tokens = network.encoder.tokenize([Query(key, prompts[key]) for key in places])
        outputs = network.read(
            tokens, [self._select_arrays(i) for i in range(len(self.arrays["head.bias"]))]
        )
        logits = outputs[0] if self.mode == "shared" else outputs[:, :, 0].T
        columns: Columns = logits[[places[key] for key in reading.keys]]
        return columns

    def _select_arrays(self, number: int) -> dict[str, NDArray[np.float32]]:
        return {name: array[number] for name, array in self.arrays.items()}

    @cached_property
    def _network(self) -> "AdaptedNetwork":
        from prefill_router.encoders import HubEncoder, load_encoder_for
        from prefill_router_lab.features.text_network_training import AdaptedNetwork

        is_hub = not self.made_by.revision.startswith(("sha256:", "sampled:"))
        encoder = load_encoder_for(
            self.made_by,
            source=None if is_hub else self.source,
            layers=None if self.layer is None else (self.layer,),
            as_network=True,
        )
        if not isinstance(encoder, HubEncoder):
            raise ConfigError(f"the network {self.made_by.encoder!r} can't be adapted")
        modules = dict(encoder.network.named_modules())
        missing = [name for name, _, _ in self.adaption.layers if name not in modules]
        if missing:
            raise ConfigError(f"{self.made_by.encoder} has no layer {missing[0]!r} to adapt")
        return AdaptedNetwork(
            encoder,
            outputs=int(self.arrays["head.bias"].shape[1]),
            pool=self.pool,
            modules=sorted({name.rpartition(".")[2] for name, _, _ in self.adaption.layers}),
            rank=self.adaption.rank,
            alpha=self.adaption.alpha,
            dropout=0.0,
        )

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """The shapes of `arrays`; see `AdaptedNetwork.arrays`."""
        targets = len(plain["targets"])
        networks, outputs = (1, targets) if plain["mode"] == "shared" else (targets, 1)
        shapes: dict[str, Shape] = {
            "head.weight": (networks, outputs, plain["base"].hidden_size),
            "head.bias": (networks, outputs),
        }
        for number, (_, inputs, width) in enumerate(plain["layers"]):
            shapes[f"lora_a.{number}"] = (networks, plain["rank"], inputs)
            shapes[f"lora_b.{number}"] = (networks, width, plain["rank"])
        return shapes


ENTRY = FamilyEntry(TextNetworkConfig, TextNetwork)
