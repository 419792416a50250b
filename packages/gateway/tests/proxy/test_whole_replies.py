"""Plain calls on their way to a target: method, path, query, and what comes back."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest

from packages.gateway.tests.scripted_target import (
    ANSWER,
    CHAT,
    ERROR,
    GOOD,
    PAUSE,
    QUICK,
    STREAM,
    Fake,
    Script,
    ScriptedClient,
    ask_targets,
    body_reply,
    chunked_reply,
    gateway,
    json_reply,
    pool_of,
)
from prefill_router.targets import Pool, Provider, Target
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.failover import PassthroughStream
from prefill_router_gateway.proxy.proxied_connections import ProxiedConnections
from prefill_router_gateway.proxy.response_metadata import ResponseMetadata

NO_RETRY = QUICK.model_copy(update={"retries": 0})
PLAIN_CALL = {"is_plain": True, "endpoint": "responses"}


def find_path(query: bytes, *, own: str = "", **call: Any) -> str:
    """The path of the request that the target gets."""

    def pool(url: str) -> Pool:
        provider = Provider(name="a", base_url=f"{url}/v1{own}")
        return Pool((Target(name="a", provider="a"),), None, (provider,))

    async def ask() -> str:
        async with (
            Fake(json_reply(ANSWER)) as fake,
            gateway(fake, pool=pool, query=query, **call) as app,
        ):
            assert (await ScriptedClient().ask(app)).status == 200
            return fake.requests[0][0]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("own", "query", "arrives"),
    [
        ("", b"", ""),
        ("", b"beta=true", "?beta=true"),
        ("?api-version=1", b"", "?api-version=1"),
        ("?api-version=1", b"beta=true&beta=2", "?api-version=1&beta=true&beta=2"),
        ("?api-version=1", b"api-version=9&api%2Dversion=9&x", "?api-version=1&x"),
        ("", b"&&", ""),
    ],
)
def test_the_base_urls_own_query_comes_first(own: str, query: bytes, arrives: str) -> None:
    assert find_path(query, own=own) == "/v1/chat/completions" + arrives
    path = find_path(query, own=own, below=b"/r%2F1", **PLAIN_CALL)
    assert path == "/v1/responses/r%2F1" + arrives


def ask_plainly(
    *scripts: Script, fakes: int = 1, **call: Any
) -> tuple[ScriptedClient, Any, list[int]]:
    return ask_targets(*[list(scripts)] * fakes, **{**PLAIN_CALL, **call})


def compress_reply(kind: str, pieces: Sequence[bytes], *, keep: int = 10**9) -> Script:
    """A reply that is compressed without a request for it; cut after `keep` bytes."""
    press = zlib.compressobj(wbits={"gzip": 31, "deflate": 15, "raw": -15}[kind])
    data = b"".join([*(press.compress(p) + press.flush(zlib.Z_SYNC_FLUSH) for p in pieces)])
    data = (data + press.flush())[:keep]
    encoding = "deflate" if kind == "raw" else kind
    content = "text/event-stream" if len(pieces) > 1 else "application/json"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content}\r\ncontent-length: {len(data)}\r\n"
    return [f"{head}content-encoding: {encoding}\r\n\r\n".encode() + data[:1], data[1:]]


@pytest.mark.parametrize("kind", ["gzip", "deflate", "raw"])
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_what_comes_compressed_unasked_is_decompressed(kind: str, body: bytes) -> None:
    pieces = GOOD if body is STREAM else [json.dumps(ANSWER).encode()]
    client, app, _ = ask_targets([compress_reply(kind, pieces)], body=body)
    assert (client.status, client.body) == (200, b"".join(pieces))
    assert "content-encoding" not in client.headers
    assert app.ends == [("a", "answered")]


def test_an_encoding_that_cannot_be_read_is_named() -> None:
    body = json.dumps(ANSWER).encode()
    script = body_reply(body, headers="content-encoding: br\r\n")
    client, app, _ = ask_targets([script], [body_reply(body)], failures=NO_RETRY)
    assert client.body == body
    (attempt, _) = app.outcome.attempts
    assert attempt.end == "malformed"
    assert "compressed answer that can't be read" in str(attempt.failure)
    assert "content-encoding br" in str(attempt.failure)


def test_several_members_and_none_at_all() -> None:
    body = json.dumps(ANSWER).encode()
    data = gzip.compress(body[:9]) + gzip.compress(body[9:])
    client, _, _ = ask_targets([body_reply(data, headers="content-encoding: gzip\r\n")])
    assert client.body == body
    empty = b"HTTP/1.1 204 No Content\r\ncontent-encoding: gzip\r\n\r\n"
    client, app, _ = ask_plainly([empty])
    assert (client.status, app.outcome.kind) == (204, "answered")


@pytest.mark.slow
def test_a_compressed_answer_that_is_damaged_cut_or_endless_is_a_failure() -> None:
    content = json.dumps(ANSWER).encode()
    short_script = compress_reply("gzip", [content], keep=60)
    damaged_script = body_reply(b"no gzip", headers="content-encoding: gzip\r\n")
    bomb = compress_reply("gzip", [b" " * 2**27])
    for script, end in (
        (short_script, "broken_off"),
        (damaged_script, "malformed"),
        (bomb, "malformed"),
    ):
        client, app, _ = ask_targets([script], [body_reply(content)], failures=NO_RETRY)
        assert client.body == content
        assert app.ends == [("a", end), ("b", "answered")]


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "application/json"])
@pytest.mark.parametrize("before", [b"", b"id: 1\n", b": hello\n\n"])
def test_a_stream_is_known_by_its_beginning(kind: str, before: bytes) -> None:
    data = before + b"".join(GOOD)
    content = body_reply(data, kind=kind)[0] or b""
    place = content.index(b"\r\n\r\n") + 6  # two bytes of the body
    client, app, _ = ask_targets([[content[:place], PAUSE, content[place:]]], body=STREAM)
    assert client.body == data
    assert client.headers["content-type"] == "text/event-stream"
    assert app.ends == [("a", "answered")]


@pytest.mark.parametrize(
    "usage",
    [
        "many",
        1,
        {"prompt_tokens": "x", "completion_tokens": 1e999},
        {"prompt_tokens_details": {"cached_tokens": 1e999}, "cost": [1e999]},
    ],
)
def test_counts_that_cannot_be_read_are_estimated(usage: object) -> None:
    text = {"choices": [{"message": {"content": "forty-two"}, "finish_reason": "stop"}]}
    body = json.dumps({**text, "usage": usage}).replace("Infinity", "1e400").encode()
    client, app, _ = ask_targets([body_reply(body)])
    assert client.body == body
    assert app.outcome.usage_is_estimated
    assert app.outcome.usage is not None
    assert (app.outcome.usage.input_tokens, app.outcome.usage.output_tokens) == (5, 3)
    assert json.dumps(app.outcome.usage.reported, allow_nan=False)


@pytest.mark.parametrize("body", [b"", b"not JSON", b'{"error": {"code": "x"}}', b"[1]"])
def test_whatever_a_target_answers_is_passed_on(body: bytes) -> None:
    client, app, _ = ask_plainly(body_reply(body))
    assert (client.status, client.body) == (200, body)
    assert app.outcome.kind == "answered"


def test_what_has_no_content_has_no_length() -> None:
    client, app, _ = ask_plainly([b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n"])
    assert (client.status, client.body, app.outcome.kind) == (204, b"", "answered")
    assert "content-length" not in client.headers


@pytest.mark.parametrize("status", [400, 404, 405, 409, 410, 422])
def test_a_refusal_is_passed_on_as_it_is(status: int) -> None:
    script = json_reply({"error": {"message": "model not found, too many tokens"}}, status=status)
    client, app, counts = ask_plainly(script, fakes=2)
    assert client.status == status
    assert b"too many tokens" in client.body
    assert (app.outcome.kind, counts) == ("refused", [1, 0])
    assert app.breakers.failures("a") == 0


@pytest.mark.parametrize("status", [401, 403, 500])
def test_what_is_no_concern_of_the_client_is_not(status: int) -> None:
    client, _, counts = ask_plainly(json_reply(ERROR, status=status), fakes=2)
    assert client.status == 502
    assert b"secret words" not in client.body
    assert min(counts) >= 1


def test_a_target_that_fails_once_is_asked_again() -> None:
    client, _, counts = ask_plainly(json_reply(ERROR, status=503), body_reply(b"{}"))
    assert (client.status, counts) == (200, [2])


def test_a_call_that_a_target_lacks_goes_to_the_next() -> None:
    options = {"lacking": frozenset((404,))}
    client, app, counts = ask_plainly(json_reply(ERROR, status=404), fakes=2, **options)
    assert (client.status, counts) == (404, [1, 1])
    assert b"a, b can't answer" in client.body
    assert [app.breakers.failures(name) for name in "ab"] == [0, 0]


def feed_pieces(pieces: Sequence[bytes]) -> tuple[list[bytes], PassthroughStream]:
    watch = PassthroughStream(ResponseMetadata("responses"))
    return [watch.feed(piece) for piece in pieces], watch


def test_lines_come_whole_and_no_byte_is_lost() -> None:
    text = b'data: {"sequence_number": 7}\n\ndata: {"x": 1}\r\n\r\ndata: half'
    for size in range(1, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        output, watch = feed_pieces(pieces)
        assert all(piece.endswith(b"\n") for piece in output if piece)
        assert not watch.facts.is_complete
        assert b"".join(output) + watch.close() == text
        assert watch.facts.is_complete
        assert watch.sequence_number == 8


def test_an_empty_stream_is_an_answer() -> None:
    client, app, _ = ask_plainly(chunked_reply([]), stream=True)
    assert (client.status, client.body, app.outcome.kind) == (200, b"", "answered")


@pytest.mark.parametrize("method", [b"GET", b"DELETE", b"POST"])
def test_a_proxy_gets_the_method_and_no_body(method: bytes) -> None:
    requests: list[httpx2.Request] = []

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, content=pieces())

    async def ask() -> bytes:
        calls = ProxiedConnections(httpx2.URL("http://nowhere.invalid/v1"), connect_seconds=1)
        calls._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        client = ScriptedClient()
        arrival = await calls.call(
            method,
            b"/v1/x?y",
            [],
            b"",
            client=ClientConnection(client.receive, client.send),
            fresh=False,
        )
        await arrival.head()
        return await arrival.piece()

    assert asyncio.run(ask()) == b"{}"
    assert (requests[0].method.encode(), requests[0].url.raw_path) == (method, b"/v1/x?y")
    assert requests[0].content == b""


QUOTED_KEY = {"error": {"message": "sk-secret may not"}}


@pytest.mark.parametrize(
    "script",
    [
        json_reply(QUOTED_KEY, status=404),
        json_reply(QUOTED_KEY),
        chunked_reply([b'data: {"a": 1}\n\n', b"data: {sk-se", b"cret}\n\n"]),
        chunked_reply([b'data: {"a": 1}\n\ndata: sk-secret']),
    ],
)
def test_a_key_that_a_target_quotes_stays_behind(script: Script) -> None:
    def pool(*urls: str) -> Pool:
        return pool_of(*urls, key="SPITEFUL_KEY")

    environment = {"SPITEFUL_KEY": "sk-secret"}
    client, _, _ = ask_plainly(script, pool=pool, environment=environment)
    assert client.is_over
    assert b"sk-secret" not in client.body
    assert client.status == (502 if len(script) == 1 else 200)
