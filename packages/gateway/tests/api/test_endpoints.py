"""The openai SDK's other calls: completions, responses, embeddings, models, errors."""

import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import BadRequestError

from packages.gateway.tests.api.bodies import (
    CHAT_EVENTS,
    COUNTS,
    completion,
    response,
    response_events,
)
from packages.gateway.tests.scripted_target import DONE, chunked_reply, event, json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    HEADER,
    MIDDLE,
    PRICES,
    LocalGateway,
    World,
    ask,
    make_world,
    user,
)

pytestmark = pytest.mark.slow

EMBEDDER, WRITER = "embedder", "writer"
ROWS = {
    CHEAP: {**PRICES[CHEAP], "serves": ["chat", "completions"]},
    MIDDLE: {**PRICES[MIDDLE], "serves": ["chat", "responses"]},
    EXPENSIVE: {**PRICES[EXPENSIVE], "serves": ["chat", "responses"]},
    EMBEDDER: {"serves": ["embeddings"], "input_price": 2.0, "output_price": 0.0},
    WRITER: {"serves": ["chat", "responses"], "model": "their/writer"},
}
PLAIN = [user("What is six times seven?")]
LOW = {HEADER + "lam": "0"}
FAST = {"failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("endpoints"), ROWS, settings=FAST) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


def script_all_targets(world: World, *script: Any) -> None:
    """Give the next request of every target of the router this script."""
    for name in (CHEAP, MIDDLE, EXPENSIVE):
        world[name].then(script)


# Completions.


def text_event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    value = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return event({**value, "choices": [choice]})


def test_completions(world: World, client: openai.OpenAI, recorder: RequestRecorder) -> None:
    choice = {"index": 0, "text": "42", "logprobs": None, "finish_reason": "stop"}
    value = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    world[CHEAP].then(json_reply({**value, "choices": [choice]}))
    completion_reply = client.completions.create(
        model="auto", prompt="6 times 7 is", suffix=".", echo=False, best_of=1, logprobs=1
    )
    assert completion_reply.choices[0].text == "42"
    assert world[CHEAP].request.path == "/v1/completions"
    assert world[CHEAP].request.body == recorder.body.replace(b'"auto"', b'"target-0"')


def test_completions_as_a_stream(world: World, client: openai.OpenAI) -> None:
    events = [text_event("4"), text_event("2", "stop")]
    world[CHEAP].then(chunked_reply([*events, COUNTS, DONE]))
    with client.completions.with_streaming_response.create(
        model="auto", prompt="6 times 7 is", stream=True
    ) as raw:
        assert b"".join(raw.iter_bytes()) == b"".join((*events, DONE))


# Responses.


def test_a_response_goes_on_where_it_is_kept(world: World, client: openai.OpenAI) -> None:
    world[EXPENSIVE].then(json_reply(response("resp_1")), json_reply(response("resp_2", "43")))
    first = client.responses.create(
        model="auto",
        input="What is six times seven?",
        instructions="Be brief.",
        extra_headers={HEADER + "lam": "1"},
    )
    assert first.output_text == "42"
    raw = client.responses.with_raw_response.create(
        model="auto", input="And one more?", previous_response_id=first.id, extra_headers=LOW
    )
    assert raw.parse().output_text == "43"
    assert raw.headers[HEADER + "reason"] == "stored"
    assert world.requested_targets() == [EXPENSIVE, EXPENSIVE]
    assert world[EXPENSIVE].requests[1].json["previous_response_id"] == "resp_1"


def test_a_response_as_a_stream_is_kept_too(world: World, client: openai.OpenAI) -> None:
    events = response_events("resp_3")
    world[EXPENSIVE].then(chunked_reply(events), json_reply(response("resp_4")))
    with client.responses.stream(
        model="auto", input="What is six times seven?", extra_headers={HEADER + "lam": "1"}
    ) as stream:
        assert stream.get_final_response().output_text == "42"
    client.responses.create(
        model="auto", input="And?", previous_response_id="resp_3", extra_headers=LOW
    )
    assert world.requested_targets() == [EXPENSIVE, EXPENSIVE]
    assert "stream_options" not in world[EXPENSIVE].requests[0].json


def test_a_stream_of_responses_comes_byte_for_byte(world: World, client: openai.OpenAI) -> None:
    events = response_events("resp_5")
    world[MIDDLE].then(chunked_reply(events))
    with client.responses.with_streaming_response.create(
        model="auto", input="Hi", stream=True, extra_headers={**LOW, HEADER + "allow": MIDDLE}
    ) as raw:
        assert b"".join(raw.iter_bytes()) == b"".join(events)


def test_a_response_whose_keeper_nobody_knows(world: World, client: openai.OpenAI) -> None:
    with pytest.raises(BadRequestError, match="isn't known which target keeps") as caught:
        client.responses.create(model="auto", input="And?", previous_response_id="resp_none")
    assert caught.value.code == "unknown_response"
    assert world.requested_targets() == []


# Targets that only the pool file knows.


def test_embeddings_of_a_target_that_the_router_does_not_know(
    world: World, gateway: LocalGateway, client: openai.OpenAI, recorder: RequestRecorder
) -> None:
    value = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}],
        "model": "e",
        "usage": {"prompt_tokens": 40, "total_tokens": 40},
    }
    world[EMBEDDER].then(json_reply(value))
    raw = client.embeddings.with_raw_response.create(
        model=EMBEDDER, input=["a" * 400], encoding_format="float", dimensions=2
    )
    assert raw.parse().data[0].embedding == [0.25, -1.0]
    assert raw.headers[HEADER + "target"] == EMBEDDER
    assert raw.headers[HEADER + "reason"] == "named"
    assert float(raw.headers[HEADER + "estimated-cost"]) == 100 * 2.0 / 1e6
    assert world[EMBEDDER].request.path == "/v1/embeddings"
    assert world[EMBEDDER].request.body == recorder.body
    receipt = gateway.receipts[-1]
    assert receipt.cost == 40 * 2.0 / 1e6
    assert receipt.endpoint == "embeddings"


def test_embeddings_are_not_routed(world: World, client: openai.OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"aren't routed; name one of.*embedder"):
        client.embeddings.create(model="auto", input="a")
    assert world.requested_targets() == []


def test_such_a_target_keeps_its_tool_loops_and_its_responses(
    world: World, client: openai.OpenAI
) -> None:
    world[WRITER].then(json_reply(response("resp_w")), json_reply(response("resp_x")))
    client.responses.create(model=WRITER, input="Hi")
    raw = client.responses.with_raw_response.create(
        model="auto", input="And?", previous_response_id="resp_w"
    )
    assert raw.headers[HEADER + "reason"] == "stored"
    assert [got.json["model"] for got in world[WRITER].requests] == ["their/writer"] * 2


def test_such_a_target_is_told_where_it_cannot_answer(world: World, client: openai.OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"'embedder' was named.*doesn't serve chat"):
        client.chat.completions.create(model=EMBEDDER, messages=PLAIN)
    with pytest.raises(BadRequestError, match=r"about \$0\.000\d+, above \$0\.000001;"):
        client.embeddings.create(
            model=EMBEDDER, input="a" * 400, extra_headers={HEADER + "max-cost": "0.000001"}
        )
    assert world.requested_targets() == []


@pytest.mark.usefixtures("world")
def test_the_page_shows_such_a_target(gateway: LocalGateway, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=WRITER, messages=PLAIN)
    newest = gateway.receipts[-1].choice.id
    detail = gateway.ask(f"/page/api/decisions/{newest}")
    assert detail.json["decision"]["target"] == WRITER
    assert WRITER in [row["target"] for row in gateway.ask("/page/api/targets").json["targets"]]
    for part in ("overview", "decisions", "spend", "curve", "drift", "whatif?lam=0.2"):
        assert gateway.ask(f"/page/api/{part}").status == 200, part
    assert f'target="{WRITER}"' in gateway.ask("/metrics").body.decode()


# Models.


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    routing = ["auto", "prefill-router", "MoM", "openrouter/auto", "openrouter/auto-beta"]
    assert names == [*routing, CHEAP, MIDDLE, EXPENSIVE, EMBEDDER, WRITER]
    model = client.models.retrieve(WRITER)
    assert model.object == "model"
    assert (model.model_extra or {})["serves"] == ["chat", "responses"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


# Errors, as the SDK's own.


def test_a_target_refuses_what_only_the_client_can_mend(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    problem = {"message": "seed is no number", "type": "invalid_request_error", "param": "seed"}
    world[CHEAP].then(
        json_reply({"error": problem}, status=400, headers="x-request-id: theirs\r\n")
    )
    with pytest.raises(BadRequestError, match="seed is no number") as caught:
        client.chat.completions.create(model="auto", messages=PLAIN, extra_headers=LOW)
    assert caught.value.param == "seed"
    assert caught.value.request_id == "theirs"
    assert caught.value.response.headers[HEADER + "target"] == CHEAP
    assert world.requested_targets() == [CHEAP]
    assert gateway.receipts[-1].outcome.kind == "refused"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (500, openai.InternalServerError, 502),
        (429, openai.RateLimitError, 429),
        (401, openai.InternalServerError, 502),
    ],
)
def test_nobody_answers(
    world: World,
    client: openai.OpenAI,
    status: int,
    error: type[openai.APIStatusError],
    code: int,
) -> None:
    script_all_targets(
        world,
        *json_reply({"error": {"message": "no"}}, status=status, headers="retry-after: 9\r\n"),
    )
    with pytest.raises(error) as caught:
        client.chat.completions.create(model="auto", messages=PLAIN, extra_headers=LOW)
    assert caught.value.status_code == code
    assert caught.value.code == "no_target_answered"
    assert world.requested_targets() == [CHEAP, MIDDLE, EXPENSIVE]
    assert caught.value.response.headers[HEADER + "retries"] == "2"  # three calls
    assert caught.value.response.headers.get("retry-after") == ("9" if code == 429 else None)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ({"model": "autoo"}, openai.NotFoundError, "did you mean 'auto'"),
        ({"model": "prefill-router:2"}, BadRequestError, "a number from 0 to 1"),
        ({"extra_headers": {HEADER + "lam": "x"}}, BadRequestError, "from 0 to 1"),
        ({"extra_headers": {HEADER + "typo": "1"}}, BadRequestError, "there is no header"),
        ({"extra_headers": {HEADER + "allow": "me"}}, BadRequestError, "unknown targets: me"),
        ({"messages": "hi"}, BadRequestError, "messages must be a list"),
        ({"max_tokens": 1.5}, BadRequestError, "max_tokens must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused(
    world: World,
    client: openai.OpenAI,
    body: dict[str, Any],
    error: type[openai.APIStatusError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        client.chat.completions.create(**{"model": "auto", "messages": PLAIN, **body})
    assert world.requested_targets() == []


def test_a_stream_that_breaks_off_ends_with_an_error(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    world[CHEAP].then(chunked_reply(CHAT_EVENTS[:4], end=False))
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="the answer ends here, unfinished") as caught:
        texts.extend(e.choices[0].delta.content or "" for e in stream)
    assert caught.value.code == "stream_cut"
    assert world.requested_targets() == [CHEAP]
    assert gateway.receipts[-1].outcome.kind == "cut"


def test_an_error_within_a_stream_is_passed_on(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    error_event = event(
        {"error": {"message": "out of memory", "type": "server_error", "code": None}}
    )
    world[CHEAP].then(chunked_reply([*CHAT_EVENTS[:4], error_event]))
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    with pytest.raises(openai.APIError, match="out of memory"):
        list(stream)
    assert gateway.receipts[-1].outcome.kind == "cut"


def test_an_error_before_anything_is_said_goes_to_the_next(
    world: World, client: openai.OpenAI
) -> None:
    error_event = event({"error": {"message": "overloaded", "type": "server_error", "code": 503}})
    world[CHEAP].then(chunked_reply([error_event, DONE]))
    world[MIDDLE].then(chunked_reply([*CHAT_EVENTS, DONE]))
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    assert "".join(e.choices[0].delta.content or "" for e in stream) == "vierzig 🎉"
    assert stream.response.headers[HEADER + "target"] == MIDDLE
    assert stream.response.headers[HEADER + "retries"] == "1"


def test_a_client_that_waits_no_longer_frees_the_target(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    world[CHEAP].then([None])
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="auto", messages=PLAIN, extra_headers=LOW, timeout=0.5)
    assert world[CHEAP].client_left.acquire(timeout=60)
    gateway.wait_until(lambda: gateway.gateway.under_way == 0)
    assert gateway.receipts[-1].outcome.kind == "disconnected"


def test_a_client_that_cancels_a_stream_frees_the_target(
    world: World, gateway: LocalGateway, client: openai.OpenAI
) -> None:
    world[CHEAP].then([*chunked_reply(CHAT_EVENTS[:4], end=False), None])
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    next(stream)
    stream.close()
    assert world[CHEAP].client_left.acquire(timeout=60)
    gateway.wait_until(lambda: gateway.gateway.streams == 0)
    receipt = gateway.receipts[-1]
    assert receipt.outcome.kind == "disconnected"
    assert receipt.cost_is_estimated
    assert receipt.cost is not None
    assert receipt.cost > 0


# Feedback and the decision alone.


def test_feedback_is_kept(world: World, gateway: LocalGateway, client: openai.OpenAI) -> None:
    world[CHEAP].then(json_reply(completion()))
    raw = client.chat.completions.with_raw_response.create(
        model="auto", messages=PLAIN, extra_headers=LOW
    )
    decision = raw.headers[HEADER + "decision-id"]
    reply = gateway.ask("/v1/feedback", {"id": decision, "score": 1})
    assert reply.json == {"id": decision, "kept": True}
    assert "prefill_router_feedback_total 1.0" in gateway.ask("/metrics").body.decode()
    wrong = gateway.ask("/v1/feedback", {"id": decision, "score": 2})
    assert wrong.status == 400
    assert "score" in wrong.error["message"]


def test_the_decision_alone(world: World, gateway: LocalGateway) -> None:
    reply = gateway.ask("/v1/route", {"messages": PLAIN}, lam="1")
    decision = reply.json
    likeliest = max(decision["targets"], key=lambda name: decision["targets"][name]["correctness"])
    assert decision["target"] == decision["order"][0] == likeliest
    assert reply.own_header("target") == likeliest
    assert gateway.ask("/v1/route", {"messages": PLAIN, "model": WRITER}).json["reason"] == "named"
    spoken = {"anthropic-version": "2023-06-01"}
    refused = ask(gateway.url, "/v1/route", {"messages": PLAIN, "max_tokens": 9}, spoken)
    assert b"serves: [messages]" in refused.body
    assert world.requested_targets() == []


def test_events_wait_for_nothing(world: World, client: openai.OpenAI) -> None:
    """A target sends parts of lines: a complete event goes to the client at once."""
    go_on = threading.Event()
    pieces = [
        CHAT_EVENTS[1],
        CHAT_EVENTS[3][:20],
        CHAT_EVENTS[3][20:] + CHAT_EVENTS[5][:9],
        CHAT_EVENTS[5][9:],
        DONE,
    ]
    script: list[Any] = list(chunked_reply(pieces))
    script.insert(4, go_on)
    world[CHEAP].then(script)
    stream = client.chat.completions.create(
        model="auto", messages=PLAIN, stream=True, extra_headers=LOW
    )
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "vier"]
    go_on.set()
    assert [e.choices[0].finish_reason for e in stream] == ["stop"]
