"""Bodies of requests: how many bytes are in memory at once, and for how long."""

import asyncio
import gc
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from packages.gateway.tests.scripted_target import GOOD, chunked_reply, json_reply, pool_of
from packages.gateway.tests.world import CHATS, CHEAP, LocalGateway, World, chat, make_world, user
from prefill_router.errors import ConfigError
from prefill_router_gateway.api.routed_calls import read_incoming
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import HELD_BODY, BodyBudget, Guard
from prefill_router_gateway.settings import (
    GatewaySettings,
    LimitSettings,
    ListenSettings,
    read_settings,
)

pytestmark = pytest.mark.slow

LONG_BYTES = 2**19


class Caller:
    """A client without a network; the test gives each piece of its body."""

    def __init__(self, guard: Guard, path: str = CHATS, *, length: int | None = None) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "http_version": "1.1",
            "headers": headers,
        }
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.messages: list[dict[str, Any]] = []
        self.task = asyncio.create_task(guard(self._scope, self._coming.get, self._send))

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    async def send_piece(self, size: int, *, more: bool = True) -> None:
        """Send a piece of the body, and wait until it is read."""
        await self._push({"type": "http.request", "body": b"x" * size, "more_body": more})

    async def leave(self) -> None:
        await self._push({"type": "http.disconnect"})
        await self.task

    async def _push(self, message: dict[str, Any]) -> None:
        self._coming.put_nowait(message)
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def status(self) -> int:
        return self.messages[0]["status"]

    @property
    def message(self) -> str:
        return json.loads(self.messages[1]["body"])["error"]["message"]


class WaitingApp:
    """An application that reads a body, and answers once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.frees = self.fails = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if self.frees:
            scope[HELD_BODY].free()
        await self.go.wait()
        if self.fails:
            raise RefusalError("no")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def build_guard(app: Any, budget: BodyBudget) -> Guard:
    limits = LimitSettings(body_bytes=600, held_bytes=budget.most)
    return Guard(app, listen=ListenSettings(), limits=limits, keys=None, body_budget=budget)


def test_all_that_has_come_of_a_body_counts_until_its_request_ends_however_it_does() -> None:
    async def run() -> None:
        app, budget = WaitingApp(), BodyBudget(1000)
        guard = build_guard(app, budget)
        complete, half, cut, too_long = [Caller(guard) for _ in range(4)]
        await complete.send_piece(100)
        await complete.send_piece(50, more=False)
        await half.send_piece(200)
        await cut.send_piece(300)
        assert budget.held_bytes == 650
        await half.leave()
        assert budget.held_bytes == 450
        cut.task.cancel()
        with suppress(asyncio.CancelledError):
            await cut.task
        assert budget.held_bytes == 150
        await too_long.send_piece(500)
        await too_long.send_piece(500)
        assert (too_long.status, budget.held_bytes) == (413, 150)
        app.go.set()
        await complete.task
        assert (complete.status, budget.held_bytes) == (200, 0)
        app.fails = True
        failure = Caller(guard)
        await failure.send_piece(10, more=False)
        await failure.task
        assert (failure.status, budget.held_bytes) == (400, 0)

    asyncio.run(run())


@pytest.mark.parametrize("length", [None, 500])
def test_what_finds_no_room_is_refused_and_may_come_again(length: int | None) -> None:
    async def run() -> None:
        app, budget = WaitingApp(), BodyBudget(1000)
        guard = build_guard(app, budget)
        first = Caller(guard)
        await first.send_piece(600, more=False)
        second = Caller(guard, length=length)
        await asyncio.sleep(0)
        if length is None:  # a body of known length is refused before any of it is read
            await second.send_piece(400)
            assert budget.held_bytes == 1000
            await second.send_piece(1)
        await second.task
        assert second.status == 503
        assert (b"retry-after", b"1") in second.messages[0]["headers"]
        assert "limits.held_bytes" in second.message
        assert budget.held_bytes == 600
        assert guard.slots.under_way == 1
        app.go.set()
        await first.task
        third = Caller(guard, length=length)
        await third.send_piece(500, more=False)
        await third.task
        assert (third.status, budget.held_bytes) == (200, 0)

    asyncio.run(run())


def test_a_body_that_nobody_needs_makes_room_while_its_request_goes_on() -> None:
    async def run() -> None:
        app, budget = WaitingApp(), BodyBudget(1000)
        app.frees = True
        guard = build_guard(app, budget)
        callers = [Caller(guard) for _ in range(5)]
        for caller in callers:
            await caller.send_piece(600, more=False)
            assert budget.held_bytes == 0
        app.go.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert {caller.status for caller in callers} == {200}
        assert budget.held_bytes == 0

    asyncio.run(run())


def test_an_admin_needs_no_room_and_sends_little() -> None:
    async def run() -> None:
        app, budget = WaitingApp(), BodyBudget(600)
        app.go.set()
        guard = build_guard(app, budget)
        budget.held_bytes = 600
        small, large = (Caller(guard, "/admin/reload") for _ in range(2))
        await small.send_piece(10, more=False)
        await large.send_piece(2**16 + 1)
        await asyncio.gather(small.task, large.task)
        assert (small.status, large.status) == (200, 413)
        assert budget.held_bytes == 600

    asyncio.run(run())


def test_the_room_can_be_set_anew_and_holds_at_least_one_body(tmp_path: Path) -> None:
    async def run() -> None:
        budget = BodyBudget(1000)
        guard = build_guard(WaitingApp(), budget)
        caller = Caller(guard)
        await caller.send_piece(600, more=False)
        less = LimitSettings(body_bytes=100, held_bytes=100)
        guard.use(listen=ListenSettings(), limits=less, keys=None)
        assert (budget.most, budget.held_bytes) == (100, 600)
        caller.task.cancel()
        with suppress(asyncio.CancelledError):
            await caller.task
        assert budget.held_bytes == 0

    asyncio.run(run())
    file = tmp_path / "gateway.yaml"
    file.write_text("limits: {body_bytes: 1000, held_bytes: 999}")
    with pytest.raises(ConfigError, match="held_bytes must be at least body_bytes"):
        read_settings(file)


@pytest.mark.parametrize("model", ["auto", "a"])
def test_what_was_read_of_a_body_is_forgotten_before_anything_is_waited_for(model: str) -> None:
    pool, settings = pool_of("http://127.0.0.1:9/v1"), GatewaySettings()
    body = json.dumps(chat(model, "hi", stream=True, x=[[]] * 100_000)).encode()
    tracemalloc.start()
    try:
        incoming = read_incoming(
            "chat", body, [], key=None, settings=settings, pool=pool, lam=None, at=0.0
        )
        traced_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traced_bytes < len(body)  # while they were read, the lists took fifteen times as much
    assert incoming.can_ask_usage
    new_body = json.loads(incoming.splicer.body_for("m", ask_usage=False))
    assert new_body == {**json.loads(body), "model": "m"}


# The same in a whole gateway.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("bodies"), settings={"routing": {"lam": 0}}) as world:
        yield world


def build_long_chat(**more: Any) -> bytes:
    messages = [{"role": "system", "content": "x" * LONG_BYTES}, user("hi")]
    return json.dumps(chat(messages=messages, **more)).encode()


def send_request(gateway: LocalGateway, body: bytes) -> socket.socket:
    """Send a request, and read nothing of its answer."""
    place = urlsplit(gateway.url)
    sock = socket.create_connection((place.hostname, place.port), timeout=60)
    head = f"POST {CHATS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def read_held_bytes(gateway: LocalGateway) -> int:
    """Bytes of bodies in memory, by the metrics."""
    lines = gateway.ask("/metrics").body.decode().splitlines()
    (line,) = [line for line in lines if line.startswith("prefill_router_held_bytes ")]
    return int(float(line.split()[1]))


def test_a_stream_that_has_begun_holds_nothing_of_its_request(
    world: World, gateway: LocalGateway
) -> None:
    streams = 4
    go = threading.Event()
    script = chunked_reply(GOOD)
    world[CHEAP].then(*[[*script[:2], go, *script[2:]]] * streams)
    body = build_long_chat(stream=True)
    gc.collect()
    tracemalloc.start()
    try:
        socks = [send_request(gateway, body) for _ in range(streams)]
        for sock in socks:
            assert sock.recv(12) == b"HTTP/1.1 200"
        gc.collect()
        theirs = tracemalloc.Filter(False, "*/gateway/tests/*")
        snapshot = tracemalloc.take_snapshot().filter_traces([theirs])
        open_at_once, still_held = gateway.gateway.streams, read_held_bytes(gateway)
    finally:
        tracemalloc.stop()
        go.set()
    assert (open_at_once, still_held) == (streams, 0)
    assert sum(trace.size for trace in snapshot.traces) < streams * LONG_BYTES / 2
    for sock in socks:
        while not sock.recv(2**16).endswith(b"0\r\n\r\n"):
            pass
        sock.close()


def test_a_body_is_held_while_it_may_be_sent_again(world: World, gateway: LocalGateway) -> None:
    world.forget()
    body = build_long_chat()
    for leaves in (True, False):
        go = threading.Event()
        world[CHEAP].then([go, *json_reply({"choices": []})])
        sock = send_request(gateway, body)
        assert world[CHEAP].request_arrived.acquire(timeout=60)
        assert read_held_bytes(gateway) == len(body)
        if not leaves:
            go.set()
            assert sock.recv(12) == b"HTTP/1.1 200"
        sock.close()
        gateway.wait_until(lambda: gateway.gateway.body_budget.held_bytes == 0)
        go.set()
    assert read_held_bytes(gateway) == 0
