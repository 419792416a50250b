"""What was asked lately, in memory: the requests, how many lacked a forecast, and their drift.

Drift is whether what is asked lately is distributed as what the router learned from.
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
    """The requests that came in one minute.

    Attributes:
        number: Since 1970.
        requests: How many.
        failed: Without a whole answer, through no fault of the client.
        fallbacks: Decided without a forecast.
        cost: US dollars, as far as known.
    """

    number: int
    requests: int = 0
    failed: int = 0
    fallbacks: int = 0
    cost: float = 0.0


@final
class RecentRequests:
    """The latest receipts, the newest last, and how many requests came in the last hour."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, Receipt]] = deque(maxlen=_MOST)
        self._minutes: deque[MinuteCounts] = deque()
        self._number = 0
        self._process = f"{time.time_ns():x}"

    def add(self, receipt: Receipt) -> None:
        """A request has ended."""
        self._number += 1
        self._ended.append((self._number, receipt))
        minute = int(receipt.at // _MINUTE)
        if not self._minutes or self._minutes[-1].number < minute:
            self._minutes.append(MinuteCounts(minute))
            while self._minutes[0].number <= minute - _HOUR // _MINUTE:
                self._minutes.popleft()
        held = self._minutes[-1]  # a request may have come before what ended already
        held.requests += 1
        held.failed += receipt.outcome.kind in _BAD
        held.fallbacks += receipt.choice.fallback is not None
        held.cost += receipt.cost or 0.0

    def fill(self, receipts: Iterable[Receipt]) -> None:
        """Remember what was kept before, oldest first."""
        for receipt in receipts:
            self.add(receipt)

    @property
    def cursor(self) -> str:
        """What names the present end, in this process alone."""
        return f"{self._process}-{self._number}"

    def since(
        self, cursor: str | None, limit: int, *, which: Callable[[Receipt], bool] | None = None
    ) -> list[Receipt]:
        """What ended since, or lately where the cursor isn't known: the newest first.

        Args:
            cursor: Of an earlier time.
            limit: At most so many.
            which: Only those for which this is true.
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
        """The receipt of a decision; None where it isn't among the latest."""
        return next((r for _, r in reversed(self._ended) if r.choice.id == name), None)

    def all(self) -> list[Receipt]:
        """All that are remembered, oldest first."""
        return [receipt for _, receipt in self._ended]

    def last_hour(self) -> tuple[float, list[Receipt]]:
        """Those of the last hour that are remembered, oldest first, and from when on all are."""
        since = time.time() - _HOUR
        if len(self._ended) == _MOST:
            since = max(since, self._ended[0][1].at)
        return since, [receipt for _, receipt in self._ended if receipt.at >= since]

    def minutes(self) -> list[MinuteCounts]:
        """The last hour, minute by minute; those without a request are left out."""
        since = int(time.time() // _MINUTE) - _HOUR // _MINUTE
        return [minute for minute in self._minutes if minute.number > since]

    def requests_last_hour(self) -> int:
        """How many requests came in the last hour, to the minute."""
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
    """Of the last minute's decisions that needed a forecast.

    Attributes:
        decisions: How many there were.
        lacking: How many of them had none, by reason.
    """

    decisions: int
    lacking: Mapping[FallbackReason, int]

    @property
    def share(self) -> float:
        """Of those without a forecast, from 0 to 1."""
        return sum(self.lacking.values()) / self.decisions if self.decisions else 0.0

    @property
    def is_much(self) -> bool:
        """Whether somebody should be told: more than one in twenty, and not of a few requests."""
        return self.decisions >= _LEAST_DECISIONS and self.share > _MUCH

    def __str__(self) -> str:
        why = ", ".join(
            f"{count / self.decisions:.0%} {_WORDS[lack]}" for lack, count in self.lacking.items()
        )
        of = f"of the last minute's {self.decisions} decisions"
        return f"{self.share:.0%} {of} had no forecast: {why}"


@final
class FallbackWatch:
    """Counts the last minute's decisions with and without a forecast, and logs when many lack it.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[tuple[int, Counter[FallbackReason | None]]] = deque()
        self._told = False

    def add(self, lack: FallbackReason | None) -> None:
        """Count a decision that needed a forecast; one of a request without text is none.

        Args:
            lack: Why it had none; None where it had one.
        """
        if lack == "no_text":
            return
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._tell()
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][lack] += 1

    def report(self) -> FallbackShare:
        """Of the last minute."""
        first = int(self._clock()) - _SECONDS
        while self._seconds and self._seconds[0][0] <= first:
            self._seconds.popleft()
        total: Counter[FallbackReason | None] = Counter()
        for _, counts in self._seconds:
            total.update(counts)
        lacking = {lack: total[lack] for lack in _WORDS if total[lack]}
        return FallbackShare(decisions=total.total(), lacking=lacking)

    def check(self) -> HealthFinding:
        """For `/ready`: degraded where many decisions lack a forecast, for a fallback decides."""
        found = self.report()
        return HealthFinding("degraded", f"{found}") if found.is_much else HealthFinding("ok")

    def _tell(self) -> None:
        found = self.report()
        if found.is_much and not self._told:
            _log.warning("%s; the fallback decides on these", found)
        elif self._told and not found.is_much:
            _log.info("decisions have their forecasts again")
        self._told = found.is_much


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
