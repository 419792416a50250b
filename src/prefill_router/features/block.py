"""One block of Equation 3: the reduced states of one site of one encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Site, rounded
from prefill_router.brief import brief
from prefill_router.errors import ProvenanceError
from prefill_router.features.base import EncoderStates
from prefill_router.geometry import SiteStates
from prefill_router.reduction import Reducer


@brief
@final
@dataclass(frozen=True, eq=False)
class Block:
    """Columns of the features.

    Attributes:
        source: Which states.
        site: At which layer, with which pooling.
        reducer: Fitted on the train rows.
    """

    source: EncoderStates
    site: Site
    reducer: Reducer

    @property
    def provenance(self) -> Provenance:
        """What makes its states."""
        return self.source.provenance

    @property
    def dim(self) -> int:
        """How many columns it has."""
        return self.reducer.dim

    def transform(
        self, activations: Activations, keys: Sequence[str]
    ) -> Float32[NDArray[np.float32], "query dim"]:
        """The columns of these prompts.

        Float32 states are rounded here as the train rows' were; others must be rounded already.

        Raises:
            ProvenanceError: The states are of another encoder, site or type.
            StoreError: Some aren't held.
        """
        result = np.empty((len(keys), self.dim), dtype=np.float32)
        for rows, states in states_like(self.source, self.site, activations, keys):
            result[rows] = self.reducer.transform(states)
        return result


def states_like(
    source: EncoderStates, site: Site, activations: Activations, keys: Sequence[str]
) -> Iterator[tuple[slice, Float32[NDArray[np.float32], "query hidden"]]]:
    """Rows (a slice into the keys) and their states, rounded as those that were fitted on.

    Raises:
        ProvenanceError: The states are of another encoder, site or type.
        StoreError: Some aren't held.
    """
    source.provenance.require(activations.provenance, what=activations.name)
    if activations.rounding not in ("float32", source.rounding):
        raise ProvenanceError(
            f"{activations.name} holds {activations.rounding}; the router was fitted on states "
            f"rounded to {source.rounding}: encode the queries again in that type"
        )
    for rows, states in SiteStates(activations, site, keys):
        same = activations.rounding == source.rounding
        yield rows, states if same else rounded(states, source.rounding)
