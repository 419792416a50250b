"""Clients that leave free the target at once; every call is reported once, however it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from packages.gateway.tests.scripted_target import (
    ANSWER,
    CHAT,
    GOOD,
    HANG,
    QUICK,
    STREAM,
    Fake,
    Gateway,
    Script,
    ScriptedClient,
    body_reply,
    chunked_reply,
    delta,
    gateway,
    json_reply,
    serve_app,
)
from prefill_router.endpoints import Breakers
from prefill_router_gateway.proxy import await_to_end
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.proxied_connections import ProxiedConnections

WAIT_SCRIPTS: dict[str, Script] = {
    "before the headers": [HANG],
    "after the headers": chunked_reply([HANG]),
    "after a comment": chunked_reply([b": wait\n\n", HANG]),
    "in the middle": chunked_reply([delta("0123"), HANG]),
    "in a plain answer": [(body_reply(json.dumps(ANSWER).encode())[0] or b"")[:-9], HANG],
}


@pytest.mark.parametrize("when", WAIT_SCRIPTS)
def test_a_client_that_leaves_frees_the_target(when: str) -> None:
    async def ask() -> Gateway:
        async with Fake(WAIT_SCRIPTS[when]) as fake, gateway(fake) as app:
            client = ScriptedClient(STREAM)
            task = asyncio.create_task(client.ask(app))
            await (
                client.body_arrived.wait()
                if when == "in the middle"
                else fake.request_arrived.wait()
            )
            client.leave()
            await task
            await fake.client_left.wait()
            assert app.forwarder.state()["a"].under_way == 0
            assert app.breakers.failures("a") == 0
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == "disconnected"
    assert app.ends == [("a", "disconnected")]
    if when == "in the middle":
        assert app.outcome.status == 200
        assert app.outcome.usage is not None
        assert app.outcome.usage.output_tokens == 1
    else:
        assert (app.outcome.status, app.outcome.usage) == (499, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_that_closes_frees_the_target(stream: bool) -> None:
    """As above, through uvicorn and sockets."""
    script = chunked_reply([delta("4"), HANG]) if stream else [HANG]

    async def ask() -> Gateway:
        async with Fake(script) as fake, gateway(fake) as app, serve_app(app) as url:
            async with httpx2.AsyncClient(trust_env=False) as client:
                request = asyncio.create_task(_first_piece(client, url, STREAM if stream else CHAT))
                await (request if stream else fake.request_arrived.wait())
                request.cancel()
            await fake.client_left.wait()
            await app.ended.wait()
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == "disconnected"


async def _first_piece(client: httpx2.AsyncClient, url: str, body: bytes) -> bytes:
    request = client.build_request("POST", url, content=body, timeout=60.0)
    response = await client.send(request, stream=True)
    return await anext(response.aiter_raw())


def test_while_it_waits_to_try_again() -> None:
    failures = QUICK.model_copy(update={"backoff_seconds": 60.0})

    async def ask() -> Gateway:
        script = json_reply({"error": {}}, status=500)
        async with Fake(script) as fake, gateway(fake, failures=failures) as app:
            client = ScriptedClient()
            task = asyncio.create_task(client.ask(app))
            while app.breakers.failures("a") == 0:
                await asyncio.sleep(0)
            client.leave()
            await task
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == "disconnected"
    assert app.ends == [("a", "server_error")]


def test_while_it_connects() -> None:
    async def ask() -> Gateway:
        # The queue of this listening socket is full, so a connection is never accepted.
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, backlog=1)
        port = server.sockets[0].getsockname()[1]
        async with gateway(f"http://127.0.0.1:{port}") as app:
            client = ScriptedClient()
            task = asyncio.create_task(client.ask(app))
            await asyncio.sleep(0)
            client.leave()
            await task
            server.close()
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == "disconnected"
    assert app.ends == [("a", "disconnected")]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_call_that_is_cancelled_is_reported_too(is_sent: bool) -> None:
    async def ask() -> Gateway:
        script = chunked_reply([delta("4"), HANG]) if is_sent else [HANG]
        async with Fake(script) as fake, gateway(fake) as app:
            client = ScriptedClient(STREAM)
            task = asyncio.create_task(client.ask(app))
            await (client.body_arrived.wait() if is_sent else fake.request_arrived.wait())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await fake.client_left.wait()
            assert client.is_over == is_sent
            assert (b"the gateway is stopping" in client.pieces[-1]) if is_sent else True
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == ("cut" if is_sent else "failed")
    assert app.ends == [("a", "disconnected")]


def test_a_fault_of_the_server_is_reported_too_and_frees_the_target() -> None:
    class BrokenClient(ScriptedClient):
        async def send(self, message: Any) -> None:
            raise RuntimeError(f"the handle is closed: {message['type']}")

    async def ask() -> Gateway:
        async with Fake(chunked_reply([delta("4"), HANG])) as fake, gateway(fake) as app:
            with pytest.raises(RuntimeError, match="closed"):
                await BrokenClient(STREAM).ask(app)
            await fake.client_left.wait()
            assert app.forwarder.state()["a"].under_way == 0
            return app

    app = asyncio.run(ask())
    assert app.outcome.kind == "cut"
    assert app.ends == [("a", "disconnected")]


def test_a_trial_that_the_client_leaves_lets_another_one_try() -> None:
    async def ask() -> Breakers:
        now = [0.0]
        breakers = Breakers(failures=1, seconds=10, clock=lambda: now[0])
        breakers.record_failure("a")
        now[0] = 10.0
        async with Fake([HANG]) as fake, gateway(fake, breakers=breakers) as app:
            client = ScriptedClient()
            task = asyncio.create_task(client.ask(app))
            await fake.request_arrived.wait()
            assert not breakers.allow("a")
            client.leave()
            await task
        return breakers

    breakers = asyncio.run(ask())
    assert breakers.state("a") == "half_open"
    assert breakers.allow("a")


def test_a_slow_client_is_not_taken_for_a_silent_target() -> None:
    failures = QUICK.model_copy(update={"silence_seconds": 0.05})
    long = delta("x" * 300_000)

    async def ask() -> tuple[ScriptedClient, Gateway]:
        script = chunked_reply([long, long, long, *GOOD])
        async with Fake(script) as fake, gateway(fake, failures=failures) as app:
            client = ScriptedClient(STREAM)
            send, slow = client.send, asyncio.Event()

            async def send_slowly(message: object) -> None:
                await send(message)
                if client.pieces and not slow.is_set():
                    slow.set()
                    await asyncio.sleep(0.2)

            await app({}, client.receive, send_slowly)
            return client, app

    client, app = asyncio.run(ask())
    assert app.outcome.kind == "answered"
    assert client.body == long * 3 + b"".join(GOOD)


def test_many_streams_at_once_share_nothing_and_leave_no_connection_behind() -> None:
    async def ask() -> tuple[list[ScriptedClient], int]:
        async with Fake(chunked_reply(GOOD)) as fake, gateway(fake) as app:
            clients = [ScriptedClient(STREAM) for _ in range(50)]
            await asyncio.gather(*(client.ask(app) for client in clients))
            assert {outcome.kind for outcome in app.outcomes} == {"answered"}
            before = fake.connections
            await ScriptedClient(STREAM).ask(app)
            assert fake.connections == before
            return clients, before

    clients, connections = asyncio.run(ask())
    assert {client.body for client in clients} == {b"".join(GOOD)}
    assert connections <= 50


def test_a_closed_forwarder_lets_calls_end_and_keeps_no_connection() -> None:
    async def ask() -> Gateway:
        script = chunked_reply([delta("4"), *[delta("2")] * 50, *GOOD])
        async with Fake(script, chunked_reply(GOOD)) as fake, gateway(fake) as app:
            client = ScriptedClient(STREAM)
            task = asyncio.create_task(client.ask(app))
            await client.body_arrived.wait()
            await app.forwarder.close()
            await task
            assert client.body.endswith(b"[DONE]\n\n")
            await ScriptedClient(STREAM).ask(app)
            assert fake.connections == 2
            return app

    app = asyncio.run(ask())
    assert [outcome.kind for outcome in app.outcomes] == ["answered", "answered"]


def test_by_way_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment gets plain HTTP requests with the whole URL."""
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def ask() -> None:
        scripts = (chunked_reply(GOOD), json_reply(ANSWER), chunked_reply([delta("4"), HANG]), [])
        async with Fake(*scripts) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            async with gateway("http://nowhere.invalid", failures=QUICK) as app:
                client = await ScriptedClient(STREAM).ask(app)
                assert client.body == b"".join(GOOD)
                assert proxy.requests[0][0] == "http://nowhere.invalid/v1/chat/completions"
                client = await ScriptedClient().ask(app)
                assert client.body == json.dumps(ANSWER).encode()
                leaver = ScriptedClient(STREAM)
                task = asyncio.create_task(leaver.ask(app))
                await leaver.body_arrived.wait()
                leaver.leave()
                await task
                await proxy.client_left.wait()
                assert (await ScriptedClient().ask(app)).status == 502
            kinds = [outcome.kind for outcome in app.outcomes]
            assert kinds == ["answered", "answered", "disconnected", "failed"]
            assert [a.end for a in app.outcomes[-1].attempts] == ["broken_off", "broken_off"]

    asyncio.run(ask())


def test_a_slow_client_holds_up_a_proxy_too() -> None:
    count = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal count
        for _ in range(100):
            count += 1
            yield b"x" * 2**17

    async def ask() -> int:
        url = httpx2.URL("http://nowhere.invalid/v1")
        calls = ProxiedConnections(url, connect_seconds=1)
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=pieces()))
        calls._client = httpx2.AsyncClient(transport=transport)  # in place of the proxy
        client = ScriptedClient()
        arrival = await calls.call(
            b"POST",
            b"/",
            [],
            b"{}",
            client=ClientConnection(client.receive, client.send),
            fresh=False,
        )
        await arrival.head()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert count < 10
        length = 0
        while piece := await arrival.piece():
            length += len(piece)
        await calls.close()
        return length

    assert asyncio.run(ask()) == 100 * 2**17


def test_a_second_cancellation_does_not_stop_the_end_of_a_call() -> None:
    endings: list[str] = []

    async def end() -> None:
        await asyncio.sleep(0.05)
        endings.append("receipt and last bytes")

    async def answer() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await await_to_end(end())

    async def stop_twice() -> None:
        task = asyncio.create_task(answer())
        for _ in range(2):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)

    asyncio.run(stop_twice())
    assert endings
