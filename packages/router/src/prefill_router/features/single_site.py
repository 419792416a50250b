"""Families that read one site of one encoder: dense embeddings, and language-model signals.

An embedding of the prompt is the whole vector, or its leading principal components. The signals of
the prompt are its log-probability, perplexity and entropy. The perplexity is used as its logarithm,
since a single outlier would dominate otherwise. This logarithm is minus the mean log-probability,
so two of the three columns carry the same information.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from prefill_router.activations import Activations, Provenance, Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import (
    MINILM,
    OWN,
    EncoderName,
    States,
    gives_own_vectors,
    recorded_name,
)
from prefill_router.errors import ConfigError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    Family,
    FamilyConfig,
    FamilyEntry,
    Need,
    PromptStates,
    SavedStates,
    find_store,
    states_like,
)
from prefill_router.geometry import Moments, SiteStates
from prefill_router.progress import Progress
from prefill_router.reduction import Reducer, standard_scale
from prefill_router.serialization import Part, Saved

Vectors = Float64[NDArray[np.float64], "query column"]


SavedSource = Saved(
    "states", form=Annotated[SavedStates, AfterValidator(SavedStates.source)], write=SavedStates.of
)
SavedName = Saved(form=Annotated[str, AfterValidator(Site.parse)], write=attrgetter("name"))


@final
@dataclass(frozen=True)
class SingleSite(Part):
    """One site of one encoder.

    Attributes:
        source: The provenance and rounding of the states.
        site: The layer and pooling.
    """

    axes: ClassVar[Mapping[str, str]] = {"hidden": "states.provenance.hidden_size"}
    source: Annotated[EncoderStates, SavedSource]
    site: Annotated[Site, SavedName]

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The site, if this is its encoder; otherwise none."""
        return (self.site,) if provenance == self.source.provenance else ()

    def read(self, reading: PromptStates) -> Iterator[tuple[slice, States]]:
        """Rows (a slice of the queries) and their states.

        Raises:
            ProvenanceError: The states are of another encoder, site or type.
            StoreError: Some states are missing.
        """
        store = find_store(reading.states, self.source.provenance)
        return states_like(self.source, self.site, store, reading.keys)

    def moments(
        self, store: Activations, keys: Sequence[str], vectors: Callable[[States], Vectors]
    ) -> Moments:
        """The moments of the vectors that `vectors` computes from the states of some prompts."""
        parts = (Moments.of(vectors(states)) for _, states in SiteStates(store, self.site, keys))
        return Moments.total(parts, hidden=self.source.provenance.hidden_size)

    def verify(self) -> None:
        """Check that the encoder has such a layer."""
        layers = self.source.provenance.num_layers
        if self.site.layer > layers:
            raise ConfigError(f"the site is {self.site.name}; the encoder has {layers} layers")


@dataclass(frozen=True, eq=False)
class SingleSiteFamily(Family):
    """A family that reads one site of one encoder.

    Attributes:
        where: The site that it reads.
    """

    where: SingleSite

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The states that it reads."""
        return (self.where.source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that it reads."""
        return self.where.sites_of(provenance)


@dataclass(frozen=True, kw_only=True)
class VectorsConfig(FamilyConfig):
    """Options of a family that reads one vector of each query.

    Attributes:
        encoder: The encoder's name, as for `encoders.load_encoder`.
        site: A site such as `mean.6`. By default an encoder's own vector if it outputs one, else
            the mean over the tokens at the last layer, which for MiniLM is its sentence embedding.
        normalise: Whether vectors are scaled to unit length first, so that directions are compared.
    """

    encoder: str = MINILM
    site: str | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        _ = self._wanted_site  # an invalid site is refused at once

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of the encoder, at the site if that is known before the encoder is loaded."""
        return (Need(self.encoder, None if self._wanted_site is None else (self._wanted_site,)),)

    @property
    def _wanted_site(self) -> Site | None:
        if self.site is not None:
            return Site.parse(self.site)
        return OWN if gives_own_vectors(self.encoder) else None

    def where_of(self, states: Sequence[Activations]) -> tuple[Activations, SingleSite]:
        """The store and the site that are read.

        Raises:
            ConfigError: No states of the encoder are given.
        """
        store = store_of(states, self.encoder, self._wanted_site)
        site = self._wanted_site or Site(store.provenance.num_layers, "mean")
        return store, SingleSite(EncoderStates.of(store), site)


def store_of(states: Sequence[Activations], encoder: str, site: Site | None) -> Activations:
    """The store of an encoder of this name, preferably one with the site.

    Raises:
        ConfigError: No states of the encoder are given.
    """
    name = recorded_name(encoder)
    named = [store for store in states if store.provenance.encoder == name]
    if not named:
        encoders = sorted({store.provenance.encoder for store in states}) or "none"
        raise ConfigError(
            f"the features need states of the encoder {name!r}; given are those of {encoders}: "
            "make "
            f"them with prefill-router encode --encoder {encoder}"
        )
    return next((store for store in named if site in store.sites), named[0])


PerDimension = Float32[NDArray[np.float32], " hidden"]


@final
@dataclass(frozen=True, eq=False)
class Embedding(SingleSiteFamily):
    """Embeddings, standardised and perhaps reduced by PCA. Made by `EmbeddingConfig.fit`.

    Attributes:
        where: The site whose states are the embeddings.
        normalise: Whether each is scaled to unit length first.
        mean: The train rows' mean; 0 where they aren't centred.
        scale: Their standard deviation; 1 where they aren't standardised.
        components: Leading principal components, orthonormal rows; None keeps every dimension.
    """

    kind: ClassVar[str] = "embedding"

    axes: ClassVar[Mapping[str, str]] = {"dim": "dim"}
    normalise: bool
    mean: PerDimension
    scale: Annotated[PerDimension, Field(gt=0)]
    components: Float32[NDArray[np.float32], "dim hidden"] | None

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.mean if self.components is None else self.components)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, states in self.where.read(reading):
            scaled = (_embedding_vectors(states, self.normalise) - self.mean) / self.scale
            result[rows] = scaled if self.components is None else scaled @ self.components.T
        return result


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(VectorsConfig):
    """Options of the embeddings.

    Attributes:
        dim: Principal components to keep, such as 128 or 256 (section 3.3); None for the whole
            vector.
        standardise: Whether every dimension is standardised to mean 0 and standard deviation 1 over
            the train rows, before PCA.
    """

    dim: int | None = None
    standardise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim is not None and self.dim < 1:
            raise ConfigError(f"dim is {self.dim}; an embedding keeps at least 1 component")

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Embedding:
        """Compute the moments of the train rows; labels aren't used."""
        del seed, progress
        store, where = self.where_of(states)
        moments = where.moments(
            store, train.prompt_keys, lambda s: _embedding_vectors(s, self.normalise)
        )
        return Embedding(where, self.normalise, *self._fit_reduction(moments))

    def _fit_reduction(self, moments: Moments) -> tuple[PerDimension, PerDimension, Any]:
        if self.dim is not None:
            reducer = Reducer.fit(moments, self.dim, standardise=self.standardise)
            return reducer.mean, reducer.scale, reducer.components
        scale, _ = standard_scale(moments)
        if self.standardise:
            return moments.mean.astype(np.float32), scale.astype(np.float32), None
        return np.zeros(len(scale), np.float32), np.ones(len(scale), np.float32), None


def _embedding_vectors(states: States, normalise: bool) -> Vectors:
    vectors = states.astype(np.float64)
    if not normalise:
        return vectors
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.where(length > 0, length, 1.0)
    return unit


EMBEDDING = FamilyEntry(EmbeddingConfig, Embedding)


_COLUMNS = 3
_PERPLEXITY = 1


@final
@dataclass(frozen=True, eq=False)
class Signals(SingleSiteFamily):
    """The signals of a language model, standardised. Made by `SignalsConfig.fit`.

    Attributes:
        where: The site whose states are the signals.
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for a constant column.
    """

    kind: ClassVar[str] = "signals"

    mean: Float32[NDArray[np.float32], "3"]
    scale: Annotated[Float32[NDArray[np.float32], "3"], Field(gt=0)]

    @property
    def width(self) -> int:
        """The number of columns."""
        return _COLUMNS

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.empty((len(reading), _COLUMNS), dtype=np.float32)
        for rows, states in self.where.read(reading):
            result[rows] = (_signal_vectors(states) - self.mean) / self.scale
        return result

    def verify(self) -> None:
        """Check that the states are signals."""
        _check_width(self.where.source.provenance)


@final
@dataclass(frozen=True, kw_only=True)
class SignalsConfig(FamilyConfig):
    """Options of the signals.

    Attributes:
        encoder: `signals:` and a causal language model, as a hub id or a folder.
    """

    encoder: str = "signals:gpt2"

    def __post_init__(self) -> None:
        if EncoderName.parse(self.encoder).scheme != "signals":
            raise ConfigError(
                f"the encoder of signals is {self.encoder!r}; name a causal language model, such "
                "as signals:gpt2"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The signals of the language model."""
        return (Need(self.encoder, (OWN,)),)

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Signals:
        """Compute the moments of the train rows; labels aren't used."""
        del seed, progress
        store = store_of(states, self.encoder, OWN)
        _check_width(store.provenance)
        where = SingleSite(EncoderStates.of(store), OWN)
        moments = where.moments(store, train.prompt_keys, _signal_vectors)
        scale, _ = standard_scale(moments)
        return Signals(where, moments.mean.astype(np.float32), scale.astype(np.float32))


def _check_width(provenance: Provenance) -> None:
    if provenance.hidden_size != _COLUMNS:
        raise ConfigError(
            f"the states of {provenance.encoder!r} are {provenance.hidden_size} wide; signals are "
            f"{_COLUMNS} wide"
        )


def _signal_vectors(states: States) -> Vectors:
    vectors = states.astype(np.float64)
    perplexity = np.maximum(vectors[:, _PERPLEXITY], 1.0)  # it is at least 1
    vectors[:, _PERPLEXITY] = np.log(perplexity)
    return vectors


SIGNALS = FamilyEntry(SignalsConfig, Signals)
