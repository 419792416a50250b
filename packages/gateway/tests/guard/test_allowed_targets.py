"""What keys open at the guard, and how much of it at once, behind a real server."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from packages.gateway.tests.guard.guarded_server import (
    JSON,
    Served,
    a_key,
    bearing,
    guarded,
    read_reply,
    request,
)
from prefill_router_gateway.guard.client_keys import ClientKeys
from prefill_router_gateway.settings import LimitSettings, ListenSettings

ALICE, ROOT = "pr-alice-0123456789abcdef", "pr-root-0123456789abcdef"
KEYS = (a_key("alice", ALICE), a_key("root", ROOT, admin=True))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    with guarded(keys=KEYS) as server:
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
    keyed: Served, method: str, path: str, secret: str | None, status: int
) -> None:
    headers = (JSON, *([bearing(secret)] if secret else []))
    got = keyed.ask(method, path, headers, b"{}" if method == "POST" else None)
    assert got.status == status, got.body
    assert ("www-authenticate" in got.headers) == (status == 401)
    assert status != 200 or keyed.seen[-1][3] == {ALICE: "alice", ROOT: "root"}.get(secret or "")
    if status != 200:
        code = {401: "invalid_api_key", 403: "admin_key_needed"}[status]
        assert got.error["code"] == code


def test_a_key_is_taken_from_anthropics_header_and_errors_have_its_shape(keyed: Served) -> None:
    assert keyed.post("/v1/messages", (("x-api-key", ALICE),)).status == 200
    got = keyed.post("/v1/messages", (("x-api-key", "pr-wrong"),))
    assert got.status == 401
    assert b'"type": "authentication_error"' in got.body
    assert got.body.startswith(b'{"type": "error"')


def test_a_body_without_a_key_is_not_waited_for(keyed: Served) -> None:
    with keyed.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON, ("content-length", "1000000"))))
        assert read_reply(sock, "POST").status == 401


def test_a_keys_minute_is_over_after_so_many() -> None:
    with guarded(keys=[a_key("a", ALICE, requests_per_minute=2), a_key("b", ROOT)]) as server:
        statuses = [server.post(headers=[bearing(ALICE)]).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        got = server.post(headers=[bearing(ALICE)])
        assert 1 <= int(got.headers["retry-after"]) <= 30
        assert got.error["code"] == "rate_limit_exceeded"
        assert server.post(headers=[bearing(ROOT)]).status == 200
        assert server.ask("GET", "/v1/models", [bearing(ALICE)]).status == 200
        for method in ("GET", "DELETE"):  # these ask a target
            assert server.ask(method, "/v1/responses/resp_1", [bearing(ALICE)]).status == 429


class Holding:
    """Answers once it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self.begun.release()
        await asyncio.to_thread(self.go.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize("what", ["key", "gateway"])
def test_so_many_at_once_and_no_more(what: str) -> None:
    app = Holding()
    keys = [a_key("a", ALICE, concurrent=2 if what == "key" else None)]
    limits = LimitSettings(requests=2 if what == "gateway" else 10)
    post = request("POST", CHAT, (JSON, bearing(ALICE)), b"{}")
    with guarded(app, keys=keys, limits=limits) as server:
        held = [server.connect() for _ in range(2)]
        for sock in held:
            sock.sendall(post)
            app.begun.acquire()
        got = server.post(headers=[bearing(ALICE)])
        assert got.status == (429 if what == "key" else 503)
        assert got.headers["retry-after"] == "1"
        app.go.set()
        for sock in held:
            assert read_reply(sock, "POST").status == 200
            sock.close()
        while server.guard.slots.under_way:  # it is left once the reply has gone
            time.sleep(0.001)
        assert server.post(headers=[bearing(ALICE)]).status == 200


def test_admins_come_through_when_the_gateway_is_full() -> None:
    app = Holding()
    with (
        guarded(app, keys=KEYS, limits=LimitSettings(requests=1)) as server,
        server.connect() as sock,
    ):
        sock.sendall(request("POST", CHAT, (JSON, bearing(ALICE)), b"{}"))
        app.begun.acquire()
        assert server.post(headers=[bearing(ALICE)]).status == 503
        app.go.set()
        assert server.post("/page/api/lam", [bearing(ROOT)]).status == 200


def test_other_settings_hold_from_then_on() -> None:
    with guarded(keys=KEYS) as server:
        assert server.post(headers=[bearing(ALICE)]).status == 200
        server.guard.use(listen=ListenSettings(), limits=LimitSettings(), keys=ClientKeys(KEYS[1:]))
        assert server.post(headers=[bearing(ALICE)]).status == 401
        listen = ListenSettings(hosts=("gateway.example",))
        server.guard.use(listen=listen, limits=LimitSettings(body_bytes=1), keys=None)
        assert server.ask("POST", CHAT, (JSON,), b"1", host="gateway.example").status == 200
        assert server.post().status == 413
