"""What a gateway tells of itself: the requests that ended lately, and what metrics read of it.

The requests that ended lately are in memory, for what is looked at every second.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from prefill_router.gateway.proxy import BreakerState
from prefill_router.gateway.receipts import Receipt
from prefill_router.gateway.telemetry import BudgetLeft, GaugeReadings

if TYPE_CHECKING:
    from prefill_router.gateway.runtime.gateway import Gateway


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


def breakers_of(gateway: "Gateway") -> dict[str, BreakerState]:
    """The state of every target's breaker."""
    return {name: gateway.breakers.state(name) for name in gateway.live.loaded.pool.names}


def gauge_readings(gateway: "Gateway") -> GaugeReadings:
    """Where metrics read what isn't counted request by request; asked once it is started."""
    return GaugeReadings(
        gateway=gateway,
        in_flight=lambda: gateway.under_way,
        streams=lambda: gateway.streams,
        held_bytes=lambda: gateway.room.held,
        queue=lambda: gateway.live.forecaster.stats().waiting,
        fallback_share=lambda: gateway.fallbacks.report().share,
        lam=lambda: gateway.lam_left,
        breakers=lambda: breakers_of(gateway),
        forecasts=lambda: _forecasts(gateway),
        receipts=lambda: _receipts(gateway),
        receipts_waiting=lambda: gateway.writer.stats().waiting,
        budgets=lambda: _budgets_left(gateway),
        drift=lambda: gateway.drift.report(),
        router=lambda: _router(gateway),
    )


def _forecasts(gateway: "Gateway") -> Mapping[str, float]:
    stats = gateway.live.forecaster.stats()
    return {
        "batches": stats.batches,
        "encoded": stats.encoded,
        "cache_hits": stats.cache_hits,
        "shared": stats.shared,
        "restarts": stats.restarts,
        "busy_seconds": stats.busy_seconds,
    }


def _receipts(gateway: "Gateway") -> Mapping[str, float]:
    stats = gateway.writer.stats()
    return {
        "kept": stats.kept,
        "lost": stats.lost,
        "deleted": stats.deleted,
        "failures": stats.failures,
    }


def _budgets_left(gateway: "Gateway") -> Sequence[BudgetLeft]:
    return [
        BudgetLeft(
            key=state.budget.key or "",
            per=state.budget.per,
            dollars=state.budget.dollars,
            left=state.left,
        )
        for state in gateway.budgets.states(time.time())
    ]


def _router(gateway: "Gateway") -> Mapping[str, str]:
    light = gateway.live.loaded.light
    return {
        "fingerprint": light.fingerprint,
        "policy": light.policy.kind,
        "encoder": ", ".join(light.encoders),
    }
