"""How states lie in space: the paper's three geometric statistics, and exact nearest neighbours.

The statistics are effective dimensionality, anisotropy and Fisher separability. The sums that a
statistic needs are objects that add up over disjoint rows; the statistic is a function of the sums.
`SiteStates` reads the states of one site in chunks that fit into memory.

First and second moments are kept as count, mean and scatter about that mean. They are added by the
pairwise update of Chan, Golub and LeVeque (1979). The update loses nothing if the mean is far
larger than the spread, as in a residual stream.

Nearest neighbours are exact, by Euclidean distance. A search in float32 compares by
``|x|^2 + |y|^2 - 2xy``, whose rounding can exceed the distance of near rows, and changes with the
number of queries. Here it proposes candidates, a few more than asked for; their distances are then
computed in float64 from the differences. A query's answer is kept once no row that wasn't proposed
can be nearer by the bound on rounding; otherwise more are proposed. So the answer is that
of a brute-force search in float64, whatever the batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import final

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import Table, binary
from prefill_router.errors import ConfigError, FitError, StoreError
from prefill_router.short_repr import short_repr

_BLOCK_BYTES = 1 << 26


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of some rows; moments of disjoint rows can be added.

    Attributes:
        count: The number of rows.
        mean: The rows' mean.
        scatter: The sum of the outer products of the rows' deviations from the mean.
    """

    count: int
    mean: Float64[NDArray[np.float64], " hidden"]
    scatter: Float64[NDArray[np.float64], "hidden hidden"]

    @classmethod
    def empty(cls, hidden: int) -> "Moments":
        """The moments of no rows."""
        return cls(0, np.zeros(hidden), np.zeros((hidden, hidden)))

    @classmethod
    def of(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Moments":
        """The moments of these rows, computed in float64 block by block."""
        size = max(1, _BLOCK_BYTES // (8 * max(1, states.shape[1])))
        blocks = (states[i : i + size] for i in range(0, len(states), size))
        return cls.total((cls._of_block(block) for block in blocks), hidden=states.shape[1])

    @classmethod
    def total(cls, parts: Iterable["Moments"], *, hidden: int) -> "Moments":
        """The sum of the moments of disjoint rows."""
        return reduce(add, parts, cls.empty(hidden))

    @classmethod
    def _of_block(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Moments":
        wide = states.astype(np.float64)
        mean = wide.mean(axis=0)
        wide -= mean
        return cls(len(wide), mean, wide.T @ wide)

    def __add__(self, other: "Moments") -> "Moments":
        if self.mean.shape != other.mean.shape:
            raise ConfigError(
                f"moments of {len(self.mean)} and {len(other.mean)} dimensions can't be added; "
                "take both from the states of one encoder"
            )
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        step = other.mean - self.mean
        scatter = np.outer(step * (self.count * other.count / count), step)
        scatter += self.scatter
        scatter += other.scatter
        return Moments(count, self.mean + step * (other.count / count), scatter)

    @property
    def covariance(self) -> Float64[NDArray[np.float64], "hidden hidden"]:
        """The sample covariance.

        Raises:
            FitError: There are fewer than two rows.
        """
        if self.count < 2:
            raise FitError(f"a covariance needs two rows or more; got {self.count}: add queries")
        return self.scatter / (self.count - 1)


Features = Float[NDArray[np.floating], "query feature"]


def effective_dimensionality(moments: Moments) -> float:
    """Participation ratio of the covariance's eigenvalues (Equation `deff`).

    From traces, without eigenvalues: (tr C)^2 / tr(C^2).

    Args:
        moments: Moments of the raw states.

    Returns:
        From 1 (all variance in one direction) to the hidden size (equal variance in all); NaN where
        there is no variance.
    """
    trace, squares = (
        float(np.trace(moments.scatter)),
        float(np.vdot(moments.scatter, moments.scatter)),
    )
    return trace**2 / squares if squares > 0 else float("nan")


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Directions:
    """The sum of rows scaled to unit length; rows of zeros have no direction and are left out.

    Attributes:
        count: The number of rows that have a direction.
        total: The sum of their unit vectors.
    """

    count: int
    total: Float64[NDArray[np.float64], " hidden"]

    @classmethod
    def of(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Directions":
        """The sum of the directions of these rows."""
        largest = np.abs(states).max(axis=1, initial=0).astype(np.float64)
        nonzero = np.flatnonzero(largest)
        scaled = states[nonzero] / largest[nonzero, None]  # so that no square over- or underflows
        lengths = np.sqrt(np.einsum("rh,rh->r", scaled, scaled))
        return cls(len(nonzero), (1 / lengths) @ scaled)

    def __add__(self, other: "Directions") -> "Directions":
        return Directions(self.count + other.count, self.total + other.total)


def anisotropy(directions: Directions) -> float:
    """Mean cosine of all pairs of different rows (Equation `anisotropy`), in O(rows x hidden).

    The squared length of the sum of n unit vectors is n plus twice the sum of the pairs' cosines.

    Returns:
        1 where all states point in one direction, about 0 where they point in all; NaN for fewer
        than two rows with a direction.
    """
    n = directions.count
    if n < 2:
        return float("nan")
    return float((directions.total @ directions.total - n) / (n * (n - 1)))


@short_repr
@final
@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over the queries that each target answers wrongly (class 0) and correctly (class 1).

    Attributes:
        counts: The number of queries.
        sums: The sum of the queries' features.
        squares: The sum of the squared lengths of the queries' features.
    """

    counts: Float64[NDArray[np.float64], "2 target"]
    sums: Float64[NDArray[np.float64], "2 target feature"]
    squares: Float64[NDArray[np.float64], "2 target"]

    @classmethod
    def of(cls, features: Features, correct: Table) -> "ClassSums":
        """The sums of these rows.

        Args:
            features: Best centred near zero, as `Reducer.transform` returns them.
            correct: Labels, cut at 0.5; NaN (not measured) is in neither class.
        """
        if len(features) != len(correct):
            raise ConfigError(f"{len(features)} rows of features, but {len(correct)} of labels")
        labels = binary(correct)
        members = np.stack([labels == 0, labels == 1]).astype(np.float64).transpose(0, 2, 1)
        wide = features.astype(np.float64)
        lengths = np.einsum("qf,qf->q", wide, wide)
        return cls(members.sum(axis=2), members @ wide, members @ lengths)

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return ClassSums(
            self.counts + other.counts, self.sums + other.sums, self.squares + other.squares
        )

    def fisher(self) -> Float64[NDArray[np.float64], " target"]:
        """Fisher's J of each target (Equation `fisher`), with sample covariances.

        NaN where a class has fewer than two queries, or nothing differs at all.
        """
        counts = np.where(self.counts < 2, np.nan, self.counts)
        means = self.sums / counts[:, :, None]
        traces = (self.squares - counts * (means**2).sum(axis=2)) / (counts - 1)
        gap = ((means[1] - means[0]) ** 2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # no spread: inf, or NaN as promised
            j: Float64[NDArray[np.float64], " target"] = gap / np.maximum(traces, 0).sum(axis=0)
        return j


def fisher_j(features: Features, correct: Table) -> Float64[NDArray[np.float64], " target"]:
    """Fisher's J of every target at once (Equation `fisher`); see `ClassSums`.

    Args:
        features: The train rows.
        correct: The labels; soft ones are cut at 0.5, NaN is left out.
    """
    wide = features.astype(np.float64)
    return ClassSums.of(wide - wide.mean(axis=0), correct).fisher()


CHUNK_BYTES = 1 << 28
"""The bytes of states that are read at once."""
_PIECE_ROWS = 1 << 16
States = Float32[NDArray[np.float32], "query hidden"]


@final
class SiteStates:
    """Iterates over (rows, states) of a site; read from the store only once if one chunk is enough.

    `rows` is a slice of the keys. Iterating again gives the same pieces, of at most 65,536 rows, so
    that what is computed from a piece is small too.
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
        for chunk in _make_slices(0, len(self._keys), self._rows):
            states = self._read_rows(chunk)
            for rows in _make_slices(chunk.start, chunk.stop, _PIECE_ROWS):
                yield rows, states[rows.start - chunk.start : rows.stop - chunk.start]

    def _read_rows(self, rows: slice) -> States:
        if self._whole is not None:
            return self._whole
        states = self._activations.read(self._site, self._keys[rows])
        if not np.isfinite(states).all():
            bad = int((~np.isfinite(states).all(axis=1)).sum())
            raise StoreError(
                f"{self._activations.name} holds {bad} states at {self._site.name} that aren't "
                "finite; encode the queries again with: prefill-router encode"
            )
        if len(states) == len(self._keys):
            self._whole = states
        return states


def _make_slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """Consecutive slices; one empty slice if there is nothing."""
    for begin in range(start, max(stop, start + 1), size):
        yield slice(begin, min(begin + size, stop))


Vectors = Float32[NDArray[np.float32], "row dim"]
Distances = Float64[NDArray[np.float64], "query k"]
Rows = Int64[NDArray[np.int64], "query k"]

_SPARE = 16  # proposals beyond k; nearly always enough to be certain of the first k
_GROWTH = 4
_QUERIES_AT_ONCE = 4096
_CANDIDATES_AT_ONCE = 1 << 22
_DISTANCES_AT_ONCE = 1 << 23
_NUMBERS_AT_ONCE = 1 << 17  # differences computed at once, so that they stay in the CPU cache
_UNIT = 2.0**-24  # the unit roundoff of float32
_SMALLEST = 2.0**-126
_CLIPPED = 1e17  # squares of numbers up to this can be summed in float32
_LARGEST = 1e15  # queries up to this size are clearly nearer to each other than to clipped rows


@final
@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """An index of rows to search. Frozen; built by `of`.

    Attributes:
        vectors: One row per prompt.
        keys: The content key of each row (`data.prompt_key`); they may repeat.
        centre: The rows' median, which is subtracted before the search in single precision; this
            loses less to rounding, even where a few rows are far from all others.
        centred: The rows relative to the centre.
        norms: Their squared norms.
    """

    vectors: Vectors
    keys: tuple[str, ...]
    centre: Float64[NDArray[np.float64], " dim"]
    centred: Vectors = field(repr=False)
    norms: Float32[NDArray[np.float32], " row"] = field(repr=False)

    @classmethod
    def of(cls, vectors: Vectors, keys: Sequence[str] | None = None) -> "NeighbourIndex":
        """Index some rows.

        Args:
            vectors: Finite, at least one row.
            keys: Content key of each row; None where no search will exclude any.

        Raises:
            ConfigError: There is no row, a number isn't finite, or the keys aren't one per row.
        """
        if not vectors.size:
            raise ConfigError(
                f"the rows of the index have the shape {vectors.shape}; give at "
                "least one row and one column"
            )
        _check_finite(vectors, what="the rows to index")
        if keys is not None and len(keys) != len(vectors):
            raise ConfigError(f"{len(keys)} keys for {len(vectors)} rows to index; give one each")
        centre = np.quantile(vectors, 0.5, axis=0, method="lower").astype(np.float64)
        centred = np.empty_like(vectors)
        for rows in _make_slices(0, len(vectors), _QUERIES_AT_ONCE):
            centred[rows] = _centre_vectors(vectors[rows], centre)
        return cls(vectors, tuple(keys or ()), centre, centred, _compute_norms(centred))

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """The width of the rows."""
        return int(self.vectors.shape[1])

    def search(
        self, vectors: Vectors, k: int, exclude: Sequence[str] | None = None
    ) -> tuple[Distances, Rows]:
        """The k nearest rows of each query, nearest first; ties go to the earlier row.

        Args:
            vectors: The queries, finite.
            k: The number of neighbours, at least 1.
            exclude: The content key of each query; rows with the same key are skipped.

        Returns:
            Euclidean distances, and positions in `vectors` of the index. Where a query has fewer
            than k rows left, its last columns hold infinity and -1.

        Raises:
            ConfigError: k is below 1, the widths differ, a number isn't finite, there isn't one key
                per query, or the index has no keys.
        """
        self._check_search(vectors, k, exclude)
        distances = np.full((len(vectors), k), np.inf)
        rows = np.full((len(vectors), k), -1, dtype=np.int64)
        own = self._codes_of(exclude, len(vectors))
        for start in range(0, len(vectors), _QUERIES_AT_ONCE):
            pending = np.arange(start, min(start + _QUERIES_AT_ONCE, len(vectors)))
            width = k + _SPARE
            while len(pending):
                unsure = []
                for some in _split_parts(pending, max(1, _CANDIDATES_AT_ONCE // width)):
                    squared, found, sure = self._find_nearest(vectors[some], own[some], k, width)
                    distances[some, : found.shape[1]] = np.sqrt(squared)
                    rows[some, : found.shape[1]] = found
                    unsure.append(some[~sure])
                pending, width = np.concatenate(unsure), _GROWTH * width
        return distances, rows

    def _find_nearest(
        self, queries: Vectors, own: NDArray[np.int64], k: int, width: int
    ) -> tuple[Distances, Rows, NDArray[np.bool_]]:
        """Squared distances and rows of the k nearest of `width` proposals, and if proven."""
        proposed, beyond = self._propose_rows(queries, width)
        squared = self._compute_distances(queries, proposed)
        squared[self._code_rows[proposed] == own[:, None]] = np.inf
        order = np.argsort(squared, axis=1, kind="stable")[:, :k]
        squared = np.take_along_axis(squared, order, axis=1)
        rows = np.take_along_axis(proposed, order, axis=1)
        rows[np.isinf(squared)] = -1
        return squared, rows, (squared[:, -1] < beyond) | (beyond == np.inf)

    def _propose_rows(self, queries: Vectors, width: int) -> tuple[Rows, NDArray[np.float64]]:
        """Positions of rows, ascending, and a squared distance that all other rows exceed."""
        if width > len(self) // 2:
            every = np.broadcast_to(np.arange(len(self)), (len(queries), len(self)))
            return every, np.full(len(queries), np.inf)
        centred = _centre_vectors(queries, self.centre)
        rows = np.empty((len(queries), width), dtype=np.int64)
        last = np.empty(len(queries))
        for some in _make_slices(0, len(queries), max(1, _DISTANCES_AT_ONCE // len(self))):
            squared = self._square_in_single(centred[some])
            rows[some] = np.argpartition(squared, width - 1, axis=1)[:, :width]
            last[some] = np.take_along_axis(squared, rows[some], axis=1).max(axis=1)
        norms = (centred.astype(np.float64) ** 2).sum(axis=1)
        return np.sort(rows, axis=1), _bound_others(last, norms, self.dim)

    def _square_in_single(self, centred: Vectors) -> Float32[NDArray[np.float32], "query _"]:
        """Squared distances to all rows in single precision, |x|^2 - 2 x y + |y|^2."""
        squared = centred @ self.centred.T
        squared *= -2
        squared += _compute_norms(centred)[:, None]
        squared += self.norms
        return squared

    def _compute_distances(self, queries: Vectors, proposed: Rows) -> Distances:
        """Distances of each query to the rows proposed for it, from the differences."""
        result = np.empty(proposed.shape)
        across = max(1, min(proposed.shape[1], _NUMBERS_AT_ONCE // self.dim))
        down = max(1, _NUMBERS_AT_ONCE // (across * self.dim))
        for i in range(0, len(queries), down):
            here = queries[i : i + down, None, :].astype(np.float64)
            for j in range(0, proposed.shape[1], across):
                away = self.vectors[proposed[i : i + down, j : j + across]] - here
                result[i : i + down, j : j + across] = np.einsum("qrd,qrd->qr", away, away)
        return result

    @cached_property
    def _code_of_key(self) -> dict[str, int]:
        return {key: code for code, key in enumerate(dict.fromkeys(self.keys))}

    @cached_property
    def _code_rows(self) -> NDArray[np.int64]:
        """An integer code for each row's key, from 0; zeros where there are no keys."""
        codes = [self._code_of_key[key] for key in self.keys]
        return np.array(codes or [0] * len(self), dtype=np.int64)

    def _codes_of(self, exclude: Sequence[str] | None, count: int) -> NDArray[np.int64]:
        """The code of the key that each query must not find; -1 for none."""
        codes = [-1] * count if exclude is None else [self._code_of_key.get(k, -1) for k in exclude]
        return np.array(codes, dtype=np.int64)

    def _check_search(self, vectors: Vectors, k: int, exclude: Sequence[str] | None) -> None:
        if k < 1:
            raise ConfigError(f"k is {k}; search for at least 1 neighbour")
        if vectors.shape[1] != self.dim:
            raise ConfigError(
                f"the queries are {vectors.shape[1]} wide; the rows of the index are {self.dim}"
            )
        _check_finite(vectors, what="the queries")
        if exclude is not None and len(exclude) != len(vectors):
            raise ConfigError(f"{len(exclude)} keys for {len(vectors)} queries; give one each")
        if exclude is not None and not self.keys:
            raise ConfigError("the index was made without keys, so it can't exclude by them")


def _bound_others(
    last: NDArray[np.float64], norms: NDArray[np.float64], dim: int
) -> NDArray[np.float64]:
    """A lower bound on the squared distance of every row that wasn't proposed.

    Single precision errs by at most c (|x| + |y|)^2 plus any underflow, with c slightly above dim
    times the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    That is at most 16 c |x|^2 where |y| <= 3 |x|; and at most 4 c times the squared distance itself
    where |y| is greater, since then |x| + |y| <= 2 (|y| - |x|).

    Args:
        last: The greatest squared distance among the proposals, computed in single precision.
        norms: The queries' squared norms |x|^2, relative to the centre.
        dim: The width.
    """
    share = (dim + 16) * _UNIT
    least = np.minimum(last - 16 * share * norms, last * (1 - 4 * share)) - 8 * dim * _SMALLEST
    trusted = np.isfinite(last) & (norms < _LARGEST**2)
    return np.where(trusted, least, -np.inf)


def _centre_vectors(vectors: Vectors, centre: NDArray[np.float64]) -> Vectors:
    """The vectors relative to the centre; what is too large to be squared is clipped."""
    away = np.clip(vectors - centre, -_CLIPPED, _CLIPPED)
    return np.ascontiguousarray(away, dtype=np.float32)


def _check_finite(vectors: Vectors, *, what: str) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ConfigError(f"{len(bad)} of {what} aren't finite, the first is {bad[0]}")


def _split_parts(positions: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]


def _compute_norms(vectors: Vectors) -> Float32[NDArray[np.float32], " row"]:
    return np.asarray(np.einsum("rd,rd->r", vectors, vectors))
