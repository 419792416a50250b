"""The guard's checks of a request's head: its headers, host name, site, content and path."""

from collections.abc import Collection

from starlette.types import Scope

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.host_names import HostNames

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
