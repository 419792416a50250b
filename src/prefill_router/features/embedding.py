"""Dense embeddings of the question: one vector per prompt, whole or its leading components."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import MINILM, OWN, gives_own_vectors
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    Family,
    FamilyConfig,
    Need,
    PromptStates,
)
from prefill_router.features.extractor import Positive
from prefill_router.features.registry import FamilyEntry
from prefill_router.features.single_site import (
    SavedSite,
    SingleSite,
    States,
    Vectors,
    store_of,
    take_arrays,
    validated,
)
from prefill_router.geometry import Moments
from prefill_router.progress import Progress
from prefill_router.reduction import Reducer, standard_scale

PerDimension = Float32[NDArray[np.float32], " hidden"]


@final
@dataclass(frozen=True, eq=False)
class Embedding(Family):
    """Embeddings, brought to one spread and perhaps rotated. Made by `EmbeddingConfig.fit`.

    Attributes:
        where: Which states are the embeddings.
        normalise: Whether each is brought to length 1 first.
        mean: Of the train rows; 0 where they aren't centred.
        scale: Their standard deviation; 1 where they aren't standardised.
        components: Leading principal components, orthonormal rows; None keeps every dimension.
    """

    kind: ClassVar[str] = "embedding"

    where: SingleSite
    normalise: bool
    mean: PerDimension
    scale: PerDimension
    components: Float32[NDArray[np.float32], "dim hidden"] | None

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.mean if self.components is None else self.components)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The states that it reads."""
        return (self.where.source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What it reads of one encoder."""
        return self.where.sites_of(provenance)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, states in self.where.read(reading):
            scaled = (_vectors(states, self.normalise) - self.mean) / self.scale
            result[rows] = scaled if self.components is None else scaled @ self.components.T
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; together with `tensors` they are all of it."""
        dim = None if self.components is None else len(self.components)
        return {
            "kind": self.kind,
            **self.where.to_dict(),
            "normalise": self.normalise,
            "dim": dim,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays."""
        kept = {} if self.components is None else {"components": self.components}
        return {"mean": self.mean, "scale": self.scale, **kept}

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "Embedding":
        """The family of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = validated(cls.kind, _SavedEmbedding, config)
        try:
            where = saved.where()
        except ConfigError as error:
            raise CorruptError(f"the router's embedding features: {error}") from None
        hidden = where.source.provenance.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"mean": (hidden,), "scale": (hidden,)}
        if saved.dim is not None:
            shapes["components"] = (saved.dim, hidden)
        mean, scale, *rest = take_arrays(cls.kind, tensors, shapes)
        return cls(where, saved.normalise, mean, scale, rest[0] if rest else None)


class _SavedEmbedding(SavedSite):
    normalise: bool
    dim: Positive | None


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(FamilyConfig):
    """Options of the embeddings.

    Attributes:
        encoder: What makes them, as `encoders.load_encoder` takes it.
        site: Such as `mean.6`; by default an encoder's own vector where it gives one, else the mean
            over the tokens at the last layer, which for MiniLM is its sentence embedding.
        dim: Principal components to keep, such as 128 or 256 (section 3.3); None for the whole.
        standardise: Whether every dimension is brought to mean 0 and spread 1 over the train rows,
            before components are taken.
        normalise: Whether each embedding is brought to length 1 first.
    """

    encoder: str = MINILM
    site: str | None = None
    dim: int | None = None
    standardise: bool = True
    normalise: bool = True

    def __post_init__(self) -> None:
        _ = self._site  # one that is none is refused at once
        if self.dim is not None and self.dim < 1:
            raise ConfigError(f"dim is {self.dim}; an embedding keeps at least 1 component")

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
    ) -> Embedding:
        """Take the moments of the train rows; labels aren't looked at."""
        del seed, progress
        store = store_of(states, self.encoder, self._site)
        site = self._site or Site(store.provenance.num_layers, "mean")
        where = SingleSite(EncoderStates.of(store), site)
        moments = where.moments(store, train.prompt_keys, lambda s: _vectors(s, self.normalise))
        return Embedding(where, self.normalise, *self._fitted(moments))

    def _fitted(self, moments: Moments) -> tuple[PerDimension, PerDimension, Any]:
        if self.dim is not None:
            reducer = Reducer.fit(moments, self.dim, standardise=self.standardise)
            return reducer.mean, reducer.scale, reducer.components
        scale, _ = standard_scale(moments)
        if self.standardise:
            return moments.mean.astype(np.float32), scale.astype(np.float32), None
        return np.zeros(len(scale), np.float32), np.ones(len(scale), np.float32), None


def _vectors(states: States, normalise: bool) -> Vectors:
    vectors = states.astype(np.float64)
    if not normalise:
        return vectors
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.where(length > 0, length, 1.0)
    return unit


ENTRY = FamilyEntry(EmbeddingConfig, Embedding)
