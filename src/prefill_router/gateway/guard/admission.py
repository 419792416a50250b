"""The guard: what every request passes before the gateway looks at it (ASGI).

Some paths need a key, and some an admin's. Of a body so much is read, in so much time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard.checks import (
    BodyBudget,
    BodyReservation,
    Head,
    HostNames,
    KeyLimits,
    RequestSlots,
    check_content,
    check_host,
    check_site,
    is_without_body,
    read_head,
    too_long,
)
from prefill_router.gateway.guard.client_keys import ClientKey, ClientKeys
from prefill_router.gateway.guard.error_replies import send_refusal
from prefill_router.gateway.settings import LimitSettings, ListenSettings

KEY = "prefill_router.key"
"""Where a request's `ClientKey` stands in its scope; None where none is asked for."""
FREE_BODY = "prefill_router.free_body"
"""Where its scope has what is to be called once nobody needs its body any more."""
_BODY_SECONDS = 60.0
_SHORT = 2**16  # bytes of bodies that have no room to wait for, such as an admin's
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


Refused = Callable[[RefusalError, str | None], None]
"""Told of a refusal, and the address that it goes to; None where that isn't known."""


PAGE_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Of every reply but those of `/v1`."""
_PAGE_NAMES = frozenset(name for name, _ in PAGE_HEADERS)
_CORS = b"access-control-"


@final
class GuardedSend:
    """A `send` that minds the headers: no CORS ever, whatever a target said.

    Args:
        send: The server's own.
        of_page: Whether the headers of the page are added.
    """

    __slots__ = ("_of_page", "_send", "started")

    def __init__(self, send: Send, *, of_page: bool) -> None:
        self._send = send
        self._of_page = of_page
        self.started = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send a message of ASGI."""
        if not self.started and message["type"] == "http.response.start":
            self.started = True
            headers = [h for h in message.get("headers", ()) if not h[0].startswith(_CORS)]
            if self._of_page:
                headers = [h for h in headers if h[0] not in _PAGE_NAMES]
                headers.extend(PAGE_HEADERS)
            message["headers"] = headers
        return self._send(message)


@final
class Guard:
    """Lets through what may come, with its whole body, and refuses all else.

    In this order: the headers' size, the `Host`, the site that it comes from, the key, the kind
    and length of the body, the room that the gateway and the key have, the body. What has no key
    is refused before any of its body is read.

    Args:
        app: What it guards; `RefusalError`s that it raises before it replies are sent as replies.
        listen: Where the gateway listens.
        limits: How much clients may ask at once.
        keys: The keys that are asked for; None to ask for none.
        key_limits: What is known of each key's requests.
        room: Where bodies are held.
        body_seconds: A body that takes longer is refused.
        refused: Told of every refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        listen: ListenSettings,
        limits: LimitSettings,
        keys: ClientKeys | None,
        key_limits: KeyLimits | None = None,
        room: BodyBudget | None = None,
        body_seconds: float = _BODY_SECONDS,
        refused: Refused = lambda *_: None,
    ) -> None:
        self._app = app
        self._key_limits = key_limits or KeyLimits()
        self._room = room or BodyBudget(limits.held_bytes)
        self._body_seconds = body_seconds
        self.refused = refused
        self.slots = RequestSlots(limits.requests)
        self.use(listen=listen, limits=limits, keys=keys)

    def use(
        self, *, listen: ListenSettings, limits: LimitSettings, keys: ClientKeys | None
    ) -> None:
        """Go on with other settings; requests under way aren't touched."""
        self._hosts = HostNames(listen)
        self._limits = limits
        self._keys = keys
        self.slots.most = limits.requests
        self._room.most = limits.held_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # WebSockets: none is served
            await send({"type": "websocket.close", "code": 1000})
            return
        path = scope["path"]
        reply = GuardedSend(send, of_page=not path.startswith("/v1/"))
        try:
            await self._check(scope, receive, reply, path)
        except RefusalError as refusal:
            if reply.started:
                raise
            self.refused(refusal, address_of(scope))
            await send_refusal(reply, refusal, path=path)

    async def _check(self, scope: Scope, receive: Receive, reply: GuardedSend, path: str) -> None:
        head = read_head(scope, most_bytes=self._limits.header_bytes)
        check_host(head, self._hosts, version=scope["http_version"])
        method = scope["method"]
        if method not in _READING:
            check_site(head)
        key = scope[KEY] = self._key_of(head, path)
        if method == "HEAD":  # answered as GET is; the server leaves the body out
            scope = {**scope, "method": "GET"}
        if method in _READING and not asks_a_target(path):
            await self._app(scope, receive, reply)
            return
        is_ours = not path.startswith("/v1/")
        most = _SHORT if is_ours else self._limits.body_bytes
        bare = asks_a_target(path) and is_without_body(head)
        if method == "POST" and not bare:  # no page can send the others without asking first
            check_content(head, most_bytes=most)
        if is_ours:  # what an admin does must be possible under load
            await self._pass(scope, receive, reply, most, BodyReservation(BodyBudget(most)))
            return
        if method == "POST":
            self._room.check(int(head.get(b"content-length", b"0")))
        self.slots.enter()
        try:
            await self._admit(scope, receive, reply, key)
        finally:
            self.slots.leave()

    async def _admit(
        self, scope: Scope, receive: Receive, reply: GuardedSend, key: ClientKey | None
    ) -> None:
        most = self._limits.body_bytes
        if key is None:
            await self._pass(scope, receive, reply, most, BodyReservation(self._room))
            return
        self._key_limits.enter(key)
        try:
            await self._pass(scope, receive, reply, most, BodyReservation(self._room))
        finally:
            self._key_limits.leave(key)

    async def _pass(
        self,
        scope: Scope,
        receive: Receive,
        reply: GuardedSend,
        most_bytes: int,
        held: BodyReservation,
    ) -> None:
        try:
            body = await read_body(
                receive, most_bytes=most_bytes, seconds=self._body_seconds, held=held
            )
            if body is None:
                return
            check_items(body, most=self._limits.body_items)
            receive = with_body(body, receive)
            del body  # else it would stay as long as the request
            scope[FREE_BODY] = held.free
            await self._app(scope, receive, reply)
        finally:
            held.free()

    def _key_of(self, head: Head, path: str) -> ClientKey | None:
        if self._keys is None:
            return None
        access = access_of(path)
        given = (head.get(b"authorization"), head.get(b"x-api-key"))
        key = self._keys.find(*given)
        if access == "free":
            return key
        if key is None:
            raise _unknown(any(value is not None for value in given))
        if access == "admin" and not key.admin:
            raise RefusalError(
                f"the key {key.name!r} isn't an admin's, which this needs",
                status=403,
                kind="permission_error",
                code="admin_key_needed",
            )
        return key


def address_of(scope: Scope) -> str | None:
    """Where a request comes from."""
    client = scope.get("client")
    return None if client is None else str(client[0])


def _unknown(has_one: bool) -> RefusalError:
    told = "isn't known, or is no longer good" if has_one else "is missing"
    return RefusalError(
        f"the key {told}; send a key of this gateway as authorization: Bearer KEY, or as x-api-key",
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="prefill-router"'},
    )


Access = Literal["free", "key", "admin"]
_FREE = frozenset({"/", "/health", "/ready", "/favicon.ico"})
_ADMIN = ("/metrics", "/page/api", "/admin")


def asks_a_target(path: str) -> bool:
    """Whether even reading this path asks a target, so that it counts as a request of the key."""
    return path.startswith("/v1/responses/")


def access_of(path: str) -> Access:
    """What a path needs, where keys are set; one that isn't known needs a key."""
    if path.startswith("/v1/"):
        return "key"
    if any(path == part or path.startswith(f"{part}/") for part in _ADMIN):
        return "admin"
    return "free" if path in _FREE or path.startswith("/page/") else "key"


async def read_body(
    receive: Receive, *, most_bytes: int, seconds: float, held: BodyReservation
) -> bytes | None:
    """The whole body; None where the client left before its end.

    Args:
        receive: Of ASGI.
        most_bytes: It may be so long.
        seconds: And take so long.
        held: Counts what has come of it.

    Raises:
        RefusalError: 413, it is too long; 408, it took too long; 503, there is no room for it.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, most_bytes, held)
    except TimeoutError:
        raise RefusalError(
            f"the body didn't come within {seconds:g} seconds; send it faster, or less of it",
            status=408,
            code="body_timeout",
            headers={"connection": "close"},  # what is still on its way is no request
        ) from None


async def _read(receive: Receive, most_bytes: int, held: BodyReservation) -> bytes | None:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        if size > most_bytes:
            raise too_long(most_bytes)
        held.add(len(piece))
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def check_items(body: bytes, *, most: int) -> None:
    """Check that a body of JSON isn't in so many pieces that reading it holds everybody up.

    A text, an object and a list are one each, its name and its value two; of plain numbers, which
    are read in no time, ten count as one. What looks like JSON within a text isn't counted.

    Raises:
        RefusalError: 413, it has more.
    """
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most // 2:
        return  # each value but the first follows one of these
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # a quote now begins or ends a text
    texts = bare.count(b'"') // 2
    if texts <= most:
        between = b"".join(bare.split(b'"')[::2])
        count = texts + between.count(b"{") + between.count(b"[") + between.count(b",") // 10
        if count <= most:
            return
    raise RefusalError(
        f"the body has more than {most} texts, objects and lists (limits.body_items); send fewer",
        status=413,
        code="body_too_many_items",
    )


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body first, in one piece, and then goes on."""
    waiting = [body]  # emptied once given: a stream may go on for long, and needs it no more

    async def read() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return read
