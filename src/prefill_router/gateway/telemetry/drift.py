"""Drift: whether what is asked lately is distributed as what the router learned from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

_BINS = 10
_LEAST = 200
_PRIOR = 0.5  # of a request in each bin, so that an empty one has a logarithm
_LEAST_SHARE = 1e-3  # the same for the shares before


@final
@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far the features of the latest requests are from those of the train rows.

    Attributes:
        requests: How many requests this is of.
        by_feature: The population stability index of each feature.
        mean: Of them.
        largest: Of them.
    """

    requests: int
    by_feature: Mapping[str, float]
    mean: float
    largest: float


@final
class DriftWatch:
    """Counts in which tenth of the train rows the features of the latest requests lie.

    Args:
        features: Their names, in the order of `Forecast.bins`.
        window: It looks at so many requests, the latest.
        least: There is no telling before so many.
        shares: The share of train rows in each tenth of each feature: even, but where many rows
            have one value. All the same if not given.
    """

    def __init__(
        self,
        features: Sequence[str],
        *,
        window: int = 2000,
        least: int = _LEAST,
        shares: Sequence[Sequence[float]] | None = None,
    ) -> None:
        self.features = tuple(features)
        self._shares = [None] * len(self.features) if shares is None else list(shares)
        self._rows = np.zeros((max(window, least), len(self.features)), dtype=np.int64)
        self._counts = np.zeros((len(self.features), _BINS), dtype=np.int64)
        self._columns = np.arange(len(self.features))
        self._least = least
        self._seen = 0

    def add(self, bins: Sequence[int]) -> None:
        """Take note of one request; one without bins, or of another reference, isn't counted."""
        if len(bins) != len(self.features) or not bins:
            return
        row = self._rows[self._seen % len(self._rows)]
        if self._seen >= len(self._rows):
            self._counts[self._columns, row] -= 1
        row[:] = bins
        self._counts[self._columns, row] += 1
        self._seen += 1

    @property
    def requests(self) -> int:
        """How many requests are looked at."""
        return min(self._seen, len(self._rows))

    def report(self) -> Drift | None:
        """How far the latest requests are; None while there are too few to tell."""
        if not self.features or self.requests < self._least:
            return None
        found = {
            name: stability_index(counts.tolist(), shares)
            for name, counts, shares in zip(self.features, self._counts, self._shares, strict=True)
        }
        values = list(found.values())
        return Drift(
            requests=self.requests,
            by_feature=found,
            mean=math.fsum(values) / len(values),
            largest=max(values),
        )


def stability_index(counts: Sequence[int], expected: Sequence[float] | None = None) -> float:
    """The population stability index of counts in bins.

    It is the sum over bins of (p - q) ln(p / q), p being the share of each and q that expected.
    Half a count is added to each bin. By custom, below 0.1 nothing has changed, and above 0.25 much
    has. Source: N. Siddiqi, Credit Risk Scorecards, Wiley 2006, chapter 8; for what it is by chance
    alone, about (bins - 1) / requests: B. Yurdakul, Statistical Properties of Population
    Stability Index, dissertation, Western Michigan University, 2018.

    Args:
        counts: In each bin.
        expected: The share that each bin had before; all the same if not given.
    """
    bins = len(counts)
    even = [1 / bins] * bins
    before = (
        even
        if expected is None
        else [(q + _LEAST_SHARE) / (1 + _LEAST_SHARE * bins) for q in expected]
    )
    total = math.fsum(counts) + _PRIOR * bins
    shares = [(count + _PRIOR) / total for count in counts]
    pairs = zip(shares, before, strict=True)
    return math.fsum((p - q) * math.log(p / q) for p, q in pairs)
