"""One vector per query: the states of one site of an encoder, as an embedding of the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Site, rounded
from prefill_router.errors import ProvenanceError, StoreError
from prefill_router.features.base import EncoderStates, Need, find_store
from prefill_router.geometry import SiteStates

Vectors = Float32[NDArray[np.float32], "query hidden"]
EMBEDDERS = ("sentence:", "endpoint:")
"""Encoders whose only site is their own output."""


@final
@dataclass(frozen=True)
class VectorSource:
    """Where the vectors are read.

    Attributes:
        source: Which states.
        site: At which layer, with which pooling.
        normalise: Whether they are brought to length 1; a vector of zeros stays as it is.
    """

    source: EncoderStates
    site: Site
    normalise: bool

    @classmethod
    def choose(
        cls, states: Sequence[Activations], *, encoder: str, site: str | None, normalise: bool
    ) -> "VectorSource":
        """The source among some states.

        Args:
            states: What there is.
            encoder: The encoder's name.
            site: Such as `mean.6`; if not given, what a model of embeddings puts out (`own.1`), or
                the mean over the tokens at an encoder's last layer.
            normalise: See the attribute.

        Raises:
            StoreError: There are no states of that encoder.
            ConfigError: `site` isn't one.
        """
        for store in states:
            if store.provenance.encoder == encoder:
                place = default_site(store.provenance) if site is None else Site.parse(site)
                return cls(EncoderStates.of(store), place, normalise)
        given = ", ".join(repr(s.provenance.encoder) for s in states) or "none"
        raise StoreError(
            f"the features need states of the encoder {encoder!r}; given are those of {given}; "
            "encode the train queries with that encoder"
        )

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The site, if the encoder is this one."""
        return (self.site,) if provenance == self.source.provenance else ()

    def read(self, states: Sequence[Activations], keys: Sequence[str]) -> Vectors:
        """The vectors of these prompts.

        Exact states are rounded as the train rows' were; others must be rounded already.

        Raises:
            ProvenanceError: The encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """
        store = find_store(states, self.source.provenance)
        if store.rounding not in ("float32", self.source.rounding):
            raise ProvenanceError(
                f"{store.name} holds {store.rounding}; the router was fitted on states rounded to "
                f"{self.source.rounding}: encode the queries again in that type"
            )
        result = np.empty((len(keys), self.source.provenance.hidden_size), dtype=np.float32)
        for rows, found in SiteStates(store, self.site, keys):
            same = store.rounding == self.source.rounding
            result[rows] = found if same else rounded(found, self.source.rounding)
        return _unit(result) if self.normalise else result


def default_site(provenance: Provenance) -> Site:
    """What an encoder's embedding is where no site is named."""
    if provenance.encoder.startswith(EMBEDDERS):
        return Site.parse("own.1")
    return Site(provenance.num_layers, "mean")


def need(*, encoder: str, site: str | None) -> Need:
    """The states that `VectorSource.choose` needs.

    Raises:
        ConfigError: `site` isn't one.
    """
    if site is None and encoder.startswith(EMBEDDERS):
        site = "own.1"
    return Need(encoder, None if site is None else (Site.parse(site),))


def _unit(vectors: Vectors) -> Vectors:
    """Of length 1; divided by the greatest number first, so that no square overflows."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    scaled = vectors / np.where(largest > 0, largest, 1).astype(np.float64)
    length = np.sqrt((scaled**2).sum(axis=1, keepdims=True))
    return (scaled / np.where(length > 0, length, 1)).astype(np.float32)
