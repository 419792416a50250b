"""The guard before an application, behind a real server on loopback."""

import asyncio
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from packages.gateway.tests.guard.guarded_server import (
    JSON,
    GuardedServer,
    Pairs,
    build_request,
    read_reply,
    serve_guarded,
)
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import Guard, error_handlers
from prefill_router_gateway.settings import LimitSettings, ListenSettings

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def open_server() -> Iterator[GuardedServer]:
    with serve_guarded(limits=LimitSettings(body_bytes=100, header_bytes=2000)) as server:
        yield server


def test_what_is_good_goes_on_with_its_body(open_server: GuardedServer) -> None:
    reply = open_server.post(body=b'{"a": 1}')
    assert (reply.status, reply.body) == (200, b'{"a": 1}')
    assert open_server.requests[-1] == ("POST", CHAT, b'{"a": 1}', None)
    assert open_server.ask("GET", "/v1/models").status == 200


@pytest.mark.parametrize(
    ("headers", "host", "status"),
    [
        ((), "localhost:1234", 200),
        ((), "[::1]:8080", 200),
        ((), "LOCALHOST", 200),
        ((), "evil.example", 421),
        ((), "127.0.0.1.evil.example", 421),
        ((), "127.0.0.1:80@evil.example", 421),
        ((), "192.168.0.1", 421),
        ((), "", 421),
        ((), None, 400),
        ((("host", "localhost"),), "127.0.0.1", 400),
        ((("origin", "http://127.0.0.1"),), "127.0.0.1", 200),
        ((("origin", "http://127.0.0.1:3000"),), "127.0.0.1", 403),
        ((("origin", "null"),), "127.0.0.1", 403),
        ((("origin", "https://evil.example"),), "127.0.0.1", 403),
        ((("sec-fetch-site", "cross-site"),), "127.0.0.1", 403),
        ((("sec-fetch-site", "same-site"),), "127.0.0.1", 403),
        ((("sec-fetch-site", "same-origin"), ("origin", "http://a.example")), "127.0.0.1", 200),
        ((("sec-fetch-site", "none"),), "127.0.0.1", 200),
        ((("content-encoding", "gzip"),), "127.0.0.1", 415),
        ((("content-encoding", "identity"),), "127.0.0.1", 200),
        ((("x-long", "a" * 2000),), "127.0.0.1", 431),
        (tuple((f"x-{n}", "") for n in range(130)), "127.0.0.1", 431),
    ],
)
def test_heads_of_requests(
    open_server: GuardedServer, headers: Pairs, host: str | None, status: int
) -> None:
    before = len(open_server.requests), len(open_server.refusal_statuses)
    reply = open_server.ask("POST", CHAT, (JSON, *headers), b"{}", host=host)
    assert reply.status == status, reply.body
    assert len(open_server.requests) == before[0] + (status == 200)
    assert open_server.refusal_statuses[before[1] :] == ([] if status == 200 else [status])
    if status != 200:
        assert reply.error["message"]
        assert reply.headers["content-type"] == "application/json"


def test_pages_elsewhere_may_lead_here_but_not_post(open_server: GuardedServer) -> None:
    cross_site = (("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"))
    assert open_server.ask("GET", "/", cross_site).status == 200
    assert open_server.ask("POST", "/page/api/lam", (JSON, *cross_site), b"{}").status == 403
    assert open_server.ask("DELETE", "/v1/x", cross_site).status == 403


def test_pages_of_listed_sites_may_call_what_is_below_v1_and_nothing_else() -> None:
    site, evil = ("origin", "https://app.example"), ("origin", "https://evil.example")
    cross = ("sec-fetch-site", "cross-site")
    preflight_headers = (
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "x-a"),
    )
    with serve_guarded(listen=ListenSettings(origins=("https://app.example",))) as server:
        preflight = server.ask("OPTIONS", CHAT, (site, cross, *preflight_headers))
        assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (200, "x-a")
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert server.requests == []
        reply = server.ask("POST", CHAT, (JSON, site, cross), b"{}")
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, site[1])
        refusal = server.ask("POST", CHAT, (site, cross), b"{}")
        assert (refusal.status, refusal.headers["access-control-allow-origin"]) == (415, site[1])
        assert server.ask("OPTIONS", CHAT, (evil, cross, *preflight_headers)).status == 400
        assert (
            server.ask("OPTIONS", CHAT, (site, *preflight_headers), host="evil.example").status
            == 421
        )
        private = ("access-control-request-private-network", "true")
        assert server.ask("OPTIONS", CHAT, (site, *preflight_headers, private)).status == 200
        savings = server.ask("GET", "/v1/savings", (site, cross))
        assert "access-control-allow-origin" not in savings.headers
        foreign = server.ask("POST", CHAT, (JSON, evil, cross), b"{}")
        assert (foreign.status, foreign.headers.get("access-control-allow-origin")) == (403, None)
        assert server.ask("POST", "/page/api/lam", (JSON, site, cross), b"{}").status == 403
        assert "access-control-allow-origin" not in server.ask("GET", "/", (site,)).headers


@pytest.mark.parametrize(
    "origin",
    ["*", "app.example", "https://app.example/", "HTTPS://A", "", "https://a:443", "http://[::1"],
)
def test_an_origin_is_a_site(origin: str) -> None:
    with pytest.raises(ValueError, match="is no site"):
        ListenSettings(origins=(origin,))


@pytest.mark.parametrize(
    "path", ["/v1/images/edits", "/v1/audio/speech", "/v1/files", "/v1/messages/batches"]
)
def test_what_only_providers_serve_is_refused_with_advice(
    open_server: GuardedServer, path: str
) -> None:
    kind = (("content-type", "multipart/form-data; boundary=x"),)
    reply = open_server.ask("POST", path, kind, b"--x--")
    assert reply.status == 404
    assert "call a provider itself" in reply.error["message"]


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("text/plain; application/json", "application/jsonx", ""),
    ],
)
def test_only_json_may_be_posted(open_server: GuardedServer, kind: str) -> None:
    reply = open_server.ask("POST", CHAT, (("content-type", kind),), b"{}")
    assert (reply.status, reply.error["code"]) == (415, "unsupported_content_type")
    assert open_server.ask("POST", CHAT).status == 415
    good = (("content-type", "Application/JSON; charset=utf-8"),)
    assert open_server.ask("POST", CHAT, good, b"{}").status == 200


def test_bodies_that_are_too_long_are_refused(open_server: GuardedServer) -> None:
    assert open_server.post(body=b"x" * 100).status == 200
    reply = open_server.post(body=b"x" * 101)
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    chunked = (JSON, ("transfer-encoding", "chunked"))
    pieces = b"".join(b"32\r\n" + b"x" * 50 + b"\r\n" for _ in range(2))
    with open_server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, chunked) + pieces + b"0\r\n\r\n")
        assert read_reply(sock, "POST").body == b"x" * 100
    with open_server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, chunked) + pieces + b"1\r\nx\r\n0\r\n\r\n")
        assert read_reply(sock, "POST").status == 413


def test_a_length_is_refused_before_the_body_is_sent(open_server: GuardedServer) -> None:
    with open_server.connect() as sock:
        headers = (JSON, ("content-length", "101"), ("expect", "100-continue"))
        sock.sendall(build_request("POST", CHAT, headers))
        assert read_reply(sock, "POST").status == 413


def test_a_body_that_doesnt_come_is_given_up() -> None:
    with serve_guarded(body_seconds=0.2) as server, server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON, ("content-length", "5"))) + b"ab")
        reply = read_reply(sock, "POST")
        assert (reply.status, reply.error["code"]) == (408, "body_timeout")
        assert sock.recv(1) == b""
        assert server.requests == []
        assert server.guard.slots.under_way == 0


def test_a_client_that_leaves_before_its_body_is_whole_is_no_error(
    open_server: GuardedServer,
) -> None:
    before = len(open_server.requests)
    with open_server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON, ("content-length", "5"))) + b"ab")
    assert open_server.post().status == 200
    assert len(open_server.requests) == before + 1


def test_no_reply_is_open_to_other_sites_and_the_page_is_closed_tight(
    open_server: GuardedServer,
) -> None:
    for path in ("/", "/page/app.js", "/page/api/overview", "/health", "/v1/models"):
        headers = open_server.ask("GET", path).headers
        assert not [name for name in headers if name.startswith("access-control-")], path
        if path.startswith("/v1"):
            continue
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    refusal = open_server.ask("OPTIONS", CHAT, (("host", "again"),))
    assert "access-control-allow-origin" not in refusal.headers


def build_app() -> FastAPI:
    app = FastAPI(exception_handlers=error_handlers(), docs_url=None, redoc_url=None)

    @app.get("/v1/models")
    async def models() -> dict[str, str]:
        raise RefusalError("not now", status=503, headers={"retry-after": "7"})

    @app.get("/v1/broken")
    async def fail() -> dict[str, str]:
        raise ZeroDivisionError("a prompt, perhaps")

    return app


def test_unknown_paths_and_methods_are_told_in_json(caplog: pytest.LogCaptureFixture) -> None:
    with serve_guarded(build_app()) as server:
        reply = server.ask("GET", "/v1/secret-in-a-path")
        assert (reply.status, reply.error["code"]) == (404, "unknown_path")
        assert b"secret" not in reply.body
        reply = server.post("/v1/models")
        assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
        assert reply.headers["allow"] == "GET, HEAD"
        reply = server.ask("GET", "/v1/messages/none")
        assert reply.body.startswith(b'{"type": "error"')
        reply = server.ask("GET", "/v1/models")
        assert (reply.status, reply.headers["retry-after"]) == (503, "7")
        reply = server.ask("GET", "/v1/broken")
        assert (reply.status, reply.error["code"]) == (500, "internal")
        assert b"prompt" not in reply.body
    assert "ZeroDivisionError" in caplog.text


def test_a_refusal_of_the_application_is_sent_unless_a_reply_has_begun() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        if scope["path"].endswith("begun"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RefusalError("no", status=400, code="no")

    guard = Guard(app, listen=ListenSettings(), limits=LimitSettings(), keys=None)
    scope = {
        "type": "http",
        "method": "GET",
        "query_string": b"",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost")],
    }
    messages: list[dict[str, object]] = []

    async def ask(path: str) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            messages.append(message)

        await guard({**scope, "path": path}, receive, send)

    asyncio.run(ask("/v1/x"))
    assert [message.get("status") for message in messages] == [400, None]
    with pytest.raises(RefusalError):
        asyncio.run(ask("/v1/begun"))


def test_web_sockets_are_closed_and_lifespans_go_on() -> None:
    scope_types: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        scope_types.append(scope["type"])

    guard = Guard(app, listen=ListenSettings(), limits=LimitSettings(), keys=None)
    messages: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {}

    async def send(message: dict[str, object]) -> None:
        messages.append(message)

    asyncio.run(guard({"type": "websocket"}, receive, send))
    asyncio.run(guard({"type": "lifespan"}, receive, send))
    assert scope_types == ["lifespan"]
    assert [message["type"] for message in messages] == ["websocket.close"]
