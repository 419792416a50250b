"""The server speaks the OpenAI protocol: to the openai client, and byte by byte."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from packages.minipool.tests.wire import body, post, read_stream, text_of, until
from prefill_router.errors import ConfigError
from prefill_router_minipool.server import LOOPBACK, Faults, Rule, ScriptedModel, Server, serve

pytestmark = pytest.mark.slow

ANSWERS = {"hi": "hello there, friend", "short": "42", "empty": "", "odd": "naïve — 😀 \u2028x"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = [
        ScriptedModel("small", ANSWERS),
        ScriptedModel("loud", str.upper),
        ScriptedModel("narrow", str.upper, context=10),
    ]
    with serve(models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as made:
        yield made


def turn(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="small", messages=turn("hi"))
    assert reply.choices[0].message.content == "hello there, friend"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "small"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 5)
    assert reply.usage.total_tokens == 9
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("question", [*ANSWERS, "something else"])
def test_a_stream_brings_the_same(client: openai.OpenAI, question: str) -> None:
    whole = client.chat.completions.create(model="small", messages=turn(question))
    chunks = list(
        client.chat.completions.create(
            model="small",
            messages=turn(question),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert not chunks[-1].choices
    assert chunks[-1].usage == whole.usage
    texts = [c.choices[0].delta.content or "" for c in chunks[:-1]]
    assert "".join(texts) == whole.choices[0].message.content
    assert len([text for text in texts if text]) == -(-len("".join(texts)) // 4)
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * len(texts[1:]) + ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"


def test_usage_comes_only_where_it_was_asked_for(server: Server) -> None:
    text = post(server, body("small", "hi", stream=True)).text
    assert "usage" not in text
    assert text.endswith("data: [DONE]\n\n")
    assert len(read_stream(server, "hi")) == len(text.split("\n\n")) - 1


def test_text_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="loud", prompt="go on")
    assert reply.choices[0].text == "GO ON"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 2
    chunks = list(client.completions.create(model="loud", prompt="go on", stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "GO ON"
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_at_its_limit(server: Server, field: str) -> None:
    events = read_stream(server, "hi", **{field: 2})
    assert text_of(events) == "hello th"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 2


def test_an_answer_ends_where_the_context_does(server: Server) -> None:
    events = read_stream(server, "twelve chars", model="narrow", max_tokens=1000)
    assert text_of(events) == "TWELVE CHARS"
    events = read_stream(server, "x" * 20, model="narrow", max_tokens=1000)
    assert text_of(events) == "X" * 8
    assert events[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "text"),
    [("there", "hello "), (["o", "h"], ""), ("friend!", "hello there, friend"), ("nd", None)],
)
def test_an_answer_ends_before_a_stop_text(server: Server, stop: Any, text: str | None) -> None:
    events = read_stream(server, "hi", stop=stop)
    assert text_of(events) == (text if text is not None else "hello there, frie")
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


def test_fields_that_are_not_known_change_nothing(server: Server) -> None:
    plain = read_stream(server, "hi")
    odd = read_stream(server, "hi", reasoning_effort="high", tools=[], top_k=3, unheard={"of": 1})
    assert text_of(odd) == text_of(plain)
    assert server.log[-1].options["unheard"] == {"of": 1}


def test_content_may_come_in_parts(server: Server) -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "y"}]
    asked = {"model": "loud", "messages": [{"role": "user", "content": parts}]}
    assert post(server, asked).json()["choices"][0]["message"]["content"] == "HEY"


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"n": 2}, 400, "n"),
        ({"model": "unheard-of"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": [{"content": "x"}]}, 400, "role"),
        ({"messages": [*turn("x"), {"role": "user", "content": 3}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"temperature": 3}, 400, "temperature"),
        ({"temperature": float("nan")}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"stop": [1]}, 400, "stop"),
        ({"stream": "yes"}, 400, "stream"),
        ({"seed": 1.5}, 400, "seed"),
        ({"model": "narrow", "messages": turn("x" * 40)}, 400, "messages"),
    ],
)
def test_what_is_wrong_is_refused(
    server: Server, change: dict[str, Any], status: int, param: str
) -> None:
    reply = post(server, {**body("small", "hi"), **change})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"x"', b'{"x": %b1%b}' % (b"[" * 985, b"]" * 985)],
)
def test_bodies_that_are_no_objects_are_refused(server: Server, content: bytes) -> None:
    assert post(server, content).status_code == 400
    assert post(server, content, path="/completions").status_code == 400


def test_other_paths_and_methods(server: Server) -> None:
    assert post(server, {}, path="/nothing").status_code == 404
    assert post(server, {}, path="/models").status_code == 405
    assert httpx2.get(server.base_url + "/nothing").status_code == 404
    assert httpx2.get(server.base_url + "/chat/completions").status_code == 405
    assert httpx2.head(server.url + "/health").status_code == 200


def test_models_health_and_stats(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["small", "loud", "narrow"]
    assert client.models.retrieve("loud").id == "loud"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("unheard-of")
    assert httpx2.get(server.url + "/health").json()["status"] == "ok"
    before, log = server.stats(), len(server.log)
    read_stream(server, "hi")
    post(server, body("small", "hi", n=2))
    until(lambda: len(server.log) > log)
    after = server.stats()
    assert (after.requests, after.answers) == (before.requests + 1, before.answers + 1)
    assert after.completion_tokens == before.completion_tokens + 5
    assert after.generated_tokens == before.generated_tokens + 5
    assert after.busy_seconds > before.busy_seconds
    reply = httpx2.get(server.url + "/stats").json()
    assert reply["answers"] == after.answers
    assert reply["in_flight"] == 0


def test_a_key_is_checked() -> None:
    with serve([ScriptedModel("small", ANSWERS)], api_key="right") as server:
        with openai.OpenAI(base_url=server.base_url, api_key="wrong", max_retries=0) as wrong:
            with pytest.raises(openai.AuthenticationError):
                wrong.chat.completions.create(model="small", messages=turn("hi"))
            with pytest.raises(openai.AuthenticationError):
                wrong.models.list()
        assert post(server, body("small", "hi")).status_code == 401
        assert httpx2.get(server.url + "/health").status_code == 200
        with openai.OpenAI(base_url=server.base_url, api_key="right", max_retries=0) as right:
            right.chat.completions.create(model="small", messages=turn("hi"))
        until(lambda: len(server.log) == 1)


async def _ask_many(server: Server, count: int) -> list[str | None]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
        asking = [
            client.chat.completions.create(model=("loud", "small")[i % 2], messages=turn(f"q{i}"))
            for i in range(count)
        ]
        return [reply.choices[0].message.content for reply in await asyncio.gather(*asking)]


def test_many_at_once(server: Server) -> None:
    texts = asyncio.run(_ask_many(server, 100))
    assert texts == [f"Q{i}" if i % 2 == 0 else "I do not know." for i in range(100)]


def test_a_client_that_leaves_frees_its_row() -> None:
    with serve([ScriptedModel("long", lambda _: "x" * 40_000_000)]) as running:
        asked = body("long", "hi", stream=True)
        with httpx2.stream("POST", running.base_url + "/chat/completions", json=asked) as reply:
            next(reply.iter_raw())
        until(lambda: running.stats().in_flight == 0 and bool(running.log))
        tokens = running.stats().generated_tokens
        assert not running.log[0].complete
        assert 0 < running.log[0].completion_tokens <= tokens < 10_000_000
        assert read_stream(running, "hi", model="long", max_tokens=3)


def test_a_server_can_be_stopped_while_it_answers() -> None:
    with serve([ScriptedModel("long", lambda _: "x" * 40_000_000)]) as running:
        stream = httpx2.Client()
        request = stream.build_request(
            "POST", running.base_url + "/chat/completions", json=body("long", "hi", stream=True)
        )
        reply = stream.send(request, stream=True)
        next(reply.iter_raw())
    assert not running.log[0].complete
    reply.close()
    stream.close()


def test_a_model_that_fails_is_told_by_health(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def fail(text: str) -> str:
        if "fail" in text:
            raise RuntimeError("on purpose")
        return text

    with serve([ScriptedModel("small", fail)]) as running:
        assert post(running, body("small", "well")).status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            post(running, body("small", "fail", stream=True))
        assert httpx2.get(running.url + "/health").status_code == 503
        assert post(running, body("small", "well")).status_code == 503
        assert [record.complete for record in running.log] == [True, False]
    assert [str(args.exc_value) for args in failures] == ["on purpose"]


def test_what_can_not_be_served(server: Server) -> None:
    with pytest.raises(ConfigError, match="one or more"), serve([]):
        pass
    twins = [ScriptedModel("small", {}), ScriptedModel("small", {})]
    with pytest.raises(ConfigError, match="all different"), serve(twins):
        pass
    faults = Faults(rules=[Rule(kind="status", model="unheard-of")])
    with pytest.raises(ConfigError, match="unheard-of"), serve(twins[:1], faults=faults):
        pass
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match="another"), serve(twins[:1], port=port):
        pass
    with pytest.raises(ConfigError, match="another"), serve(twins[:1], port=70000):
        pass
    with pytest.raises(ConfigError, match="at least 1"):
        ScriptedModel("small", {}, characters=0)
    assert server.url.startswith(f"http://{LOOPBACK}:")


def test_small_writes_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held back, each reply on a connection that is used again would take 40 ms."""
    undelayed: list[int] = []
    initialise = asyncio.selector_events._SelectorSocketTransport.__init__

    def initialise_and_record(
        self: Any, loop: Any, sock: socket.socket, *more: Any, **named: Any
    ) -> None:
        initialise(self, loop, sock, *more, **named)
        undelayed.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(
        asyncio.selector_events._SelectorSocketTransport, "__init__", initialise_and_record
    )
    with serve([ScriptedModel("small", ANSWERS)]) as running:
        httpx2.get(running.url + "/health")
    assert undelayed
    assert all(undelayed)
