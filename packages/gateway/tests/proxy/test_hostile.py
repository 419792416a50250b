"""Hostile targets: what they send reaches no client, and costs little memory and time."""

import asyncio
import json
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import (
    ANSWER,
    CHAT,
    GOOD,
    GOOD_REPLY,
    QUICK,
    STREAM,
    Fake,
    Script,
    ScriptedClient,
    ask_targets,
    chunked_reply,
    delta,
    event,
    gateway,
    json_reply,
    pool_of,
)
from prefill_router_gateway.errors import BrokenResponseError, ClientGoneError
from prefill_router_gateway.proxy import FixedBody, ForwardRequest
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.connections import ProviderConnection
from prefill_router_gateway.proxy.deployments import ProviderEndpoint
from prefill_router_gateway.proxy.response_metadata import ResponseMetadata, StreamObserver
from prefill_router_gateway.proxy.response_stream import ResponseStream

pytestmark = pytest.mark.slow

OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
BODY = json.dumps(ANSWER).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

FRAMING: dict[str, bytes] = {
    "a length and chunks": OK_HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "chunks and a length": OK_HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "two lengths": OK_HEAD + LENGTH + b"content-length: 2\r\n\r\n" + BODY,
    "a list of lengths": OK_HEAD + b"content-length: 2, 2\r\n\r\n{}",
    "a signed length": OK_HEAD + b"content-length: +2\r\n\r\n{}",
    "a length above 2^64": OK_HEAD + b"content-length: 99999999999999999999\r\n\r\n" + BODY,
    "a chunk of 2^63": OK_HEAD + CHUNKED + b"\r\n8000000000000000\r\n" + BODY,
    "a chunk above 2^64": OK_HEAD + CHUNKED + b"\r\n10000000000000000\r\n" + BODY,
    "a chunk of less than nothing": OK_HEAD + CHUNKED + b"\r\n-1\r\n" + BODY,
    "chunks without carriage returns": OK_HEAD + CHUNKED + b"\r\n2\n{}\n0\n\n",
    "chunks of another kind": OK_HEAD + b"transfer-encoding: xchunked\r\n\r\n" + BODY,
    "a folded header": OK_HEAD + LENGTH + b"x: a\r\n b\r\n\r\n" + BODY,
    "a header split in two": OK_HEAD + LENGTH + b"x: a\rset-cookie: b\r\n\r\n" + BODY,
    "a zero in a header": OK_HEAD + LENGTH + b"x: a\0b\r\n\r\n" + BODY,
    "a name with a space": OK_HEAD + LENGTH + b"x : a\r\n\r\n" + BODY,
    "no content, with some": b"HTTP/1.1 204 X\r\n" + LENGTH + b"\r\n" + BODY,
    "not modified, with some": b"HTTP/1.1 304 X\r\n" + LENGTH + b"\r\n" + BODY,
    "another protocol": b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + BODY,
    "a status of four digits": b"HTTP/1.1 2000 X\r\n" + LENGTH + b"\r\n" + BODY,
    "a status above 599": b"HTTP/1.1 799 X\r\n" + LENGTH + b"\r\n" + BODY,
    "no status": b"HTTP/1.1 000 X\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("what", FRAMING)
def test_replies_whose_end_is_in_doubt_are_no_answers(what: str) -> None:
    failures = QUICK.model_copy(update={"retries": 0})

    async def ask() -> tuple[ScriptedClient, list[str]]:
        async with (
            Fake([FRAMING[what]], closes=True) as bad,
            Fake(GOOD_REPLY) as good,
            gateway(bad, good, failures=failures) as app,
        ):
            return await ScriptedClient().ask(app), [end for _, end in app.ends]

    client, (first, last) = asyncio.run(ask())
    assert first in ("malformed", "broken_off", "server_error")
    assert last == "answered"
    assert (client.status, client.body) == (200, BODY)
    assert not {"x", "set-cookie", "upgrade"} & set(client.headers)


def test_chunks_may_say_more_of_themselves_and_headers_may_follow_them() -> None:
    head = OK_HEAD + CHUNKED + b"trailer: x\r\n\r\n"
    size = b'%x;a=b;c="d"\r\n' % len(BODY)
    script: Script = [head + size + BODY + b"\r\n0\r\nset-cookie: a\r\nx: y\r\n\r\n"]
    client, app, _ = ask_targets([script])
    assert (client.status, client.body) == (200, BODY)
    assert not {"x", "set-cookie"} & set(client.headers)
    assert app.ends == [("a", "answered")]


class FakeTransport(asyncio.Transport):
    """A transport in place of a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return 0


async def read_to_end(arrival: ResponseStream) -> None:
    await arrival.head()
    while await arrival.piece():
        pass


def connect_transport() -> tuple[ProviderConnection, FakeTransport, ResponseStream]:
    connection, transport = ProviderConnection(freed=lambda _: None), FakeTransport()
    connection.connection_made(transport)
    return connection, transport, connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"")


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 100),
    "trailers": (OK_HEAD + CHUNKED + b"\r\n0\r\n", b"x: y\r\n"),
    "one trailer": (OK_HEAD + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nx: ", b"y" * 100),
    "what a chunk says of itself": (OK_HEAD + CHUNKED + b"\r\n2", b";a=b"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_and_is_no_body_is_read_no_further(what: str) -> None:
    beginning, repeat = ENDLESS[what]

    async def read() -> None:
        connection, transport, arrival = connect_transport()
        connection.data_received(beginning)
        more = repeat * (2**16 // len(repeat))
        for _ in range(5):
            connection.data_received(more)
        assert transport.is_aborted
        with pytest.raises(BrokenResponseError):
            await read_to_end(arrival)

    asyncio.run(read())


def test_a_long_body_right_behind_its_headers_is_no_long_header() -> None:
    async def read() -> None:
        connection, transport, arrival = connect_transport()
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
        connection.data_received(b"content-length: 1000000\r\n\r\n" + b"x" * 2**18)
        assert not transport.is_aborted
        assert await arrival.head() == 200
        assert await arrival.piece() == b"x" * 2**18

    asyncio.run(read())


def test_no_more_is_read_than_the_client_takes() -> None:
    async def read() -> None:
        connection, transport, arrival = connect_transport()
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        for _ in range(5):
            assert not transport.is_paused
            connection.data_received(b"x" * 2**16)
        assert transport.is_paused
        await arrival.piece()
        assert not transport.is_paused

    asyncio.run(read())


def test_an_answer_that_comes_before_the_request_was_read_is_one_and_ends_the_connection() -> None:
    long = CHAT.replace(b"hi", b"h" * 2**25)
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(GOOD_REPLY[0] or b"")
        await writer.drain()
        writers.append(writer)

    async def ask() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with gateway(url) as app:
            for _ in range(2):
                client = await ScriptedClient(long).ask(app)
                assert (client.status, client.body) == (200, BODY)
        assert len(writers) == 2
        for writer in writers:
            writer.close()
        server.close()

    asyncio.run(ask())


def test_comments_without_an_end_are_no_beginning_of_a_stream() -> None:
    endless = chunked_reply([b":%b\n\n" % (b"x" * 2**15)] * 40, end=False)
    failures = QUICK.model_copy(update={"retries": 0})
    client, app, _ = ask_targets([endless], [chunked_reply(GOOD)], body=STREAM, failures=failures)
    assert client.body == b"".join(GOOD)
    assert [end for _, end in app.ends] == ["malformed", "answered"]


@pytest.fixture
def peak() -> Iterator[Any]:
    """A function of the peak memory since the test began, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_counting_a_long_text_takes_no_more_memory_than_the_text(peak: Any) -> None:
    facts = ResponseMetadata("chat")
    facts.count(b'{"content": "' + b"x\\n" * 2**20 + b'", "arguments": "\\"abc')
    assert facts.output_bytes == 3 * 2**20 + 5
    assert peak() < 30 * 2**20


def test_an_object_over_lines_without_an_end_isnt_kept(peak: Any) -> None:
    watch = StreamObserver("chat", leave_out_usage=False)
    watch.feed(delta("4"))
    line = b"data: " + b"x" * 2**16 + b"\n"
    watch.feed(b'data: {"usage": {\n')
    for _ in range(200):
        assert watch.feed(line) == line
    watch.feed(b"\n" + event({"choices": [], "usage": {"prompt_tokens": 7}}))
    usage, _ = watch.facts.usage(input_tokens=1)
    assert usage is not None
    assert usage.input_tokens == 7
    assert peak() < 5 * 2**20


def test_tool_calls_without_an_end_are_looked_at_once() -> None:
    watch = StreamObserver("chat", leave_out_usage=False)
    calls = [{"index": n, "id": f"call_{n}"} for n in range(3000)]
    watch.feed(delta("4"))
    watch.feed(
        b"data: " + b'"tool_calls"' * 20_000 + b"\n\n"
    )  # in quadratic time it would take a minute
    watch.feed(delta(tool_calls=calls[:2]))
    watch.feed(delta(tool_calls=calls))
    assert watch.facts.tool_calls == tuple(f"call_{n}" for n in range(1000))


def test_ids_that_are_books_arent_kept() -> None:
    facts = ResponseMetadata("chat")
    book = "x" * 2**15
    call = {"delta": {"tool_calls": [{"id": book}, {"id": "call_1"}]}}
    facts.take({"id": book, "choices": [call]})
    facts.take({"id": "c-1", "choices": []})
    assert (facts.response_id, facts.tool_calls) == ("c-1", ("call_1",))


# No task, connection or body is left behind.


def test_nobody_is_connected_to_for_a_client_that_has_left() -> None:
    async def ask() -> None:
        async with Fake(GOOD_REPLY) as fake, gateway(fake) as app:
            client = ClientConnection(ScriptedClient().receive, ScriptedClient().send)
            client.is_gone = True
            line = app.forwarder._lines[0]
            with pytest.raises(ClientGoneError):
                await line.call(build_call(), CHAT, client=client)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(ask())


def test_a_call_that_is_cancelled_as_its_answer_begins_frees_the_target() -> None:
    async def ask() -> None:
        stops: list[bool] = []
        arrival = ResponseStream(stop=lambda: stops.append(True))

        class FakeCalls:
            async def call(self, *_: object, **__: object) -> ResponseStream:
                return arrival

        provider = pool_of("http://127.0.0.1:9").provider_of("a")
        line = ProviderEndpoint(provider, "", failures=QUICK)
        line._calls = FakeCalls()  # type: ignore[assignment]
        client = ClientConnection(ScriptedClient().receive, ScriptedClient().send)
        task = asyncio.create_task(line.call(build_call(), CHAT, client=client))
        while arrival._waiter is None:
            await asyncio.sleep(0)
        arrival.begin(200, [])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stops == [True]

    asyncio.run(ask())


def build_call() -> ForwardRequest:
    return ForwardRequest(endpoint="chat", body=FixedBody(CHAT), order=("a",))


def test_behind_a_proxy_no_cookie_goes_to_the_next_and_no_body_outlives_its_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def ask() -> None:
        async with Fake(json_reply(ANSWER, headers="set-cookie: who=first; path=/\r\n")) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            async with gateway("http://nowhere.invalid") as app:
                await ScriptedClient().ask(app)
                await ScriptedClient().ask(app)
                assert [headers.get("cookie") for _, headers, _ in proxy.requests] == [None, None]
                body = CHAT.replace(b"hi", b"ho")
                before = sys.getrefcount(body)
                line = app.forwarder._lines[0]
                client = ClientConnection(ScriptedClient().receive, ScriptedClient().send)
                arrival = await line.call(build_call(), body, client=client)
                assert proxy.requests[-1][2] == body
                assert sys.getrefcount(body) == before
                arrival.close()

    asyncio.run(ask())


@pytest.mark.parametrize("key", ["sk-a/secret-0123456789", 'sk-"quoted"-0123456789'])
def test_a_key_in_a_good_stream_is_handed_on_to_nobody_however_it_is_cut(key: str) -> None:
    quote = delta(f"my key is {key}")
    for stream in (quote, quote.replace(b"/", b"\\/"), quote[:-2]):
        watch = StreamObserver("chat", leave_out_usage=False, secret=key)
        pieces = [watch.feed(stream[place : place + 1]) for place in range(len(stream))]
        output = b"".join((*pieces, watch.close()))
        assert b"my key is [redacted]" in output
        assert b"0123456789" not in output


@pytest.mark.parametrize("key", ["dummy", "none", None, "other-secret-0123456789"])
def test_what_quotes_no_key_is_the_very_same(key: str | None) -> None:
    watch, stream = StreamObserver("chat", leave_out_usage=False, secret=key), delta("dummy, none")
    assert watch.feed(stream) is stream
