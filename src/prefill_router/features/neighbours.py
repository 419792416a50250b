"""Statistics of the nearest train queries: how often, and how close, each target was right.

A family of features, its options, and what is saved of it; `neighbour_statistics` computes the
statistics.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import MINILM, OWN, gives_own_vectors
from prefill_router.errors import ConfigError, CorruptError, FitError
from prefill_router.features.base import (
    Columns,
    ColumnScaler,
    EncoderStates,
    Family,
    FamilyConfig,
    Need,
    PromptStates,
)
from prefill_router.features.neighbour_statistics import (
    STATISTICS,
    Kernel,
    Labels,
    check_options,
    statistics,
)
from prefill_router.features.registry import FamilyEntry
from prefill_router.features.single_site import SavedSite, SingleSite, store_of, validated
from prefill_router.neighbours import NeighbourIndex, Vectors
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
        where = SingleSite(EncoderStates.of(store), site)
        reading = PromptStates.of_dataset(train, [store])
        parts = [vectors for _, vectors in vectors_of(where, reading, normalise=self.normalise)]
        vectors = np.concatenate(parts)
        index = NeighbourIndex.of(vectors, train.prompt_keys)
        correct = train.correct.astype(np.float32)
        raw = statistics(index, correct, vectors, index.keys, ks=self.ks, kernel=self.kernel)
        standard = ColumnScaler.fit(raw)
        return Neighbours(where, self.normalise, index, correct, self.ks, self.kernel, standard)


_QUERIES_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Neighbours(Family):
    """Frozen neighbour statistics: made by `NeighboursConfig.fit` or `from_dict`.

    Attributes:
        where: Which states are the vectors.
        normalise: Whether each is brought to length 1 first.
        index: The train rows.
        correct: Their labels, NaN where missing.
        ks: Over how many neighbours, rising.
        kernel: How distances weigh.
        standard: The scale of each column. Columns go by K, then by `STATISTICS`, then by target.
    """

    kind: ClassVar[str] = "neighbours"

    where: SingleSite
    normalise: bool
    index: NeighbourIndex
    correct: Labels
    ks: tuple[int, ...]
    kernel: Kernel
    standard: ColumnScaler

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.standard.mean)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kind of states that it reads."""
        return (self.where.source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What it reads of one encoder."""
        return self.where.sites_of(provenance)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries; a train row's leave itself out."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, vectors in vectors_of(self.where, reading, normalise=self.normalise):
            raw = statistics(
                self.index,
                self.correct,
                vectors,
                reading.keys[rows],
                ks=self.ks,
                kernel=self.kernel,
            )
            result[rows] = self.standard.apply(raw)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; together with `tensors` they are all of it."""
        return neighbours_to_dict(self)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The train rows' vectors, labels (-1 where missing) and keys, and the scaler."""
        return neighbours_to_tensors(self)

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "Neighbours":
        """The family of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        return neighbours_from_dict(config, tensors)


def vectors_of(
    where: SingleSite, reading: PromptStates, *, normalise: bool
) -> Iterator[tuple[slice, Vectors]]:
    """Rows (a slice into the queries) and their vectors, some at a time.

    Raises:
        ProvenanceError: The states are of another encoder, site or type.
        StoreError: Some aren't held.
    """
    for rows, states in where.read(reading):
        for start in range(0, len(states), _QUERIES_AT_ONCE):
            some = states[start : start + _QUERIES_AT_ONCE]
            first = rows.start + start
            yield slice(first, first + len(some)), _unit(some) if normalise else some


def _unit(vectors: Vectors) -> Vectors:
    """Of length 1; what is zero stays so."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(length > 0, length, 1), dtype=np.float32)


_KEY_BYTES = 32  # of a SHA-256


class _SavedNeighbours(SavedSite):
    normalise: bool
    ks: list[int]
    kernel: Kernel


def neighbours_to_dict(family: Neighbours) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "kind": family.kind,
        **family.where.to_dict(),
        "normalise": family.normalise,
        "ks": list(family.ks),
        "kernel": family.kernel,
    }


def neighbours_to_tensors(family: Neighbours) -> dict[str, NDArray[Any]]:
    """The train rows' vectors, labels (-1 where missing) and content keys, and the scaler."""
    correct = family.correct
    keys = np.frombuffer(bytes.fromhex("".join(family.index.keys)), dtype=np.uint8)
    return {
        "vectors": family.index.vectors,
        "correct": np.where(np.isnan(correct), np.float32(-1), correct),
        "keys": keys.reshape(-1, _KEY_BYTES),
        **family.standard.tensors(),
    }


def neighbours_from_dict(
    config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> Neighbours:
    """The family of `to_dict` and `to_tensors`.

    Raises:
        CorruptError: They are incomplete or contradict each other.
    """
    saved = validated(Neighbours.kind, _SavedNeighbours, config)
    try:
        check_options(saved.ks, saved.kernel)
        where = saved.where()
    except ConfigError as error:
        raise CorruptError(f"the router's neighbour features: {error}") from None
    vectors, correct, keys, rest = _take(tensors, where.source.provenance.hidden_size)
    width = len(saved.ks) * len(STATISTICS) * correct.shape[1]
    index = NeighbourIndex.of(vectors, [row.tobytes().hex() for row in keys])
    standard = ColumnScaler.from_tensors(rest, width=width)
    known = np.where(correct < 0, np.float32(np.nan), correct)
    return Neighbours(where, saved.normalise, index, known, tuple(saved.ks), saved.kernel, standard)


def _take(
    tensors: Mapping[str, NDArray[Any]], hidden: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8], dict[str, NDArray[Any]]]:
    """The rows' vectors, labels and keys, checked; and what is left."""
    rest = dict(tensors)
    try:
        vectors, correct, keys = (rest.pop(name) for name in ("vectors", "correct", "keys"))
    except KeyError as error:
        raise CorruptError(f"the router's neighbour features lack the array {error}") from None
    rows, targets = correct.shape if correct.ndim == 2 else (0, 0)
    sound = (
        rows >= 2
        and targets >= 1
        and _is(vectors, np.float32, (rows, hidden))
        and _is(keys, np.uint8, (rows, _KEY_BYTES))
        and _is(correct, np.float32, (rows, targets))
        and bool(np.isfinite(vectors).all())
        and bool(((correct == -1) | ((correct >= 0) & (correct <= 1))).all())
    )
    if not sound:
        raise CorruptError(
            f"the router's neighbour features' vectors {vectors.dtype} {vectors.shape}, labels "
            f"{correct.dtype} {correct.shape} and keys {keys.dtype} {keys.shape} aren't those of "
            f"two rows or more with {hidden} numbers each; copy or make the router again"
        )
    return vectors, correct, keys, rest


def _is(array: NDArray[Any], kind: type[np.generic], shape: tuple[int, ...]) -> bool:
    return array.dtype == np.dtype(kind) and array.shape == shape


__all__ = ["ENTRY", "Neighbours", "NeighboursConfig"]

ENTRY = FamilyEntry(NeighboursConfig, Neighbours)
