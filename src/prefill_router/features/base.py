"""What every family of features is: a frozen map from what was read of a query to columns.

`ColumnScaler` brings columns of statistics to one scale: standardised by the train rows, and
bounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations, Provenance, Rounding, Site
from prefill_router.data import Prompt, RoutingDataset, prompt_key
from prefill_router.errors import ConfigError, ProvenanceError
from prefill_router.progress import Progress
from prefill_router.serialization import Part
from prefill_router.short_repr import short_repr
from prefill_router.statistics import column_spread

Columns = Float32[NDArray[np.float32], "query column"]


@short_repr
@final
@dataclass(frozen=True)
class EncoderStates:
    """A kind of states: what made them, and what they were rounded to.

    Attributes:
        provenance: What made the states.
        rounding: The type that the train rows' states were kept in.
    """

    provenance: Provenance
    rounding: Rounding

    @classmethod
    def of(cls, activations: Activations) -> "EncoderStates":
        """That of a store or a batch."""
        return cls(activations.provenance, activations.rounding)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PromptStates:
    """Prompts, and the states that encoders made of them.

    Attributes:
        prompts: One per query.
        keys: Their content keys (`data.prompt_key`).
        states: Of every encoder that a family reads; others are ignored.
    """

    prompts: tuple[Prompt, ...]
    keys: tuple[str, ...]
    states: tuple[Activations, ...]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], states: Sequence[Activations]) -> "PromptStates":
        """The reading of some prompts."""
        return cls(tuple(prompts), tuple(map(prompt_key, prompts)), tuple(states))

    @classmethod
    def of_dataset(cls, dataset: RoutingDataset, states: Sequence[Activations]) -> "PromptStates":
        """The reading of a dataset's queries, in its order."""
        prompts = tuple(query.prompt for query in dataset.queries)
        return cls(prompts, dataset.prompt_keys, tuple(states))

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class Family(Part, ABC):
    """Some columns of the features, fitted on train rows and frozen.

    A row of the result depends on that query alone: not on the others, nor on their order.
    """

    noun: ClassVar[str] = "feature family"

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns it has."""

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that it reads, each once."""
        return ()

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What it reads of one encoder, sorted; nothing where it isn't among `sources`."""
        del provenance
        return ()

    def check_targets(self, names: tuple[str, ...]) -> None:
        """Check that it was fitted for these targets; one that knows no targets suits all.

        Raises:
            ConfigError: It was fitted for others, or in another order.
        """
        del names

    def located(self, folders: Mapping[str, Path | str]) -> "Family":
        """The same, where a network of its own is found in one of these folders, by its name."""
        del folders
        return self

    @abstractmethod
    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries, finite, one row per query.

        Raises:
            ProvenanceError: An encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """


@final
@dataclass(frozen=True)
class Need:
    """States that a family must have before it can be fitted.

    Attributes:
        encoder: The encoder's name, as `encoders.load_encoder` takes it.
        sites: What must be read of it; None for the candidates that `fit` has by default.
    """

    encoder: str
    sites: tuple[Site, ...] | None = None


class FamilyConfig(ABC):
    """Options of a family; a frozen dataclass whose fields are what a recipe may say of it."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states that `fit` must be given, of all train queries."""
        return ()

    @abstractmethod
    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Family:
        """Fit on the train part; nothing else is seen.

        Args:
            train: The train part.
            states: Of every encoder in `needs`; others are ignored.
            seed: Of whatever is drawn.
            progress: Shows how far it is.

        Raises:
            ConfigError: The options contradict each other or the data.
            FitError: There is nothing to learn from.
            StoreError: States are missing.
        """


def find_store(stores: Sequence[Activations], provenance: Provenance) -> Activations:
    """The states that an encoder made.

    Raises:
        ProvenanceError: None of these were; where one comes from the same encoder, the message says
            in what it differs.
    """
    for store in stores:
        if store.provenance == provenance:
            return store
    for store in stores:
        if store.provenance.encoder == provenance.encoder:
            provenance.require(store.provenance, what=store.name)
    given = ", ".join(f"{s.name} of {s.provenance.encoder!r}" for s in stores) or "none"
    raise ProvenanceError(
        f"the features need states of the encoder {provenance.encoder!r} (revision "
        f"{provenance.revision}); given: {given}; encode the queries with that encoder"
    )


Statistics = Float64[NDArray[np.float64], "query column"]

FARTHEST = 10.0
"""Standard deviations; one odd query must not outweigh all others in a linear predictor."""
_CONSTANT = 1e-9  # a spread below this share of the mean is rounding


@final
@dataclass(frozen=True, eq=False)
class ColumnScaler(Part):
    """A frozen scaler.

    Attributes:
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for columns that are constant, which so become zero
            there.
    """

    noun: ClassVar[str] = "scaler"
    mean: Float32[NDArray[np.float32], " column"]
    scale: Annotated[Float32[NDArray[np.float32], " column"], Field(gt=0)]

    @classmethod
    def fit(cls, train: Statistics) -> "ColumnScaler":
        """Fit to the train rows, at least one."""
        mean, spread, varies = column_spread(train, rounding=_CONSTANT)
        scale = np.where(varies, spread, 1.0)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    def apply(self, statistics: Statistics) -> Columns:
        """The columns in standard deviations from the train mean, at most 10 either way.

        Raises:
            ConfigError: There are more or fewer columns.
        """
        if statistics.shape[1] != len(self.mean):
            raise ConfigError(
                f"{statistics.shape[1]} statistics for a scaler that was fitted on {len(self.mean)}"
            )
        scores = (statistics - self.mean) / self.scale
        return np.clip(scores, -FARTHEST, FARTHEST).astype(np.float32)
