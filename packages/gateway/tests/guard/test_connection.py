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

from packages.gateway.tests.guard.guarded_server import JSON, Served, guarded, read_reply, request
from prefill_router.errors import ConfigError
from prefill_router_gateway.guard.http_protocol import check_uvicorn
from prefill_router_gateway.settings import LimitSettings

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    limits = LimitSettings(header_bytes=2000)
    with guarded(limits=limits, header_bytes=2000, seconds=3600) as server:
        yield server


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    limits = LimitSettings(body_bytes=100)
    with guarded(limits=limits, header_bytes=2000, seconds=0.5, timeout_keep_alive=3600) as server:
        yield server


def is_closed(sock: socket.socket) -> bool:
    """Whether the server closes it: waits until it does, or until the socket's own limit."""
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
def test_headers_without_end_are_refused(patient: Served, head: bytes) -> None:
    with patient.connect() as sock:
        sock.sendall(head)
        got = read_reply(sock)
        assert (got.status, got.error["code"]) == (431, "headers_too_large")
        assert is_closed(sock)


def test_good_requests_come_through_one_after_another_and_piled_up(patient: Served) -> None:
    post = request("POST", CHAT, (JSON,), b"{}")
    with patient.connect() as sock:
        for _ in range(3):
            sock.sendall(post)
            assert read_reply(sock, "POST").body == b"{}"
        for n in range(0, len(post), 7):
            sock.sendall(post[n : n + 7])
        assert read_reply(sock, "POST").body == b"{}"
        sock.sendall(post + request("GET", "/v1/models"))
        for method in ("POST", "GET"):
            assert read_piece(sock, method) == 200


def read_piece(sock: socket.socket, method: str) -> int:
    """The status of one of several replies, leaving the next one where it is."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    if method == "POST":
        rest = b""
        while not rest.endswith(b"0\r\n\r\n"):
            rest += sock.recv(1)
    return int(head.split()[1])


def test_headers_after_a_body_are_dropped(patient: Served) -> None:
    chunked = (JSON, ("transfer-encoding", "chunked"))
    with patient.connect() as sock:
        sock.sendall(
            request("POST", CHAT, chunked) + b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 50 + b"\r\n"
        )
        assert read_reply(sock, "POST").body == b"{}"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: loc", b"POST /"])
def test_a_connection_that_asks_nothing_is_closed(hasty: Served, sent: bytes) -> None:
    with hasty.connect() as sock:
        sock.sendall(sent)
        assert is_closed(sock)


def test_so_is_one_that_begins_a_second_request_only(hasty: Served) -> None:
    with hasty.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}"))
        assert read_reply(sock, "POST").status == 200
        sock.sendall(b"GET / HTTP/1.1\r\n")
        assert is_closed(sock)


def test_a_refused_body_is_thrown_away_for_a_while_only(hasty: Served) -> None:
    with hasty.connect() as sock:
        head = request("POST", CHAT, (JSON, ("content-length", "1000000")))
        sock.sendall(head + b"x" * 1000)
        assert read_reply(sock, "POST").status == 413
        sock.sendall(b"x" * 1000)
        assert is_closed(sock)


def test_what_is_no_http_is_refused(patient: Served) -> None:
    with patient.connect() as sock:
        sock.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert read_reply(sock).status == 400
        assert is_closed(sock)


class Endless:
    """Answers without an end, until it hears that the client has left."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.left.set()


@pytest.mark.parametrize("piled_up", [1, 3])
def test_a_client_that_leaves_ends_what_is_being_answered(piled_up: int) -> None:
    app = Endless()
    with guarded(app, header_bytes=2000, still_seconds=3600) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}") * piled_up)
        assert sock.recv(1)
        sock.close()
        assert app.left.wait(60)


def test_so_does_one_that_reads_nothing() -> None:
    app = Endless()
    with guarded(app, header_bytes=2000, still_seconds=0.1) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}"))
        assert app.left.wait(60)


class Waiting:
    """Answers nothing, until it hears that the client has left."""

    def __init__(self) -> None:
        self.began, self.left = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self.began.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


def test_a_client_that_leaves_with_requests_piled_up_ends_the_first_before_its_response() -> None:
    app = Waiting()
    with guarded(app, still_seconds=3600) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}") * 3)
        assert app.began.wait(60)
        sock.close()
        assert app.left.wait(60)


def test_requests_piled_up_without_end_are_not_read() -> None:
    app = Waiting()
    with guarded(app, timeout_graceful_shutdown=1) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}"))
        assert app.began.wait(60)
        sock.settimeout(2)
        with pytest.raises(TimeoutError):
            sock.sendall(request("POST", CHAT, (JSON,), b"x" * 10_000) * 10_000)


def test_requests_on_connections_beyond_the_limit_are_refused() -> None:
    get = request("GET", "/v1/models")
    with guarded(connections=1) as server, server.connect() as first, server.connect() as second:
        second.sendall(get)
        got = read_reply(second)
        assert (got.status, got.error["code"]) == (503, "overloaded")
        assert is_closed(second)
        first.sendall(get)
        assert read_reply(first).status == 200


def test_a_uvicorn_that_lacks_what_is_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(asyncio.Protocol):
        def __init__(self, config: Any, app_state: Any) -> None: ...

    monkeypatch.setattr(httptools_impl, "HttpToolsProtocol", Changed)
    monkeypatch.delattr(uvicorn.Server, "capture_signals")
    with pytest.raises(ConfigError) as told:
        check_uvicorn()
    message = str(told.value)
    assert f"uvicorn {uvicorn.__version__}" in message
    assert "HttpToolsProtocol(config=, server_state=, app_state=)" in message
    assert "Server.capture_signals" in message
    assert "Config(" not in message


def test_connections_that_ask_nothing_are_limited_by_address() -> None:
    told: list[tuple[str | None, str | None]] = []
    get = request("GET", "/v1/models")
    options: dict[str, Any] = {"header_bytes": 2000, "seconds": 3600, "waiting_per_address": 3}
    options["on_refusal"] = lambda refusal, address: told.append((refusal.code, address))
    with guarded(**options) as server, ExitStack() as stack:
        asking = stack.enter_context(server.connect())
        asking.sendall(get)
        assert read_reply(asking).status == 200  # it waits no more, though it stays open
        waiting = [stack.enter_context(server.connect()) for _ in range(3)]
        waiting[0].sendall(get[:-10])
        with server.connect() as one_more:
            assert is_closed(one_more)
        assert told == [("too_many_waiting", "127.0.0.1")]
        waiting[0].sendall(get[-10:])
        assert read_reply(waiting[0]).status == 200
        with server.connect() as instead:
            instead.sendall(get)
            assert read_reply(instead).status == 200


def test_what_is_refused_before_its_headers_end_is_told_with_its_address() -> None:
    told: list[tuple[int, str | None]] = []
    options: dict[str, Any] = {"header_bytes": 2000}
    options["on_refusal"] = lambda refusal, address: told.append((refusal.status, address))
    with guarded(**options) as server, server.connect() as sock:
        sock.sendall(b"GET /" + b"a" * 5000)
        assert read_reply(sock).status == 431
    assert told == [(431, "127.0.0.1")]


@pytest.mark.parametrize(
    "head", [b"PRI *\r\n\r\n", b"DESCRIBE /a RTSP/1.0\r\n\r\n", b"FLUSH /\r\n\r\n"]
)
def test_methods_of_other_protocols_are_refused_and_hold_no_connection(
    patient: Served, head: bytes
) -> None:
    with patient.connect() as sock:
        sock.sendall(head)
        got = read_reply(sock)
        assert (got.status, got.error["code"]) == (400, "not_http")
        assert is_closed(sock)


def test_a_request_that_begins_before_the_wait_for_it_ends_is_answered() -> None:
    with (
        guarded(limits=LimitSettings(), seconds=3600, timeout_keep_alive=1) as server,
        server.connect() as sock,
    ):
        whole = request("GET", "/v1/models")
        sock.sendall(whole)
        assert read_reply(sock).status == 200
        sock.sendall(whole[:10])
        time.sleep(1.5)
        sock.sendall(whole[10:])
        assert read_reply(sock).status == 200
