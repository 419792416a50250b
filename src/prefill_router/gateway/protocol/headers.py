"""Which headers go on: the client's to the target, and the target's back to the client."""

from collections.abc import Collection, Iterable, Sequence
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.gateway.types import HEADER, SESSION_HEADER

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection alone (RFC 9110, section 7.6.1), and those of keys for proxies."""
_OWN = HEADER.encode()
_PASSED = frozenset(
    {
        b"anthropic-version",
        b"anthropic-beta",
        b"user-agent",
        b"idempotency-key",
        b"http-referer",
        b"x-title",
        b"accept",
        b"traceparent",
        b"tracestate",
    }
)
_PASSED_PREFIXES = (b"openai-", b"x-stainless-")
_NEVER_PASSED = HOP_BY_HOP | {
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"openai-organization",  # of the client's account, not of the one whose key the target gets
    b"openai-project",
    b"cookie",
    b"host",
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"accept-encoding",
    b"expect",
    SESSION_HEADER.encode(),
}
_SET: list[Header] = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_FOR_BROWSERS = frozenset(
    {
        b"alt-svc",
        b"clear-site-data",
        b"content-security-policy",
        b"cross-origin-embedder-policy",
        b"cross-origin-opener-policy",
        b"expect-ct",
        b"nel",
        b"refresh",
        b"report-to",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-cookie2",
        b"strict-transport-security",
    }
)
"""What a browser would take as the word of the gateway's own address, for all of its pages."""
_NEVER_BACK = HOP_BY_HOP | _FOR_BROWSERS | {b"server", b"date"}
_NEVER_BACK_PREFIXES = (_OWN, b"access-control-")


@final
class HeaderFilter:
    """Which of a client's headers its target gets.

    Those of the OpenAI and Anthropic protocols do, those of their SDKs, and what says who asks and
    belongs to which trace; never a key, a cookie, or what concerns one connection alone.

    Args:
        further: Names of further headers, from the settings.

    Raises:
        ConfigError: One of them is never passed on.
    """

    def __init__(self, further: Iterable[str] = ()) -> None:
        names = frozenset(name.strip().lower().encode() for name in further)
        refused = sorted(name.decode() for name in names if _is_refused(name))
        if refused:
            raise ConfigError(f"forward_headers has {refused}, which no target gets; take them out")
        self._names = _PASSED | names

    def to_target(self, headers: Sequence[Header]) -> list[Header]:
        """The headers of the call of a target, but for its key.

        Args:
            headers: The client's, their names in lower case, as ASGI has them.
        """
        names, dropped = self._names, _nominated(headers)
        found = [
            (name, value)
            for name, value in headers
            if (name in names or name.startswith(_PASSED_PREFIXES))
            and name not in _NEVER_PASSED
            and name not in dropped
        ]
        return found + _SET


def to_client(headers: Sequence[Header], *, reframed: bool) -> list[Header]:
    """The headers of a target's reply that the client gets, their names in lower case.

    Left out are those of one connection, what browsers would take as the gateway's own word (its
    cookies, its transport, who may read across origins), and what only the gateway says.

    Args:
        headers: The target's.
        reframed: Whether the length of the body is told anew, or not at all, as on a stream.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = _nominated(lowered)
    return [
        (name, value)
        for name, value in lowered
        if name not in _NEVER_BACK
        and not name.startswith(_NEVER_BACK_PREFIXES)
        and not (reframed and name == b"content-length")
        and name not in dropped
    ]


def _nominated(headers: Sequence[Header]) -> Collection[bytes]:
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            return _all_nominated(headers)
    return ()


def _all_nominated(headers: Sequence[Header]) -> frozenset[bytes]:
    values = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(token.strip().lower() for token in values.split(b","))


def _is_refused(name: bytes) -> bool:
    return not name or name in _NEVER_PASSED or name.startswith(_OWN)
