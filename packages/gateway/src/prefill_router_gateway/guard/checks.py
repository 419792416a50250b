"""The guard's checks of a request: headers, host name, its key, the key's limits, and size.

The gateway answers only to its own host names. It limits the requests in flight and the bytes of
their bodies.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator
from starlette.types import Scope

from prefill_router.endpoints import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.options import POSITIVE
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.limits import COUNT
from prefill_router_gateway.settings import BudgetSettings, ListenSettings

_Rate = Annotated[StrictInt, COUNT]
_Dollars = Annotated[float, POSITIVE]


@final
class ClientKey(BaseModel):
    """A client's key: its hash, and what it may do.

    Attributes:
        name: Its name in receipts and budgets.
        sha256: The key's SHA-256 in hexadecimal; the key itself isn't stored.
        created: The day on which it was made.
        requests_per_minute: The most requests per minute; None for no limit.
        concurrent: The most requests in flight; None for no limit.
        dollars_per_day: The most US dollars per day (UTC); None for no limit.
        dollars_per_hour: The most US dollars per hour; None for no limit.
        targets: The targets that it may use; None for all.
        admin: Whether it may also read metrics and the page's numbers, and change settings.
        expires: When it expires; a date means the end of that day (UTC). None for never.
        learning: Whether its requests may be kept for the next router to learn from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Field(repr=False)]
    created: date | None = None
    requests_per_minute: _Rate | None = None
    concurrent: _Rate | None = None
    dollars_per_day: _Dollars | None = None
    dollars_per_hour: _Dollars | None = None
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    admin: StrictBool = False
    expires: datetime | None = None
    learning: StrictBool = True

    @field_validator("sha256")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if value.startswith("pr-"):
            raise ValueError("is a key; write its SHA-256 here, or let `key new` do so")
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise ValueError("isn't a SHA-256; give 64 hexadecimal digits in lower case")
        return value

    @field_validator("expires", mode="before")
    @classmethod
    def _is_a_moment(cls, value: Any) -> Any:
        if isinstance(value, str) and len(value) == len("2026-01-31"):
            value = _parse_day(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            last = datetime(value.year, value.month, value.day, tzinfo=UTC)
            return last + timedelta(days=1) if value < date.max else last
        return value

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("has no time zone; give one, like the Z in 2026-01-31T12:00:00Z")
        return value


@final
class ClientKeys:
    """The keys that a gateway knows.

    Keys are 256 random bits, so a single SHA-256 protects them: they can't be guessed, and the slow
    hashes that passwords need would only slow requests. The time of a table lookup can reveal
    something about hashes at most, and an attacker can't choose the hash of a guessed key, so it
    reveals nothing about keys.

    Args:
        keys: The keys, with distinct names and hashes.
        clock: Returns seconds since 1970.

    Raises:
        ConfigError: Two keys have the same name or hash.
    """

    def __init__(
        self, keys: Sequence[ClientKey], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._keys = tuple(keys)
        problems = find_repeated_keys([{"name": key.name, "sha256": key.sha256} for key in keys])
        if problems:
            raise ConfigError(*problems)
        self._by_digest = {
            bytes.fromhex(key.sha256): (
                key,
                float("inf") if key.expires is None else key.expires.timestamp(),
            )
            for key in keys
        }

    def __iter__(self) -> Any:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: bytes | None, x_api_key: bytes | None) -> ClientKey | None:
        """The key that a request carries in either header; None where neither is valid."""
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            key = self._find_secret(authorization[7:].strip())
            if key is not None:
                return key
        return None if x_api_key is None else self._find_secret(x_api_key.strip())

    def check_targets(self, names: Iterable[str]) -> None:
        """Check that keys name only targets of this pool.

        Raises:
            ConfigError: Some don't; the message names every one.
        """
        targets = set(names)
        problems = [
            f"the key {key.name!r} allows {unknown}, which the pool doesn't have; its targets are "
            f"{sorted(targets)}"
            for key in self._keys
            if (unknown := sorted(set(key.targets or ()) - targets))
        ]
        if problems:
            raise ConfigError(*problems)

    def _find_secret(self, secret: bytes) -> ClientKey | None:
        entry = self._by_digest.get(sha256(secret).digest())
        return None if entry is None or self._clock() >= entry[1] else entry[0]


def key_budgets(keys: Iterable[ClientKey]) -> tuple[BudgetSettings, ...]:
    """The budgets of keys; once one is spent, its key's requests are refused."""
    budgets = []
    for key in keys:
        if key.dollars_per_hour is not None:
            budgets.append(
                BudgetSettings(dollars=key.dollars_per_hour, per="hour", key=key.name, stop=True)
            )
        if key.dollars_per_day is not None:
            budgets.append(
                BudgetSettings(dollars=key.dollars_per_day, per="day", key=key.name, stop=True)
            )
    return tuple(budgets)


def check_listen(listen: ListenSettings, keys: ClientKeys | None) -> None:
    """Check that only this machine can reach the gateway, or that keys are required.

    Raises:
        ConfigError: It would listen on an address other than loopback without keys, or a name in
            `hosts` isn't a host name.
    """
    if keys is None and not is_loopback(listen.host):
        raise ConfigError(
            f"listen.host is {listen.host!r}, which others can reach, and there are no keys; make "
            "one with `prefill-router key new NAME --file keys.yaml` and set keys to that file, or "
            "listen on 127.0.0.1"
        )
    wrong_names = [
        name for name in listen.hosts if not name or set(name) & set("/*@ ") or "://" in name
    ]
    if wrong_names:
        raise ConfigError(
            f"listen.hosts has {wrong_names}; give host names as clients use them, such as "
            "gateway.example"
        )


def find_repeated_keys(rows: Iterable[Any]) -> list[str]:
    """The error messages about repeated names and hashes, in rows that may be anything."""
    values_of: dict[str, set[str]] = {"name": set(), "sha256": set()}
    problems = []
    for number, row in enumerate(rows):
        for field, values in values_of.items():
            value = row.get(field) if isinstance(row, dict) else None
            if isinstance(value, str):
                if value in values:
                    problems.append(f"keys.{number}.{field}: is repeated; give each key its own")
                values.add(value)
    return problems


def _parse_day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_HOSTS = 64


@final
class HostNames:
    """The names in `Host` headers that the gateway answers to.

    A page elsewhere can make its own host name resolve to this machine (DNS rebinding), so that a
    browser takes the gateway for that page's site; but the browser still sends the page's host
    name. IP addresses can't be rebound: where the gateway listens on all addresses of this machine,
    it answers to any address.

    Args:
        listen: Where the gateway listens.
    """

    def __init__(self, listen: ListenSettings) -> None:
        names = (*_LOOPBACK, listen.host, *listen.hosts)
        self._names = {_split_host(name)[0] for name in names}
        self._every_address = _is_address(listen.host) and ip_address(listen.host).is_unspecified
        self._answered: set[bytes] = set()

    def answer_to(self, host: bytes) -> bool:
        """Whether a `Host` header names this gateway, at any port."""
        if host in self._answered:
            return True
        name, port = _split_host(host.decode("latin-1"))
        if port and not (port.isascii() and port.isdigit()):
            return False
        good = name in self._names or (self._every_address and _is_address(name))
        if good and len(self._answered) < _MOST_HOSTS:
            self._answered.add(host)
        return good


def _split_host(host: str) -> tuple[str, str]:
    """A host and its port, without IPv6 brackets or the final dot of a full name."""
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


_CHECKED_HEADERS = frozenset(
    {
        b"sec-websocket-key",
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
_OWN_SITE = (b"same-origin", b"none")  # `none`: the user opened it, not a page

Head = dict[bytes, bytes]
"""The headers that the guard checks, by their names in lower case."""


def read_head(scope: Scope, *, most_bytes: int) -> Head:
    """Read the headers that the guard checks.

    Raises:
        RefusalError: 431, they are too long or too many; 400, one of those checked is repeated.
    """
    headers = scope["headers"]
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    head: Head = {}
    for name, value in headers:
        size += len(name) + len(value) + _SEPARATORS
        if name in _CHECKED_HEADERS:
            if name in head:
                raise RefusalError(f"the header {name.decode()} is repeated; send it once")
            head[name] = value
    if size > most_bytes or len(headers) > _MOST_HEADERS:
        raise RefusalError(
            f"the request has {len(headers)} headers, {size} bytes with its URL; at most "
            f"{_MOST_HEADERS} headers and {most_bytes} bytes are allowed",
            status=431,
            code="headers_too_large",
        )
    return head


def check_host(head: Head, hosts: HostNames, *, version: str) -> None:
    """Check that a request's host is one of the gateway's names.

    Raises:
        RefusalError: 421, it isn't; 400, the request has no host.
    """
    host = head.get(b"host")
    if host is None:
        if version != "1.0":  # RFC 9112, 3.2
            raise RefusalError("the header host is missing; send it")
        return
    if not hosts.answer_to(host):
        raise RefusalError(
            "the gateway doesn't answer to the name in the host header; call it by its address, or "
            "add the name to listen.hosts",
            status=421,
            code="unknown_host",
        )


def check_site(head: Head, origins: Collection[bytes] = ()) -> None:
    """Check that the request doesn't come from another site's page in a browser.

    Browsers send the origin of a request, newer ones in `Sec-Fetch-Site`, all in `Origin`.
    Programs send neither.

    Args:
        head: The headers.
        origins: The other sites that are allowed.

    Raises:
        RefusalError: 403, another site's page sent it.
    """
    site = head.get(b"sec-fetch-site")
    if head.get(b"origin") in origins:
        return
    if site is not None:
        own = site in _OWN_SITE
    else:
        origin = head.get(b"origin")
        own = (
            origin is None or origin.partition(b"://")[2].lower() == head.get(b"host", b"").lower()
        )
    if not own:
        raise RefusalError(
            "pages of other sites can't use the gateway; call it from a program, or allow the site "
            "in listen.origins",
            status=403,
            kind="permission_error",
            code="cross_site",
        )


def check_content(head: Head, *, most_bytes: int) -> None:
    """Check by its headers that a body is JSON and not too long.

    A page elsewhere can make browsers send forms and plain text without a preflight, but not JSON.

    Raises:
        RefusalError: 415, it isn't JSON; 413, it is too long.
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
            "the body is compressed; send it uncompressed, without content-encoding",
            status=415,
            code="unsupported_content_encoding",
            headers={"accept-encoding": "identity"},  # RFC 9110, 15.5.16
        )
    length = head.get(b"content-length", b"0")
    if not length.isdigit():
        raise RefusalError("the header content-length isn't a number; send the body's length")
    if len(length) > 18 or int(length) > most_bytes:
        raise too_long(most_bytes)


def check_served(path: str) -> None:
    """Check that a call isn't one that only providers serve.

    Raises:
        RefusalError: 404, it is about images, audio, files or batches.
    """
    if f"{path}/".startswith(_NOT_SERVED):
        raise RefusalError(
            "the gateway serves chats, completions, responses, messages and embeddings; call a "
            "provider itself for images, audio, files and batches",
            status=404,
            code="not_served",
        )


_NOT_SERVED = tuple(
    f"/v1/{name}/"
    for name in ("images", "audio", "videos", "files", "uploads", "batches", "messages/batches")
)


def is_without_body(head: Head) -> bool:
    """Whether a request has no body and no content type, as some clients send to cancel."""
    length = head.get(b"content-length", b"0")
    return length == b"0" and not {b"transfer-encoding", b"content-type"} & head.keys()


def too_long(most_bytes: int) -> RefusalError:
    """The refusal of a body that is too long."""
    return RefusalError(
        f"the body has more than {most_bytes} bytes, the limit of this path (under /v1, "
        "limits.body_bytes); send a shorter one",
        status=413,
        code="body_too_large",
    )


ROUNDING = 1e-6
"""The tolerance of limits, in requests and in seconds."""
_SOON = 1  # seconds until a request refused for capacity may be retried


class _KeyState:
    __slots__ = ("at", "filled", "under_way")

    def __init__(self, filled: float, at: float) -> None:
        self.filled, self.at, self.under_way = filled, at, 0


@final
class KeyLimits:
    """Each key's requests per minute and concurrent requests.

    The limit per minute is a token bucket that holds a minute's requests and fills evenly. Its
    state survives a reload of the keys.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, _KeyState] = {}

    def enter(self, key: ClientKey) -> None:
        """Admit a request; `leave` must follow.

        Raises:
            RefusalError: 429 with `retry-after`: the key has reached a limit.
        """
        state = self._state(key)
        if key.concurrent is not None and state.under_way >= key.concurrent:
            raise too_many_at_once(key, state.under_way)
        if key.requests_per_minute is not None:
            self._fill(state, key.requests_per_minute)
            if state.filled < 1 - ROUNDING:
                raise too_many_per_minute(key, state.filled)
            state.filled -= 1
        state.under_way += 1

    def count(self, key: ClientKey) -> None:
        """Count a request that was admitted elsewhere; `leave` must follow."""
        state = self._state(key)
        if key.requests_per_minute is not None:
            self._fill(state, key.requests_per_minute)
            state.filled = max(0.0, state.filled - 1)
        state.under_way += 1

    def leave(self, key: ClientKey) -> None:
        """Record the end of an admitted request."""
        state = self._states.get(key.name)
        if state is not None and state.under_way:
            state.under_way -= 1

    def _state(self, key: ClientKey) -> _KeyState:
        state = self._states.get(key.name)
        if state is None:
            state = _KeyState(math.inf, self._clock())  # full, whatever the limit
            self._states[key.name] = state
        return state

    def _fill(self, state: _KeyState, most: int) -> None:
        now = self._clock()
        state.filled = min(float(most), state.filled + (now - state.at) * most / 60)
        state.at = now


@final
class RequestSlots:
    """Limits the requests in flight in the whole gateway.

    Args:
        most: The most requests.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0

    def enter(self) -> None:
        """Admit a request; `leave` must follow.

        Raises:
            RefusalError: 503 with `retry-after`: the limit is reached.
        """
        if self.under_way >= self.most:
            raise RefusalError(
                f"the gateway has {self.most} requests in flight, its limit; try again soon",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_SOON)},
            )
        self.under_way += 1

    def leave(self) -> None:
        """Record the end of an admitted request."""
        self.under_way -= 1


def too_many_at_once(key: ClientKey, under_way: int) -> RefusalError:
    """The refusal of a request of a key that has as many in flight as it may."""
    limit = f"{under_way} requests in flight, and may have {key.concurrent}"
    message = f"the key {key.name!r} has {limit}; wait for one to end"
    return _too_many(message, code="concurrency_limit_exceeded", seconds=_SOON)


def too_many_per_minute(key: ClientKey, filled: float) -> RefusalError:
    """The refusal of a request of a key whose bucket is filled with less than one request."""
    most = key.requests_per_minute or 1
    message = f"the key {key.name!r} has used its {most} requests per minute; wait and try again"
    seconds = math.ceil((1 - filled) * 60 / most - ROUNDING)
    return _too_many(message, code="rate_limit_exceeded", seconds=seconds)


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
    """Limits the bytes of request bodies that the gateway holds in memory.

    Args:
        most: The most bytes.

    Attributes:
        most: The most bytes; it may be changed while bytes are held.
        held_bytes: The bytes that are held.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held_bytes = 0

    def check(self, size: int) -> None:
        """Check that this many more bytes fit, without reserving them.

        Raises:
            RefusalError: 503 with `retry-after`: they don't fit.
        """
        if self.held_bytes + size > self.most:
            raise RefusalError(
                f"the body doesn't fit the {self.most} bytes that the gateway may hold of all "
                "requests (limits.held_bytes); try again soon, or send a shorter one",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_SOON)},
            )


@final
class BodyReservation:
    """The bytes reserved for one request's body.

    Args:
        budget: The memory for bodies.
    """

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._size = budget, 0

    def add(self, size: int) -> None:
        """Reserve memory for a received piece; `free` must follow.

        Raises:
            RefusalError: 503, it doesn't fit.
        """
        self._budget.check(size)
        self._budget.held_bytes += size
        self._size += size

    def free(self) -> None:
        """Release the memory when the body is no longer needed. Further calls do nothing."""
        self._budget.held_bytes -= self._size
        self._size = 0
