"""The guard before an application, behind a real server on loopback."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from guarded_server import (
    JSON,
    Pairs,
    Served,
    a_key,
    bearing,
    guarded,
    read_reply,
    request,
)
from starlette.types import Receive, Scope, Send

from prefill_router.errors import ConfigError
from prefill_router.gateway.guarding import Guard, Hosts, check_listen, error_handlers
from prefill_router.gateway.guarding.keys import ClientKeys
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.settings import Limits, Listen

ALICE, ROOT = "pr-alice-0123456789abcdef", "pr-root-0123456789abcdef"
KEYS = (a_key("alice", ALICE), a_key("root", ROOT, admin=True))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def free() -> Iterator[Served]:
    with guarded(limits=Limits(body_bytes=100, header_bytes=2000)) as server:
        yield server


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    with guarded(keys=KEYS) as server:
        yield server


def test_what_is_good_goes_on_with_its_body(free: Served) -> None:
    got = free.post(body=b'{"a": 1}')
    assert (got.status, got.body) == (200, b'{"a": 1}')
    assert free.seen[-1] == ("POST", CHAT, b'{"a": 1}', None)
    assert free.ask("GET", "/v1/models").status == 200


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
def test_heads_of_requests(free: Served, headers: Pairs, host: str | None, status: int) -> None:
    before = len(free.seen), len(free.refused)
    got = free.ask("POST", CHAT, (JSON, *headers), b"{}", host=host)
    assert got.status == status, got.body
    assert len(free.seen) == before[0] + (status == 200)
    assert free.refused[before[1] :] == ([] if status == 200 else [status])
    if status != 200:
        assert got.error["message"]
        assert got.headers["content-type"] == "application/json"


def test_pages_elsewhere_may_lead_here_but_not_post(free: Served) -> None:
    elsewhere = (("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"))
    assert free.ask("GET", "/", elsewhere).status == 200
    assert free.ask("POST", "/page/api/lam", (JSON, *elsewhere), b"{}").status == 403
    assert free.ask("DELETE", "/v1/x", elsewhere).status == 403


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("text/plain; application/json", "application/jsonx", ""),
    ],
)
def test_only_json_may_be_posted(free: Served, kind: str) -> None:
    got = free.ask("POST", CHAT, (("content-type", kind),), b"{}")
    assert (got.status, got.error["code"]) == (415, "unsupported_content_type")
    assert free.ask("POST", CHAT).status == 415
    good = (("content-type", "Application/JSON; charset=utf-8"),)
    assert free.ask("POST", CHAT, good, b"{}").status == 200


def test_bodies_that_are_too_long_are_refused(free: Served) -> None:
    assert free.post(body=b"x" * 100).status == 200
    got = free.post(body=b"x" * 101)
    assert (got.status, got.error["code"]) == (413, "body_too_large")
    chunked = (JSON, ("transfer-encoding", "chunked"))
    pieces = b"".join(b"32\r\n" + b"x" * 50 + b"\r\n" for _ in range(2))
    with free.connect() as sock:
        sock.sendall(request("POST", CHAT, chunked) + pieces + b"0\r\n\r\n")
        assert read_reply(sock, "POST").body == b"x" * 100
    with free.connect() as sock:
        sock.sendall(request("POST", CHAT, chunked) + pieces + b"1\r\nx\r\n0\r\n\r\n")
        assert read_reply(sock, "POST").status == 413


def test_a_length_is_refused_before_the_body_is_sent(free: Served) -> None:
    with free.connect() as sock:
        expecting = (JSON, ("content-length", "101"), ("expect", "100-continue"))
        sock.sendall(request("POST", CHAT, expecting))
        assert read_reply(sock, "POST").status == 413


def test_a_body_that_doesnt_come_is_given_up() -> None:
    with guarded(body_seconds=0.2) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON, ("content-length", "5"))) + b"ab")
        got = read_reply(sock, "POST")
        assert (got.status, got.error["code"]) == (408, "body_timeout")
        assert sock.recv(1) == b""
        assert server.seen == []
        assert server.guard.slots.under_way == 0


def test_a_client_that_leaves_before_its_body_is_whole_is_no_error(free: Served) -> None:
    before = len(free.seen)
    with free.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON, ("content-length", "5"))) + b"ab")
    assert free.post().status == 200
    assert len(free.seen) == before + 1


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


def test_no_reply_is_open_to_other_sites_and_the_page_is_closed_tight(free: Served) -> None:
    for path in ("/", "/page/app.js", "/page/api/overview", "/health", "/v1/models"):
        headers = free.ask("GET", path).headers
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
    refusal = free.ask("OPTIONS", CHAT, (("host", "again"),))
    assert "access-control-allow-origin" not in refusal.headers


def test_a_keys_minute_is_over_after_so_many() -> None:
    with guarded(keys=[a_key("a", ALICE, requests_per_minute=2), a_key("b", ROOT)]) as server:
        statuses = [server.post(headers=[bearing(ALICE)]).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        got = server.post(headers=[bearing(ALICE)])
        assert 1 <= int(got.headers["retry-after"]) <= 30
        assert got.error["code"] == "rate_limit_exceeded"
        assert server.post(headers=[bearing(ROOT)]).status == 200
        assert server.ask("GET", "/v1/models", [bearing(ALICE)]).status == 200


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
    limits = Limits(requests=2 if what == "gateway" else 10)
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
    with guarded(app, keys=KEYS, limits=Limits(requests=1)) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON, bearing(ALICE)), b"{}"))
        app.begun.acquire()
        assert server.post(headers=[bearing(ALICE)]).status == 503
        app.go.set()
        assert server.post("/page/api/lam", [bearing(ROOT)]).status == 200


def test_other_settings_hold_from_then_on() -> None:
    with guarded(keys=KEYS) as server:
        assert server.post(headers=[bearing(ALICE)]).status == 200
        server.guard.use(listen=Listen(), limits=Limits(), keys=ClientKeys(KEYS[1:]))
        assert server.post(headers=[bearing(ALICE)]).status == 401
        listen = Listen(hosts=("gateway.example",))
        server.guard.use(listen=listen, limits=Limits(body_bytes=1), keys=None)
        assert server.ask("POST", CHAT, (JSON,), b"1", host="gateway.example").status == 200
        assert server.post().status == 413


def application() -> FastAPI:
    app = FastAPI(exception_handlers=error_handlers(), docs_url=None, redoc_url=None)

    @app.get("/v1/models")
    async def models() -> dict[str, str]:
        raise RefusalError("not now", status=503, headers={"retry-after": "7"})

    @app.get("/v1/broken")
    async def broken() -> dict[str, str]:
        raise ZeroDivisionError("a prompt, perhaps")

    return app


def test_unknown_paths_and_methods_are_told_in_json(caplog: pytest.LogCaptureFixture) -> None:
    with guarded(application()) as server:
        got = server.ask("GET", "/v1/secret-in-a-path")
        assert (got.status, got.error["code"]) == (404, "unknown_path")
        assert b"secret" not in got.body
        got = server.post("/v1/models")
        assert (got.status, got.error["code"]) == (405, "method_not_allowed")
        assert got.headers["allow"] == "GET, HEAD"
        got = server.ask("GET", "/v1/messages/none")
        assert got.body.startswith(b'{"type": "error"')
        got = server.ask("GET", "/v1/models")
        assert (got.status, got.headers["retry-after"]) == (503, "7")
        got = server.ask("GET", "/v1/broken")
        assert (got.status, got.error["code"]) == (500, "internal")
        assert b"prompt" not in got.body
    assert "ZeroDivisionError" in caplog.text


def test_a_refusal_of_the_application_is_sent_unless_a_reply_has_begun() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        if scope["path"].endswith("begun"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RefusalError("no", status=400, code="no")

    guard = Guard(app, listen=Listen(), limits=Limits(), keys=None)
    scope = {
        "type": "http",
        "method": "GET",
        "query_string": b"",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost")],
    }
    sent: list[dict[str, object]] = []

    async def ask(path: str) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await guard({**scope, "path": path}, receive, send)

    asyncio.run(ask("/v1/x"))
    assert [message.get("status") for message in sent] == [400, None]
    with pytest.raises(RefusalError):
        asyncio.run(ask("/v1/begun"))


def test_web_sockets_are_closed_and_lifespans_go_on() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        seen.append(scope["type"])

    guard = Guard(app, listen=Listen(), limits=Limits(), keys=None)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(guard({"type": "websocket"}, receive, send))
    asyncio.run(guard({"type": "lifespan"}, receive, send))
    assert seen == ["lifespan"]
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_listen(Listen(host=host), None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example", ""])
def test_other_addresses_need_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="no keys; make one with"):
        check_listen(Listen(host=host), None)
    check_listen(Listen(host=host), ClientKeys(KEYS))


@pytest.mark.parametrize("name", ["*", "*.example", "https://a.example", "", "a b"])
def test_names_of_hosts_are_plain(name: str) -> None:
    with pytest.raises(ConfigError, match=r"listen\.hosts"):
        check_listen(Listen(hosts=(name,)), None)


@pytest.mark.parametrize(
    ("listen", "good", "bad"),
    [
        (Listen(host="192.168.1.2"), ["192.168.1.2:80", "localhost"], ["192.168.1.3", "a.example"]),
        (
            Listen(host="0.0.0.0"),
            ["10.0.0.1", "[fe80::1]:8080"],
            ["a.example", "10.0.0.1.a.example"],
        ),
        (Listen(host="::"), ["10.0.0.1", "[::1]"], ["a.example"]),
        (
            Listen(hosts=("Gate.Example",)),
            ["gate.example", "GATE.example.:443"],
            ["x.gate.example"],
        ),
        (Listen(), ["127.0.0.1:0"], ["127.0.0.1:x", "[::1]x", "0.0.0.0", "127.0.0.2"]),
    ],
)
def test_names_that_are_answered_to(listen: Listen, good: list[str], bad: list[str]) -> None:
    hosts = Hosts(listen)
    for _ in range(2):  # the second time from memory
        assert [hosts.answer_to(name.encode()) for name in good] == [True] * len(good)
        assert [hosts.answer_to(name.encode()) for name in bad] == [False] * len(bad)
