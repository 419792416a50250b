"""How states lie in space: the paper's three geometric statistics.

The statistics are effective dimensionality, anisotropy and Fisher separability. The sums that a
statistic needs are objects that add up over disjoint rows; the statistic is a function of the sums.
`SiteStates` reads the states of one site in chunks that fit into memory.

First and second moments are kept as count, mean and scatter about that mean. They are added by the
pairwise update of Chan, Golub and LeVeque (1979). The update loses nothing if the mean is far
larger than the spread, as in a residual stream.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import numpy as np
from jaxtyping import Float, Float32, Float64
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
        1 where all states point in one direction, about 0 where they point in all. NaN for fewer
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
