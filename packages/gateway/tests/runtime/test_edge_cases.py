"""A gateway with odd target names, impossible token counts, and odd requests."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from urllib.parse import quote

import httpx2
import pytest

from packages.gateway.tests.api.bodies import response
from packages.gateway.tests.guard.guarded_server import (
    JSON,
    Pairs,
    Reply,
    build_request,
    read_reply,
)
from packages.gateway.tests.scripted_target import (
    ANSWER,
    DONE,
    body_reply,
    chunked_reply,
    json_reply,
)
from packages.gateway.tests.telemetry.receipts import render_text
from packages.gateway.tests.world import (
    CHATS,
    CHEAP,
    HEADER,
    PRICES,
    LocalGateway,
    World,
    ask,
    chat,
    make_world,
)
from prefill_router_gateway.forecast import NoForecastError
from prefill_router_gateway.telemetry import Traces
from prefill_router_gateway.telemetry.log import FIELDS

pytestmark = pytest.mark.slow

ODD_NAMES = ("größe/模型", "two\nlines", 'quo"te, and more')


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rows = {**PRICES, **dict.fromkeys(ODD_NAMES, PRICES[CHEAP])}
    settings = {"limits": {"streams": 1}}
    with make_world(tmp_path_factory.mktemp("odd"), rows, settings=settings) as world:
        yield world


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("path", [CHATS, "/v1/route"])
def test_names_that_headers_cannot_hold_are_percent_encoded(
    gateway: LocalGateway, path: str, name: str
) -> None:
    reply = gateway.ask(path, chat(name))
    assert reply.status == 200
    plain = name.isascii() and name.isprintable()
    assert reply.own_header("target") == (name if plain else quote(name))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": -5, "completion_tokens": -3, "cost": -1}',
        '{"prompt_tokens": NaN, "completion_tokens": 1e999, "cost": 1e999}',
        '{"prompt_tokens": "5", "completion_tokens": [3], "prompt_tokens_details": 1}',
    ],
)
def test_counts_that_cannot_be_true_cost_no_answer(
    world: World, gateway: LocalGateway, usage: str, stream: bool
) -> None:
    answer = json.dumps({**ANSWER, "usage": "?"}).replace('"?"', usage).encode()
    world[CHEAP].then(
        chunked_reply([b"data: %b\n\n" % answer, DONE]) if stream else body_reply(answer)
    )
    reply = gateway.ask(body=chat(CHEAP, stream=stream))
    assert reply.status == 200
    (row,) = (r for r in world.files.rows() if r["id"] == reply.own_header("decision-id"))
    assert row["outcome"] == "answered"
    assert row["cost"] > 0
    assert row["cost_is_estimated"]


def test_more_streams_than_may_be_are_refused_and_other_requests_are_not(
    world: World, gateway: LocalGateway
) -> None:
    go_on = threading.Event()
    head, first, *rest = chunked_reply([b"data: %b\n\n" % json.dumps(ANSWER).encode(), DONE])
    world[CHEAP].then([head, first, go_on, *rest])
    body = chat(CHEAP, stream=True)
    with httpx2.stream("POST", gateway.url + CHATS, json=body, timeout=60) as stream:
        refusal = gateway.ask(body=body)
        assert (refusal.status, refusal.error["code"]) == (503, "overloaded")
        assert refusal.headers["retry-after"] == "1"
        assert gateway.ask(body=chat(CHEAP)).status == 200
        go_on.set()
        assert stream.read().endswith(DONE)
    gateway.wait_until(lambda: gateway.gateway.streams == 0)
    world[CHEAP].then(chunked_reply([b"data: %b\n\n" % json.dumps(ANSWER).encode(), DONE]))
    assert gateway.ask(body=body).status == 200


def test_streams_that_are_decided_on_together_are_no_more_than_may_be(
    world: World, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, ends = threading.Barrier(2), threading.Event()

    async def forecast(*_: object, **__: object) -> None:
        await asyncio.to_thread(barrier.wait)
        raise NoForecastError("deadline")

    gateway.wait_until(lambda: gateway.gateway.streams == 0)
    monkeypatch.setattr(gateway.gateway.live.forecaster, "forecast", forecast)
    head, first, *rest = chunked_reply([b"data: %b\n\n" % json.dumps(ANSWER).encode(), DONE])
    for target in world.targets.values():
        target.usual = [head, first, ends, *rest]
    body = chat(stream=True)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(gateway.ask, body=body) for _ in range(2)]
        early, _ = wait(futures, return_when=FIRST_COMPLETED)
        ends.set()
    assert [reply.result().status for reply in early] == [503]
    assert sorted(reply.result().status for reply in futures) == [200, 503]
    for target in world.targets.values():
        target.usual = json_reply(ANSWER)


def test_feedback_on_what_was_never_decided_is_refused(gateway: LocalGateway) -> None:
    reply = gateway.ask("/v1/feedback", {"id": "pr_" + "0" * 32, "score": 1})
    assert (reply.status, reply.error["code"]) == (404, "unknown_decision")


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/"])
def test_load_balancers_may_ask_for_the_head_alone(gateway: LocalGateway, path: str) -> None:
    reply = httpx2.head(gateway.url + path, timeout=60)
    assert (reply.status_code, reply.content) == (200, b"")
    assert int(reply.headers["content-length"]) > 0


def test_what_is_refused_undecided_is_counted(gateway: LocalGateway) -> None:
    def count_refusals() -> float:
        text = render_text(gateway.gateway.metrics)
        rows = [row for row in text.splitlines() if 'refusals_total{status="404"}' in row]
        return sum(float(row.split()[-1]) for row in rows)

    before = count_refusals()
    assert gateway.ask(body=chat("nobody")).status == 404
    assert count_refusals() == before + 1


def send_raw(
    gateway: LocalGateway,
    method: str,
    path: str,
    headers: Pairs = (JSON,),
    body: bytes | None = None,
    *,
    wait: bool = False,
) -> Reply:
    """Send a request as raw bytes; with `wait`, send its body after a 100 Continue."""
    port = int(gateway.url.rsplit(":", 1)[1])
    data = build_request(method, path, headers, body)
    head, end, content = data.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(head + end if wait else data)
        if wait:
            interim = sock.recv(25, socket.MSG_WAITALL)
            assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(content)
        return read_reply(sock, method)


BODY = json.dumps(chat(CHEAP)).encode()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHATS, "POST"),
        ("OPTIONS", CHATS, "POST"),
        ("TRACE", CHATS, "POST"),
        ("PATCH", "/v1/models", "GET, HEAD"),
        ("TRACE", "/health", "GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("GET", "/v1/messages/count_tokens", "POST"),
    ],
)
def test_a_method_that_a_path_lacks_is_told_which_it_has(
    gateway: LocalGateway, method: str, path: str, allow: str
) -> None:
    reply = send_raw(gateway, method, path, (JSON,) if method == "POST" else (), b"{}")
    assert (reply.status, reply.headers["allow"]) == (405, allow)


@pytest.mark.parametrize(
    "path",
    ["/chat/completions", "//v1/chat/completions", "/v1//chat/completions/", "/v1/v1" + CHATS[3:]],
)
def test_a_path_that_is_nearly_right_is_told_the_right_one(
    gateway: LocalGateway, path: str
) -> None:
    reply = send_raw(gateway, "POST", path, (JSON,), BODY)
    assert (reply.status, reply.error["code"]) == (404, "unknown_path")
    assert "did you mean /v1/chat/completions?" in reply.error["message"]
    models_reply = send_raw(gateway, "GET", "/models")
    assert "did you mean /v1/models?" in models_reply.error["message"]
    other_reply = send_raw(gateway, "GET", "/secret/chat/completions")
    assert "did you mean" not in other_reply.error["message"]
    assert b"secret" not in other_reply.body


@pytest.mark.parametrize(
    ("path", "arrives"),
    [
        (CHATS + "?api-version=2024-10-21&x=%C3%A4", "?api-version=2024-10-21&x=%C3%A4"),
        (CHATS + "?", ""),
        ("http://127.0.0.1" + CHATS, ""),
        ("/v1/chat%2Fcompletions", ""),
    ],
)
def test_paths_as_clients_write_them(
    world: World, gateway: LocalGateway, path: str, arrives: str
) -> None:
    world.forget()
    assert send_raw(gateway, "POST", path, (JSON,), BODY).status == 200
    assert world[CHEAP].request.path == CHATS + arrives


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((("content-type", "Application/JSON; charset=UTF-8"),), BODY),
        ((JSON, ("connection", "close")), BODY),
        ((JSON,), b"\xef\xbb\xbf" + BODY),
        ((JSON,), BODY + b"\r\n"),
    ],
)
def test_bodies_as_clients_write_them(
    world: World, gateway: LocalGateway, headers: Pairs, body: bytes
) -> None:
    world.forget()
    reply = send_raw(gateway, "POST", CHATS, headers, body)
    assert reply.status == 200
    assert (reply.headers.get("connection") == "close") == (len(headers) == 2)
    assert world[CHEAP].request.json == chat(CHEAP)


def test_a_client_that_waits_to_send_its_body_is_asked_for_it(gateway: LocalGateway) -> None:
    waits = ("expect", "100-continue")
    assert send_raw(gateway, "POST", CHATS, (JSON, waits), BODY, wait=True).status == 200
    assert send_raw(gateway, "POST", CHATS, (waits, ("content-length", "70"))).status == 415


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        ((), BODY, 415, "content-type: application/json"),
        ((JSON, ("content-encoding", "gzip")), BODY, 415, "send it uncompressed"),
        ((JSON,), b"\x1f\x8b\x08", 400, "send JSON in UTF-8, uncompressed"),
        ((JSON,), BODY.decode().encode("utf-16"), 400, "send JSON in UTF-8"),
        ((JSON,), BODY.replace(b"{", b'{"model":"auto",', 1), 400, "has 'model' twice"),
        ((JSON,), BODY.replace(b"{", b'{"mod\\u0065l":"x",', 1), 400, "has 'model' twice"),
        ((JSON,), BODY.replace(b"{", b'{"stream":"true",', 1), 400, "stream must be true or"),
        ((JSON,), BODY.replace(b"{", b'{"max_tokens":1e999,', 1), 400, "a whole number"),
        ((JSON,), BODY.replace(b"hi", b"\\ud800"), 400, "lone surrogate"),
        ((JSON, JSON), BODY, 400, "is repeated"),
    ],
)
@pytest.mark.parametrize("path", [CHATS, "/v1/route"])
def test_bodies_that_cannot_be_read_are_refused_with_what_would_do(
    gateway: LocalGateway, path: str, headers: Pairs, body: bytes, status: int, message: str
) -> None:
    reply = send_raw(gateway, "POST", path, headers, body)
    assert reply.status == status
    assert message in reply.error["message"]
    assert ("accept-encoding" in reply.headers) == (message == "send it uncompressed")


@pytest.mark.parametrize("path", [CHATS, "/v1/route"])
def test_what_is_nested_too_deeply_is_said_so(gateway: LocalGateway, path: str) -> None:
    deep = BODY.replace(b"{", b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b",", 1)
    reply = send_raw(gateway, "POST", path, (JSON,), deep)
    assert "nested too deeply" in reply.error["message"]


def test_a_response_that_nobody_remembers_is_where_the_client_says(
    world: World, gateway: LocalGateway
) -> None:
    path = "/v1/responses/resp_of_last_year"
    refusal = gateway.ask(path)
    assert (refusal.status, refusal.error["code"]) == (404, "unknown_response")
    assert f"in the header {HEADER}allow" in refusal.error["message"]
    world.forget()
    world[CHEAP].then(json_reply(response("resp_of_last_year")))
    assert gateway.ask(path, allow=CHEAP).json["id"] == "resp_of_last_year"
    assert world[CHEAP].request.method == "GET"
    world[CHEAP].then(body_reply(b"", status=204))
    deletion = send_raw(gateway, "DELETE", path, ((HEADER + "allow", CHEAP),))
    assert (deletion.status, deletion.body) == (204, b"")


def test_every_request_has_a_span(world: World, gateway: LocalGateway) -> None:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    gateway.gateway.traces = Traces("http://127.0.0.1:1", exporter=exporter)
    world.forget()
    world[CHEAP].then(json_reply(response("resp_1")))
    try:
        assert gateway.ask("/v1/route", chat()).status == 200
        assert gateway.ask("/v1/route", chat("nobody")).status == 404
        assert gateway.ask("/v1/responses/resp_1", allow=CHEAP).status == 200
    finally:
        traces, gateway.gateway.traces = gateway.gateway.traces, None
        traces.close()
    spans = exporter.get_finished_spans()
    routes = [dict(span.attributes) for span in spans if span.name == "route"]
    decision_only, refusal, retrieval = routes
    assert decision_only["prefill_router.outcome"] == "routed"
    assert "decide" in [span.name for span in spans]
    assert refusal["http.response.status_code"] == 404
    assert retrieval["prefill_router.call"] == "retrieve"
    assert retrieval["gen_ai.response.model"] == CHEAP
    assert "traceparent" in world[CHEAP].request.headers


def test_the_log_of_what_is_refused_names_its_path_and_address(
    gateway: LocalGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "prefill_router_gateway.api.app"):
        gateway.ask(body=chat("no-such-model"))
        gateway.ask("/v1/route", chat("no-such-model"))
        ask(
            gateway.url, body=chat(), headers={"origin": "http://elsewhere"}
        )  # refused by the guard
    records = [getattr(record, FIELDS) for record in caplog.records if record.msg == "refused"]
    assert [fields.get("path") for fields in records] == [CHATS, "/v1/route", None]
    assert {fields["address"] for fields in records} == {"127.0.0.1"}
