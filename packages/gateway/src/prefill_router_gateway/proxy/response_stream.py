"""A provider's response as it arrives, with its time limits."""

import asyncio
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from prefill_router.endpoints import FailureCause
from prefill_router_gateway.errors import BrokenResponseError
from prefill_router_gateway.records import AttemptEnd, Header

_MOST_WAITING = 2**18  # bytes buffered for a slow client before reading from the target pauses

_BEFORE_EVENTS = b"\xef\xbb\xbf\r\n"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LONGEST_FIELD = 6  # bytes
_MOST_INFLATED = 2**20  # bytes that one piece may be decompressed to
_HEADER_BYTES, _GZIP = 2, b"\x1f\x8b"
_ANY_ZLIB_HEADER = 32 + zlib.MAX_WBITS  # that of gzip or of zlib


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """The time limits of one response, in seconds.

    Attributes:
        first: The longest time without a byte before the first event of a stream.
        silence: The longest time without a byte after it.
        whole: The longest time from the request to the end.
    """

    first: float
    silence: float
    whole: float


_NO_LIMITS = TimeLimits(first=math.inf, silence=math.inf, whole=math.inf)


@final
class Inflater:
    """Decompresses one body, compressed as gzip or deflate.

    Some servers send deflate without the header of zlib that RFC 9110 asks for; both are read.
    """

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_ANY_ZLIB_HEADER)
        self._data = b""  # compressed
        self._has_begun = self._has_header = False

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._data += data
        self._has_begun = True
        if not self._has_header and len(self._data) >= _HEADER_BYTES:
            self._has_header = True
            if not _is_header(self._data):
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)

    def take(self) -> bytes:
        """The next decompressed bytes, not many at once; empty where more input is needed.

        Raises:
            BrokenResponseError: The bytes can't be decompressed.
        """
        if not self._has_header:
            return b""
        if self._zlib.eof and self._data:  # another member of a gzip
            self._zlib = zlib.decompressobj(_ANY_ZLIB_HEADER)
        try:
            piece = self._zlib.decompress(self._data, _MOST_INFLATED)
        except zlib.error:
            raise BrokenResponseError("malformed") from None
        self._data = self._zlib.unconsumed_tail or self._zlib.unused_data
        return piece

    def check_end(self) -> None:
        """Check that the compressed bytes are complete.

        Raises:
            BrokenResponseError: They aren't.
        """
        if self._has_begun and not self._zlib.eof:
            raise BrokenResponseError("broken_off")


def _is_header(data: bytes) -> bool:
    """Whether bytes begin as gzip does (RFC 1952), or as zlib (RFC 1950, 2.2)."""
    is_zlib = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2]) % 31 == 0
    return is_zlib or data.startswith(_GZIP)


@final
class ResponseStream:
    """One response as it arrives.

    One timer serves all time limits. Moving a limit to a later time costs nothing: when the timer
    fires, it checks whether the limit has passed.

    Attributes:
        began: When the request was sent, by the loop's clock.
        status: The HTTP status; 0 before it has arrived.
        headers: The headers, with names in lower case.
        limits: Its time limits, which `await_first` and `await_next` apply.
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
        self._inflater: Inflater | None = None
        self._ahead = b""  # what was read of the body and not returned yet
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._too_late: AttemptEnd = "answer_timeout"
        self.began = self._loop.time()
        self.status = 0
        self.headers: list[Header] = []
        self.limits = _NO_LIMITS
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

    def await_first(self) -> None:
        """Restart the time limit before the first event of a stream."""
        self._await_byte(self.limits.first, "first_token_timeout")

    def await_next(self) -> None:
        """Restart the time limit for silence within a stream."""
        self._await_byte(self.limits.silence, "silence")

    def await_end(self) -> None:
        """Start the time limit for the whole response."""
        self.limit(self.began + self.limits.whole, "answer_timeout")

    def _await_byte(self, seconds: float, too_late: AttemptEnd) -> None:
        at = self._loop.time() + seconds
        if at < self.began + self.limits.whole:
            self.limit(at, too_late)
        else:
            self.await_end()

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

    def inflate(self) -> None:
        """Decompress the body, which came as gzip or deflate."""
        self._inflater = Inflater()

    async def begins_as_events(self) -> bool:
        """Whether the body begins as a stream of events does; it can still be read as a whole.

        Raises:
            BrokenResponseError: As for `piece`.
        """
        ahead = b""
        while len(ahead.lstrip(_BEFORE_EVENTS)) < _LONGEST_FIELD and (piece := await self.piece()):
            ahead += piece
        self._ahead = ahead
        return ahead.lstrip(_BEFORE_EVENTS).startswith(_FIELDS)

    async def piece(self) -> bytes:
        """Wait for and return the next bytes of the body; empty at the end.

        Raises:
            BrokenResponseError: The body broke off, or can't be decompressed.
        """
        if self._ahead:
            piece, self._ahead = self._ahead, b""
            return piece
        if self._inflater is None:
            return await self._receive()
        while not (piece := self._inflater.take()):
            data = await self._receive()
            if not data:
                self._inflater.check_end()
                return b""
            self._inflater.feed(data)
        return piece

    async def _receive(self) -> bytes:
        while not self._pieces:
            if self.over:
                return b""
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(False)
        self._waiting = 0
        return data

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
