"""The limits of keys that replicas share: the database admits each request of a key with limits.

While it is away each replica admits its share: the limit divided by the number of replicas, rounded
down, and at least 1.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, final

from prefill_router.gateway.guard import (
    ROUNDING,
    ClientKey,
    GuardedSend,
    KeyLimits,
    too_many_at_once,
    too_many_per_minute,
)
from prefill_router.gateway.receipts import DownError
from prefill_router.gateway.shared import tables
from prefill_router.gateway.shared.connection import Rows

Ask = Callable[[str, Any], Awaitable[Rows]]
"""Runs a statement with its values; raises `DownError` where the database is away."""


@final
class SharedKeyLimits:
    """Admits requests of keys, as `KeyLimits` does for a gateway by itself.

    Args:
        local: This replica's own requests, which decide while the database is away.
        replica: The replica's name.
        ask: Runs a statement.
        written: Begins to write which requests ended, with all else that is new.
        replicas: Returns how many replicas there are.

    Attributes:
        under_way: The requests in flight here of each key whose concurrent requests are limited.
        ended: Those that ended, as far as the database doesn't know it yet.
        turn: Held while the database learns these numbers anew.
    """

    def __init__(
        self,
        local: KeyLimits,
        replica: str,
        *,
        ask: Ask,
        written: Callable[[], Awaitable[None]],
        replicas: Callable[[], int],
    ) -> None:
        self._local, self._replica, self._ask, self._replicas = local, replica, ask, replicas
        self._written = written
        self.under_way: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.turn = asyncio.Lock()

    @asynccontextmanager
    async def admit(self, key: ClientKey, reply: GuardedSend) -> AsyncIterator[Callable[[], None]]:
        """Admit a request until the block ends, or just before its client has the whole answer.

        Yields a function that ends it earlier; what is written next tells the other replicas.

        Raises:
            RefusalError: 429 with `retry-after`: the key has reached a limit.
        """
        await self._enter(key)
        is_held = True

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._leave(key)

        async def end() -> None:
            if is_held:
                leave()
                await self._written()

        reply.before_end = end
        try:
            yield leave
        finally:
            await end()

    async def _enter(self, key: ClientKey) -> None:
        if key.requests_per_minute is None and key.concurrent is None:
            self._local.enter(key)
            return
        share = self._share(key)
        values = {
            "owner": key.name,
            "replica": self._replica,
            "rpm": key.requests_per_minute,
            "most": key.concurrent,
            "one": 1 - ROUNDING,
        }
        if self.turn.locked():
            async with self.turn:
                pass
        try:
            if not await self._ask(tables.ENTER, values):
                ((filled, under_way),) = await self._ask(tables.SEE_LIMITS, values)
                if key.concurrent is not None and under_way >= key.concurrent:
                    raise too_many_at_once(key, under_way)
                raise too_many_per_minute(key, min(1.0, filled))
        except DownError:
            self._local.enter(share)
        else:
            self._local.count(share)
        self.under_way[key.name] += key.concurrent is not None

    def _leave(self, key: ClientKey) -> None:
        self._local.leave(key)
        if key.concurrent is not None:
            self.under_way[key.name] -= 1
            self.ended[key.name] += 1

    def _share(self, key: ClientKey) -> ClientKey:
        per_minute, at_once, parts = key.requests_per_minute, key.concurrent, self._replicas()
        return key.model_copy(
            update={
                "requests_per_minute": per_minute and max(1, per_minute // parts),
                "concurrent": at_once and max(1, at_once // parts),
            }
        )
