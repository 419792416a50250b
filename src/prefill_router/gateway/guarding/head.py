"""What is checked of a request before its body is read."""

from starlette.types import Scope

from prefill_router.gateway.guarding.address import Hosts
from prefill_router.gateway.refusal import RefusalError

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


def check_host(head: Head, hosts: Hosts, *, version: str) -> None:
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
