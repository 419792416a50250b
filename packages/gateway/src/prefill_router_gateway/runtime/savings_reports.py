"""What routing saved, computed from the receipts and kept for a while."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, final

from prefill_router.errors import StoreError
from prefill_router_gateway.receipts import (
    RequestSaving,
    Savings,
    read_costs,
    request_saving,
    savings_since,
    since_time,
)
from prefill_router_gateway.records import Receipt
from prefill_router_gateway.settings import SavingsSettings

_LEAST_SECONDS, _TIMES, _MOST = 2.0, 20.0, 32
_LEARNING_SECONDS = 60.0
WEEK: Final = "7d"


@final
class SavingsReports:
    """Computes savings in a thread, one at a time, and keeps what took long for longer.

    Args:
        find_receipts: The URL of the receipts; it raises a `StoreError` while they can't be read.
    """

    def __init__(self, find_receipts: Callable[[], str]) -> None:
        self._find_receipts = find_receipts
        self._lock = asyncio.Lock()
        self._cache: dict[tuple[str, str | None], tuple[float, Savings]] = {}
        self._learning: dict[str, float] = {}
        self._learning_at, self._is_reading = -_LEARNING_SECONDS, False

    async def since(
        self, settings: SavingsSettings, since: str = WEEK, *, baseline: str | None = None
    ) -> Savings:
        """The savings since a time, at most as old as 20 times what computing them took.

        Args:
            settings: The current settings.
            since: See `since_time`.
            baseline: The target to compare all with; None for the baseline of each receipt.

        Raises:
            DataError: As `since_time` and `savings_since`.
            StoreError: As `savings_since`.
        """
        start = since_time(since)
        async with self._lock:
            cached = self._cache.get((since, baseline))
            if cached is not None and time.monotonic() < cached[0]:
                return cached[1]
            began = time.monotonic()
            url = self._find_receipts()
            savings = await asyncio.to_thread(
                savings_since, url, settings, since=start, against=baseline
            )
            now = time.monotonic()
            if len(self._cache) >= _MOST:
                self._cache.clear()
            until = now + max(_LEAST_SECONDS, _TIMES * (now - began))
            self._cache[since, baseline] = until, savings
            return savings

    async def of_request(self, receipt: Receipt) -> RequestSaving | None:
        """What a request would have cost at the baseline; None if that isn't known."""
        try:
            url = self._find_receipts()
            return await asyncio.to_thread(request_saving, url, receipt)
        except StoreError:
            return None

    def learning(self) -> dict[str, float]:
        """Dollars spent on scores and side answers, by kind, as last read.

        A call reads them again in the background once a minute.
        """
        if not self._is_reading and time.monotonic() - self._learning_at > _LEARNING_SECONDS:
            self._is_reading = True
            threading.Thread(target=self._read_learning, daemon=True).start()
        return self._learning

    def _read_learning(self) -> None:
        self._learning_at = time.monotonic()
        try:
            costs = read_costs(self._find_receipts())
            self._learning = {deduction.kind: deduction.dollars or 0.0 for deduction in costs}
        except StoreError:
            return
        finally:
            self._is_reading = False
