"""Dense embeddings of the prompt: the whole vector, or its leading principal components."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features.base import Columns, FamilyEntry, PromptStates
from prefill_router.features.single_site import (
    SingleSiteFamily,
    States,
    Vectors,
    VectorsConfig,
)
from prefill_router.geometry import Moments
from prefill_router.progress import Progress
from prefill_router.reduction import Reducer, standard_scale

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
            scaled = (_vectors(states, self.normalise) - self.mean) / self.scale
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
