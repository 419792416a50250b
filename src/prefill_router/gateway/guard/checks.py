"""The guard's checks of a request: its headers, whom it calls, how much its key may ask, its size.

The gateway answers to names of its own alone. It takes so many requests on at once, and so many
bytes of their bodies.
"""

import math
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import final

from starlette.types import Scope

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard.client_keys import ClientKey
from prefill_router.gateway.settings import ListenSettings

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_KNOWN = 64


@final
class HostNames:
    """The names in `Host` headers that the gateway answers to.

    A page elsewhere can have its own name lead to this machine (DNS rebinding), and its browser
    then takes the gateway for that page's own site; but the browser still sends the page's name.
    An address can't be led elsewhere: where the gateway listens on every address of this machine,
    all addresses are answered to.

    Args:
        listen: Where the gateway listens.
    """

    def __init__(self, listen: ListenSettings) -> None:
        names = (*_LOOPBACK, listen.host, *listen.hosts)
        self._names = {_plain(name)[0] for name in names}
        self._every_address = _is_address(listen.host) and ip_address(listen.host).is_unspecified
        self._known: set[bytes] = set()

    def answer_to(self, host: bytes) -> bool:
        """Whether a `Host` header names this gateway, at any port."""
        if host in self._known:
            return True
        name, port = _plain(host.decode("latin-1"))
        if port and not (port.isascii() and port.isdigit()):
            return False
        good = name in self._names or (self._every_address and _is_address(name))
        if good and len(self._known) < _MOST_KNOWN:
            self._known.add(host)
        return good


def _plain(host: str) -> tuple[str, str]:
    """A host and its port, without the brackets of IPv6 and the dot at the end of full names."""
    if host.count(":") > 1 and not host.startswith("["):
        return host.lower(), ""
    name, _, port = host.partition("]" if host.startswith("[") else ":")
    return name.lstrip("[").lower().removesuffix("."), port.removeprefix(":")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


_WATCHED = frozenset(
    {
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"authorization",
        b"x-api-key",
    }
)
_MOST_HEADERS = 128
_SEPARATORS = 4  # the colon, a space and the end of a line
_OWN_SITE = (b"same-origin", b"none")  # `none`: the person asked for it, no page did

Head = dict[bytes, bytes]
"""The headers that the guard looks at, by their names in lower case."""


def read_head(scope: Scope, *, most_bytes: int) -> Head:
    """The headers that the guard looks at.

    Raises:
        RefusalError: 431, they are too long or too many; 400, one that decides is there twice.
    """
    headers = scope["headers"]
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    found: Head = {}
    for name, value in headers:
        size += len(name) + len(value) + _SEPARATORS
        if name in _WATCHED:
            if name in found:
                raise RefusalError(f"the header {name.decode()} is there twice; send it once")
            found[name] = value
    if size > most_bytes or len(headers) > _MOST_HEADERS:
        raise RefusalError(
            f"the request's headers are {len(headers)}, of {size} bytes with its address; at most "
            f"{_MOST_HEADERS} and {most_bytes} bytes are read",
            status=431,
            code="headers_too_large",
        )
    return found


def check_host(head: Head, hosts: HostNames, *, version: str) -> None:
    """Check that a request calls the gateway by a name of its own.

    Raises:
        RefusalError: 421, it doesn't; 400, it names none.
    """
    host = head.get(b"host")
    if host is None:
        if version != "1.0":  # RFC 9112, 3.2
            raise RefusalError("the header host is missing; send it")
        return
    if not hosts.answer_to(host):
        raise RefusalError(
            "the gateway doesn't answer to the name in the host header; ask it by its address, or "
            "have its name added to listen.hosts",
            status=421,
            code="unknown_host",
        )


def check_site(head: Head) -> None:
    """Check that no page of another site has a browser send this.

    Browsers say where a request comes from: newer ones in `Sec-Fetch-Site`, all in `Origin`.
    Programs say neither.

    Raises:
        RefusalError: 403, another site's page sent it.
    """
    site = head.get(b"sec-fetch-site")
    if site is not None:
        own = site in _OWN_SITE
    else:
        origin = head.get(b"origin")
        own = (
            origin is None or origin.partition(b"://")[2].lower() == head.get(b"host", b"").lower()
        )
    if not own:
        raise RefusalError(
            "pages of other sites can't use the gateway; ask it from a program",
            status=403,
            kind="permission_error",
            code="cross_site",
        )


def check_content(head: Head, *, most_bytes: int) -> None:
    """Check that a body is JSON, and not too long, by what is said of it.

    A page elsewhere can have browsers send forms and plain text unasked, but not JSON.

    Raises:
        RefusalError: 415, it is something else; 413, it is too long.
    """
    kind = head.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RefusalError(
            "the body must be JSON; send it with the header content-type: application/json",
            status=415,
            code="unsupported_content_type",
        )
    if head.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RefusalError(
            "the body is compressed; send it as it is, without content-encoding",
            status=415,
            code="unsupported_content_encoding",
            headers={"accept-encoding": "identity"},  # RFC 9110, 15.5.16
        )
    length = head.get(b"content-length", b"0")
    if not length.isdigit():
        raise RefusalError("the header content-length is no number; send the body's length")
    if len(length) > 18 or int(length) > most_bytes:
        raise too_long(most_bytes)


def is_without_body(head: Head) -> bool:
    """Whether no body follows, nor is said to be of any kind: some clients cancel so."""
    length = head.get(b"content-length", b"0")
    return length == b"0" and not {b"transfer-encoding", b"content-type"} & head.keys()


def too_long(most_bytes: int) -> RefusalError:
    """The refusal of a body that is too long."""
    return RefusalError(
        f"the body has more than {most_bytes} bytes, which is the most that is taken here (at /v1, "
        "limits.body_bytes); send less",
        status=413,
        code="body_too_large",
    )


_ROUNDING = 1e-6  # of requests, and of seconds
_SOON = 1  # seconds until what found no room may come again


class _KeyState:
    __slots__ = ("at", "filled", "under_way")

    def __init__(self, filled: float, at: float) -> None:
        self.filled, self.at, self.under_way = filled, at, 0


@final
class KeyLimits:
    """Requests per minute and at once, of each key.

    The minute is a bucket: it holds as many requests as are allowed, and fills evenly. What is
    known of a key goes on when the file of keys is read again.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, _KeyState] = {}

    def enter(self, key: ClientKey) -> None:
        """Let a request through; `leave` must follow.

        Raises:
            RefusalError: 429, with `retry-after`: the key has no room for it.
        """
        state = self._state(key)
        if key.concurrent is not None and state.under_way >= key.concurrent:
            raise _too_many(
                f"the key {key.name!r} has {state.under_way} requests under way, of "
                f"{key.concurrent} at once; wait for one to end",
                code="concurrency_limit_exceeded",
                seconds=_SOON,
            )
        if key.requests_per_minute is not None:
            self._take(state, key.requests_per_minute, key.name)
        state.under_way += 1

    def leave(self, key: ClientKey) -> None:
        """A request that was let through has ended."""
        state = self._states.get(key.name)
        if state is not None and state.under_way:
            state.under_way -= 1

    def _state(self, key: ClientKey) -> _KeyState:
        state = self._states.get(key.name)
        if state is None:
            state = _KeyState(math.inf, self._clock())  # full, whatever the limit is
            self._states[key.name] = state
        return state

    def _take(self, state: _KeyState, most: int, name: str) -> None:
        now = self._clock()
        state.filled = min(float(most), state.filled + (now - state.at) * most / 60)
        state.at = now
        if state.filled < 1 - _ROUNDING:
            raise _too_many(
                f"the key {name!r} may ask {most} times a minute, and has done so",
                code="rate_limit_exceeded",
                seconds=math.ceil((1 - state.filled) * 60 / most - _ROUNDING),
            )
        state.filled -= 1


@final
class RequestSlots:
    """Requests under way in the whole gateway.

    Args:
        most: At most so many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0

    def enter(self) -> None:
        """Let a request through; `leave` must follow.

        Raises:
            RefusalError: 503, with `retry-after`: there is no room for it.
        """
        if self.under_way >= self.most:
            raise RefusalError(
                f"the gateway has {self.most} requests under way and takes no more; ask again soon",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_SOON)},
            )
        self.under_way += 1

    def leave(self) -> None:
        """A request that was let through has ended."""
        self.under_way -= 1


def _too_many(message: str, *, code: str, seconds: int) -> RefusalError:
    return RefusalError(
        message,
        status=429,
        kind="rate_limit_error",
        code=code,
        headers={"retry-after": str(max(1, seconds))},
    )


@final
class BodyBudget:
    """Bytes of bodies that the gateway holds, of all requests.

    Args:
        most: At most so many.

    Attributes:
        most: The same; it may be set anew, and what is held stays.
        held: So many are.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def check(self, size: int) -> None:
        """Check that there is room for so many bytes more, without taking it.

        Raises:
            RefusalError: 503, with `retry-after`: there isn't.
        """
        if self.held + size > self.most:
            raise RefusalError(
                f"the gateway holds as many bytes of requests as it may, {self.most} "
                "(limits.held_bytes), and has no room for this one; ask again soon, or send less",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_SOON)},
            )


@final
class BodyReservation:
    """The bytes of one request's body.

    Args:
        room: Where they are held.
    """

    __slots__ = ("_room", "_size")

    def __init__(self, room: BodyBudget) -> None:
        self._room, self._size = room, 0

    def add(self, size: int) -> None:
        """Take room for a piece that has come; `free` must follow.

        Raises:
            RefusalError: 503, there is none.
        """
        self._room.check(size)
        self._room.held += size
        self._size += size

    def free(self) -> None:
        """Nobody needs the body any more. Further calls do nothing."""
        self._room.held -= self._size
        self._size = 0
