"""The openai SDK's chats through a whole gateway: what it sends arrives, what is said returns."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from packages.gateway.tests.api.bodies import (
    ARGUMENTS,
    CHAT_EVENTS,
    COUNTS,
    PICTURE,
    TOOL,
    TOOL_CALL_EVENTS,
    completion,
    tool_completion,
)
from packages.gateway.tests.scripted_target import DONE, chunked_reply, json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder
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

pytestmark = pytest.mark.slow

ROWS = {
    CHEAP: PRICES[CHEAP],
    MIDDLE: {**PRICES[MIDDLE], "accepts": ["tools", "json_schema"], "model": "org/middle-8b"},
    EXPENSIVE: {**PRICES[EXPENSIVE], "accepts": ["tools", "json_schema", "images"]},
}
PLAIN = [user("What is six times seven?")]
LOW = {HEADER + "lam": "0"}
HIGH = {HEADER + "lam": "1"}


class Answer(BaseModel):
    value: int
    why: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("openai"), ROWS, dialects={MIDDLE: "openai"}) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


def test_all_that_is_sent_arrives_as_the_bytes_it_was(
    world: World, client: openai.OpenAI, recorder: RequestRecorder
) -> None:
    world[CHEAP].then(json_reply(completion(), headers="x-request-id: theirs-1\r\n"))
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=[
            {"role": "developer", "content": "Be brief — höflich."},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "6 · 7? 🎲"}]},
        ],
        seed=7,
        stop=["END", "\n\n"],
        n=1,
        logprobs=True,
        top_logprobs=3,
        temperature=0.25,
        frequency_penalty=-0.5,
        logit_bias={"50256": -100},
        max_completion_tokens=64,
        metadata={"team": "é"},
        reasoning_effort="low",
        response_format={"type": "json_object"},
        extra_body={"top_k": 5, "a_field_of_tomorrow": {"deep": [1, {"x": None}], "1e400": 10**30}},
        extra_headers={**LOW, "x-session-id": "one", "openai-beta": "x=1"},
    )
    request = world[CHEAP].request
    assert request.path == "/v1/chat/completions"
    assert request.body == recorder.body.replace(b'"model":"auto"', b'"model":"target-0"')
    assert request.body != recorder.body
    assert "authorization" not in request.headers
    assert not [name for name in request.headers if name.startswith((HEADER, "x-session"))]
    assert request.headers["openai-beta"] == "x=1"
    assert request.headers["user-agent"].startswith("OpenAI/Python")
    assert raw.content == json.dumps(completion()).encode()
    assert raw.headers["x-request-id"] == "theirs-1"
    answer = raw.parse()
    assert answer.choices[0].message.content == "42"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 13
    assert answer.model_extra == {"a_field_of_tomorrow": {"é": [1, 2]}}


def test_replies_say_what_was_decided(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(model="prefill-router:0", messages=PLAIN)
    fields = {name.removeprefix(HEADER): value for name, value in raw.headers.items()}
    assert fields["target"] == CHEAP
    assert fields["reason"] == "policy"
    assert fields["lam"] == "0"
    assert fields["retries"] == "0"
    assert float(fields["decision-ms"]) > 0
    assert 0 <= float(fields["probability"]) <= 1
    assert float(fields["estimated-cost"]) > 0
    receipt = gateway.receipts[-1]
    assert receipt.choice.id == fields["decision-id"]
    assert receipt.requested == "prefill-router:0"
    assert receipt.outcome.target == CHEAP
    assert world.requested_targets() == [CHEAP]


def test_a_stream_comes_back_byte_for_byte_without_the_counts_nobody_asked_for(
    world: World, gateway: LocalGateway, client: openai.OpenAI, recorder: RequestRecorder
) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    with client.chat.completions.with_streaming_response.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    ) as raw:
        assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert raw.headers[HEADER + "target"] == CHEAP
        assert b"".join(raw.iter_bytes()) == b"".join((*CHAT_EVENTS, DONE))
    body = json.loads(recorder.body)
    assert world[CHEAP].request.json == {
        **body,
        "model": CHEAP,
        "stream_options": {"include_usage": True},
    }
    usage = gateway.receipts[-1].outcome.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (9, 2, 4)


def test_counts_that_were_asked_for_come(
    world: World, client: openai.OpenAI, recorder: RequestRecorder
) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    stream = client.chat.completions.create(
        model="auto",
        messages=PLAIN,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=LOW,
    )
    events = list(stream)
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    reasoning = [
        (e.choices[0].delta.model_extra or {}).get("reasoning_content") for e in events if e.choices
    ]
    assert text == "vierzig 🎉"
    assert "Zwei mal … " in reasoning
    assert events[-1].usage is not None
    assert events[-1].usage.total_tokens == 13
    assert world[CHEAP].request.body == recorder.body.replace(b'"auto"', b'"target-0"')


def test_events_come_as_they_are_said(world: World, client: openai.OpenAI) -> None:
    go_on = threading.Event()
    world[CHEAP].then(chunked_reply([CHAT_EVENTS[1], CHAT_EVENTS[3], b"", CHAT_EVENTS[5], DONE]))
    script = list(world[CHEAP].next.pop())
    script[3] = go_on
    world[CHEAP].then(script)
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    first = [next(stream), next(stream)]
    assert first[1].choices[0].delta.content == "vier"
    go_on.set()
    assert [e.choices[0].finish_reason for e in stream] == ["stop"]


def test_a_whole_tool_loop_stays_with_its_target(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    world[MIDDLE].then(
        chunked_reply([*TOOL_CALL_EVENTS, COUNTS, DONE]), json_reply(completion("Sunny."))
    )
    messages: list[Any] = [user("Weather?")]
    with client.chat.completions.stream(
        model="auto", messages=messages, tools=[TOOL], extra_headers=LOW
    ) as stream:
        answer = stream.get_final_completion().choices[0].message
    assert answer.tool_calls is not None
    (call,) = answer.tool_calls
    assert call.function.arguments == ARGUMENTS
    assert call.function.parsed_arguments == json.loads(ARGUMENTS)
    messages += [
        {
            "role": "assistant",
            "tool_calls": [call.model_dump(exclude={"function": {"parsed_arguments"}})],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=messages,
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=False,
        extra_headers=HIGH,
    )
    assert raw.parse().choices[0].message.content == "Sunny."
    assert raw.headers[HEADER + "reason"] == "tool_loop"
    assert world.requested_targets() == [MIDDLE, MIDDLE]
    first, second = world[MIDDLE].requests
    assert first.json["model"] == second.json["model"] == "org/middle-8b"
    assert first.json["tools"] == [TOOL]
    assert second.json["messages"] == messages
    assert first.headers["authorization"] == "Bearer sk-lab"
    assert gateway.receipts[-2].outcome.tool_calls == ("call_7",)


def test_tools_go_only_to_targets_that_call_them(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    world[MIDDLE].then(json_reply(tool_completion()))
    answer = client.chat.completions.create(
        model="auto",
        messages=PLAIN,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        extra_headers=LOW,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].id == "call_1"
    assert world.requested_targets() == [MIDDLE]
    assert gateway.receipts[-1].choice.excluded == {CHEAP: "doesn't accept tools"}


def test_structured_output(world: World, client: openai.OpenAI, recorder: RequestRecorder) -> None:
    world[MIDDLE].then(json_reply(completion('{"value": 42, "why": "6·7"}')))
    completion_reply = client.chat.completions.parse(
        model="auto", messages=PLAIN, response_format=Answer, extra_headers=LOW
    )
    assert completion_reply.choices[0].message.parsed == Answer(value=42, why="6·7")
    schema = world[MIDDLE].request.json["response_format"]
    assert schema == json.loads(recorder.body)["response_format"]
    assert schema["json_schema"]["strict"] is True


def test_structured_output_as_a_stream(world: World, client: openai.OpenAI) -> None:
    world[MIDDLE].then(
        chunked_reply(
            [
                CHAT_EVENTS[1],
                *(
                    CHAT_EVENTS[3].replace(b"vier", json.dumps(text)[1:-1].encode())
                    for text in ('{"value": 42, ', '"why": "so"}')
                ),
                CHAT_EVENTS[5],
                DONE,
            ]
        )
    )
    with client.chat.completions.stream(
        model="auto", messages=PLAIN, response_format=Answer, extra_headers=LOW
    ) as stream:
        completion_reply = stream.get_final_completion()
    assert completion_reply.choices[0].message.parsed == Answer(value=42, why="so")


def test_pictures_go_only_to_targets_that_see(
    world: World, client: openai.OpenAI, recorder: RequestRecorder
) -> None:
    parts = [
        {"type": "text", "text": "What is on it?"},
        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.invalid/a.png"}},
    ]
    client.chat.completions.create(model="auto", messages=[user(parts)], extra_headers=LOW)
    assert world.requested_targets() == [EXPENSIVE]
    assert world[EXPENSIVE].request.body == recorder.body.replace(b'"auto"', b'"target-2"')
    assert world[EXPENSIVE].request.json["messages"][0]["content"] == parts


def test_who_cannot_see_may_be_named_all_the_same(world: World, client: openai.OpenAI) -> None:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": PICTURE}}]
    client.chat.completions.create(model=CHEAP, messages=[user(parts)])
    assert world.requested_targets() == [CHEAP]


def test_several_choices(world: World, client: openai.OpenAI) -> None:
    value = completion()
    value["choices"] += [{**value["choices"][0], "index": 1}]
    world[CHEAP].then(json_reply(value))
    answer = client.chat.completions.create(model="auto", messages=PLAIN, n=2, extra_headers=LOW)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert world[CHEAP].request.json["n"] == 2


def test_many_at_once_and_asynchronously(world: World, gateway: LocalGateway) -> None:
    world[CHEAP].usual = chunked_reply([*CHAT_EVENTS, COUNTS, DONE])

    async def ask_all() -> list[str]:
        carrier = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", http_client=carrier, max_retries=0
        ) as client:

            async def ask(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="auto",
                    messages=[user(f"Question {number}?")],
                    stream=True,
                    extra_headers=LOW,
                )
                texts = [e.choices[0].delta.content or "" async for e in stream if e.choices]
                return "".join(texts)

            return await asyncio.gather(*(ask(number) for number in range(16)))

    try:
        assert asyncio.run(ask_all()) == ["vierzig 🎉"] * 16
    finally:
        world[CHEAP].usual = json_reply(completion())
    questions = sorted(got.json["messages"][0]["content"] for got in world[CHEAP].requests)
    assert questions == sorted(f"Question {number}?" for number in range(16))
