"""A gateway that keeps a share of requests with their answers, for the next router."""

import json
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import (
    CHAT_EVENTS,
    COUNTS,
    PICTURE,
    TOOL,
    completion,
    tool_completion,
)
from packages.gateway.tests.scripted_target import DONE, chunked_reply, event, json_reply, pool_of
from packages.gateway.tests.world import (
    CHEAP,
    PATIENCE,
    PRICES,
    LocalGateway,
    Reply,
    World,
    chat,
    make_world,
    user,
)
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.api import routed_calls
from prefill_router_gateway.receipts import Feedback, SampledRequest, read_learning
from prefill_router_gateway.settings import GatewaySettings

pytestmark = pytest.mark.slow

SECRET = "sk-lab-0123456789abcdef"
SETTINGS: dict[str, Any] = {
    "routing": {"lam": 0, "deadline_seconds": PATIENCE},
    "learning": {"share": 1, "keep_texts": True},
    "receipts": {"wait_seconds": 60},
}
KEYS = [
    {"name": "ann", "sha256": sha256(b"pr-ann").hexdigest()},
    {"name": "bob", "sha256": sha256(b"pr-bob").hexdigest(), "learning": False},
    {"name": "eve", "sha256": sha256(b"pr-eve").hexdigest(), "targets": [CHEAP]},
]
ENDPOINTS = ["chat", "messages", "responses", "completions"]
ABILITIES = ["tools", "images"]
ROWS = {
    CHEAP: {**PRICES[CHEAP], "provider": CHEAP, "serves": ENDPOINTS, "accepts": ABILITIES},
    **{name: row for name, row in PRICES.items() if name != CHEAP},
}
PASTE = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sampling")
    with make_world(folder, ROWS, settings=SETTINGS, keys=KEYS, dialects={CHEAP: "vllm"}) as world:
        world.environment["LAB_KEY"] = SECRET
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


def ask(
    gateway: LocalGateway,
    body: Any,
    path: str = "/v1/chat/completions",
    key: str = "ann",
    **own: str,
) -> Reply:
    return gateway.ask(path, body, authorization=f"Bearer pr-{key}", **own)


def stored_sample(gateway: LocalGateway, reply: Reply) -> SampledRequest | None:
    """The sample of a request; it is written after the receipt."""
    writer, later = gateway.gateway.writer, Feedback(id="later", score=1, at=time.time())
    assert gateway.wait_for(writer.keep(later))
    while writer.stats().samples_waiting:
        time.sleep(1e-3)
    samples = read_learning(gateway.gateway.receipts_url, SampledRequest)
    return next(
        (sample for sample in samples if sample.id == reply.own_header("decision-id")), None
    )


def test_a_request_is_kept_with_its_answer_and_without_its_preferences(
    world: World, gateway: LocalGateway
) -> None:
    world[CHEAP].then(json_reply(completion(f"42, says {SECRET}")))
    body = chat("prefill-router:0", "Zwölf?", temperature=0, user="u1", metadata={"a": "b"})
    reply = ask(gateway, body, max_cost="9")
    assert reply.status == 200
    sample = stored_sample(gateway, reply)
    assert sample is not None
    assert sample.body == {"messages": [user("Zwölf?")], "temperature": 0}
    assert (sample.answer, sample.share, sample.endpoint) == ("42, says [redacted]", 1, "chat")
    assert sample.at == gateway.receipts[-1].at
    assert "learn" not in "".join(world[CHEAP].request.headers)


@pytest.mark.parametrize(("known_by", "is_kept"), [("conversation", True), ("none", False)])
def test_the_end_of_a_turn_is_kept_only_where_its_beginning_may_be_known(
    known_by: str, is_kept: bool
) -> None:
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "12 passed"}
    turns = [user("Why?"), {"role": "assistant", "content": [use]}, user([result])]
    settings = GatewaySettings.model_validate(
        {"learning": SETTINGS["learning"], "sessions": {"known_by": known_by}}
    )
    incoming = routed_calls.read_incoming(
        "messages",
        json.dumps({"model": "auto", "max_tokens": 9, "messages": turns}).encode(),
        [],
        key=None,
        settings=settings,
        pool=pool_of("http://127.0.0.1:9/v1"),
        lam=None,
        at=0.0,
    )
    assert incoming.is_sampled is is_kept


MESSAGE_EVENTS = [
    event({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}}),
    event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}}),
    event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "4"}}),
    event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "2"}}),
    event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}),
    event({"type": "message_stop"}),
]
OUTPUT = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "content": [{"type": "output_text", "text": "42"}]},
]
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "output": OUTPUT}
RESPONSE_EVENTS = [
    event({"type": "response.created", "response": {"id": "resp_1"}}),
    event({"type": "response.output_text.delta", "delta": "4"}),
    event({"type": "response.output_text.delta", "delta": "2"}),
    event({"type": "response.output_text.done", "text": "42"}),
    event({"type": "response.completed", "response": RESPONSE}),
]
MESSAGE = {"type": "message", "id": "m", "content": [{"type": "text", "text": "42"}]}


@pytest.mark.parametrize(
    ("path", "body", "answer", "text"),
    [
        ("chat/completions", {"messages": [user(PASTE)]}, json_reply(completion()), "42"),
        (
            "chat/completions",
            {"messages": [user("a")]},
            chunked_reply((*CHAT_EVENTS, COUNTS, DONE)),
            None,
        ),
        ("messages", {"messages": [user("a")], "max_tokens": 9}, json_reply(MESSAGE), "42"),
        (
            "messages",
            {"messages": [user("a")], "max_tokens": 9},
            chunked_reply(MESSAGE_EVENTS),
            "42",
        ),
        ("responses", {"input": "a"}, json_reply(RESPONSE), "42"),
        ("responses", {"input": [user("a")], "store": True}, chunked_reply(RESPONSE_EVENTS), "42"),
    ],
)
def test_every_dialect_is_kept_whole_or_as_a_stream(
    world: World,
    gateway: LocalGateway,
    path: str,
    body: dict[str, Any],
    answer: Any,
    text: str | None,
) -> None:
    stream = b"event-stream" in answer[0]
    world[CHEAP].then(answer)
    sample = stored_sample(
        gateway, ask(gateway, {"model": "auto", "stream": stream, **body}, f"/v1/{path}")
    )
    assert sample is not None
    assert sample.body == {name: value for name, value in body.items() if name != "store"}
    values = [json.loads(piece[6:]) for piece in CHAT_EVENTS if piece.startswith(b"data: {")]
    deltas = [choice["delta"].get("content") for value in values for choice in value["choices"]]
    assert sample.answer == (text or "".join(filter(None, deltas)))


def test_an_attempt_that_failed_changes_nothing_of_what_is_kept(
    world: World, gateway: LocalGateway
) -> None:
    world[CHEAP].then(
        chunked_reply([b'data: {"type": "text_delta" \n\n']), chunked_reply(MESSAGE_EVENTS)
    )
    body = {"model": "auto", "messages": [user("a")], "max_tokens": 9, "stream": True}
    reply = ask(gateway, body, "/v1/messages")
    sample = stored_sample(gateway, reply)
    assert (reply.own_header("retries"), sample and sample.answer) == ("1", "42")


TOOL_TURN = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"tools": [TOOL], "messages": [user([IMAGE])]}, "chat/completions"),
        ({"tools": [TOOL], "messages": [user("ab" * 2**18)]}, "chat/completions"),
        ({"messages": [user([IMAGE])]}, "chat/completions"),
        ({"n": 2}, "chat/completions"),
        ({"model": CHEAP}, "chat/completions"),
        ({"messages": [user("a" * 2**18)]}, "chat/completions"),
        ({"input": "a", "previous_response_id": "resp_1"}, "responses"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "responses"),
        ({"input": "a", "background": True}, "responses"),
        ({"provider": {"data_collection": "deny"}}, "chat/completions"),
        ({"prompt": "a"}, "completions"),
    ],
)
def test_what_cannot_be_asked_again_elsewhere_is_not_kept(
    world: World, gateway: LocalGateway, more: dict[str, Any], path: str
) -> None:
    if "previous_response_id" in more:
        world[CHEAP].then(json_reply(RESPONSE))
        assert ask(gateway, {"model": CHEAP, "input": "b"}, "/v1/responses").status == 200
    world[CHEAP].then(json_reply(RESPONSE if path == "responses" else completion()))
    fields = {**chat(), **more}
    fields = fields if path == "chat/completions" else {"model": "auto", **more}
    reply = ask(gateway, fields, f"/v1/{path}")
    assert reply.status == 200, reply.error
    assert stored_sample(gateway, reply) is None


@pytest.mark.parametrize("more", [{"tools": [TOOL]}, {"messages": [user("a?"), TOOL_TURN]}])
def test_what_has_tools_is_kept_by_its_ask(gateway: LocalGateway, more: dict[str, Any]) -> None:
    sample = stored_sample(gateway, ask(gateway, {**chat(text="a?"), **more}))
    assert sample is not None
    assert sample.is_turn
    assert (sample.body, sample.prompt) == ({"messages": [user("a?")]}, "a?")


def test_who_opts_out_is_not_kept(gateway: LocalGateway) -> None:
    assert stored_sample(gateway, ask(gateway, chat(), learn="yes")) is not None
    assert stored_sample(gateway, ask(gateway, chat(), learn="no")) is None
    assert stored_sample(gateway, ask(gateway, chat(), key="bob", learn="yes")) is None
    assert "must be yes or no" in ask(gateway, chat(), learn="off").error["message"]


def test_what_not_every_target_may_have_is_not_kept(gateway: LocalGateway) -> None:
    other = next(name for name in PRICES if name != CHEAP)
    assert stored_sample(gateway, ask(gateway, chat(), key="eve")) is None
    assert stored_sample(gateway, ask(gateway, chat(), allow=CHEAP)) is None
    assert stored_sample(gateway, ask(gateway, chat(), exclude=other)) is None


def test_answers_that_failed_broke_off_or_call_tools_are_not_kept(
    world: World, gateway: LocalGateway
) -> None:
    stats = gateway.gateway.writer.stats
    before = stats()
    world[CHEAP].then(chunked_reply(CHAT_EVENTS[:2], end=False))
    assert stored_sample(gateway, ask(gateway, chat(stream=True))) is None
    world[CHEAP].then(json_reply(tool_completion()))
    assert stored_sample(gateway, ask(gateway, chat())) is None
    world[CHEAP].then(json_reply({"error": {"message": "no"}}, status=400))
    assert stored_sample(gateway, ask(gateway, chat())) is None
    assert stats().samples == before.samples
    assert stats().samples_left_out == before.samples_left_out + 3


def test_a_long_stream_is_read_in_parts_and_one_that_is_too_long_is_left_out() -> None:
    answer = AnswerText("chat")
    data = [b'{"choices": [{"delta": {"content": "%06d"}}]}' % n for n in range(2**18 // 6)]
    for event_data in data:
        answer.take_event(event_data)
    assert answer.length < sum(map(len, data)) / 2
    assert answer.text == "".join(f"{n:06d}" for n in range(len(data)))
    answer.take_event(data[0])
    assert answer.text is None
    answer.clear()
    answer.take_event(data[7])
    assert answer.text == "000007"


def test_the_share_is_of_requests_and_may_be_turned_off_by_a_reload(
    world: World, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload(share: float) -> None:
        world.files.configure({**SETTINGS, "learning": {"share": share, "keep_texts": True}})
        gateway.wait_for(gateway.gateway.reload())

    reload(0.5)
    for draw, is_kept in ((0.49, True), (0.51, False)):
        monkeypatch.setattr(routed_calls._DRAWS, "random", lambda drawn=draw: drawn)
        sample = stored_sample(gateway, ask(gateway, chat()))
        assert (sample is not None) is is_kept
        assert sample is None or sample.share == 0.5
    reload(0)
    assert stored_sample(gateway, ask(gateway, chat())) is None
