"""Weighted means over what is known, and the bootstrap over queries: estimates and bands.

Every statistic of an evaluation is a function of *weights*: how often each query counts. All ones
give the statistic itself; the counts of a draw with replacement give one bootstrap resample. So
there is one formula for the number and for its interval, and many resamples are computed at once.

A resample draws as many queries as there are, with replacement, all targets of a query together. It
is held as counts, so that nothing is sorted again; 95 % intervals are percentiles. The turns of one
conversation depend on each other, so conversations are drawn whole. Of a single query, or a single
conversation, all resamples would be the same: then there are none, and there is no interval.

Pointwise percentiles contain 95 % of the heights at each position, but many more than 5 % of the
curves leave such a band somewhere. A `Band` therefore leaves out the curves with the most extreme
rank at any position and is the envelope of the others: a global rank envelope, Myllymaki, Mrkvicka,
Grabarnik, Seijo and Hahn (2017).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

Weights = Float[NDArray[np.float64], "resample query"]
"""How often each query counts, in each resample."""
PerResample = Float[NDArray[np.float64], " resample"]
"""One number per resample; NaN where it isn't defined."""
SAME = 1e-12
"""Accuracies and normalised costs that differ by less, which is rounding error, count as equal."""
Name = TypeVar("Name")
Rows = Mapping[Name, NDArray[np.float64]]
"""Numbers by name, a row for each resample."""


def ones(queries: int) -> Weights:
    """The weights of the evaluated queries themselves: one row, each query once."""
    return np.ones((1, queries))


def divide(
    numerator: Float[NDArray[np.float64], "..."], denominator: Float[NDArray[np.float64], "..."]
) -> Float[NDArray[np.float64], "..."]:
    """Quotients; NaN where the denominator is zero or NaN."""
    top, bottom = np.broadcast_arrays(numerator, denominator)
    defined = (bottom != 0) & ~np.isnan(bottom)
    result: NDArray[np.float64] = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=defined)
    return result


@final
@dataclass(frozen=True, eq=False)
class KnownTable:
    """A table whose missing values were found once, for its means under many weights.

    Attributes:
        filled: The values; 0 where missing.
        is_known: Where they are known.
    """

    filled: Float[NDArray[np.float64], "query column"]
    is_known: Bool[NDArray[np.bool_], "query column"]

    @classmethod
    def of(cls, values: Float[NDArray[np.float64], "query column"]) -> "KnownTable":
        """The table with these values, NaN where missing."""
        is_known = ~np.isnan(values)
        return cls(np.where(is_known, values, 0), is_known)

    def only(self, cells: Bool[NDArray[np.bool_], "query column"]) -> "KnownTable":
        """The table with all other cells missing."""
        return KnownTable(np.where(cells, self.filled, 0), self.is_known & cells)


_COLUMNS = 64
"""Columns whose known values are counted at once."""


def known_mean(
    weights: Weights, values: Float[NDArray[np.float64], "query column"] | KnownTable
) -> Float[NDArray[np.float64], "resample column"]:
    """The mean of each column over the queries where it is known; NaN where it never is.

    Args:
        weights: How often each query counts, [resample, query].
        values: The values, NaN where missing.
    """
    table = values if isinstance(values, KnownTable) else KnownTable.of(values)
    places = range(0, max(table.is_known.shape[1], 1), _COLUMNS)
    counts = [weights @ table.is_known[:, i : i + _COLUMNS].astype(np.float64) for i in places]
    return divide(weights @ table.filled, np.concatenate(counts, axis=1))


def mean_over(
    weights: Weights, values: Float[NDArray[np.float64], " query"]
) -> Float[NDArray[np.float64], " resample"]:
    """The mean over the queries where the value is known, in each resample; see `known_mean`."""
    return known_mean(weights, values[:, None])[:, 0]


LEVEL = 0.95
_CELLS = 200_000
"""Numbers in the largest table of a chunk of resamples: small enough for the processor's cache."""
_LEAST = 8
"""The fewest resamples in a chunk, so that the work per chunk doesn't dominate."""
_MOST = 4_000_000
"""Numbers in the largest table of a chunk with these fewest resamples; wider ones have fewer."""


@final
@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: The number on the evaluated queries; NaN where it isn't defined.
        lower: The 2.5th percentile over the resamples; NaN without any, as for one conversation.
        upper: The 97.5th percentile.
        undefined: Number of resamples where it isn't defined, which the percentiles leave out.
        reason: Why the value isn't defined; empty where it is.
    """

    value: float
    lower: float
    upper: float
    undefined: int = 0
    reason: str = ""

    @classmethod
    def of(
        cls, value: float, resampled: Float[NDArray[np.float64], " resample"], *, reason: str = ""
    ) -> "Estimate":
        """The number with its percentile interval over the resamples."""
        values = resampled[~np.isnan(resampled)]
        lower = upper = math.nan
        if len(values) and not math.isnan(value):
            tail = 50 * (1 - LEVEL)
            lower, upper = np.percentile(values, [tail, 100 - tail]).tolist()
        why = reason if math.isnan(value) else ""
        return cls(float(value), lower, upper, len(resampled) - len(values), why)

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.lower > 0 or self.upper < 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `value`, `lower`, `upper`, and `undefined` and `reason` if set."""
        notes: dict[str, Any] = {"reason": self.reason} if self.reason else {}
        if self.undefined and not self.reason:
            notes["undefined_resamples"] = self.undefined
        return {
            "value": plain(self.value),
            "lower": plain(self.lower),
            "upper": plain(self.upper),
            **notes,
        }


Estimates = Mapping[str, Estimate]


def estimates_to_dict(values: Mapping[Any, Estimate]) -> dict[str, Any]:
    """Plain values for JSON by name, each with its interval; None where one isn't defined."""
    return {name: estimate.to_dict() for name, estimate in values.items()}


def plain(value: float) -> float | None:
    """The number, or None where it isn't finite: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def draw(queries: int, *, count: int, seed: int) -> Iterator[Int[NDArray[np.int64], " query"]]:
    """The queries of each resample, as indices."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield generator.integers(0, queries, queries)


def chunks(
    queries: int, *, count: int, seed: int, width: int, groups: Sequence[str] | None = None
) -> Iterator[Weights]:
    """The same draws as weights, in chunks of resamples; none where all would be the same.

    Args:
        queries: How many queries there are.
        count: How many resamples to draw.
        seed: Random seed of the resampling.
        width: Numbers per resample in the largest table made of it; bounds the memory.
        groups: The group of each query, such as its conversation; groups are drawn whole. None
            where each query is drawn by itself.

    Raises:
        ConfigError: The count or the seed is negative.
    """
    if count < 0:
        raise ConfigError(f"{count} resamples; 1000 is usual, 0 leaves the intervals out")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; it must be 0 or more")
    size = max(1, min(_LEAST, _MOST // max(width, 1)), _CELLS // max(width, 1))
    place = None if groups is None else np.unique(np.array(groups), return_inverse=True)[1]
    units = queries if place is None else int(place.max(initial=-1)) + 1
    if units == 1:
        return
    generator = draw(units, count=count, seed=seed)
    for begin in range(0, count, size):
        rows = [next(generator) for _ in range(min(size, count - begin))]
        counts = np.stack([np.bincount(row, minlength=units) for row in rows]).astype(np.float64)
        yield counts if place is None else counts[:, place]


@final
@dataclass(frozen=True)
class Bootstrap:
    """The resamples that intervals come from.

    Attributes:
        queries: How many queries there are.
        count: How many resamples are drawn; 0 for no intervals.
        seed: Random seed of the resampling.
        width: Numbers per resample in the largest table made of it; bounds the memory.
        groups: The group of each query, as for `chunks`.
    """

    queries: int
    count: int
    seed: int
    width: int
    groups: Sequence[str] | None = None

    def resample(
        self,
        statistics: Callable[[Weights], Rows[Name]],
        like: Rows[Name],
        progress: Progress | None = None,
        task: str = "bootstrap",
    ) -> dict[Name, NDArray[np.float64]]:
        """The statistics in every resample.

        Args:
            statistics: Computes them from weights.
            like: The statistics for any weights; only their shapes are used.
            progress: Reports the progress of the work.
            task: Label of the progress display.

        Raises:
            ConfigError: The count or the seed is negative.
        """
        parts: list[Rows[Name]] = []
        weights_of_chunks = chunks(
            self.queries, count=self.count, seed=self.seed, width=self.width, groups=self.groups
        )
        with (progress or SilentProgress()).task(task, total=self.count) as advance:
            for weights in weights_of_chunks:
                parts.append(statistics(weights))
                advance(len(weights))
        return {
            name: np.concatenate([value[:0], *(part[name] for part in parts)])
            for name, value in like.items()
        }

    def estimate(self, statistic: Callable[[Weights], PerResample], reason: str) -> Estimate:
        """One number with its interval, or the reason that it isn't defined."""
        point = {"": statistic(ones(self.queries))}
        resampled = self.resample(lambda weights: {"": statistic(weights)}, point)
        return estimates(point, resampled, reason)[""]


def estimates(
    point: Rows[Name], resampled: Rows[Name], why: str | Callable[[Name], str]
) -> dict[Name, Estimate]:
    """Numbers with their intervals.

    Args:
        point: The numbers on the evaluated queries.
        resampled: The numbers in the resamples.
        why: The reason that a number isn't defined.
    """

    def reason(name: Name, value: float) -> str:
        return "" if not np.isnan(value) else why if isinstance(why, str) else why(name)

    return {
        name: Estimate.of(float(value[0]), resampled[name], reason=reason(name, value[0]))
        for name, value in point.items()
    }


FEW = 20
"""Fewer conversations than this are too few for an interval to be trusted."""


def bootstrap_note(resamples: int, seed: int, conversations: int | None) -> dict[str, Any]:
    """How intervals were made, for JSON.

    Args:
        resamples: How many resamples were drawn.
        seed: The random seed.
        conversations: How many conversations were drawn from; None where queries were drawn.
    """
    note = {"resamples": resamples, "seed": seed, "level": LEVEL, "interval": "percentile"}
    if conversations is None:
        return {**note, "unit": "query"}
    return {**note, "unit": "conversation", "conversations": conversations}


def count_groups(groups: Sequence[str] | None) -> int | None:
    """How many groups there are; None where each query is drawn by itself."""
    return None if groups is None else len(set(groups))


def warn_of_few(conversations: int | None) -> str:
    """What to know about intervals from few conversations; empty where there are enough."""
    if conversations is None or conversations >= FEW:
        return ""
    if conversations == 1:
        return "all queries are of one conversation, so there are no intervals"
    return f"the queries are of only {conversations} conversations, so intervals may be too narrow"


PerPoint = Float[NDArray[np.float64], "resample point"]
PerPlace = Float[NDArray[np.float64], " place"]
_PLACES = 101
_SEEN = 0.9
"""A band is drawn where at least this share of the resampled curves is defined."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Band:
    """A simultaneous band: 95 % of the resampled curves stay within it from end to end.

    Attributes:
        x: Positions, rising.
        lower: Lowest height of these curves; NaN where too few curves are defined.
        upper: Highest height of these curves.
    """

    x: PerPlace
    lower: PerPlace
    upper: PerPlace

    @classmethod
    def of(cls, x: PerPlace, heights: Float[NDArray[np.float64], "resample place"]) -> "Band":
        """The band of the curves, each given by its heights at `x`, NaN where undefined."""
        is_known = ~np.isnan(heights)
        is_drawn = is_known.any(axis=0) & (is_known.sum(axis=0) >= _SEEN * len(heights))
        lower, upper = np.full((2, len(x)), np.nan)
        if is_drawn.any():
            inner = heights[_find_inside(heights[:, is_drawn])][:, is_drawn]
            lower[is_drawn], upper[is_drawn] = np.nanmin(inner, axis=0), np.nanmax(inner, axis=0)
        return cls(x, lower, upper)


def _find_inside(
    heights: Float[NDArray[np.float64], "resample place"],
) -> Bool[NDArray[np.bool_], " resample"]:
    """All but the 5 % most extreme curves; among equals, those extreme at more positions go."""
    is_known = ~np.isnan(heights)
    low = _rank_columns(np.where(is_known, heights, np.inf))
    high = _rank_columns(np.where(is_known, -heights, np.inf))
    depths = np.sort(np.where(is_known, np.minimum(low, high), np.inf), axis=1)
    is_inside = np.ones(len(heights), dtype=np.bool_)
    is_inside[np.lexsort(depths.T[::-1])[: int((1 - LEVEL) * len(heights))]] = False
    return is_inside


def _rank_columns(
    table: Float[NDArray[np.float64], "row column"],
) -> Int[NDArray[np.int64], "row column"]:
    """How many of its column each is not below; scipy's `rankdata` takes a second to load."""
    ranks = [np.searchsorted(np.sort(column), column, side="right") for column in table.T]
    return np.stack(ranks, axis=1)


def places(x: Float[NDArray[np.float64], " point"], *, ratios: bool = False) -> PerPlace:
    """Evenly spaced positions from the leftmost to the rightmost point; none without a known point.

    Args:
        x: Positions of the points of the curve.
        ratios: Whether to space them geometrically, if all x are positive, and not linearly.
    """
    finite = x[np.isfinite(x)]
    if not len(finite):
        return np.zeros(0)
    spaced = np.geomspace if ratios and finite.min() > 0 else np.linspace
    between: PerPlace = spaced(finite.min(), finite.max(), _PLACES)
    return between


def heights(x: PerPoint, y: PerPoint, at: PerPlace) -> Float[NDArray[np.float64], "resample place"]:
    """The height of each resample's curve at the positions `at`; NaN beyond its ends."""
    result = np.full((len(x), len(at)), np.nan)
    for row, (across, up) in enumerate(zip(x, y, strict=True)):
        is_known = np.isfinite(across) & np.isfinite(up)
        if is_known.any():
            order = np.argsort(across[is_known], kind="stable")
            xs, ys = across[is_known][order], up[is_known][order]
            result[row] = np.interp(at, xs, ys, left=np.nan, right=np.nan)
    return result
