"""Which headers go on to targets, and back to clients."""

import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway import Header
from prefill_router_gateway.protocol import HeaderFilter, to_client

SECRETS: list[Header] = [
    (b"authorization", b"Bearer secret"),
    (b"x-api-key", b"secret"),
    (b"api-key", b"secret"),
    (b"proxy-authorization", b"secret"),
    (b"cookie", b"session=secret"),
]
OF_ONE_CONNECTION: list[Header] = [
    (b"connection", b"keep-alive"),
    (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"),
    (b"trailer", b"x"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"proxy-connection", b"close"),
]
PASSED: list[Header] = [
    (b"anthropic-version", b"2023-06-01"),
    (b"openai-beta", b"assistants=v2"),
    (b"x-stainless-lang", b"python"),
    (b"user-agent", b"OpenAI/Python"),
    (b"idempotency-key", b"7"),
    (b"traceparent", b"00-0-0-01"),
]
ALWAYS: list[Header] = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]


def test_targets_get_what_belongs_to_the_protocol() -> None:
    others = [
        (b"host", b"gateway"),
        (b"content-length", b"9"),
        (b"content-type", b"text/plain"),
        (b"accept-encoding", b"gzip, br"),
        (b"x-session-id", b"7"),
        (b"x-prefill-router-lam", b"0.5"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"x-own", b"1"),
    ]
    headers = [*SECRETS, *OF_ONE_CONNECTION, *PASSED, *others]
    assert HeaderFilter().to_target(headers) == [*PASSED, *ALWAYS]
    assert HeaderFilter(["X-Own"]).to_target(headers) == [*PASSED, (b"x-own", b"1"), *ALWAYS]
    assert HeaderFilter().to_target([]) == ALWAYS


def test_what_connection_names_stays_here() -> None:
    headers = [(b"user-agent", b"x"), (b"connection", b"close, Idempotency-Key"), *PASSED[4:]]
    assert HeaderFilter().to_target(headers) == [(b"user-agent", b"x"), PASSED[5], *ALWAYS]


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "cookie",
        "Host",
        "x-api-key",
        "te",
        "X-Prefill-Router-Lam",
        " ",
        "x-session-id",
    ],
)
def test_some_headers_are_never_passed_on(name: str) -> None:
    with pytest.raises(ConfigError, match="which are never forwarded"):
        HeaderFilter(["x-fine", name])


def test_clients_get_the_target_s_headers() -> None:
    expected = [
        (b"content-type", b"text/event-stream"),
        (b"x-request-id", b"req_1"),
        (b"retry-after", b"3"),
        (b"x-ratelimit-remaining-tokens", b"9"),
        (b"openai-processing-ms", b"12"),
        (b"content-encoding", b"br"),
    ]
    dropped = [
        *OF_ONE_CONNECTION,
        (b"Set-Cookie", b"a=b"),
        (b"server", b"cloud"),
        (b"date", b"now"),
        (b"alt-svc", b"h3"),
        (b"Strict-Transport-Security", b"max-age=9"),
        (b"access-control-allow-origin", b"*"),
        (b"clear-site-data", b'"*"'),
        (b"x-prefill-router-target", b"forged"),
    ]
    named = [(b"X-Request-Id", b"req_1") if h[0] == b"x-request-id" else h for h in expected]
    length = (b"content-length", b"12")
    assert to_client([*dropped, *named, length], reframed=True) == expected
    assert to_client([*dropped, *named, length], reframed=False) == [*expected, length]


def test_what_a_reply_s_connection_names_stays_here() -> None:
    headers = [(b"Connection", b"X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")]
    assert to_client(headers, reframed=True) == [(b"x-end", b"2")]
