"""The share of the latest decisions that had no forecast."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.gateway.telemetry.health import Finding
from prefill_router.gateway.words import FallbackReason

_log = logging.getLogger(__name__)
_SECONDS = 60
_MUCH = 0.05
_LEAST = 20
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
        return self.decisions >= _LEAST and self.share > _MUCH

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

    def check(self) -> Finding:
        """For `/ready`: degraded where many decisions lack a forecast, for a fallback decides."""
        found = self.report()
        return Finding("degraded", f"{found}") if found.is_much else Finding("ok")

    def _tell(self) -> None:
        found = self.report()
        if found.is_much and not self._told:
            _log.warning("%s; the fallback decides on these", found)
        elif self._told and not found.is_much:
            _log.info("decisions have their forecasts again")
        self._told = found.is_much
