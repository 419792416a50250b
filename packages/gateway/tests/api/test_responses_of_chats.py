"""OpenAI's Responses in front of targets that serve chats alone, as its SDK reads the answers."""

import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from packages.gateway.tests.api.bodies import CHAT_EVENTS, COUNTS, completion, tool_completion
from packages.gateway.tests.scripted_target import DONE, chunked_reply, json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder, openai_client
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    HEADER,
    MIDDLE,
    PRICES,
    LocalGateway,
    World,
    make_world,
)
from prefill_router_gateway.receipts import explain

pytestmark = pytest.mark.slow

ROWS: dict[str, dict[str, Any]] = {
    CHEAP: {**PRICES[CHEAP], "serves": ["chat"], "accepts": ["tools"]},
    MIDDLE: {**PRICES[MIDDLE], "serves": ["chat"], "accepts": ["thinking"]},
    EXPENSIVE: {**PRICES[EXPENSIVE], "serves": ["responses"], "accepts": ["tools"]},
}
FAST = {
    "failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000},
    "streams": {"keep_alive_seconds": 0.05},
}
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("responses"), ROWS, settings=FAST) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


@pytest.fixture
def client(gateway: LocalGateway, recorder: RequestRecorder) -> Iterator[openai.OpenAI]:
    with openai_client(gateway.url, recorder, default_headers={HEADER + "lam": "0"}) as client:
        yield client


def test_a_whole_answer_with_a_tool_and_its_result(
    world: World, client: openai.OpenAI, gateway: LocalGateway
) -> None:
    world[CHEAP].then(json_reply(tool_completion()), json_reply(completion("Sunny.")))
    first = client.responses.create(model="auto", input="Weather?", tools=[TOOL])
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.call_id, call.name) == ("call_1", "weather")
    output: Any = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    items: Any = [{"role": "user", "content": "Weather?"}, call.model_dump(), output]
    raw = client.responses.with_raw_response.create(model="auto", input=items, tools=[TOOL])
    assert raw.headers[HEADER + "translated"] == "chat"
    assert raw.parse().output_text == "Sunny."
    roles = [turn["role"] for turn in world[CHEAP].requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]
    receipt = gateway.receipts[-1]
    assert (receipt.endpoint, receipt.choice.reason) == ("responses", "tool_loop")
    assert receipt.outcome.usage is not None
    assert receipt.outcome.usage.input_tokens == 9


def test_a_stream(world: World, client: openai.OpenAI, gateway: LocalGateway) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    with client.responses.stream(
        model="auto", input="What is six times seven?", reasoning={"effort": "high"}
    ) as stream:
        words = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(words) == final.output_text == "vierzig 🎉"
    assert final.usage is not None
    assert final.usage.input_tokens == 9
    sentences = explain(gateway.receipts[-1]).sentences()
    assert "left out, since a chat can't say it: reasoning" in sentences


def test_the_sdk_waits_for_a_silent_target(world: World, client: openai.OpenAI) -> None:
    goes_on = threading.Event()
    world[CHEAP].then([goes_on, *chunked_reply([*CHAT_EVENTS, COUNTS, DONE])])
    with client.responses.with_streaming_response.create(
        model=CHEAP, input="hi", stream=True
    ) as raw:  # it has headers before there is an answer
        goes_on.set()
        kinds = [event.type for event in raw.parse()]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_a_silent_target_that_fails_is_an_error_of_the_sdk(
    world: World, client: openai.OpenAI
) -> None:
    goes_on = threading.Event()
    world[CHEAP].then([b"", goes_on, *json_reply({"error": {"message": "broken"}}, status=500)])
    with client.chat.completions.with_streaming_response.create(
        model=CHEAP, messages=[{"role": "user", "content": "hi"}], stream=True
    ) as raw:
        goes_on.set()
        with pytest.raises(openai.APIError, match="no target answered"):
            list(raw.parse())


def test_a_chat_that_accepts_thinking_gets_the_effort(
    world: World, client: openai.OpenAI, gateway: LocalGateway
) -> None:
    client.responses.create(model=MIDDLE, input="hi", reasoning={"effort": "medium"})
    assert world[MIDDLE].request.json["reasoning_effort"] == "medium"
    details = gateway.receipts[-1].details
    assert details["sent_hints"] == {"reasoning_effort": "medium"}
    assert "left_out" not in details


def test_what_a_chat_cannot_say_goes_to_who_serves_responses(
    world: World, client: openai.OpenAI
) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    world[EXPENSIVE].then(
        json_reply({"id": "resp_1", "object": "response", "output": [], "usage": usage})
    )
    client.responses.create(model="auto", input="hi", truncation="auto")
    assert world.requested_targets() == [EXPENSIVE]
    with pytest.raises(openai.BadRequestError, match="a chat can't say truncation: auto"):
        client.responses.create(model=CHEAP, input="hi", truncation="auto")


def test_a_translated_response_is_not_stored(world: World, client: openai.OpenAI) -> None:
    world[CHEAP].then(json_reply(completion()))
    answer = client.responses.create(model=CHEAP, input="hi")
    assert answer.id.startswith("resp_")
    world[EXPENSIVE].then(json_reply({"error": {"message": "no such response"}}, status=404))
    with pytest.raises(openai.APIStatusError):
        client.responses.retrieve(answer.id)
    assert world.requested_targets() == [CHEAP, EXPENSIVE]  # never of the one that can't have it


def test_an_error_of_the_target_is_passed_on(world: World, client: openai.OpenAI) -> None:
    error = {"message": "stop is no list", "type": "invalid_request_error", "param": "stop"}
    world[CHEAP].then(json_reply({"error": error}, status=400))
    with pytest.raises(openai.BadRequestError, match="stop is no list"):
        client.responses.create(model="auto", input="hi")


def test_a_stream_that_breaks_off_ends_with_an_error(world: World, client: openai.OpenAI) -> None:
    world[CHEAP].then(chunked_reply(CHAT_EVENTS[:4], end=False))
    kinds = [e.type for e in client.responses.create(model=CHEAP, input="hi", stream=True)]
    assert kinds[-1] == "error"


def test_a_stream_that_breaks_behind_its_end_has_one(world: World, client: openai.OpenAI) -> None:
    world[CHEAP].then(chunked_reply(CHAT_EVENTS, end=False))  # whose last event says why it ended
    kinds = [e.type for e in client.responses.create(model=CHEAP, input="hi", stream=True)]
    assert kinds[-1] == "response.completed"


def test_tokens_are_estimated(client: openai.OpenAI) -> None:
    counting = client.responses.input_tokens.with_raw_response
    raw = counting.count(model=CHEAP, input="word " * 400)
    assert raw.headers[HEADER + "estimated"] == "input_tokens"
    assert 400 <= raw.parse().input_tokens <= 600
