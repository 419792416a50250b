"""Calls that pass through unchanged: about stored responses, and counts of tokens; with keys."""

import threading
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from packages.gateway.tests.api.bodies import message, response, response_events
from packages.gateway.tests.scripted_target import body_reply, chunked_reply, event, json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder, anthropic_client, openai_client
from packages.gateway.tests.telemetry.receipts import render_text
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
    CHEAP: {**PRICES[CHEAP], "serves": ["chat", "responses"]},
    MIDDLE: {**PRICES[MIDDLE], "serves": ["chat", "messages", "responses"]},
    EXPENSIVE: PRICES[EXPENSIVE],
}
KEYS = [
    {"name": name, "sha256": sha256(f"pr-{name}".encode()).hexdigest(), "admin": name == "ann"}
    for name in ("ann", "bob")
]
FAST = {"failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000}}
SAY: list[Any] = [user("What is six times seven?")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("plain")
    with make_world(
        folder, ROWS, settings=FAST, keys=KEYS, dialects={EXPENSIVE: "anthropic"}
    ) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


@pytest.fixture
def ann(gateway: LocalGateway, recorder: RequestRecorder) -> Iterator[openai.OpenAI]:
    with openai_client(gateway.url, recorder, api_key="pr-ann") as client:
        yield client


@pytest.fixture
def bob(gateway: LocalGateway) -> Iterator[openai.OpenAI]:
    with openai_client(gateway.url, RequestRecorder(), api_key="pr-bob") as client:
        yield client


@pytest.fixture
def claude(gateway: LocalGateway) -> Iterator[anthropic.Anthropic]:
    lam = {HEADER + "lam": "0"}
    with anthropic_client(
        gateway.url, RequestRecorder(), api_key="pr-ann", default_headers=lam
    ) as client:
        yield client


def store_response(world: World, client: openai.OpenAI, name: str, **more: Any) -> None:
    """Have CHEAP store a response of this client."""
    world[CHEAP].then(json_reply(response(name, **more)))
    client.responses.create(model=CHEAP, input="What is six times seven?")
    world.forget()


def call_counts(gateway: LocalGateway, call: str) -> list[str]:
    text = render_text(gateway.gateway.metrics)
    rows = [row for row in text.splitlines() if row.startswith("prefill_router_plain")]
    return [row for row in rows if f'call="{call}"' in row and "_total" in row]


# Stored responses.


def test_a_stored_response_is_had_again(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    store_response(world, ann, "resp_1")
    receipts = len(gateway.receipts)
    odd = b'{ "id":"resp_1", "object":"response", "output":[], "tomorrow": 1.0 }\n'
    world[CHEAP].then(body_reply(odd, headers="x-request-id: theirs\r\nopenai-version: 9\r\n"))
    raw = ann.responses.with_raw_response.retrieve(
        "resp_1", include=["reasoning.encrypted_content"]
    )
    assert raw.content == odd
    assert raw.headers["x-request-id"] == "theirs"
    assert raw.headers[HEADER + "target"] == CHEAP
    request = world[CHEAP].request
    assert (request.method, request.body) == ("GET", b"")
    assert request.path == "/v1/responses/resp_1?include%5B%5D=reasoning.encrypted_content"
    assert not {"content-length", "content-type", "authorization"} & set(request.headers)
    assert len(gateway.receipts) == receipts  # nothing was decided, nothing is charged
    assert f'target="{CHEAP}"' in call_counts(gateway, "retrieve")[0]


def test_a_failed_response_is_had_as_it_is(world: World, ann: openai.OpenAI) -> None:
    store_response(world, ann, "resp_2")
    error = {"code": "server_error", "message": "out of luck"}
    world[CHEAP].then(json_reply(response("resp_2", status="failed", error=error)))
    stored_response = ann.responses.retrieve("resp_2")
    assert stored_response.error is not None
    assert stored_response.error.message == "out of luck"
    assert len(world[CHEAP].requests) == 1


def test_its_input_is_listed_and_it_is_cancelled_and_deleted(
    world: World, ann: openai.OpenAI, recorder: RequestRecorder
) -> None:
    store_response(world, ann, "resp_3")
    item = {"id": "msg_1", "type": "message", "role": "user", "content": []}
    page = {"object": "list", "data": [item], "first_id": "a", "last_id": "a", "has_more": False}
    gone = {"id": "resp_3", "object": "response", "deleted": True}
    world[CHEAP].then(
        json_reply(page), json_reply(response("resp_3", status="cancelled")), json_reply(gone)
    )
    (input_item,) = ann.responses.input_items.list("resp_3", limit=1, order="asc")
    assert input_item.id == "msg_1"
    assert ann.responses.cancel("resp_3").status == "cancelled"
    ann.responses.delete("resp_3")
    list_call, cancel_call, delete_call = world[CHEAP].requests
    assert (list_call.method, list_call.path.partition("?")[0]) == (
        "GET",
        "/v1/responses/resp_3/input_items",
    )
    assert sorted(list_call.path.partition("?")[2].split("&")) == ["limit=1", "order=asc"]
    assert (cancel_call.method, cancel_call.path) == ("POST", "/v1/responses/resp_3/cancel")
    assert cancel_call.body == recorder.bodies[2]
    assert (delete_call.method, delete_call.path) == ("DELETE", "/v1/responses/resp_3")
    world[CHEAP].then(json_reply({"error": {"message": "gone for good"}}, status=404))
    with pytest.raises(openai.NotFoundError, match="gone for good"):
        ann.responses.retrieve("resp_3")


def test_a_response_is_cancelled_without_a_body_too(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    store_response(world, ann, "resp_12")
    url, headers = f"{gateway.url}/v1/responses/resp_12/cancel", {"authorization": "Bearer pr-ann"}
    world[CHEAP].then(json_reply(response("resp_12", status="cancelled")))
    assert httpx2.post(url, headers=headers).json()["status"] == "cancelled"  # as openai's for Node
    assert (world[CHEAP].request.method, world[CHEAP].request.body) == ("POST", b"")
    for body in (b"{}", iter([b"{}"])):  # with its length, and in chunks
        assert httpx2.post(url, headers=headers, content=body).status_code == 415
    assert httpx2.post(url, headers=headers | {"content-type": "text/plain"}).status_code == 415
    site = {"sec-fetch-site": "cross-site"}
    assert httpx2.post(url, headers=headers | site).status_code == 403
    assert len(world[CHEAP].requests) == 1


def test_a_stream_is_taken_up_again_byte_for_byte(world: World, ann: openai.OpenAI) -> None:
    store_response(world, ann, "resp_4")
    missing_events = response_events("resp_4")[4:]
    world[CHEAP].then(
        chunked_reply(missing_events), chunked_reply(missing_events), chunked_reply([])
    )
    with ann.responses.with_streaming_response.retrieve(
        "resp_4", stream=True, starting_after=3
    ) as raw:
        assert b"".join(raw.iter_bytes()) == b"".join(missing_events)
    events = list(ann.responses.retrieve("resp_4", stream=True, starting_after=3))
    assert [e.sequence_number for e in events] == [4, 5, 6, 7, 8]
    assert list(ann.responses.retrieve("resp_4", stream=True, starting_after=8)) == []


def test_what_failed_is_streamed_again_as_a_failure(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    store_response(world, ann, "resp_5")
    error = {"code": "server_error", "message": "no"}
    whole_one = response("resp_5", status="failed", error=error)
    value = {"type": "response.failed", "response": whole_one, "sequence_number": 9}
    world[CHEAP].then(chunked_reply([b"event: response.failed\n" + event(value)]))
    (failure_event,) = list(ann.responses.retrieve("resp_5", stream=True, starting_after=8))
    assert failure_event.type == "response.failed"
    assert gateway.gateway.breakers.failures(CHEAP) == 0


def test_a_stream_that_breaks_off_again_ends_with_an_error(
    world: World, ann: openai.OpenAI
) -> None:
    store_response(world, ann, "resp_6")
    world[CHEAP].then(chunked_reply([*response_events("resp_6")[:4], b'data: {"ty'], end=False))
    *events, last = ann.responses.retrieve("resp_6", stream=True)
    assert [event.sequence_number for event in events] == [0, 1, 2, 3]
    assert last.type == "error"
    assert (last.code, last.sequence_number) == ("stream_cut", 4)


def test_a_response_is_cancelled_while_it_streams(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    go_on = threading.Event()
    script: list[Any] = list(chunked_reply(response_events("resp_7")))
    script.insert(2, go_on)  # behind the head and the first event
    world[CHEAP].then(script, json_reply(response("resp_7", status="cancelled")))
    stream = ann.responses.create(model=CHEAP, input="Hi", background=True, stream=True)
    try:
        first_event = next(iter(stream))
        assert first_event.type == "response.created"
        assert ann.responses.cancel(first_event.response.id).status == "cancelled"
    finally:
        go_on.set()
    assert len(list(stream)) == 8
    gateway.wait_until(lambda: gateway.gateway.streams == 0)


def test_a_response_in_the_background_costs_what_was_expected(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    world[CHEAP].then(json_reply(response("resp_bg", status="queued", output=[], usage=None)))
    raw = ann.responses.with_raw_response.create(model=CHEAP, input="Hi", background=True)
    receipt = gateway.receipts[-1]
    assert receipt.outcome.usage is None
    assert receipt.cost == receipt.choice.estimated_cost[CHEAP] > 0
    assert float(raw.headers[HEADER + "estimated-cost"]) == pytest.approx(receipt.cost, rel=0.01)
    assert receipt.cost_is_estimated


@pytest.mark.parametrize("call", ["retrieve", "delete", "cancel"])
def test_only_the_key_that_made_it_reaches_it(
    world: World, ann: openai.OpenAI, bob: openai.OpenAI, call: str
) -> None:
    store_response(world, ann, "resp_8")
    with pytest.raises(openai.NotFoundError, match="known to belong to this key") as caught:
        getattr(bob.responses, call)("resp_8")
    assert caught.value.code == "unknown_response"
    assert caught.value.param == "response_id"
    with pytest.raises(openai.NotFoundError, match="known to belong to this key"):
        getattr(ann.responses, call)("resp_never")
    assert world.requested_targets() == []


@pytest.mark.parametrize("name", [".", "..", "%2e%2E"])
def test_nobody_climbs_in_the_path_of_a_target(
    world: World, gateway: LocalGateway, name: str
) -> None:
    reply = gateway.ask(f"/v1/responses/{name}", authorization="Bearer pr-ann")
    assert (reply.status, reply.error["code"]) == (404, "unknown_response")
    assert world.requested_targets() == []


def test_failures_of_who_keeps_it_are_told(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    store_response(world, ann, "resp_9")
    for status in (401, 500):
        world[CHEAP].then(json_reply({"error": {"message": "sk-lab is wrong"}}, status=status))
        with pytest.raises(openai.InternalServerError, match=r"no target answered: target-0 "):
            ann.responses.retrieve("resp_9")
    assert any('outcome="failed"' in row for row in call_counts(gateway, "retrieve"))
    world[CHEAP].then(json_reply({"error": {"message": "not in the background"}}, status=409))
    with pytest.raises(openai.ConflictError, match="not in the background"):
        ann.responses.cancel("resp_9")


def test_reading_a_response_counts_among_the_requests_under_way(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    store_response(world, ann, "resp_10")
    script: list[Any] = list(chunked_reply(response_events("resp_10")))
    go_on = threading.Event()
    script.insert(2, go_on)
    world[CHEAP].then(script)
    stream = ann.responses.retrieve("resp_10", stream=True)
    next(iter(stream))
    gateway.wait_until(lambda: gateway.gateway.under_way == 1)  # what came before has ended, too
    assert gateway.gateway.streams == 1
    go_on.set()
    list(stream)
    gateway.wait_until(lambda: gateway.gateway.under_way == 0)


# Counts.


def test_tokens_are_counted_by_who_would_answer(
    world: World, claude: anthropic.Anthropic, gateway: LocalGateway
) -> None:
    receipts = len(gateway.receipts)
    world[MIDDLE].then(json_reply({"input_tokens": 11}))
    world[EXPENSIVE].then(json_reply({"input_tokens": 12}))
    raw = claude.messages.with_raw_response.count_tokens(model="auto", messages=SAY, system="Hm.")
    assert raw.parse().input_tokens == 11
    assert raw.headers[HEADER + "target"] == MIDDLE
    assert world[MIDDLE].request.path == "/v1/messages/count_tokens"
    assert world[MIDDLE].request.json == {"messages": SAY, "model": MIDDLE, "system": "Hm."}
    assert claude.messages.count_tokens(model=EXPENSIVE, messages=SAY).input_tokens == 12
    assert world[EXPENSIVE].request.headers["x-api-key"] == "sk-lab"
    assert len(gateway.receipts) == receipts
    assert len(call_counts(gateway, "count_tokens")) == 2


def test_who_cannot_count_is_passed_over(world: World, claude: anthropic.Anthropic) -> None:
    none = json_reply({"detail": "Not Found"}, status=404)
    world[MIDDLE].then(none, none)
    world[EXPENSIVE].then(
        json_reply({"input_tokens": 12}), json_reply({"detail": "no"}, status=405)
    )
    assert claude.messages.count_tokens(model="auto", messages=SAY).input_tokens == 12
    with pytest.raises(anthropic.NotFoundError, match="target-1, target-2 can't answer") as caught:
        claude.messages.count_tokens(model="auto", messages=SAY)
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_who_does_not_speak_the_protocol_counts_nothing(
    world: World, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="a chat can't say mcp_servers"):
        claude.messages.count_tokens(model=CHEAP, messages=SAY, extra_body={"mcp_servers": [1]})
    with pytest.raises(anthropic.BadRequestError, match="messages must be a list"):
        claude.messages.count_tokens(model="auto", messages="hi")  # type: ignore[arg-type]
    assert world.requested_targets() == []


def test_tokens_of_responses_are_counted_too(world: World, ann: openai.OpenAI) -> None:
    world[CHEAP].then(json_reply({"object": "response.input_tokens", "input_tokens": 9}))
    assert ann.responses.input_tokens.count(model=CHEAP, input="Hi").input_tokens == 9
    assert world[CHEAP].request.path == "/v1/responses/input_tokens"


def test_a_conversation_is_made_shorter_by_a_routed_target_with_a_receipt(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    usage = {"input_tokens": 700, "output_tokens": 30, "total_tokens": 730}
    answer = {"id": "cmp_1", "object": "response.compaction", "created_at": 1, "usage": usage}
    world[CHEAP].then(json_reply({**answer, "output": []}))
    before = len(gateway.receipts)
    allow = {HEADER + "allow": f"{CHEAP},{EXPENSIVE}"}  # of which one serves responses
    raw = ann.responses.with_raw_response.compact(
        model="auto", input=[user("hi")], extra_headers=allow
    )
    assert raw.parse().id == "cmp_1"
    assert raw.headers[HEADER + "target"] == CHEAP
    assert world[CHEAP].request.path == "/v1/responses/compact"
    assert world[CHEAP].request.json["model"] == CHEAP
    (receipt,) = gateway.receipts[before:]
    assert receipt.outcome.usage is not None
    assert (receipt.endpoint, receipt.outcome.usage.input_tokens) == ("responses", 700)


def test_who_cannot_shorten_a_conversation_is_passed_over_and_no_failure(
    world: World, ann: openai.OpenAI, gateway: LocalGateway
) -> None:
    world[CHEAP].then(*[json_reply({"detail": "Not Found"}, status=404)] * 2)
    world[MIDDLE].then(json_reply({"id": "c", "object": "response.compaction", "output": []}))
    fields: Any = {"input": [user("hi")], "extra_headers": {HEADER + "lam": "0"}}
    raw = ann.responses.with_raw_response.compact(model="auto", **fields)
    assert raw.headers[HEADER + "target"] == MIDDLE
    assert gateway.gateway.breakers.failures(CHEAP) == 0
    with pytest.raises(openai.NotFoundError, match="can't answer this call"):
        ann.responses.compact(model=CHEAP, input=[user("hi")])


def test_words_behind_the_question_mark_go_on(
    world: World, gateway: LocalGateway, claude: anthropic.Anthropic
) -> None:
    world[MIDDLE].then(json_reply({"input_tokens": 11}), json_reply(message()))
    query = {"beta": "true", "x": "ä b&c"}
    claude.messages.count_tokens(model="auto", messages=SAY, extra_query=query)
    claude.messages.create(model=MIDDLE, max_tokens=9, messages=SAY, extra_query={"beta": "true"})
    count_request, message_request = world[MIDDLE].requests
    assert count_request.path == "/v1/messages/count_tokens?beta=true&x=%C3%A4%20b%26c"
    assert message_request.path == "/v1/messages?beta=true"
    assert gateway.receipts[-1].endpoint == "messages"
