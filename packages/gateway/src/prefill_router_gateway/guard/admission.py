"""The guard: admits or refuses every request before the application sees it (ASGI).

Some paths need a key, and some an admin key. Bodies are limited in size and in time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.body_budget import BodyBudget, BodyReservation
from prefill_router_gateway.guard.checks import (
    Head,
    check_content,
    check_host,
    check_served,
    check_site,
    is_without_body,
    read_head,
    too_long,
)
from prefill_router_gateway.guard.client_keys import ClientKey, ClientKeys
from prefill_router_gateway.guard.host_names import HostNames
from prefill_router_gateway.guard.key_limits import KeyLimits, RequestSlots
from prefill_router_gateway.guard.refusals import send_refusal
from prefill_router_gateway.settings import LimitSettings, ListenSettings

KEY = "prefill_router.key"
"""The scope entry with a request's `ClientKey`; None where it has none."""
HELD_BODY = "prefill_router.held_body"
"""The scope entry with the body's `BodyReservation`, to be freed once it is no longer needed."""
PLACE = "prefill_router.place"
"""The scope entry with the request's `SharedPlace`, where replicas share the limits of keys."""
_BODY_SECONDS = 60.0
_SHORT = 2**16  # bytes; the most for bodies outside `/v1`, which aren't limited under load
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


OnRefusal = Callable[[RefusalError, str | None], None]
"""Called with a refusal and the client's address; None where that is unknown."""


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
"""The headers of every response outside `/v1`."""
_PAGE_NAMES = frozenset(name for name, _ in PAGE_HEADERS)
_CORS = b"access-control-"


class SharedPlace(Protocol):
    """The place of a request among those that replicas count together for its key."""

    def free(self) -> None:
        """Free it; other replicas learn it with what is written next. Later calls do nothing."""
        ...

    async def free_everywhere(self) -> None:
        """Free it, and wait until the other replicas know it."""
        ...


@final
class GuardedSend:
    """A `send` that removes CORS headers, whatever a target sent, and adds the page's headers.

    Args:
        send: The server's `send`.
        of_page: Whether to add the page's headers.

    Attributes:
        started: Whether the response has begun.
        place: Given back before the last part of the response is sent; None where there is none.
    """

    __slots__ = ("_of_page", "_send", "place", "started")

    def __init__(self, send: Send, *, of_page: bool) -> None:
        self._send = send
        self._of_page = of_page
        self.started = False
        self.place: SharedPlace | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send an ASGI message."""
        if not self.started and message["type"] == "http.response.start":
            self.started = True
            headers = [h for h in message.get("headers", ()) if not h[0].startswith(_CORS)]
            if self._of_page:
                headers = [h for h in headers if h[0] not in _PAGE_NAMES]
                headers.extend(PAGE_HEADERS)
            message["headers"] = headers
        elif self.place is not None and not message.get("more_body", False):
            return self._end(message, self.place)
        return self._send(message)

    async def _end(self, message: Message, place: SharedPlace) -> None:
        await place.free_everywhere()
        await self._send(message)


SharedAdmission = Callable[[ClientKey], AbstractAsyncContextManager[SharedPlace]]
"""Admits a request by the limits that replicas share for its key, until the block ends or its place
is freed; it raises as `KeyLimits.enter`."""


@final
class Guard:
    """Admits valid requests, with their whole body, and refuses all others.

    It checks the headers first: their size, the `Host`, the site of origin and the key. Then it
    checks the type and length of the body, the capacity of the gateway and the limits of the key.
    The body is last. A request without a key is refused before any of its body is read.

    Args:
        app: The application; a `RefusalError` that it raises before it responds is sent as the
            response.
        listen: Where the gateway listens.
        limits: The limits of the gateway.
        keys: The keys; None if none are required.
        key_limits: The state of each key's limits.
        body_budget: The memory for bodies.
        body_seconds: The time limit for a body.
        on_refusal: Called with every refusal.

    Attributes:
        admit_shared: Admits requests where replicas share the limits of keys.
    """

    admit_shared: SharedAdmission | None = None

    def __init__(
        self,
        app: ASGIApp,
        *,
        listen: ListenSettings,
        limits: LimitSettings,
        keys: ClientKeys | None,
        key_limits: KeyLimits | None = None,
        body_budget: BodyBudget | None = None,
        body_seconds: float = _BODY_SECONDS,
        on_refusal: OnRefusal = lambda *_: None,
    ) -> None:
        self._app = app
        self._key_limits = key_limits or KeyLimits()
        self._body_budget = body_budget or BodyBudget(limits.held_bytes)
        self._body_seconds = body_seconds
        self.on_refusal = on_refusal
        self.slots = RequestSlots(limits.requests)
        self.use(listen=listen, limits=limits, keys=keys)

    def use(
        self, *, listen: ListenSettings, limits: LimitSettings, keys: ClientKeys | None
    ) -> None:
        """Use other settings; requests in flight aren't affected."""
        self._hosts = HostNames(listen)
        self._origins = frozenset(origin.encode() for origin in listen.origins)
        self._cors = _allow_sites(self._answer, listen.origins) if listen.origins else None
        self._limits = limits
        self._keys = keys
        self.slots.most = limits.requests
        self._body_budget.most = limits.held_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # WebSockets aren't served
            await send({"type": "websocket.close", "code": 1000})
            return
        if self._cors is None or not self._is_open_to_sites(scope["path"]):
            await self._answer(scope, receive, send)
        elif scope["method"] != "OPTIONS" or await self._admit_preflight(scope, send):
            await self._cors(scope, receive, send)

    @staticmethod
    def _is_open_to_sites(path: str) -> bool:
        return path.startswith("/v1/") and access_of(path) != "admin"

    async def _admit_preflight(self, scope: Scope, send: Send) -> bool:
        """Whether the head of a preflight is in order; it never reaches the application."""
        try:
            head = read_head(scope, most_bytes=self._limits.header_bytes)
            check_host(head, self._hosts, version=scope["http_version"])
        except RefusalError as refusal:
            self.on_refusal(refusal, address_of(scope))
            await send_refusal(send, refusal, path=scope["path"])
            return False
        return True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        reply = GuardedSend(send, of_page=not path.startswith("/v1/"))
        try:
            await self._check(scope, receive, reply, path)
        except RefusalError as refusal:
            if reply.started:
                raise
            self.on_refusal(refusal, address_of(scope))
            await send_refusal(reply, refusal, path=path)

    async def _check(self, scope: Scope, receive: Receive, reply: GuardedSend, path: str) -> None:
        head = read_head(scope, most_bytes=self._limits.header_bytes)
        check_host(head, self._hosts, version=scope["http_version"])
        method = scope["method"]
        if method not in _READING:
            check_site(head, self._origins if self._is_open_to_sites(path) else ())
        key = scope[KEY] = self._check_key(head, path)
        check_served(path)
        if b"sec-websocket-key" in head:
            raise _websocket_refusal()
        if method == "HEAD":  # answered as GET; the server leaves the body out
            scope = {**scope, "method": "GET"}
        if method in _READING and not asks_a_target(path):
            await self._app(scope, receive, reply)
            return
        is_ours = not path.startswith("/v1/")
        most = _SHORT if is_ours else self._limits.body_bytes
        bare = asks_a_target(path) and is_without_body(head)
        if method == "POST" and not bare:  # pages can't send other methods without a preflight
            check_content(head, most_bytes=most)
        if is_ours:  # admins must get through under load
            await self._read_and_call(
                scope, receive, reply, most, BodyReservation(BodyBudget(most))
            )
            return
        if method == "POST":
            self._body_budget.check(int(head.get(b"content-length", b"0")))
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
            await self._read_and_call(
                scope, receive, reply, most, BodyReservation(self._body_budget)
            )
            return
        if self.admit_shared is not None:
            reservation = BodyReservation(self._body_budget)
            async with self.admit_shared(key) as place:
                scope[PLACE] = reply.place = place
                await self._read_and_call(scope, receive, reply, most, reservation)
            return
        self._key_limits.enter(key)
        try:
            await self._read_and_call(
                scope, receive, reply, most, BodyReservation(self._body_budget)
            )
        finally:
            self._key_limits.leave(key)

    async def _read_and_call(
        self,
        scope: Scope,
        receive: Receive,
        reply: GuardedSend,
        most_bytes: int,
        reservation: BodyReservation,
    ) -> None:
        try:
            body = await read_body(
                receive, most_bytes=most_bytes, seconds=self._body_seconds, reservation=reservation
            )
            if body is None:
                return
            check_items(body, most=self._limits.body_items)
            receive = with_body(body, receive)
            del body  # otherwise it would stay in memory as long as the request
            scope[HELD_BODY] = reservation
            await self._app(scope, receive, reply)
        finally:
            reservation.free()

    def _check_key(self, head: Head, path: str) -> ClientKey | None:
        if self._keys is None:
            return None
        access = access_of(path)
        credentials = (head.get(b"authorization"), head.get(b"x-api-key"))
        key = self._keys.find(*credentials)
        if access == "free":
            return key
        if key is None:
            raise _key_refusal(any(value is not None for value in credentials))
        if access == "admin" and not key.admin:
            raise RefusalError(
                f"the key {key.name!r} isn't an admin key, which this path needs; use one",
                status=403,
                kind="permission_error",
                code="admin_key_needed",
            )
        return key


def _allow_sites(app: ASGIApp, origins: Sequence[str]) -> CORSMiddleware:
    """An application that lets pages of these sites call it and read its answers."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("*",),
        allow_private_network=True,
    )


def address_of(scope: Scope) -> str | None:
    """The address of a request's client; None where unknown."""
    client = scope.get("client")
    return None if client is None else str(client[0])


def _websocket_refusal() -> RefusalError:
    """Says at once that there are none; clients then send the same by a POST."""
    return RefusalError(
        "WebSockets aren't served; send the request by POST",
        status=426,
        code="no_websockets",
        headers={"upgrade": "HTTP/1.1", "connection": "upgrade"},
    )


def _key_refusal(has_one: bool) -> RefusalError:
    problem = "is unknown or has expired" if has_one else "is missing"
    return RefusalError(
        f"the key {problem}; send a key of this gateway as authorization: Bearer KEY, or as "
        "x-api-key",
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="prefill-router"'},
    )


Access = Literal["free", "key", "admin"]
_FREE = frozenset({"/", "/health", "/ready", "/favicon.ico"})
_ADMIN = ("/metrics", "/page/api", "/admin", "/v1/savings")


def asks_a_target(path: str) -> bool:
    """Whether even a GET of this path calls a target, and so counts as a request of the key."""
    return path.startswith("/v1/responses/")


def access_of(path: str) -> Access:
    """The access that a path needs where there are keys; unknown paths need a key."""
    if any(path == part or path.startswith(f"{part}/") for part in _ADMIN):
        return "admin"
    return "free" if path in _FREE or path.startswith("/page/") else "key"


async def read_body(
    receive: Receive, *, most_bytes: int, seconds: float, reservation: BodyReservation
) -> bytes | None:
    """Read the whole body; None where the client disconnects before its end.

    Args:
        receive: ASGI's `receive`.
        most_bytes: The most bytes of the body.
        seconds: The time limit.
        reservation: Counts the bytes as they arrive.

    Raises:
        RefusalError: 413, it is too long; 408, it took too long; 503, the gateway holds too many
            bytes already.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read_pieces(receive, most_bytes, reservation)
    except TimeoutError:
        raise RefusalError(
            f"the body didn't arrive within {seconds:g} seconds; send it faster, or a shorter one",
            status=408,
            code="body_timeout",
            headers={"connection": "close"},  # the rest of the body must not be read as a request
        ) from None


async def _read_pieces(
    receive: Receive, most_bytes: int, reservation: BodyReservation
) -> bytes | None:
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
        reservation.add(len(piece))
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def check_items(body: bytes, *, most: int) -> None:
    """Check that a JSON body doesn't have so many items that parsing it delays other requests.

    A string, an object and a list count as one each, so a name and its value as two. Ten plain
    numbers, which are parsed fast, count as one. JSON within a string isn't counted.

    Raises:
        RefusalError: 413, it has more than `most`.
    """
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most // 2:
        return  # every value but the first follows one of these
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # a quote now begins or ends a string
    texts = bare.count(b'"') // 2
    if texts <= most:
        between = b"".join(bare.split(b'"')[::2])
        count = texts + between.count(b"{") + between.count(b"[") + between.count(b",") // 10
        if count <= most:
            return
    raise RefusalError(
        f"the body has more than {most} strings, objects and lists (limits.body_items); send fewer",
        status=413,
        code="body_too_many_items",
    )


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns this body in one piece, and then the server's messages."""
    waiting = [body]  # emptied once returned, since a stream may last long and no longer needs it

    async def read() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return read
