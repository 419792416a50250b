"""The interface of feature families, the families by kind, and several of them together.

`EncoderStates` is a kind of states, with its form in a saved family and the reading of such states.
A family is a frozen map from prompts and their states to columns. `ColumnScaler` standardises
columns of statistics by the train rows, and clips them. A kind is imported when it is first looked
up.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from prefill_router import mapped_matrix
from prefill_router.activations import Activations, Provenance, Rounding, Site, round_states
from prefill_router.data import Prompt, RoutingDataset, prompt_key
from prefill_router.encoders import States
from prefill_router.errors import ConfigError, CorruptError, ProvenanceError
from prefill_router.geometry import SiteStates
from prefill_router.progress import Progress
from prefill_router.serialization import Kinds, Part, StrictModel, Tensors, under, validate
from prefill_router.short_repr import short_repr
from prefill_router.statistics import column_spread

Columns = Float32[NDArray[np.float32], "query column"]


@short_repr
@final
@dataclass(frozen=True)
class EncoderStates:
    """A kind of states: their provenance and rounding.

    Attributes:
        provenance: How the states were made.
        rounding: The type that the train rows' states were stored in.
    """

    provenance: Provenance
    rounding: Rounding

    @classmethod
    def of(cls, activations: Activations) -> "EncoderStates":
        """The kind of states in a store or a batch."""
        return cls(activations.provenance, activations.rounding)


class SavedProvenance(StrictModel):
    """The provenance of states, as it is saved."""

    encoder: str
    revision: str
    template: Literal["chat", "plain"]
    template_hash: str
    max_tokens: PositiveInt
    dtype: str
    num_layers: PositiveInt
    hidden_size: PositiveInt
    quantisation: str | None = None
    computed_by: str | None = None
    packed_by: str | None = None

    def provenance(self) -> Provenance:
        """The provenance that was saved."""
        return Provenance(**self.model_dump(include=set(SavedProvenance.model_fields)))


class SavedStates(SavedProvenance):
    """A kind of states, as it is saved."""

    rounding: Rounding

    @classmethod
    def of(cls, source: EncoderStates) -> dict[str, Any]:
        """The plain values of a kind of states."""
        return {**source.provenance.to_dict(), "rounding": source.rounding}

    def source(self) -> EncoderStates:
        """The kind of states that was saved."""
        return EncoderStates(self.provenance(), self.rounding)


def states_like(
    source: EncoderStates, site: Site, activations: Activations, keys: Sequence[str]
) -> Iterator[tuple[slice, States]]:
    """Rows (a slice of the keys) and their states, rounded like those of the train rows.

    Raises:
        ProvenanceError: The states are of another encoder, site or type.
        StoreError: Some states are missing.
    """
    source.provenance.require(activations.provenance, what=activations.name)
    if activations.rounding not in ("float32", source.rounding):
        raise ProvenanceError(
            f"{activations.name} holds {activations.rounding}; the router was fitted on states "
            f"rounded to {source.rounding}: encode the queries again in that type"
        )
    for rows, states in SiteStates(activations, site, keys):
        same = activations.rounding == source.rounding
        yield rows, states if same else round_states(states, source.rounding)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PromptStates:
    """Prompts, with their hidden states from one or more encoders.

    Attributes:
        prompts: One per query.
        keys: Their content keys (`data.prompt_key`).
        states: The states of every encoder that a family reads; others are ignored.
    """

    prompts: tuple[Prompt, ...]
    keys: tuple[str, ...]
    states: tuple[Activations, ...]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], states: Sequence[Activations]) -> "PromptStates":
        """Prompts with their keys, and the stores that have the states of these keys."""
        return cls(tuple(prompts), tuple(map(prompt_key, prompts)), tuple(states))

    @classmethod
    def of_dataset(cls, dataset: RoutingDataset, states: Sequence[Activations]) -> "PromptStates":
        """The prompts of a dataset, in its order, with these states."""
        prompts = tuple(query.prompt for query in dataset.queries)
        return cls(prompts, dataset.prompt_keys, tuple(states))

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class Family(Part, ABC):
    """A group of feature columns, fitted on train rows and frozen.

    A row of the result depends on its query alone, not on the others or their order.
    """

    noun: ClassVar[str] = "feature family"

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns."""

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that it reads, each once."""
        return ()

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that it reads, sorted; empty if the encoder isn't a source."""
        del provenance
        return ()

    def check_targets(self, names: tuple[str, ...]) -> None:
        """Check that it was fitted for these targets; some families don't depend on targets.

        Raises:
            ConfigError: It was fitted for other targets, or in another order.
        """
        del names

    def with_folders(self, folders: Mapping[str, Path | str]) -> "Family":
        """The same family, with its own network loaded from one of these folders, by name."""
        del folders
        return self

    @abstractmethod
    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries, finite, one row per query.

        Raises:
            ProvenanceError: An encoder's states are missing, or were made differently.
            StoreError: States of some prompts are missing.
        """


@final
@dataclass(frozen=True)
class Need:
    """States that a family needs before it can be fitted.

    Attributes:
        encoder: The encoder's name, as for `encoders.load_encoder`.
        sites: The sites that it needs; None for the default candidates of `fit`.
    """

    encoder: str
    sites: tuple[Site, ...] | None = None


class FamilyConfig(ABC):
    """Options of a family; a frozen dataclass whose fields can be set in a recipe."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of all train queries that `fit` needs."""
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
        """Fit on the train rows.

        Args:
            train: The train rows.
            states: The states of every encoder in `needs`; others are ignored.
            seed: The seed of all random numbers.
            progress: Shows the progress.

        Raises:
            ConfigError: The options contradict each other or the data.
            FitError: There is nothing to learn from.
            StoreError: States are missing.
        """


def find_store(stores: Sequence[Activations], provenance: Provenance) -> Activations:
    """The store with states of this provenance.

    Raises:
        ProvenanceError: There is none; the message lists the differences to a store of the same
            encoder, if there is one.
    """
    for store in stores:
        if store.provenance == provenance:
            return store
    for store in stores:
        if store.provenance.encoder == provenance.encoder:
            provenance.require(store.provenance, what=store.name)
    names = ", ".join(f"{s.name} of {s.provenance.encoder!r}" for s in stores) or "none"
    raise ProvenanceError(
        f"the features need states of the encoder {provenance.encoder!r} (revision "
        f"{provenance.revision}); given: {names}; encode the queries with that encoder"
    )


Statistics = Float64[NDArray[np.float64], "query column"]

FARTHEST = 10.0
"""The clipping limit in standard deviations, so that no outlier dominates a linear predictor."""
_CONSTANT = 1e-9  # a standard deviation below this share of the mean is rounding error


@final
@dataclass(frozen=True, eq=False)
class ColumnScaler(Part):
    """A frozen scaler of columns.

    Attributes:
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for constant columns, which become zero.
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
        """The columns in standard deviations from the train mean, clipped to 10 either way.

        Raises:
            ConfigError: The number of columns differs.
        """
        if statistics.shape[1] != len(self.mean):
            raise ConfigError(
                f"{statistics.shape[1]} columns for a scaler that was fitted on {len(self.mean)}"
            )
        scores = (statistics - self.mean) / self.scale
        return np.clip(scores, -FARTHEST, FARTHEST).astype(np.float32)


@final
@dataclass(frozen=True)
class FamilyEntry:
    """One kind of feature family.

    Attributes:
        config: The class of its options, which fit it.
        family: The class of the fitted family.
    """

    config: type[FamilyConfig]
    family: type[Family]


FAMILIES = Kinds[FamilyEntry](
    "features",
    "prefill_router.features",
    {
        "prefill": "prefill:PREFILL",
        "joint": "prefill:JOINT",
        "embedding": "single_site:EMBEDDING",
        "neighbours": "neighbours:ENTRY",
        "complexity": "complexity:ENTRY",
        "signals": "single_site:SIGNALS",
    },
    "prefill_router.features",
    expects=FamilyEntry,
)


def load_family(config: Mapping[str, Any], tensors: Tensors) -> Family:
    """The family that `Family.to_dict` and `Family.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return FAMILIES.of_saved(config).family.from_dict(config, tensors)


class _SavedFeatures(StrictModel):
    families: list[dict[str, Any]]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Families of features, concatenated.

    Attributes:
        families: At least one, in the order of their columns.
    """

    families: tuple[Family, ...]

    def __post_init__(self) -> None:
        if not self.families:
            raise ConfigError("there are no features; name at least one family, such as prefill")

    @property
    def width(self) -> int:
        """The number of features of a query."""
        return sum(family.width for family in self.families)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that are read, each once; none for features of the text alone."""
        return tuple(dict.fromkeys(s for family in self.families for s in family.sources))

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """The provenances of the encoders that a request needs, in the order of `sources`."""
        return tuple(source.provenance for source in self.sources)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that must be read, sorted."""
        return tuple(sorted({s for family in self.families for s in family.sites_of(provenance)}))

    def source_of(self, provenance: Provenance) -> EncoderStates:
        """The kind of states of one encoder, with the type that they must be rounded to.

        Raises:
            ProvenanceError: No family reads this encoder.
        """
        for source in self.sources:
            if source.provenance == provenance:
                return source
        raise ProvenanceError(
            f"no feature is read from {provenance.encoder!r}; the encoders are "
            f"{[p.encoder for p in self.provenances]}"
        )

    def read(self, reading: PromptStates) -> Columns:
        """The features of these queries, one row each.

        Raises:
            ProvenanceError: An encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """
        return mapped_matrix.join_columns([family.read(reading) for family in self.families])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the rest of the features is in `tensors`."""
        return {"families": [family.to_dict() for family in self.families]}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays, by names such as `0.block0.mean`."""
        return {
            f"{number}.{name}": array
            for number, family in enumerate(self.families)
            for name, array in family.tensors().items()
        }

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "FeatureSet":
        """The features that `to_dict` and `tensors` describe.

        Raises:
            CorruptError: The values are incomplete or contradict each other.
        """
        saved = validate(_SavedFeatures, config, what="the router's features").families
        families = tuple(
            load_family(family, under(tensors, f"{i}.")) for i, family in enumerate(saved)
        )
        prefixes = {f"{i}." for i in range(len(families))}
        surplus = sorted(name for name in tensors if name.partition(".")[0] + "." not in prefixes)
        if surplus:
            raise CorruptError(f"the router's features have the unknown arrays {surplus}")
        return cls(families)
