"""One call that is forwarded: what is asked, the client that asked it, and the reply as it arrives.

`ForwardRequest` is the call as it is to be forwarded. `ClientConnection` is what the client is
sent, and whether it is still there. Into a `ResponseStream` whoever reads the wire puts pieces, and
whoever forwards takes them out.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.gateway.records import AttemptEnd, RequestOutcome, TargetAttempt
from prefill_router.targets import Endpoint

Header = tuple[bytes, bytes]
_MOST_WAITING = 2**18  # bytes that wait for a slow client, before the target is read no further


@final
class BrokenResponseError(Exception):
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
class ResponseStream:
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
            self._broken = BrokenResponseError(end, unheard=unheard)
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
            BrokenResponseError: They don't come.
        """
        while not self.status:
            await self._wait()
        return self.status

    async def piece(self) -> bytes:
        """What has come since the last time, waiting for some; empty at the end.

        Raises:
            BrokenResponseError: There is no more, and no end.
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


def _nothing() -> None:
    pass


@final
@dataclass(frozen=True, kw_only=True)
class ForwardRequest:
    """One call.

    Attributes:
        endpoint: What is asked.
        method: The HTTP method.
        below: What follows the endpoint's path, percent-encoded, such as `/resp_1/cancel`.
        query: What the client's address has behind its question mark, percent-encoded.
        is_plain: Whether the answer is passed on as it is, and nothing is read of it.
        lacking: The statuses by which a target tells a plain call that it has no such call.
        bodies: The body for a target, by its name; made anew for each attempt.
        order: The targets that may be asked, the first one first.
        stream: Whether a stream is asked for.
        usage_added: Whether the body asks for token counts that the client didn't ask for; the one
            event that tells nothing else is then left out.
        headers: The client's headers, as far as targets get them; names in lower case.
        reply_headers: The gateway's own headers of the answer, given who answers (None for nobody)
            and what was tried.
        finished: Awaited once, just before the last byte goes to the client, or where it has left.
        stay: Whether nobody but the first target may answer.
        input_tokens: Of the request, estimated; used where a target reports none.
        began: When the request came, by the loop's clock; None for now.
        named: Called once a stream has told the answer's id: who answers, and the id.
        settled: Called once no target will be asked any more, so that bodies are needed no longer.
    """

    endpoint: Endpoint
    bodies: Callable[[str], bytes]
    order: tuple[str, ...]
    finished: Callable[[RequestOutcome], Awaitable[None]]
    reply_headers: Callable[[str | None, tuple[TargetAttempt, ...]], list[Header]]
    stream: bool = False
    usage_added: bool = False
    headers: list[Header] = field(default_factory=list)
    stay: bool = False
    input_tokens: int = 0
    began: float | None = None
    method: bytes = b"POST"
    below: bytes = b""
    query: bytes = b""
    is_plain: bool = False
    lacking: frozenset[int] = frozenset()
    named: Callable[[str, str], None] | None = None
    settled: Callable[[], object] = _nothing


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@final
class ClientGoneError(Exception):
    """The client has left."""


@final
class ClientConnection:
    """Whom a call is answered (ASGI); its request has been read.

    Attributes:
        gone: Whether it has left.
        has_started: Whether the answer has begun to go to it.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._stop: Callable[[], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.gone = False
        self.has_started = False

    def watch(self) -> None:
        """Notice from now on when it leaves."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_gone())

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.cancel()

    def stop_with(self, stop: Callable[[], object] | None) -> None:
        """Call this, and nothing else, when it leaves.

        Raises:
            ClientGoneError: It has left already.
        """
        self._stop = stop
        if stop is not None:
            self.check()

    def check(self) -> None:
        """Raises ClientGoneError where it has left."""
        if self.gone:
            raise ClientGoneError

    async def wait(self, seconds: float) -> None:
        """Wait so long.

        Raises:
            ClientGoneError: It left meanwhile.
        """
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        timer = loop.call_later(seconds, _settle, over)
        self.stop_with(lambda: _settle(over))
        try:
            await over
        finally:
            timer.cancel()
            self._stop = None
        self.check()

    async def start(self, status: int, headers: list[Header]) -> None:
        """Send status and headers.

        Raises:
            ClientGoneError: It has left.
        """
        self.has_started = True
        await self._give({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of the body.

        Raises:
            ClientGoneError: It has left.
        """
        await self._give({"type": "http.response.body", "body": piece, "more_body": more})

    async def _give(self, message: Message) -> None:
        self.check()
        try:
            await self._send(message)
        except OSError:  # what servers raise where the connection is closed (ASGI, version 2.4)
            self._leave()
            raise ClientGoneError from None

    async def _until_gone(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:
            pass
        self._leave()

    def _leave(self) -> None:
        self.gone = True
        if self._stop is not None:
            self._stop()


def check_not_cancelled() -> None:
    """Go on with a cancellation, where it is the present task that was cancelled.

    Raises:
        CancelledError: It was, and not something that it waited for.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
