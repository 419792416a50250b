"""LangChain, the anthropic SDK and curl through a whole gateway."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from packages.gateway.tests.api.bodies import (
    ARGUMENTS,
    CHAT_EVENTS,
    COUNTS,
    MESSAGE_EVENTS,
    TOOL,
    TOOL_CALL_EVENTS,
    completion,
    message,
    tool_completion,
)
from packages.gateway.tests.scripted_target import DONE, chunked_reply, json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder, anthropic_client
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    HEADER,
    MIDDLE,
    PRICES,
    LocalGateway,
    World,
    make_world,
    user,
)
from packages.router.tests.programs import run_program

pytestmark = pytest.mark.slow

ABLE = {"accepts": ["tools", "json_schema", "images"]}
ROWS = {
    CHEAP: PRICES[CHEAP],
    MIDDLE: {**PRICES[MIDDLE], **ABLE},
    EXPENSIVE: {**PRICES[EXPENSIVE], **ABLE, "model": "claude-next"},
}
FAST = {"failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000}}
CURL = shutil.which("curl")
needs_curl = pytest.mark.skipif(CURL is None, reason="curl isn't installed")


class Answer(BaseModel):
    value: int


class Weather(BaseModel):
    place: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    dialects = {MIDDLE: "vllm", EXPENSIVE: "anthropic"}
    with make_world(
        tmp_path_factory.mktemp("others"), ROWS, dialects=dialects, settings=FAST
    ) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


# LangChain.


@pytest.fixture
def chain(gateway: LocalGateway) -> Iterator[ChatOpenAI]:
    with (
        openai.DefaultHttpxClient(trust_env=False) as carrier,
    ):
        yield ChatOpenAI(
            model="auto",
            base_url=f"{gateway.url}/v1",
            api_key="none",
            http_client=carrier,
            max_retries=0,
            default_headers={HEADER + "lam": "0"},
        )


def test_langchain_invokes(world: World, chain: ChatOpenAI) -> None:
    world[CHEAP].then(json_reply(completion()))
    answer = chain.invoke([("system", "Be brief."), ("human", "What is six times seven?")])
    assert answer.content == "42"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == 13
    assert [turn["role"] for turn in world[CHEAP].request.json["messages"]] == ["system", "user"]


def test_langchain_streams(world: World, chain: ChatOpenAI) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    pieces = list(chain.stream("What is six times seven?", stream_usage=True))
    assert "".join(str(piece.content) for piece in pieces) == "vierzig 🎉"
    assert [p.usage_metadata["total_tokens"] for p in pieces if p.usage_metadata] == [13]


def test_langchain_calls_tools(world: World, chain: ChatOpenAI) -> None:
    world[MIDDLE].then(
        chunked_reply([*TOOL_CALL_EVENTS, COUNTS, DONE]), json_reply(completion("Sunny."))
    )
    bound = chain.bind_tools([TOOL])
    tool_message: Any = None
    for piece in bound.stream([HumanMessage("Weather?")]):
        tool_message = piece if tool_message is None else tool_message + piece
    assert tool_message.tool_calls[0]["args"] == json.loads(ARGUMENTS)
    answer = bound.invoke(
        [
            HumanMessage("Weather?"),
            AIMessage(content="", tool_calls=tool_message.tool_calls),
            ToolMessage("sunny", tool_call_id=tool_message.tool_calls[0]["id"]),
        ]
    )
    assert answer.content == "Sunny."
    assert world.requested_targets() == [MIDDLE, MIDDLE]


def test_langchain_asks_for_structured_output(world: World, chain: ChatOpenAI) -> None:
    world[MIDDLE].then(json_reply(completion('{"value": 42}')))
    assert chain.with_structured_output(Answer).invoke("6 times 7?") == Answer(value=42)
    assert world[MIDDLE].request.json["response_format"]["type"] == "json_schema"
    world[MIDDLE].then(json_reply(tool_completion()))
    by_call = chain.with_structured_output(Weather, method="function_calling")
    with pytest.raises(ValueError, match="Weather"):  # it called another tool
        by_call.invoke("Weather?")
    assert world.requested_targets() == [MIDDLE, MIDDLE]


def test_langchain_gets_errors(world: World, chain: ChatOpenAI) -> None:
    world[CHEAP].then(json_reply({"error": {"message": "too warm"}}, status=400))
    with pytest.raises(openai.BadRequestError, match="too warm"):
        chain.invoke("Hi")


# The anthropic SDK.

SAY: list[Any] = [user("What is six times seven?")]
CLAUDE_TOOL: Any = {
    "name": "weather",
    "description": "The weather at a place.",
    "input_schema": TOOL["function"]["parameters"],
}


@pytest.fixture
def claude(gateway: LocalGateway, recorder: RequestRecorder) -> Iterator[anthropic.Anthropic]:
    own = {HEADER + "lam": "0", HEADER + "exclude": CHEAP}  # which speaks chats alone
    with anthropic_client(gateway.url, recorder, default_headers=own) as client:
        yield client


def test_a_message_reaches_who_speaks_it(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic, recorder: RequestRecorder
) -> None:
    world[MIDDLE].then(json_reply(message()))
    raw = claude.messages.with_raw_response.create(
        model="auto",
        max_tokens=64,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=SAY,
        metadata={"user_id": "ann"},
        stop_sequences=["END"],
        extra_headers={"anthropic-version": "2023-01-01"},
        extra_body={"a_field_of_tomorrow": {"x": 1}, "thinking": {"type": "disabled"}},
    )
    request = world[MIDDLE].request
    assert request.path == "/v1/messages"
    assert request.body == recorder.body.replace(b'"auto"', b'"target-1"')
    assert request.headers["anthropic-version"] == "2023-01-01"
    assert request.headers["authorization"] == "Bearer sk-lab"
    assert "x-api-key" not in request.headers
    answer = raw.parse()
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "42"
    assert raw.headers[HEADER + "target"] == MIDDLE
    usage = gateway.receipts[-1].outcome.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (15, 3, 5)


def test_who_is_named_gets_the_key_as_it_wants_it(
    world: World, claude: anthropic.Anthropic
) -> None:
    world[EXPENSIVE].then(json_reply(message()))
    claude.messages.create(model=EXPENSIVE, max_tokens=9, messages=SAY)
    request = world[EXPENSIVE].request
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == "sk-lab"
    assert "authorization" not in request.headers
    assert request.json["model"] == "claude-next"


def test_a_stream_of_a_message(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic
) -> None:
    world[MIDDLE].then(chunked_reply(MESSAGE_EVENTS), chunked_reply(MESSAGE_EVENTS))
    with claude.messages.stream(model="auto", max_tokens=9, messages=SAY) as stream:
        assert "".join(stream.text_stream) == "42"
        assert stream.get_final_message().usage.output_tokens == 5
    with claude.messages.with_streaming_response.create(
        model="auto", max_tokens=9, messages=SAY, stream=True
    ) as raw:
        assert b"".join(raw.iter_bytes()) == b"".join(MESSAGE_EVENTS)
    usage = gateway.receipts[-1].outcome.usage
    assert usage is not None
    assert usage.output_tokens == 5


def test_a_loop_of_anthropics_tools(world: World, claude: anthropic.Anthropic) -> None:
    call: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Bern"}}
    world[MIDDLE].then(json_reply(message(call, stop="tool_use")), json_reply(message()))
    answer = claude.messages.create(model="auto", max_tokens=9, messages=SAY, tools=[CLAUDE_TOOL])
    assert answer.stop_reason == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    raw = claude.messages.with_raw_response.create(
        model="auto",
        max_tokens=9,
        tools=[CLAUDE_TOOL],
        messages=[*SAY, {"role": "assistant", "content": [call]}, user([result])],
        extra_headers={HEADER + "lam": "1"},
    )
    assert raw.headers[HEADER + "reason"] == "tool_loop"
    assert world.requested_targets() == [MIDDLE, MIDDLE]


def test_errors_have_anthropics_shape(
    world: World, claude: anthropic.Anthropic, gateway: LocalGateway
) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="nobody", max_tokens=9, messages=SAY)
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="messages, and a chat can't say container"):
        claude.messages.create(model=CHEAP, max_tokens=9, messages=SAY, container="c")
    for name in (MIDDLE, EXPENSIVE):
        world[name].then(
            json_reply({"type": "error", "error": {"type": "overloaded_error"}}, status=529)
        )
    with pytest.raises(anthropic.APIStatusError, match="no target answered"):
        claude.messages.create(model="auto", max_tokens=9, messages=SAY)
    cut = chunked_reply(MESSAGE_EVENTS[:4], end=False)
    world[MIDDLE].then(cut)
    with (
        pytest.raises(anthropic.APIStatusError, match="the answer ends here, unfinished"),
        claude.messages.stream(model="auto", max_tokens=9, messages=SAY) as stream,
    ):
        stream.until_done()
    assert gateway.receipts[-1].outcome.kind == "cut"


# curl.


def curl(*options: str) -> bytes:
    line = [str(CURL), "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", *options]
    return subprocess.run(line, capture_output=True, check=True).stdout


@needs_curl
def test_curl_asks(world: World, gateway: LocalGateway) -> None:
    world[CHEAP].then(json_reply(completion()))
    body = ' { "messages" : [ {"role":"user","content":"6 · 7?"} ] ,\n "model":"auto"}\n'
    output = curl(
        *("--include", "--header", "Content-Type: application/json"),
        *("--header", "X-Prefill-Router-Lam: 0.0", "--data-binary", body),
        f"{gateway.url}/v1/chat/completions",
    )
    head, _, answer = output.partition(b"\r\n\r\n")
    assert answer == json.dumps(completion()).encode()
    assert b"x-prefill-router-target: target-0" in head
    assert world[CHEAP].request.body == body.replace('"auto"', '"target-0"').encode()


@needs_curl
def test_curl_reads_a_stream_as_it_comes(world: World, gateway: LocalGateway) -> None:
    go_on = threading.Event()
    script: list[Any] = list(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    script.insert(5, go_on)  # behind the head and four events
    world[CHEAP].then(script)
    body = json.dumps({"model": "auto", "stream": True, "messages": SAY})
    line = [str(CURL), "-sS", "-N", "--noproxy", "*", "-H", "content-type: application/json"]
    line += ["-H", f"{HEADER}lam: 0", "-d", body, f"{gateway.url}/v1/chat/completions"]
    with run_program(line, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        first = b"".join(CHAT_EVENTS[:4])
        assert run.stdout.read(len(first)) == first
        go_on.set()
        assert run.stdout.read() == b"".join((*CHAT_EVENTS[4:], DONE))


@needs_curl
def test_curl_gets_errors(world: World, gateway: LocalGateway) -> None:
    output = curl(
        *("-H", "content-type: application/json", "-w", "\n%{http_code}", "-d", "{"),
        f"{gateway.url}/v1/chat/completions",
    )
    body, _, status = output.rpartition(b"\n")
    assert status == b"400"
    assert "can't be read" in json.loads(body)["error"]["message"]
    assert world.requested_targets() == []
