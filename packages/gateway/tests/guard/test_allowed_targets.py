"""What each key may call, and how many requests at once, behind a real server."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from packages.gateway.tests.guard.guarded_server import (
    JSON,
    GuardedServer,
    bearer_header,
    build_key,
    build_request,
    read_reply,
    serve_guarded,
)
from prefill_router_gateway.guard.client_keys import ClientKeys
from prefill_router_gateway.settings import LimitSettings, ListenSettings

ALICE, ROOT = "pr-alice-0123456789abcdef", "pr-root-0123456789abcdef"
KEYS = (build_key("alice", ALICE), build_key("root", ROOT, admin=True))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[GuardedServer]:
    with serve_guarded(keys=KEYS) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path", "secret", "status"),
    [
        ("POST", CHAT, None, 401),
        ("POST", CHAT, "pr-wrong", 401),
        ("POST", CHAT, ALICE, 200),
        ("POST", CHAT, ROOT, 200),
        ("GET", "/v1/models", None, 401),
        ("GET", "/v1", None, 401),
        ("GET", "/openapi.json", None, 401),
        ("GET", "/nonsense", None, 401),
        ("OPTIONS", CHAT, None, 401),
        ("GET", "/", None, 200),
        ("GET", "/health", None, 200),
        ("GET", "/ready", None, 200),
        ("GET", "/page/app.js", None, 200),
        ("GET", "/page/api.js", None, 200),
        ("GET", "/page/api", None, 401),
        ("GET", "/page/api/overview", None, 401),
        ("GET", "/page/api/overview", ALICE, 403),
        ("GET", "/page/api/overview", ROOT, 200),
        ("GET", "/page/%61pi/overview", None, 401),
        ("POST", "/page/api/lam", ALICE, 403),
        ("GET", "/metrics", None, 401),
        ("GET", "/metrics/", ALICE, 403),
        ("GET", "/metrics", ROOT, 200),
        ("POST", "/admin/reload", ALICE, 403),
        ("POST", "/admin/reload", ROOT, 200),
    ],
)
def test_what_keys_open(
    keyed_server: GuardedServer, method: str, path: str, secret: str | None, status: int
) -> None:
    headers = (JSON, *([bearer_header(secret)] if secret else []))
    reply = keyed_server.ask(method, path, headers, b"{}" if method == "POST" else None)
    assert reply.status == status, reply.body
    assert ("www-authenticate" in reply.headers) == (status == 401)
    assert status != 200 or keyed_server.requests[-1][3] == {ALICE: "alice", ROOT: "root"}.get(
        secret or ""
    )
    if status != 200:
        code = {401: "invalid_api_key", 403: "admin_key_needed"}[status]
        assert reply.error["code"] == code


def test_a_key_is_taken_from_anthropics_header_and_errors_have_its_shape(
    keyed_server: GuardedServer,
) -> None:
    assert keyed_server.post("/v1/messages", (("x-api-key", ALICE),)).status == 200
    reply = keyed_server.post("/v1/messages", (("x-api-key", "pr-wrong"),))
    assert reply.status == 401
    assert b'"type": "authentication_error"' in reply.body
    assert reply.body.startswith(b'{"type": "error"')


def test_a_body_without_a_key_is_not_waited_for(keyed_server: GuardedServer) -> None:
    with keyed_server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON, ("content-length", "1000000"))))
        assert read_reply(sock, "POST").status == 401


def test_a_keys_minute_is_over_after_so_many() -> None:
    with serve_guarded(
        keys=[build_key("a", ALICE, requests_per_minute=2), build_key("b", ROOT)]
    ) as server:
        statuses = [server.post(headers=[bearer_header(ALICE)]).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        reply = server.post(headers=[bearer_header(ALICE)])
        assert 1 <= int(reply.headers["retry-after"]) <= 30
        assert reply.error["code"] == "rate_limit_exceeded"
        assert server.post(headers=[bearer_header(ROOT)]).status == 200
        assert server.ask("GET", "/v1/models", [bearer_header(ALICE)]).status == 200
        for method in ("GET", "DELETE"):  # these ask a target
            assert server.ask(method, "/v1/responses/resp_1", [bearer_header(ALICE)]).status == 429


class HoldingApp:
    """Answers once `go` is set."""

    def __init__(self) -> None:
        self.starts = threading.Semaphore(0)
        self.go = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self.starts.release()
        await asyncio.to_thread(self.go.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize("what", ["key", "gateway"])
def test_so_many_at_once_and_no_more(what: str) -> None:
    app = HoldingApp()
    keys = [build_key("a", ALICE, concurrent=2 if what == "key" else None)]
    limits = LimitSettings(requests=2 if what == "gateway" else 10)
    post = build_request("POST", CHAT, (JSON, bearer_header(ALICE)), b"{}")
    with serve_guarded(app, keys=keys, limits=limits) as server:
        socks = [server.connect() for _ in range(2)]
        for sock in socks:
            sock.sendall(post)
            app.starts.acquire()
        reply = server.post(headers=[bearer_header(ALICE)])
        assert reply.status == (429 if what == "key" else 503)
        assert reply.headers["retry-after"] == "1"
        app.go.set()
        for sock in socks:
            assert read_reply(sock, "POST").status == 200
            sock.close()
        while server.guard.slots.under_way:  # a slot is free once the reply has gone
            time.sleep(0.001)
        assert server.post(headers=[bearer_header(ALICE)]).status == 200


def test_admins_come_through_when_the_gateway_is_full() -> None:
    app = HoldingApp()
    with (
        serve_guarded(app, keys=KEYS, limits=LimitSettings(requests=1)) as server,
        server.connect() as sock,
    ):
        sock.sendall(build_request("POST", CHAT, (JSON, bearer_header(ALICE)), b"{}"))
        app.starts.acquire()
        assert server.post(headers=[bearer_header(ALICE)]).status == 503
        app.go.set()
        assert server.post("/page/api/lam", [bearer_header(ROOT)]).status == 200


def test_other_settings_hold_from_then_on() -> None:
    with serve_guarded(keys=KEYS) as server:
        assert server.post(headers=[bearer_header(ALICE)]).status == 200
        server.guard.use(listen=ListenSettings(), limits=LimitSettings(), keys=ClientKeys(KEYS[1:]))
        assert server.post(headers=[bearer_header(ALICE)]).status == 401
        listen = ListenSettings(hosts=("gateway.example",))
        server.guard.use(listen=listen, limits=LimitSettings(body_bytes=1), keys=None)
        assert server.ask("POST", CHAT, (JSON,), b"1", host="gateway.example").status == 200
        assert server.post().status == 413
