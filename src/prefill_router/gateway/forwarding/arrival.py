"""A reply as it arrives: whoever reads the wire puts pieces in, whoever forwards takes them out."""

import asyncio
from collections.abc import Callable
from typing import final

from prefill_router.gateway.outcome import AttemptEnd

Header = tuple[bytes, bytes]
_MOST_WAITING = 2**18  # bytes that wait for a slow client, before the target is read no further


@final
class BrokenError(Exception):
    """There is no reply, or no more of it.

    Attributes:
        end: Why.
        unheard: Whether an idle connection was closed as the request went out on it, so that the
            same request may be sent again on a new one.
    """

    def __init__(self, end: AttemptEnd, *, unheard: bool = False) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.unheard = unheard


@final
class Arrival:
    """One reply on its way.

    One timer serves every time limit. A limit that moves back costs nothing: the timer looks, when
    it goes off, whether it was meant.

    Attributes:
        began: When the request was sent, by the loop's clock.
        status: Its HTTP status; 0 before it has come.
        headers: Its headers, names in lower case.
        over: Whether all of it has come.
        keep_alive: Whether the connection may be used again; what reads the wire may use it.
    """

    __slots__ = (
        "_at",
        "_broken",
        "_loop",
        "_pause",
        "_pieces",
        "_stop",
        "_timer",
        "_too_late",
        "_waiter",
        "_waiting",
        "began",
        "headers",
        "keep_alive",
        "over",
        "status",
    )

    def __init__(
        self, *, stop: Callable[[], object], pause: Callable[[bool], None] | None = None
    ) -> None:
        """Begin.

        Args:
            stop: Called where nobody wants the rest.
            pause: Called with True when the wire is to be read no further, and with False when it
                may be again.
        """
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BrokenError | None = None
        self._pause = pause
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._too_late: AttemptEnd = "answer_timeout"
        self.began = self._loop.time()
        self.status = 0
        self.headers: list[Header] = []
        self.over = False
        self.keep_alive = False

    @property
    def has_more(self) -> bool:
        """Whether pieces wait to be taken."""
        return bool(self._pieces)

    def begin(self, status: int, headers: list[Header]) -> None:
        """Status and headers have come."""
        self.status, self.headers = status, headers
        self._wake()

    def put(self, piece: bytes) -> None:
        """A piece of the body has come."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(True)
        self._wake()

    def end(self) -> None:
        """All has come."""
        self.over = True
        self._wake()

    def fail(self, end: AttemptEnd, *, unheard: bool = False) -> None:
        """No more will come; what has come already can still be taken."""
        if self._broken is None and not self.over:
            self._broken = BrokenError(end, unheard=unheard)
            self._wake()

    def limit(self, at: float, too_late: AttemptEnd) -> None:
        """From now on, fail so at this moment of the loop's clock."""
        self._at, self._too_late = at, too_late
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._look)
        elif at < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(at, self._look)

    def leave(self) -> None:
        """The client has left."""
        self.fail("disconnected")

    def close(self) -> None:
        """Nobody takes any more: what is still on its way is stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.over:
            self._stop()

    async def head(self) -> int:
        """Wait for status and headers; the status.

        Raises:
            BrokenError: They don't come.
        """
        while not self.status:
            await self._wait()
        return self.status

    async def piece(self) -> bytes:
        """What has come since the last time, waiting for some; empty at the end.

        Raises:
            BrokenError: There is no more, and no end.
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
        if self._waiter is None:  # it is the client that is slow
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        else:
            self.fail(self._too_late)
