"""Options of the neighbour statistics, and how they are fitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import MINILM, OWN, gives_own_vectors
from prefill_router.errors import FitError
from prefill_router.features.base import EncoderStates, FamilyConfig, Need, Reading
from prefill_router.features.neighbours.family import Neighbours, vectors_of
from prefill_router.features.neighbours.statistics import Kernel, check_options, statistics
from prefill_router.features.one_site import OneSite, store_of
from prefill_router.features.standard import Standard
from prefill_router.neighbours import NeighbourIndex
from prefill_router.progress import Progress


@final
@dataclass(frozen=True, kw_only=True)
class NeighboursConfig(FamilyConfig):
    """Options of the neighbour statistics.

    Attributes:
        encoder: Whose states are the vectors that are compared.
        site: Which ones, such as `mean.6`; by default an encoder's own vector where it gives one,
            else the mean over the tokens at the last layer.
        ks: Over how many neighbours; each gives four columns per target.
        normalise: Whether vectors are brought to length 1 first, so that directions are compared.
        kernel: How a distance d weighs in the weighted share, with h the distance to the K-th
            neighbour: `inverse` is 1 / d, `gaussian` exp(-(d / h)^2 / 2).
    """

    encoder: str = MINILM
    site: str | None = None
    ks: tuple[int, ...] = (5, 10, 25, 50, 100)
    normalise: bool = True
    kernel: Kernel = "inverse"

    def __post_init__(self) -> None:
        check_options(self.ks, self.kernel)
        _ = self._site  # one that is none is refused at once

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of the encoder, at the site where that is known before it is loaded."""
        return (Need(self.encoder, None if self._site is None else (self._site,)),)

    @property
    def _site(self) -> Site | None:
        if self.site is not None:
            return Site.parse(self.site)
        return OWN if gives_own_vectors(self.encoder) else None

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "Neighbours":
        """Keep the train rows, and standardise by what they are to each other.

        Nothing is drawn. Every train row's statistics leave itself out, and all rows of the same
        prompt.

        Raises:
            FitError: There are fewer than two different prompts, or no label.
        """
        del seed, progress
        if len(set(train.prompt_keys)) < 2 or np.isnan(train.correct).all():
            raise FitError(
                f"neighbours of {len(set(train.prompt_keys))} different prompts with "
                f"{int((~np.isnan(train.correct)).sum())} labels say nothing; give two at least"
            )
        store = store_of(states, self.encoder, self._site)
        site = self._site or Site(store.provenance.num_layers, "mean")
        where = OneSite(EncoderStates.of(store), site)
        reading = Reading.of_dataset(train, [store])
        parts = [vectors for _, vectors in vectors_of(where, reading, normalise=self.normalise)]
        vectors = np.concatenate(parts)
        index = NeighbourIndex.of(vectors, train.prompt_keys)
        correct = train.correct.astype(np.float32)
        raw = statistics(index, correct, vectors, index.keys, ks=self.ks, kernel=self.kernel)
        standard = Standard.fit(raw)
        return Neighbours(where, self.normalise, index, correct, self.ks, self.kernel, standard)
