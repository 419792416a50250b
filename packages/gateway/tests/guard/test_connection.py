"""Connections that send too much or too slowly, on sockets."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl

from packages.gateway.tests.guard.guarded_server import (
    JSON,
    GuardedServer,
    build_request,
    read_reply,
    serve_guarded,
)
from prefill_router.errors import ConfigError
from prefill_router_gateway.guard.http_protocol import check_uvicorn
from prefill_router_gateway.settings import LimitSettings

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def patient_server() -> Iterator[GuardedServer]:
    limits = LimitSettings(header_bytes=2000)
    with serve_guarded(limits=limits, header_bytes=2000, seconds=3600) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_server() -> Iterator[GuardedServer]:
    limits = LimitSettings(body_bytes=100)
    with serve_guarded(
        limits=limits, header_bytes=2000, seconds=0.5, timeout_keep_alive=3600
    ) as server:
        yield server


def is_closed(sock: socket.socket) -> bool:
    """Wait until the server closes the socket, at most its timeout."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 5000,
        b"GET /v1/models HTTP/1.1\r\n" + b"x: a\r\n" * 1000,
        b"GET /" + b"a" * 5000,
    ],
    ids=["one", "many", "address"],
)
def test_headers_without_end_are_refused(patient_server: GuardedServer, head: bytes) -> None:
    with patient_server.connect() as sock:
        sock.sendall(head)
        reply = read_reply(sock)
        assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
        assert is_closed(sock)


def test_good_requests_come_through_one_after_another_and_piled_up(
    patient_server: GuardedServer,
) -> None:
    post = build_request("POST", CHAT, (JSON,), b"{}")
    with patient_server.connect() as sock:
        for _ in range(3):
            sock.sendall(post)
            assert read_reply(sock, "POST").body == b"{}"
        for n in range(0, len(post), 7):
            sock.sendall(post[n : n + 7])
        assert read_reply(sock, "POST").body == b"{}"
        sock.sendall(post + build_request("GET", "/v1/models"))
        for method in ("POST", "GET"):
            assert read_piece(sock, method) == 200


def read_piece(sock: socket.socket, method: str) -> int:
    """Read one of several replies, and leave the next one. Returns its status."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    if method == "POST":
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += sock.recv(1)
    return int(head.split()[1])


def test_headers_after_a_body_are_dropped(patient_server: GuardedServer) -> None:
    chunked = (JSON, ("transfer-encoding", "chunked"))
    with patient_server.connect() as sock:
        sock.sendall(
            build_request("POST", CHAT, chunked) + b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 50 + b"\r\n"
        )
        assert read_reply(sock, "POST").body == b"{}"


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nhost: loc", b"POST /"])
def test_a_connection_that_asks_nothing_is_closed(
    hasty_server: GuardedServer, content: bytes
) -> None:
    with hasty_server.connect() as sock:
        sock.sendall(content)
        assert is_closed(sock)


def test_so_is_one_that_begins_a_second_request_only(hasty_server: GuardedServer) -> None:
    with hasty_server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON,), b"{}"))
        assert read_reply(sock, "POST").status == 200
        sock.sendall(b"GET / HTTP/1.1\r\n")
        assert is_closed(sock)


def test_a_refused_body_is_thrown_away_for_a_while_only(hasty_server: GuardedServer) -> None:
    with hasty_server.connect() as sock:
        head = build_request("POST", CHAT, (JSON, ("content-length", "1000000")))
        sock.sendall(head + b"x" * 1000)
        assert read_reply(sock, "POST").status == 413
        sock.sendall(b"x" * 1000)
        assert is_closed(sock)


def test_what_is_no_http_is_refused(patient_server: GuardedServer) -> None:
    with patient_server.connect() as sock:
        sock.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert read_reply(sock).status == 400
        assert is_closed(sock)


class EndlessApp:
    """Answers without an end, until the client has left."""

    def __init__(self) -> None:
        self.client_left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.client_left.set()


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_leaves_ends_what_is_being_answered(count: int) -> None:
    app = EndlessApp()
    with (
        serve_guarded(app, header_bytes=2000, still_seconds=3600) as server,
        server.connect() as sock,
    ):
        sock.sendall(build_request("POST", CHAT, (JSON,), b"{}") * count)
        assert sock.recv(1)
        sock.close()
        assert app.client_left.wait(60)


def test_so_does_one_that_reads_nothing() -> None:
    app = EndlessApp()
    with (
        serve_guarded(app, header_bytes=2000, still_seconds=0.1) as server,
        server.connect() as sock,
    ):
        sock.sendall(build_request("POST", CHAT, (JSON,), b"{}"))
        assert app.client_left.wait(60)


class WaitingApp:
    """Answers nothing, until the client has left."""

    def __init__(self) -> None:
        self.request_started, self.client_left = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self.request_started.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.client_left.set()


def test_a_client_that_leaves_with_requests_piled_up_ends_the_first_before_its_response() -> None:
    app = WaitingApp()
    with serve_guarded(app, still_seconds=3600) as server, server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON,), b"{}") * 3)
        assert app.request_started.wait(60)
        sock.close()
        assert app.client_left.wait(60)


def test_requests_piled_up_without_end_are_not_read() -> None:
    app = WaitingApp()
    with serve_guarded(app, timeout_graceful_shutdown=1) as server, server.connect() as sock:
        sock.sendall(build_request("POST", CHAT, (JSON,), b"{}"))
        assert app.request_started.wait(60)
        sock.settimeout(2)
        with pytest.raises(TimeoutError):
            sock.sendall(build_request("POST", CHAT, (JSON,), b"x" * 10_000) * 10_000)


def test_requests_on_connections_beyond_the_limit_are_refused() -> None:
    get = build_request("GET", "/v1/models")
    with (
        serve_guarded(connections=1) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        second.sendall(get)
        reply = read_reply(second)
        assert (reply.status, reply.error["code"]) == (503, "overloaded")
        assert is_closed(second)
        first.sendall(get)
        assert read_reply(first).status == 200


def test_a_uvicorn_that_lacks_what_is_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class ChangedProtocol(asyncio.Protocol):
        def __init__(self, config: Any, app_state: Any) -> None: ...

    monkeypatch.setattr(httptools_impl, "HttpToolsProtocol", ChangedProtocol)
    monkeypatch.delattr(uvicorn.Server, "capture_signals")
    with pytest.raises(ConfigError) as caught:
        check_uvicorn()
    message = str(caught.value)
    assert f"uvicorn {uvicorn.__version__}" in message
    assert "HttpToolsProtocol(config=, server_state=, app_state=)" in message
    assert "Server.capture_signals" in message
    assert "Config(" not in message


def test_connections_that_ask_nothing_are_limited_by_address() -> None:
    refusals: list[tuple[str | None, str | None]] = []
    get = build_request("GET", "/v1/models")
    options: dict[str, Any] = {"header_bytes": 2000, "seconds": 3600, "waiting_per_address": 3}
    options["on_refusal"] = lambda refusal, address: refusals.append((refusal.code, address))
    with serve_guarded(**options) as server, ExitStack() as stack:
        active = stack.enter_context(server.connect())
        active.sendall(get)
        assert read_reply(active).status == 200  # it waits no more, though it stays open
        waiting = [stack.enter_context(server.connect()) for _ in range(3)]
        waiting[0].sendall(get[:-10])
        with server.connect() as extra:
            assert is_closed(extra)
        assert refusals == [("too_many_waiting", "127.0.0.1")]
        waiting[0].sendall(get[-10:])
        assert read_reply(waiting[0]).status == 200
        with server.connect() as next_sock:
            next_sock.sendall(get)
            assert read_reply(next_sock).status == 200


def test_what_is_refused_before_its_headers_end_is_told_with_its_address() -> None:
    refusals: list[tuple[int, str | None]] = []
    options: dict[str, Any] = {"header_bytes": 2000}
    options["on_refusal"] = lambda refusal, address: refusals.append((refusal.status, address))
    with serve_guarded(**options) as server, server.connect() as sock:
        sock.sendall(b"GET /" + b"a" * 5000)
        assert read_reply(sock).status == 431
    assert refusals == [(431, "127.0.0.1")]


@pytest.mark.parametrize(
    "head", [b"PRI *\r\n\r\n", b"DESCRIBE /a RTSP/1.0\r\n\r\n", b"FLUSH /\r\n\r\n"]
)
def test_methods_of_other_protocols_are_refused_and_hold_no_connection(
    patient_server: GuardedServer, head: bytes
) -> None:
    with patient_server.connect() as sock:
        sock.sendall(head)
        reply = read_reply(sock)
        assert (reply.status, reply.error["code"]) == (400, "not_http")
        assert is_closed(sock)


def test_a_request_that_begins_before_the_wait_for_it_ends_is_answered() -> None:
    with (
        serve_guarded(limits=LimitSettings(), seconds=3600, timeout_keep_alive=1) as server,
        server.connect() as sock,
    ):
        request = build_request("GET", "/v1/models")
        sock.sendall(request)
        assert read_reply(sock).status == 200
        sock.sendall(request[:10])
        time.sleep(1.5)
        sock.sendall(request[10:])
        assert read_reply(sock).status == 200
