"""Exact nearest neighbours, by Euclidean distance.

A search in float32 compares by ``|x|^2 + |y|^2 - 2xy``, whose rounding can exceed the distance of
near rows, and changes with the number of queries. Here it proposes candidates, a few more than
asked for; their distances are then computed in float64 from the differences. A query's answer is
kept once no row that wasn't proposed can be nearer by the bound on rounding; otherwise more are
proposed. So the answer is that of a brute-force search in float64, whatever the batch.

Both parts of a large search run on a GPU, if there is one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray

from prefill_router.accelerator import accelerator
from prefill_router.errors import ConfigError
from prefill_router.statistics import row_blocks

if TYPE_CHECKING:
    from prefill_router.neighbours.accelerated_search import SearchedRows

Vectors = Float32[NDArray[np.float32], "row dim"]
Distances = Float64[NDArray[np.float64], "query k"]
Rows = Int64[NDArray[np.int64], "query k"]

_SPARE = 16  # proposals beyond k; nearly always enough to be certain of the first k
_GROWTH = 4
_QUERIES_AT_ONCE = 4096
_CANDIDATES_AT_ONCE = 1 << 22
_DISTANCES_AT_ONCE = 1 << 23
_NUMBERS_AT_ONCE = 1 << 17  # differences computed at once, so that they stay in the CPU cache
_NUMBERS_AT_ONCE_ON_DEVICE = 1 << 26
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
        for rows in row_blocks(len(vectors), _QUERIES_AT_ONCE):
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
                    squared, nearest, sure = self._find_nearest(vectors[some], own[some], k, width)
                    distances[some, : nearest.shape[1]] = np.sqrt(squared)
                    rows[some, : nearest.shape[1]] = nearest
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
        if (copy := self._find_copy(len(queries))) is not None:
            rows, last = copy.propose(centred, width)
        else:
            rows, last = self._propose_in_numpy(centred, width)
        norms = (centred.astype(np.float64) ** 2).sum(axis=1)
        return np.sort(rows, axis=1), _bound_others(last, norms, self.dim)

    def _find_copy(self, queries: int) -> "SearchedRows | None":
        """The rows on the device that searches for so many queries; None where NumPy does."""
        device = accelerator(float(queries) * len(self) * self.dim)
        if device is None:
            return None
        from prefill_router.neighbours.accelerated_search import copy_rows

        return copy_rows(self, device)

    def _propose_in_numpy(
        self, centred: Vectors, width: int
    ) -> tuple[Rows, Float64[NDArray[np.float64], " query"]]:
        rows = np.empty((len(centred), width), dtype=np.int64)
        last = np.empty(len(centred))
        for some in row_blocks(len(centred), max(1, _DISTANCES_AT_ONCE // len(self))):
            squared = self._square_in_single(centred[some])
            rows[some] = np.argpartition(squared, width - 1, axis=1)[:, :width]
            last[some] = np.take_along_axis(squared, rows[some], axis=1).max(axis=1)
        return rows, last

    def _square_in_single(self, centred: Vectors) -> Float32[NDArray[np.float32], "query _"]:
        """Squared distances to all rows in single precision, |x|^2 - 2 x y + |y|^2."""
        squared = centred @ self.centred.T
        squared *= -2
        squared += _compute_norms(centred)[:, None]
        squared += self.norms
        return squared

    def _compute_distances(self, queries: Vectors, proposed: Rows) -> Distances:
        """Squared distances of each query to its proposed rows, from the differences."""
        copy = self._find_copy(len(queries))
        numbers = _NUMBERS_AT_ONCE if copy is None else _NUMBERS_AT_ONCE_ON_DEVICE
        across = max(1, min(proposed.shape[1], numbers // self.dim))
        down = max(1, numbers // (across * self.dim))
        result = np.empty(proposed.shape)
        for i in range(0, len(queries), down):
            for j in range(0, proposed.shape[1], across):
                part = np.s_[i : i + down, j : j + across]
                compute = self._compute_in_numpy if copy is None else copy.compute_distances
                result[part] = compute(queries[i : i + down], proposed[part])
        return result

    def _compute_in_numpy(self, queries: Vectors, proposed: Rows) -> Distances:
        away = self.vectors[proposed] - queries[:, None, :].astype(np.float64)
        return np.asarray(np.einsum("qrd,qrd->qr", away, away))

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
