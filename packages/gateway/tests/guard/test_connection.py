"""Connections that send too much or too slowly, on sockets."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from starlette.types import Receive, Scope, Send

from packages.gateway.tests.guard.guarded_server import JSON, Served, guarded, read_reply, request
from prefill_router_gateway.guard.http_protocol import guarded_protocol
from prefill_router_gateway.settings import LimitSettings

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    protocol = guarded_protocol(header_bytes=2000, seconds=3600)
    with guarded(limits=LimitSettings(header_bytes=2000), http=protocol) as server:
        yield server


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    protocol = guarded_protocol(header_bytes=2000, seconds=0.5)
    with guarded(
        limits=LimitSettings(body_bytes=100), http=protocol, timeout_keep_alive=3600
    ) as server:
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
    protocol = guarded_protocol(header_bytes=2000, still_seconds=3600)
    with guarded(app, http=protocol) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}") * piled_up)
        assert sock.recv(1)
        sock.close()
        assert app.left.wait(60)


def test_so_does_one_that_reads_nothing() -> None:
    app = Endless()
    protocol = guarded_protocol(header_bytes=2000, still_seconds=0.1)
    with guarded(app, http=protocol) as server, server.connect() as sock:
        sock.sendall(request("POST", CHAT, (JSON,), b"{}"))
        assert app.left.wait(60)


def test_connections_that_ask_nothing_are_limited_by_address() -> None:
    told: list[tuple[str | None, str | None]] = []
    protocol = guarded_protocol(
        header_bytes=2000,
        seconds=3600,
        waiting_per_address=3,
        refused=lambda refusal, address: told.append((refusal.code, address)),
    )
    get = request("GET", "/v1/models")
    with guarded(http=protocol) as server, ExitStack() as stack:
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
    protocol = guarded_protocol(
        header_bytes=2000, refused=lambda refusal, address: told.append((refusal.status, address))
    )
    with guarded(http=protocol) as server, server.connect() as sock:
        sock.sendall(b"GET /" + b"a" * 5000)
        assert read_reply(sock).status == 431
    assert told == [(431, "127.0.0.1")]
