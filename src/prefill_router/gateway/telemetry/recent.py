"""The latest requests, in memory: their receipts, their fallbacks, and their drift.

Drift measures how far their distribution is from that of the router's train rows.
"""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.gateway.records import Receipt
from prefill_router.gateway.telemetry.health import HealthFinding
from prefill_router.gateway.types import FallbackReason

_MOST = 2000
_HOUR, _MINUTE = 3600, 60
_BAD = ("failed", "cut")


@final
@dataclass(slots=True)
class MinuteCounts:
    """The requests of one minute.

    Attributes:
        number: The minute, counted since 1970.
        requests: The number of requests.
        failed: Requests without a complete answer, not because of the client.
        fallbacks: Requests decided without a forecast.
        cost: US dollars, as far as known.
    """

    number: int
    requests: int = 0
    failed: int = 0
    fallbacks: int = 0
    cost: float = 0.0


@final
class RecentRequests:
    """The latest receipts, the newest last, and counts of the last hour by minute."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, Receipt]] = deque(maxlen=_MOST)
        self._minutes: deque[MinuteCounts] = deque()
        self._number = 0
        self._process = f"{time.time_ns():x}"

    def add(self, receipt: Receipt) -> None:
        """Add a request that ended."""
        self._number += 1
        self._ended.append((self._number, receipt))
        minute = int(receipt.at // _MINUTE)
        if not self._minutes or self._minutes[-1].number < minute:
            self._minutes.append(MinuteCounts(minute))
            while self._minutes[0].number <= minute - _HOUR // _MINUTE:
                self._minutes.popleft()
        held = self._minutes[-1]  # a request may have arrived before one that ended earlier
        held.requests += 1
        held.failed += receipt.outcome.kind in _BAD
        held.fallbacks += receipt.choice.fallback is not None
        held.cost += receipt.cost or 0.0

    def replace(self, receipt: Receipt) -> None:
        """Take the outcome of a request that was only decided."""
        held = enumerate(self._ended)
        found = next((p for p, (_, r) in held if r.choice.id == receipt.choice.id), None)
        if found is not None:
            self._ended[found] = (self._ended[found][0], receipt)
        number = int(receipt.at // _MINUTE)
        for minute in (m for m in self._minutes if m.number == number):
            minute.failed += receipt.outcome.kind in _BAD
            minute.cost += receipt.cost or 0.0

    def fill(self, receipts: Iterable[Receipt]) -> None:
        """Add stored receipts, oldest first."""
        for receipt in receipts:
            self.add(receipt)

    @property
    def cursor(self) -> str:
        """A cursor to the current end, valid in this process alone."""
        return f"{self._process}-{self._number}"

    def since(
        self, cursor: str | None, limit: int, *, which: Callable[[Receipt], bool] | None = None
    ) -> list[Receipt]:
        """The requests that ended since a cursor, or the latest if it is unknown; newest first.

        Args:
            cursor: An earlier value of `cursor`.
            limit: The most receipts.
            which: Selects receipts; None for all.
        """
        process, _, place = (cursor or "").partition("-")
        known = process == self._process and place.isascii() and place.isdigit()
        after = int(place) if known else 0
        found: list[Receipt] = []
        for number, receipt in reversed(self._ended):
            if number <= after or len(found) == limit:
                break
            if which is None or which(receipt):
                found.append(receipt)
        return found

    def find(self, name: str) -> Receipt | None:
        """The receipt of a decision; None if it isn't among the latest."""
        return next((r for _, r in reversed(self._ended) if r.choice.id == name), None)

    def all(self) -> list[Receipt]:
        """All remembered receipts, oldest first."""
        return [receipt for _, receipt in self._ended]

    def last_hour(self) -> tuple[float, list[Receipt]]:
        """The time since which all receipts are remembered, and the last hour's, oldest first."""
        since = time.time() - _HOUR
        if len(self._ended) == _MOST:
            since = max(since, self._ended[0][1].at)
        return since, [receipt for _, receipt in self._ended if receipt.at >= since]

    def minutes(self) -> list[MinuteCounts]:
        """The last hour, minute by minute; those without a request are left out."""
        since = int(time.time() // _MINUTE) - _HOUR // _MINUTE
        return [minute for minute in self._minutes if minute.number > since]

    def requests_last_hour(self) -> int:
        """The number of requests in the last hour, to the minute."""
        return sum(minute.requests for minute in self.minutes())


_log = logging.getLogger(__name__)
_SECONDS = 60
_MUCH = 0.05
_LEAST_DECISIONS = 20
_WORDS: Mapping[FallbackReason, str] = {
    "deadline": "too late",
    "queue_full": "too many requests",
    "encoder_down": "the encoder is down",
    "unreadable": "it can't read them",
}


@final
@dataclass(frozen=True, kw_only=True)
class FallbackShare:
    """The share of the last minute's decisions without the forecast that they needed.

    Attributes:
        decisions: The number of decisions that needed a forecast.
        lacking: The number of them that had none, by reason.
    """

    decisions: int
    lacking: Mapping[FallbackReason, int]

    @property
    def share(self) -> float:
        """The share of decisions without a forecast, from 0 to 1."""
        return sum(self.lacking.values()) / self.decisions if self.decisions else 0.0

    @property
    def is_much(self) -> bool:
        """Whether to warn: more than one in twenty, of at least twenty decisions."""
        return self.decisions >= _LEAST_DECISIONS and self.share > _MUCH

    def __str__(self) -> str:
        why = ", ".join(
            f"{count / self.decisions:.0%} {_WORDS[lack]}" for lack, count in self.lacking.items()
        )
        of = f"of the last minute's {self.decisions} decisions"
        return f"{self.share:.0%} {of} had no forecast: {why}"


@final
class FallbackWatch:
    """Counts the last minute's decisions with and without a forecast, and warns if many lack one.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[tuple[int, Counter[FallbackReason | None]]] = deque()
        self._warned = False

    def add(self, lack: FallbackReason | None) -> None:
        """Count a decision that needed a forecast; requests without text aren't counted.

        Args:
            lack: Why it had none; None where it had one.
        """
        if lack == "no_text":
            return
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._log_changes()
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][lack] += 1

    def report(self) -> FallbackShare:
        """The share of the last minute."""
        first = int(self._clock()) - _SECONDS
        while self._seconds and self._seconds[0][0] <= first:
            self._seconds.popleft()
        total: Counter[FallbackReason | None] = Counter()
        for _, counts in self._seconds:
            total.update(counts)
        lacking = {lack: total[lack] for lack in _WORDS if total[lack]}
        return FallbackShare(decisions=total.total(), lacking=lacking)

    def check(self) -> HealthFinding:
        """The check for `/ready`: degraded where a fallback makes many decisions."""
        found = self.report()
        return HealthFinding("degraded", f"{found}") if found.is_much else HealthFinding("ok")

    def _log_changes(self) -> None:
        found = self.report()
        if found.is_much and not self._warned:
            _log.warning("%s; the fallback decides on these", found)
        elif self._warned and not found.is_much:
            _log.info("decisions have their forecasts again")
        self._warned = found.is_much


_BINS = 10
_LEAST = 200
_PRIOR = 0.5  # pseudo-count of each bin, so that an empty bin has a logarithm
_LEAST_SHARE = 1e-3  # the same for the reference shares


@final
@dataclass(frozen=True, kw_only=True)
class Drift:
    """The drift of the features of the latest requests from those of the train rows.

    Attributes:
        requests: The number of requests that it is measured on.
        by_feature: The population stability index of each feature.
        mean: The mean index.
        largest: The largest index.
    """

    requests: int
    by_feature: Mapping[str, float]
    mean: float
    largest: float


@final
class DriftWatch:
    """Counts the features of the latest requests in deciles of the train rows.

    Args:
        features: The names of the features, in the order of `Forecast.bins`.
        window: The number of latest requests that are counted.
        least: The number of requests from which on there is a report.
        shares: The share of train rows in each bin of each feature; a tenth, except where many rows
            have the same value. By default, a tenth each.
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
        """Count one request; one without bins, or with another reference's, is ignored."""
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
        """The number of requests that are counted."""
        return min(self._seen, len(self._rows))

    def report(self) -> Drift | None:
        """The drift of the latest requests; None while there are too few."""
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

    It is the sum over bins of (p - q) ln(p / q), where p is a bin's share and q the expected one.
    Half a count is added to each bin. By convention, a value below 0.1 means no change, and one
    above 0.25 a large change. Source: N. Siddiqi, Credit Risk Scorecards, Wiley 2006, chapter 8;
    for its expected value by chance, about (bins - 1) / requests: B. Yurdakul, Statistical
    Properties of Population Stability Index, dissertation, Western Michigan University, 2018.

    Args:
        counts: The count of each bin.
        expected: The expected share of each bin; equal shares by default.
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
