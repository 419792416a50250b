"""Traces over OTLP/HTTP at a collector that answers, one that is down, and one that hangs."""

import http.server
import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from packages.gateway.tests.scripted_target import ANSWER, GOOD, chunked_reply, json_reply
from packages.gateway.tests.world import CHEAP, PRICES, ask, chat, make_world, serve_world
from prefill_router_gateway.settings import LogSettings
from prefill_router_gateway.telemetry import Traces, logging_to

pytestmark = pytest.mark.slow

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT, CLIENTS_KEY = "a very secret question", "pr-of-the-client-0123456789"
WORKER = "OtelBatchSpanRecordProcessor"


class Collector:
    """Records its requests. Each gets the next status; the last status repeats."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.requests: list[tuple[str, str, bytes]] = []
        self.arrivals, self.go = threading.Semaphore(0), threading.Event()
        self.go.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append((self.path, self.headers["content-type"], body))
                collector.arrivals.release()
                collector.go.wait()
                statuses = collector._statuses
                self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Any]:
        spans = []
        for _, _, body in self.requests:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
        return spans


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def read_attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_a_collector_gets_the_spans_of_requests_and_none_of_their_words(tmp_path: Path) -> None:
    dialects = dict.fromkeys(PRICES, "openai")
    with (
        Collector(200) as collector,
        make_world(tmp_path, settings={"traces": collector.url}, dialects=dialects) as world,
    ):
        down = json_reply({"error": {"message": PROMPT}}, status=500)
        world[CHEAP].then(down, json_reply(ANSWER), chunked_reply(GOOD))
        headers = {
            "traceparent": f"00-{TRACE}-{PARENT}-01",
            "authorization": f"Bearer {CLIENTS_KEY}",
        }
        with serve_world(world) as gateway:
            reply = ask(gateway.url, body=chat(CHEAP, PROMPT), headers=headers)
            ask(gateway.url, body=chat(CHEAP, PROMPT, stream=True))
            refusal = ask(gateway.url, body=chat("no-such-model", PROMPT))
        traceparents = [request.headers["traceparent"] for request in world[CHEAP].requests]
        assert world[CHEAP].requests[0].headers["authorization"] == "Bearer sk-lab"
    assert (reply.status, refusal.status) == (200, 404)
    assert {(path, kind) for path, kind, _ in collector.requests} == {
        ("/v1/traces", "application/x-protobuf")
    }
    for word in (PROMPT, CLIENTS_KEY, "sk-lab", "no-such-model"):
        assert not any(word.encode() in body for _, _, body in collector.requests)

    own_spans = [span for span in collector.spans() if span.trace_id.hex() == TRACE]
    (route,) = [span for span in own_spans if span.parent_span_id.hex() == PARENT]
    assert route.name == "route"
    assert traceparents[:2] == [f"00-{TRACE}-{route.span_id.hex()}-01"] * 2
    below = [span for span in own_spans if span is not route]
    assert {span.parent_span_id for span in below} == {route.span_id}
    assert sorted(span.name for span in below) == ["attempt", "attempt", "decide"]
    ends = [read_attributes(s)["prefill_router.attempt.end"] for s in below if s.name == "attempt"]
    assert ends == ["server_error", "answered"]
    fields = read_attributes(route)
    assert fields["prefill_router.decision"] == reply.own_header("decision-id")
    assert fields["gen_ai.response.model"] == CHEAP
    assert fields["http.response.status_code"] == 200

    others = [s for s in collector.spans() if s.name == "route" and s is not route]
    others = [span for span in others if span.trace_id.hex() != TRACE]
    assert [span.parent_span_id for span in others] == [b"", b""]
    assert sorted(read_attributes(s)["http.response.status_code"] for s in others) == [200, 404]
    (stream,) = [s for s in others if read_attributes(s)["http.response.status_code"] == 200]
    assert traceparents[2].split("-")[1:3] == [stream.trace_id.hex(), stream.span_id.hex()]


@contextmanager
def capture_log() -> Iterator[list[str]]:
    """The log's events, filled when the block ends."""
    stream, lines = io.StringIO(), list[str]()
    with logging_to(LogSettings(), stream=stream):
        yield lines
    lines.extend(json.loads(line)["event"] for line in stream.getvalue().splitlines())


def make_spans(traces: Traces, many: int = 1) -> None:
    for _ in range(many):
        traces.begin([], at=time.time()).end_refused(400, at=time.time())


def begin_traces(url: str) -> tuple[Traces, threading.Thread]:
    """Start traces; also the thread that sends them."""
    before = set(threading.enumerate())
    traces = Traces(url)
    (sender,) = [t for t in threading.enumerate() if t.name == WORKER and t not in before]
    return traces, sender


def test_a_collector_that_takes_nothing_is_told_of_once_and_once_more_when_it_does() -> None:
    before = logging.getLogger("opentelemetry").level
    with Collector(400, 400, 400, 200) as collector, capture_log() as lines:
        traces = Traces(collector.url)
        for _ in range(5):
            make_spans(traces)
            traces._provider.force_flush()
        traces.close()
    assert len(collector.requests) == 5
    assert lines == [
        "traces can't be sent to the collector; they are dropped",
        "traces are sent again",
    ]
    assert logging.getLogger("opentelemetry").level == before


def test_where_no_collector_is_the_gateway_ends_all_the_same() -> None:
    with Collector(200) as closed:
        url = closed.url
    with capture_log() as lines:
        traces, sender = begin_traces(url)
        make_spans(traces, 5000)  # more than the queue holds
        traces.close(seconds=0.05)
        sender.join()  # it gives up its batch and sends no more
    assert len(lines) == 2
    assert not any("127.0.0.1" in line for line in lines)


def test_a_collector_that_never_answers_isnt_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "600")
    with Collector(200) as stuck, capture_log() as lines:
        stuck.go.clear()
        traces, sender = begin_traces(stuck.url)
        make_spans(traces, 600)  # a full batch is sent at once
        stuck.arrivals.acquire()
        traces.close(seconds=0.05)
        assert sender.is_alive()
        stuck.go.set()
        sender.join()
    assert lines[0] == "the last traces couldn't be sent within 0.05 s and are lost"
