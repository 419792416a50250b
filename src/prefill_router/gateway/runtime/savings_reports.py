"""The savings of a running gateway: for its endpoint, its page and its metrics."""

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Final, final

import numpy as np

from prefill_router.errors import StoreError
from prefill_router.gateway.receipts import (
    RequestSaving,
    Savings,
    read_costs,
    request_saving,
    savings_since,
    since_time,
)
from prefill_router.gateway.records import Receipt
from prefill_router.gateway.settings import SavingsSettings

if TYPE_CHECKING:
    from prefill_router.gateway.runtime.gateway import Gateway

_LEAST_SECONDS, _TIMES, _MOST = 2.0, 20.0, 32
_LEARNING_SECONDS = 60.0
WEEK: Final = "7d"


@final
class SavingsReports:
    """Computes savings in a thread, one at a time, and keeps what took long for longer.

    Args:
        gateway: The gateway.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._lock = asyncio.Lock()
        self._made: dict[tuple[str, str | None], tuple[float, Savings]] = {}
        self._learning: dict[str, float] = {}
        self._learning_at, self._reading = -_LEARNING_SECONDS, False

    @property
    def best(self) -> str | None:
        """The target with the highest train accuracy; None where the router doesn't have it."""
        light = self._gateway.live.loaded.light
        accuracy = light.reference_accuracy
        if accuracy is None or np.isnan(accuracy).all():
            return None
        return light.pool.names[int(np.nanargmax(accuracy))]

    async def since(self, since: str = WEEK, *, baseline: str | None = None) -> Savings:
        """The savings since a time, at most as old as 20 times what computing them took.

        Args:
            since: See `since_time`.
            baseline: The target of the comparison; None for that of the settings.

        Raises:
            DataError: As `since_time` and `savings_since`.
            StoreError: As `savings_since`.
        """
        start, which = since_time(since), self._settings(baseline)
        async with self._lock:
            made = self._made.get((since, which.baseline))
            if made is not None and time.monotonic() < made[0]:
                return made[1]
            began = time.monotonic()
            url = self._receipts_url()
            found = await asyncio.to_thread(savings_since, url, which, since=start, best=self.best)
            now = time.monotonic()
            if len(self._made) >= _MOST:
                self._made.clear()
            until = now + max(_LEAST_SECONDS, _TIMES * (now - began))
            self._made[since, which.baseline] = until, found
            return found

    async def of_request(self, receipt: Receipt) -> RequestSaving | None:
        """What a request would have cost at the baseline; None if that isn't known."""
        which = self._settings(None)
        if (which.baseline or self.best) is None:
            return None
        try:
            url = self._receipts_url()
            return await asyncio.to_thread(request_saving, url, receipt, which, best=self.best)
        except StoreError:
            return None

    def use(self) -> None:
        """Count for the metrics with the current settings and router."""
        which = self._settings(None)
        self._gateway.metrics.use_savings(
            which.baseline or self.best,
            second=which.encoder_second_dollars,
            thousand=which.encoder_thousand_dollars,
        )

    def learning(self) -> dict[str, float]:
        """Dollars spent on scores and side answers, by kind, at most a minute old."""
        if not self._reading and time.monotonic() - self._learning_at > _LEARNING_SECONDS:
            self._reading = True
            threading.Thread(target=self._read_learning, daemon=True).start()
        return self._learning

    def _read_learning(self) -> None:
        self._learning_at = time.monotonic()
        try:
            found = read_costs(self._receipts_url())
            self._learning = {one.kind: one.dollars or 0.0 for one in found}
        except StoreError:
            return
        finally:
            self._reading = False

    def _settings(self, baseline: str | None) -> SavingsSettings:
        found = self._gateway.settings.savings
        return found if baseline is None else found.model_copy(update={"baseline": baseline})

    def _receipts_url(self) -> str:
        if not self._gateway.writer.healthy:
            raise StoreError("the receipts' database can't be reached now")
        return self._gateway.receipts_url
