"""A provider's response as it arrives, with its time limits."""

import asyncio
from collections.abc import Callable
from typing import final

from prefill_router.endpoints import FailureCause
from prefill_router_gateway.errors import BrokenResponseError
from prefill_router_gateway.records import AttemptEnd, Header

_MOST_WAITING = 2**18  # bytes buffered for a slow client before reading from the target pauses


@final
class ResponseStream:
    """One response as it arrives.

    One timer serves all time limits. Moving a limit to a later time costs nothing: when the timer
    fires, it checks whether the limit has passed.

    Attributes:
        began: When the request was sent, by the loop's clock.
        status: The HTTP status; 0 before it has arrived.
        headers: The headers, with names in lower case.
        over: Whether the response is complete.
        keep_alive: Whether the connection may be reused.
    """

    def __init__(
        self, *, stop: Callable[[], object], pause: Callable[[bool], None] | None = None
    ) -> None:
        """Start with no status, headers or body.

        Args:
            stop: Called where the rest of the response isn't needed.
            pause: Called with True to pause reading from the connection, and with False to resume.
        """
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BrokenResponseError | None = None
        self._pause = pause
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._too_late: AttemptEnd = "answer_timeout"
        self.began = self._loop.time()
        self.status = 0
        self.headers: list[Header] = []
        self.over = False
        self.keep_alive = False

    def begin(self, status: int, headers: list[Header]) -> None:
        """Add the status and headers."""
        self.status, self.headers = status, headers
        self._wake()

    def put(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(True)
        self._wake()

    def end(self) -> None:
        """Mark the response as complete."""
        self.over = True
        self._wake()

    def fail(
        self, end: AttemptEnd, *, unheard: bool = False, cause: FailureCause | None = None
    ) -> None:
        """Mark the response as broken off; pieces that have arrived can still be read."""
        if self._broken is None and not self.over:
            self._broken = BrokenResponseError(end, unheard=unheard, cause=cause)
            self._wake()

    def limit(self, at: float, too_late: AttemptEnd) -> None:
        """Set the time limit, by the loop's clock, and how it fails; it replaces the last one."""
        self._at, self._too_late = at, too_late
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._look)
        elif at < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(at, self._look)

    def close(self) -> None:
        """Stop the response if it is incomplete, since nothing more will be read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.over:
            self._stop()

    async def head(self) -> int:
        """Wait for status and headers, and return the status.

        Raises:
            BrokenResponseError: They don't arrive.
        """
        while not self.status:
            await self._wait()
        return self.status

    async def piece(self) -> bytes:
        """Wait for and return the next bytes of the body; empty at the end.

        Raises:
            BrokenResponseError: The body broke off.
        """
        while not self._pieces:
            if self.over:
                return b""
            await self._wait()
        pieces = self._pieces
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(False)
        self._waiting = 0
        return found

    async def _wait(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._timer is None and self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None:  # the client is slow, not the target
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        else:
            self.fail(self._too_late)
