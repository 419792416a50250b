"""What is checked of a request before its body is read: its headers, and whom it calls.

The gateway listens where everybody who can reach it must bear a key, or is on this machine; and it
answers to names of its own alone.
"""

from ipaddress import ip_address
from typing import final

from starlette.types import Scope

from prefill_router.client import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard.client_keys import ClientKeys
from prefill_router.gateway.settings import ListenSettings

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_KNOWN = 64


def check_listen(listen: ListenSettings, keys: ClientKeys | None) -> None:
    """Check that whoever can reach the gateway must bear a key, or is on this machine.

    Raises:
        ConfigError: It would listen on other addresses than loopback, and asks for no keys; or a
            name in `hosts` is none.
    """
    if keys is None and not is_loopback(listen.host):
        raise ConfigError(
            f"listen.host is {listen.host!r}, which others can reach, and there are no keys; make "
            "one with `prefill-router key new NAME --file keys.yaml` and set keys to that file, or "
            "listen on 127.0.0.1"
        )
    wrong = [name for name in listen.hosts if not name or set(name) & set("/*@ ") or "://" in name]
    if wrong:
        raise ConfigError(
            f"listen.hosts has {wrong}; name hosts as clients call them, such as gateway.example"
        )


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
        self._every_address = _is_unspecified(listen.host)
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


def _is_unspecified(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_unspecified


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
