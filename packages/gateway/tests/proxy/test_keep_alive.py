"""A client gets comments while its target is silent."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import (
    ERROR,
    GOOD,
    GOOD_REPLY,
    PAUSE,
    STREAM,
    Fake,
    Gateway,
    ScriptedClient,
    chunked_reply,
    gateway,
    json_reply,
)

SHORT = 0.01
COMMENT = b": waiting\n\n"


class SlowTarget(Fake):
    """A target that answers once `goes_on` is set."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(*scripts)
        self.goes_on = asyncio.Event()

    async def _answer(self, head: bytes, reader: Any, writer: Any) -> None:
        await self.goes_on.wait()
        await super()._answer(head, reader, writer)


Action = Callable[[ScriptedClient, SlowTarget], Awaitable[None]]


async def _answer_after_two(client: ScriptedClient, target: SlowTarget) -> None:
    while len(client.pieces) < 2:
        await asyncio.sleep(0)
    target.goes_on.set()


def ask_slow(
    *scripts: Any,
    then: Action = _answer_after_two,
    others: tuple[Any, ...] = (),
    body: bytes = STREAM,
    **options: Any,
) -> tuple[ScriptedClient, Gateway]:
    """Ask a target that waits until the client has two pieces; `others` answer at once."""

    async def ask() -> tuple[ScriptedClient, Gateway]:
        async with SlowTarget(*scripts) as slow, Fake(*(others or (GOOD_REPLY,))) as quick:
            targets = (slow, quick) if others else (slow,)
            async with gateway(*targets, **{"keep_alive_seconds": SHORT, **options}) as app:
                client = ScriptedClient(body)
                action = asyncio.create_task(then(client, slow))
                await client.ask(app)
                await action
                return client, app

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("endpoint", "wait"),
    [
        ("chat", COMMENT),
        ("completions", COMMENT),
        ("responses", COMMENT),
        ("messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
    ],
)
def test_a_client_gets_headers_and_then_what_its_protocol_allows(
    endpoint: str, wait: bytes
) -> None:
    client, app = ask_slow(json_reply(ERROR, status=400), endpoint=endpoint)
    assert client.pieces[:2] == [wait, wait]
    assert client.status == 200
    assert client.headers["content-type"].startswith("text/event-stream")
    assert client.headers["x-own"] == "None 0"  # no target has answered
    assert (app.outcome.kind, app.outcome.status) == ("refused", 200)


def test_the_answer_follows_with_its_target_in_a_comment() -> None:
    client, app = ask_slow(chunked_reply(GOOD))
    assert client.body == COMMENT * client.body.count(COMMENT) + b": x-own: a 0\n\n" + b"".join(
        GOOD
    )
    assert client.is_over
    assert (app.outcome.kind, app.outcome.target, app.outcome.status) == ("answered", "a", 200)


def test_another_target_may_still_answer() -> None:
    client, app = ask_slow(json_reply(ERROR, status=500), others=(chunked_reply(GOOD),))
    assert client.body.endswith(b": x-own: b 2\n\n" + b"".join(GOOD))
    assert app.ends == [("a", "server_error"), ("a", "server_error"), ("b", "answered")]


@pytest.mark.parametrize(
    ("endpoint", "error"),
    [
        ("chat", {"error": {"message": "secret words", "type": "server_error"}}),
        ("messages", {"type": "error", "error": {"message": "secret words"}}),
        ("responses", {"type": "error", "message": "secret words", "sequence_number": 0}),
    ],
)
def test_a_refusal_is_an_event_of_the_protocol(endpoint: str, error: dict[str, Any]) -> None:
    client, _ = ask_slow(json_reply(ERROR, status=400), endpoint=endpoint)
    name, _, data = client.pieces[-1].strip().rpartition(b"data: ")
    assert name.strip() == (b"" if endpoint == "chat" else b"event: error")
    value = json.loads(data)
    inner = {n: v for n, v in error.items() if n != "error"}
    assert value.items() >= inner.items()
    assert value.get("error", {}).items() >= error.get("error", {}).items()
    assert client.is_over


def test_no_answer_at_all_is_an_event_too() -> None:
    client, app = ask_slow(json_reply(ERROR, status=500))
    error = json.loads(client.pieces[-1].strip().removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("no_target_answered", "upstream_error")
    assert (app.outcome.kind, app.outcome.status) == ("failed", 200)


def test_an_answer_that_is_no_stream_ends_with_an_error() -> None:
    client, app = ask_slow(GOOD_REPLY)
    assert json.loads(client.pieces[-1].strip().removeprefix(b"data: "))["error"]["code"] == (
        "no_stream"
    )
    assert (app.outcome.kind, app.outcome.target) == ("cut", "a")


def test_a_client_that_leaves_while_it_waits_ends_the_call() -> None:
    async def leave(client: ScriptedClient, target: SlowTarget) -> None:
        while not client.pieces:
            await asyncio.sleep(0)
        client.leave()
        target.goes_on.set()

    _, app = ask_slow(chunked_reply(GOOD), then=leave)
    assert app.outcome.kind == "disconnected"


def test_a_gateway_that_stops_while_a_client_waits_says_so() -> None:
    async def ask() -> tuple[ScriptedClient, Gateway]:
        async with (
            SlowTarget(chunked_reply(GOOD)) as slow,
            gateway(slow, keep_alive_seconds=SHORT) as app,
        ):
            client = ScriptedClient(STREAM)
            request = asyncio.create_task(client.ask(app))
            await client.body_arrived.wait()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            slow.goes_on.set()
            return client, app

    client, app = asyncio.run(ask())
    assert b"the gateway is stopping" in client.pieces[-1]
    assert app.outcome.kind == "cut"


def test_silence_within_an_answer_gets_comments_between_its_lines() -> None:
    script = [*chunked_reply(GOOD[:1], end=False), PAUSE, *chunked_reply(GOOD[1:])[1:]]

    async def ask() -> ScriptedClient:
        # long enough that the answer's head comes before the first keep-alive is due
        async with Fake(script) as fake, gateway(fake, keep_alive_seconds=20 * SHORT) as app:
            fake.pause_seconds = 50 * SHORT
            return await ScriptedClient(STREAM).ask(app)

    client = asyncio.run(ask())
    assert client.body.replace(b": waiting\n", b"") == b"".join(GOOD)
    assert b": waiting\n" in client.body
    assert client.headers["x-own"] == "a 0"  # the answer had begun


@pytest.mark.parametrize("options", [{"keep_alive_seconds": None}, {"stream": False}])
def test_who_wants_no_stream_or_no_keep_alives_waits(options: dict[str, Any]) -> None:
    async def go_later(_: ScriptedClient, target: SlowTarget) -> None:
        await asyncio.sleep(4 * SHORT)
        target.goes_on.set()

    client, _ = ask_slow(
        GOOD_REPLY if "stream" in options else chunked_reply(GOOD), then=go_later, **options
    )
    assert b"waiting" not in client.body
    assert client.headers["x-own"].startswith("a ")


def test_comments_of_the_target_pass() -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    client, _ = ask_slow(chunked_reply([comment, *GOOD]))
    assert client.body.endswith(comment + b"".join(GOOD))
