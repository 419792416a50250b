"""Anthropic's SDK before targets that speak OpenAI's chats alone."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from packages.gateway.tests.api.bodies import (
    CHAT_EVENTS,
    CLAUDE_CODE,
    COUNTS,
    call_piece,
    call_start,
    chunk,
    completion,
    message,
    tool_call_events,
    tool_completion,
)
from packages.gateway.tests.scripted_target import DONE, ERROR, chunked_reply, event, json_reply
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
from prefill_router_gateway.receipts import explain

pytestmark = pytest.mark.slow

ROWS = {name: {**PRICES[name], "accepts": ["tools", "images"]} for name in PRICES}
ROWS[MIDDLE]["accepts"] = ["tools", "images", "thinking"]
FAST = {
    "failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000},
    "streams": {"keep_alive_seconds": 0.05},
    "agents": {"marks": {"ours": {"volatile": ["x-ours:"]}}},
}
DIALECTS = {CHEAP: "openai", MIDDLE: "deepseek", EXPENSIVE: "anthropic"}
SAY: list[Any] = [user("What is six times seven?")]
TOOL: Any = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("anthropic")
    with make_world(folder, ROWS, dialects=DIALECTS, settings=FAST) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


@pytest.fixture
def claude(gateway: LocalGateway, recorder: RequestRecorder) -> Iterator[anthropic.Anthropic]:
    own = {HEADER + "lam": "0"}
    with anthropic_client(gateway.url, recorder, default_headers=own) as client:
        yield client


def test_a_request_of_claude_code(world: World, gateway: LocalGateway) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    reply = gateway.ask("/v1/messages?beta=true", CLAUDE_CODE, lam="0")
    assert reply.status == 200
    request = world[CHEAP].request
    assert request.path == "/v1/chat/completions"
    assert not [name for name in request.headers if name.startswith("anthropic")]
    assert request.json == {
        "model": CHEAP,
        "max_completion_tokens": 32000,
        "temperature": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "Read",
                    "description": "Reads a file.",
                    "parameters": CLAUDE_CODE["tools"][0]["input_schema"],  # type: ignore[index]
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "You are Claude Code.\n\nBe brief."},
            user("<system-reminder>Today is Monday.</system-reminder>\n\nWhat is in a.txt?"),
            {"role": "system", "content": "Tools: Read."},
            {
                "role": "assistant",
                "content": "I'll read it.",
                "tool_calls": [
                    {
                        "id": "toolu_1",
                        "type": "function",
                        "function": {"name": "Read", "arguments": '{"file_path": "a"}'},
                    }
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "toolu_1",
                "content": "Error: <tool_use_error>No such file.</tool_use_error>",
            },
        ],
    }
    kinds = [line[7:] for line in reply.body.decode().split("\n") if line.startswith("event: ")]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    receipt = gateway.receipts[-1]
    assert (receipt.endpoint, receipt.outcome.kind) == ("messages", "answered")
    assert receipt.outcome.target == CHEAP  # its header is missing where the answer is late
    assert receipt.outcome.usage is not None
    assert receipt.outcome.usage.input_tokens == 9
    assert receipt.choice.session is not None


def test_a_whole_answer(world: World, gateway: LocalGateway, claude: anthropic.Anthropic) -> None:
    world[MIDDLE].then(json_reply(completion()))
    raw = claude.messages.with_raw_response.create(
        model=MIDDLE, max_tokens=9, messages=SAY, extra_headers={"anthropic-beta": "x"}
    )
    assert world[MIDDLE].request.json == {"model": MIDDLE, "max_tokens": 9, "messages": SAY}
    assert raw.headers[HEADER + "translated"] == "chat"
    assert raw.http_response.json() == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "their-own-name",
        "content": [{"type": "text", "text": "42"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 4,
        },
    }
    usage = gateway.receipts[-1].outcome.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (9, 2, 4)


def test_a_tool_is_called_and_its_result_goes_back(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic
) -> None:
    world[CHEAP].then(json_reply(tool_completion()), json_reply(completion()))
    answer = claude.messages.create(model="auto", max_tokens=9, messages=SAY, tools=[TOOL])
    (block,) = answer.content
    assert (answer.stop_reason, block.type) == ("tool_use", "tool_use")
    assert block.type == "tool_use"
    assert (block.id, block.name, block.input) == ("call_1", "weather", {"place": "Zürich"})
    result: Any = {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}
    turn: Any = {"role": "assistant", "content": [block.model_dump(exclude_none=True)]}
    claude.messages.create(
        model="auto",
        max_tokens=9,
        messages=[*SAY, turn, user([result])],
        tools=[TOOL],
        extra_headers={HEADER + "lam": "1"},
    )
    assert world.requested_targets() == [CHEAP, CHEAP]
    assert gateway.receipts[-1].choice.reason == "tool_loop"


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "end_turn"),  # it has no call
        ("tomorrow", "end_turn"),
    ],
)
def test_stop_reasons(world: World, claude: anthropic.Anthropic, finish: str, stop: str) -> None:
    events = [chunk(delta={"content": "4"}), chunk(finish_reason=finish), DONE]
    world[CHEAP].then(json_reply(completion(finish=finish)), chunked_reply(events))
    assert claude.messages.create(model="auto", max_tokens=9, messages=SAY).stop_reason == stop
    with claude.messages.stream(model="auto", max_tokens=9, messages=SAY) as stream:
        assert stream.get_final_message().stop_reason == stop


def test_a_call_that_the_limit_cut_off_ends_with_max_tokens(
    world: World, claude: anthropic.Anthropic
) -> None:
    whole_and_cut = [call_start("a", '{"place": "Bern"}'), call_start("b", '{"place', 1)]
    answer = completion("Let me see.", finish="length", tool_calls=whole_and_cut)
    world[CHEAP].then(
        json_reply(answer), chunked_reply(tool_call_events(*whole_and_cut, finish="length"))
    )
    first = claude.messages.create(model="auto", max_tokens=9, messages=SAY, tools=[TOOL])
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert first.content[1].model_dump()["input"] == {"place": "Bern"}
    with claude.messages.stream(model="auto", max_tokens=9, messages=SAY, tools=[TOOL]) as stream:
        second = stream.get_final_message()
    assert first.stop_reason == second.stop_reason == "max_tokens"
    assert world.requested_targets() == [CHEAP, CHEAP]


def test_a_refusal_is_text(world: World, claude: anthropic.Anthropic) -> None:
    world[CHEAP].then(json_reply(completion(None, refusal="I can't.")))
    answer = claude.messages.create(model="auto", max_tokens=9, messages=SAY)
    assert answer.stop_reason == "refusal"
    assert [block.model_dump()["text"] for block in answer.content] == ["I can't."]


def test_too_long_a_prompt_is_refused_in_the_words_that_clients_look_for(
    world: World, claude: anthropic.Anthropic
) -> None:
    problem = "This model's maximum context length is 8192 tokens"
    error = {"message": problem, "code": "context_length_exceeded"}
    for name in (CHEAP, MIDDLE):
        world[name].then(*[json_reply({"error": error}, status=400)] * 2)
    exclude = {HEADER + "exclude": EXPENSIVE}
    with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {problem}"):
        claude.messages.create(model="auto", max_tokens=9, messages=SAY, extra_headers=exclude)


PLACES = [{"place": "Bern"}, {"place": "Zürich"}]


@pytest.mark.parametrize(
    "deltas",
    [
        [
            call_start("a"),
            call_piece('{"place"'),
            call_piece(': "Bern"}'),
            call_start("b", index=1),
            call_piece('{"place": "Zürich"}', 1),
        ],
        [
            call_start("a", '{"place": "Bern"}'),
            call_start("b", '{"place": "Zürich"}'),
        ],  # one index for all
        [
            call_start("a", '{"place": "Bern"}', None),
            call_start("b", "", None),
            call_piece('{"place": "Zürich"}', None),
        ],
        [
            call_start("a", '{"place"'),
            call_start("a", ': "Bern"}'),
            call_start("b", '{"place": "Zürich"}', 1),
        ],
    ],
)
def test_a_stream_of_tool_calls(
    world: World, claude: anthropic.Anthropic, deltas: list[Any]
) -> None:
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS[:3], *tool_call_events(*deltas)]))
    with claude.messages.stream(model="auto", max_tokens=9, messages=SAY, tools=[TOOL]) as stream:
        answer = stream.get_final_message()
    blocks = [block for block in answer.content if block.type == "tool_use"]
    assert [block.input for block in blocks] == PLACES
    assert [block.id for block in blocks] == ["a", "b"]
    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens == 4
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (7, 2)


def test_a_tool_without_arguments(world: World, claude: anthropic.Anthropic) -> None:
    world[CHEAP].then(chunked_reply(tool_call_events(call_start("a"))))
    with claude.messages.stream(model="auto", max_tokens=9, messages=SAY, tools=[TOOL]) as stream:
        (block,) = stream.get_final_message().content
    assert block.type == "tool_use"
    assert block.input == {}


@pytest.mark.parametrize(
    ("deltas", "why"),
    [
        ([call_start("a", '{"place": ')], "aren't a JSON object"),
        ([call_start("a", "[1]")], "aren't a JSON object"),
        ([call_start("a", "{x}"), call_start("b", "{}", 1)], "aren't a JSON object"),
        (
            [call_start("a", "{}"), call_start("b", "{}", 1), call_piece(" ", 0)],
            "several tool calls at once",
        ),
        ([call_start("a", tool="")], "without a name"),
    ],
)
def test_broken_calls_in_a_stream_end_it_with_an_error(
    world: World, gateway: LocalGateway, deltas: list[Any], why: str
) -> None:
    world[CHEAP].then(chunked_reply(tool_call_events(*deltas)))
    body = {"model": CHEAP, "max_tokens": 9, "messages": SAY, "tools": [TOOL], "stream": True}
    reply = gateway.ask("/v1/messages", body)
    last = reply.body.decode().strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert why in json.loads(last.partition("data: ")[2])["error"]["message"]
    assert "message_stop" not in reply.body.decode()
    assert gateway.receipts[-1].outcome.kind == "cut"


@pytest.mark.parametrize(
    "broken",
    [
        tool_completion() | {"choices": [{"message": {"tool_calls": [call_start("a", "{")]}}]},
        tool_completion()
        | {"choices": [{"message": {"tool_calls": [call_start("a", "{}", tool="")]}}]},
        tool_completion() | {"choices": [{"message": {"tool_calls": [5]}}]},
        tool_completion() | {"choices": []},
        tool_completion() | {"choices": [{"message": "hi"}]},
    ],
)
def test_answers_that_cannot_be_read_are_failures_of_the_target(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic, broken: Any
) -> None:
    world[CHEAP].then(json_reply(broken))
    answer = claude.messages.with_raw_response.create(model="auto", max_tokens=9, messages=SAY)
    assert answer.headers[HEADER + "target"] == MIDDLE
    assert gateway.receipts[-1].outcome.attempts[0].end == "malformed"


def test_errors(world: World, gateway: LocalGateway, claude: anthropic.Anthropic) -> None:
    error = {"message": "stop is no list", "type": "invalid_request_error", "param": None}
    world[CHEAP].then(json_reply({"error": error}, status=400, headers="x-request-id: theirs\r\n"))
    with pytest.raises(anthropic.BadRequestError, match="stop is no list") as caught:
        claude.messages.create(model="auto", max_tokens=9, messages=SAY)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "stop is no list"},
    }
    assert caught.value.response.headers["x-request-id"] == "theirs"
    world[CHEAP].then(json_reply(ERROR, status=500))
    with pytest.raises(anthropic.APIStatusError, match="no target answered"):
        claude.messages.create(model=CHEAP, max_tokens=9, messages=SAY)
    failing = {"error": {"message": "out of memory", "code": 500}}
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS[:4], event(failing)]))
    with (
        pytest.raises(anthropic.APIStatusError, match="out of memory"),
        claude.messages.stream(model=CHEAP, max_tokens=9, messages=SAY) as stream,
    ):
        stream.until_done()
    world[CHEAP].then(chunked_reply(CHAT_EVENTS[:4], end=False))
    with (
        pytest.raises(anthropic.APIStatusError, match="the answer ends here, unfinished"),
        claude.messages.stream(model=CHEAP, max_tokens=9, messages=SAY) as stream,
    ):
        stream.until_done()
    assert [r.outcome.kind for r in gateway.receipts[-4:]] == ["refused", "failed", "cut", "cut"]


def test_what_a_chat_cannot_say_goes_to_who_speaks_anthropics(
    world: World, claude: anthropic.Anthropic
) -> None:
    world[EXPENSIVE].then(json_reply(message()))
    fields: dict[str, Any] = {
        "model": "auto",
        "max_tokens": 4000,
        "messages": SAY,
        "extra_body": {"top_k": 5},
    }
    raw = claude.messages.with_raw_response.create(**fields)
    assert raw.headers[HEADER + "target"] == EXPENSIVE
    assert HEADER + "translated" not in raw.headers
    assert world[EXPENSIVE].request.json["top_k"] == 5
    only = {HEADER + "exclude": EXPENSIVE}
    with pytest.raises(anthropic.BadRequestError, match="a chat can't say top_k"):
        claude.messages.create(**fields, extra_headers=only)
    source: Any = {"type": "text", "media_type": "text/plain", "data": "a"}
    content = [{"type": "document", "source": source}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]: document"):
        claude.messages.create(model=MIDDLE, max_tokens=9, messages=[user(content)])
    assert world.requested_targets() == [EXPENSIVE]


def test_hints_are_sent_to_who_knows_them_and_left_out_for_a_chat(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic
) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 2000}
    fields: dict[str, Any] = {"max_tokens": 4000, "messages": SAY, "thinking": thinking}
    world[EXPENSIVE].then(json_reply(message()))
    claude.messages.create(model=EXPENSIVE, **fields)
    assert world[EXPENSIVE].request.json["thinking"] == thinking
    world[CHEAP].then(json_reply(completion("42")))
    claude.messages.create(model="auto", **fields)
    assert "thinking" not in world[CHEAP].request.json
    to_anthropic, to_chat = gateway.receipts[-2:]
    assert "left_out" not in to_anthropic.details
    assert to_chat.details["left_out"] == ["thinking"]
    assert "left out, since a chat can't say it: thinking" in explain(to_chat).sentences()


@pytest.mark.parametrize(
    ("hints", "fields"),
    [
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
        ),
        (  # a budget that the dialect can't say
            {
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "output_config": {"effort": "low"},
            },
            {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"thinking": {"type": "enabled"}},
        ),
        ({"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}),
        ({}, {}),
    ],
)
def test_a_chat_that_accepts_thinking_is_told_of_it(
    world: World, gateway: LocalGateway, hints: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = {"model": MIDDLE, "max_tokens": 4000, "messages": SAY, "context_management": {}, **hints}
    assert gateway.ask("/v1/messages", body).status == 200
    sent = world[MIDDLE].request.json
    assert {n: sent[n] for n in ("thinking", "reasoning_effort") if n in sent} == fields
    receipt = gateway.receipts[-1]
    assert receipt.details["left_out"] == ["context_management"]
    assert receipt.details.get("sent_hints", {}) == fields
    sentence = f"asked to think as the client said: {json.dumps(fields)}"
    assert (sentence in explain(receipt).sentences()) == bool(fields)


def test_a_hint_that_a_target_refuses_is_left_out(world: World, gateway: LocalGateway) -> None:
    error = {"message": "Unsupported value: 'reasoning_effort' does not support 'xhigh'."}

    def ask(effort: str) -> dict[str, Any]:
        body = {"model": MIDDLE, "max_tokens": 9, "messages": SAY}
        reply = gateway.ask("/v1/messages", {**body, "output_config": {"effort": effort}})
        assert reply.status == 200
        return {"retries": reply.own_header("retries"), **gateway.receipts[-1].details}

    world[MIDDLE].then(json_reply({"error": error}, status=400))
    refused, remembered, other = ask("xhigh"), ask("xhigh"), ask("low")
    assert (refused["retries"], remembered["retries"], other["retries"]) == ("1", "0", "0")
    for details in (refused, remembered):
        assert details["left_out"] == ["output_config.effort"]
        assert "sent_hints" not in details
    assert other["sent_hints"]["reasoning_effort"] == "low"
    sent = [got.json.get("reasoning_effort") for got in world[MIDDLE].requests]
    assert sent == ["xhigh", None, None, "low"]


def test_a_line_that_the_settings_call_volatile_is_not_translated(
    world: World, gateway: LocalGateway
) -> None:
    body = {"model": CHEAP, "max_tokens": 9, "messages": SAY, "system": "x-ours: 7f\nBe brief."}
    assert gateway.ask("/v1/messages", body).status == 200
    response = {"model": MIDDLE, "instructions": "x-ours: 8a\nBe brief.", "input": SAY}
    assert gateway.ask("/v1/responses", response).status == 200  # of the dialect deepseek
    for name in (CHEAP, MIDDLE):
        first = world[name].request.json["messages"][0]
        assert first == {"role": "system", "content": "Be brief."}


def test_what_is_nested_too_deeply_is_refused(gateway: LocalGateway) -> None:
    replies = set()
    for depth in (100, *range(900, 1000, 4)):  # the interpreter's limit is among these
        schema = '{"a":' * depth + "1" + "}" * depth
        body = json.dumps({"model": CHEAP, "max_tokens": 9, "messages": SAY, "tools": [{**TOOL}]})
        deep = body.replace(json.dumps(TOOL["input_schema"]), schema)
        reply = gateway.ask("/v1/messages", deep.encode())
        replies.add((reply.status, reply.json["type"]))
    assert replies == {(200, "message"), (400, "error")}


MESSAGE_EVENTS = [
    {"type": "message_start", "message": {**message(), "content": [], "stop_reason": None}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("target", [CHEAP, EXPENSIVE])
def test_the_sdk_waits_for_a_silent_target(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic, target: str
) -> None:
    goes_on = threading.Event()
    native = [b"event: %b\n" % e["type"].encode() + event(e) for e in MESSAGE_EVENTS]  # type: ignore[attr-defined]
    world[target].then(
        [goes_on, *chunked_reply([*CHAT_EVENTS, COUNTS, DONE] if target == CHEAP else native)]
    )
    with claude.messages.with_streaming_response.create(
        model=target, max_tokens=9, messages=SAY, stream=True
    ) as raw:  # it has headers before there is an answer
        assert HEADER + "target" not in raw.headers
        goes_on.set()
        kinds = [event.type for event in raw.parse()]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    receipt = gateway.receipts[-1]
    assert (receipt.outcome.kind, receipt.outcome.target) == ("answered", target)


def test_who_speaks_anthropics_gets_the_bytes(
    world: World, claude: anthropic.Anthropic, recorder: RequestRecorder
) -> None:
    world[EXPENSIVE].then(json_reply(message()))
    claude.messages.create(model=EXPENSIVE, max_tokens=9, messages=SAY)
    assert (world[EXPENSIVE].request.path, world[EXPENSIVE].request.body) == (
        "/v1/messages",
        recorder.body,
    )


def test_tokens_are_counted_by_who_speaks_anthropics_and_otherwise_estimated(
    world: World, claude: anthropic.Anthropic, gateway: LocalGateway
) -> None:
    world[EXPENSIVE].then(json_reply({"input_tokens": 11}))
    assert claude.messages.count_tokens(model="auto", messages=SAY).input_tokens == 11
    receipts = len(gateway.receipts)
    counting = claude.messages.with_raw_response
    for fields in ({"model": CHEAP}, {"model": "auto", "extra_headers": {HEADER + "allow": CHEAP}}):
        raw = counting.count_tokens(messages=[{"role": "user", "content": "word " * 400}], **fields)
        assert raw.headers[HEADER + "estimated"] == "input_tokens"
        assert raw.headers[HEADER + "target"] == CHEAP
        assert 400 <= raw.parse().input_tokens <= 600  # 2,000 bytes
    assert world.requested_targets() == [EXPENSIVE]
    assert len(gateway.receipts) == receipts


def test_reasoning_is_left_out_and_keeps_the_client_waiting(
    world: World, gateway: LocalGateway
) -> None:
    thought = chunk(delta={"reasoning_content": "secret"})
    world[CHEAP].then(chunked_reply([thought, thought, *CHAT_EVENTS, DONE]))
    body = {"model": CHEAP, "max_tokens": 9, "messages": SAY, "stream": True}
    reply = gateway.ask("/v1/messages", body).body
    assert b"secret" not in reply
    assert b'event: ping\ndata: {"type":"ping"}\n\n' in reply
