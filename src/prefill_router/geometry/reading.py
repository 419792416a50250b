"""The states of one site, in chunks that fit into memory."""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.errors import StoreError

CHUNK_BYTES = 1 << 29
States = Float32[NDArray[np.float32], "query hidden"]


@final
class SiteStates:
    """Iterates over (rows, states) of a site; read from the store once where one chunk holds all.

    Rows is a slice into the keys. Iterating again gives the same chunks.
    """

    def __init__(
        self,
        activations: Activations,
        site: Site,
        keys: Sequence[str],
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._activations = activations
        self._site = site
        self._keys = keys
        self._rows = max(1, chunk_bytes // (4 * activations.provenance.hidden_size))
        self._whole: States | None = None

    def __iter__(self) -> Iterator[tuple[slice, States]]:
        if self._whole is None and len(self._keys) <= self._rows:
            self._whole = self._read(slice(0, len(self._keys)))
        if self._whole is not None:
            yield slice(0, len(self._keys)), self._whole
            return
        for start in range(0, len(self._keys), self._rows):
            rows = slice(start, min(start + self._rows, len(self._keys)))
            yield rows, self._read(rows)

    def _read(self, rows: slice) -> States:
        states = self._activations.read(self._site, self._keys[rows])
        if not np.isfinite(states).all():
            bad = int((~np.isfinite(states).all(axis=1)).sum())
            raise StoreError(
                f"{self._activations.name} holds {bad} states at {self._site.name} that aren't "
                "finite; encode the queries again with: prefill-router encode"
            )
        return states
