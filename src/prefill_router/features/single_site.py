"""The common part of families that read one site of one encoder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import AfterValidator

from prefill_router.activations import Activations, Provenance, Site
from prefill_router.encoders import MINILM, OWN, gives_own_vectors, recorded_name
from prefill_router.errors import ConfigError
from prefill_router.features.base import (
    EncoderStates,
    Family,
    FamilyConfig,
    Need,
    PromptStates,
    find_store,
)
from prefill_router.features.extractor import SavedStates, states_like
from prefill_router.geometry import Moments, SiteStates
from prefill_router.serialization import Part, Saved

States = Float32[NDArray[np.float32], "query hidden"]
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
        site: A site such as `mean.6`; by default an encoder's own vector if it outputs one, else
            the mean over the tokens at the last layer, which for MiniLM is its sentence embedding.
        normalise: Whether vectors are scaled to unit length first, so that directions are compared.
    """

    encoder: str = MINILM
    site: str | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        _ = self._site  # an invalid site is refused at once

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of the encoder, at the site if that is known before the encoder is loaded."""
        return (Need(self.encoder, None if self._site is None else (self._site,)),)

    @property
    def _site(self) -> Site | None:
        if self.site is not None:
            return Site.parse(self.site)
        return OWN if gives_own_vectors(self.encoder) else None

    def where_of(self, states: Sequence[Activations]) -> tuple[Activations, SingleSite]:
        """The store and the site that are read.

        Raises:
            ConfigError: No states of the encoder are given.
        """
        store = store_of(states, self.encoder, self._site)
        site = self._site or Site(store.provenance.num_layers, "mean")
        return store, SingleSite(EncoderStates.of(store), site)


def store_of(states: Sequence[Activations], encoder: str, site: Site | None) -> Activations:
    """The store of an encoder of this name, preferably one with the site.

    Raises:
        ConfigError: No states of the encoder are given.
    """
    name = recorded_name(encoder)
    named = [store for store in states if store.provenance.encoder == name]
    if not named:
        given = sorted({store.provenance.encoder for store in states}) or "none"
        raise ConfigError(
            f"the features need states of the encoder {name!r}; given are those of {given}: make "
            f"them with prefill-router encode --encoder {encoder}"
        )
    return next((store for store in named if site in store.sites), named[0])
