"""Traces as a collector gets them, over OTLP/HTTP; and one that isn't there, or doesn't answer."""

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
    """Keeps what it is sent; each request gets the next status, and the last one over and over."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.got: list[tuple[str, str, bytes]] = []
        self.asked, self.go = threading.Semaphore(0), threading.Event()
        self.go.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.got.append((self.path, self.headers["content-type"], body))
                collector.asked.release()
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
        found = []
        for _, _, body in self.got:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found.extend(scope.spans)
        return found


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def attributes(span: Any) -> dict[str, Any]:
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
            refused = ask(gateway.url, body=chat("no-such-model", PROMPT))
        asked = [got.headers["traceparent"] for got in world[CHEAP].requests]
        assert world[CHEAP].requests[0].headers["authorization"] == "Bearer sk-lab"
    assert (reply.status, refused.status) == (200, 404)
    assert {(path, kind) for path, kind, _ in collector.got} == {
        ("/v1/traces", "application/x-protobuf")
    }
    for word in (PROMPT, CLIENTS_KEY, "sk-lab", "no-such-model"):
        assert not any(word.encode() in body for _, _, body in collector.got)

    ours = [span for span in collector.spans() if span.trace_id.hex() == TRACE]
    (route,) = [span for span in ours if span.parent_span_id.hex() == PARENT]
    assert route.name == "route"
    assert asked[:2] == [f"00-{TRACE}-{route.span_id.hex()}-01"] * 2
    below = [span for span in ours if span is not route]
    assert {span.parent_span_id for span in below} == {route.span_id}
    assert sorted(span.name for span in below) == ["attempt", "attempt", "decide"]
    ends = [attributes(s)["prefill_router.attempt.end"] for s in below if s.name == "attempt"]
    assert ends == ["server_error", "answered"]
    told = attributes(route)
    assert told["prefill_router.decision"] == reply.own_header("decision-id")
    assert told["gen_ai.response.model"] == CHEAP
    assert told["http.response.status_code"] == 200

    others = [s for s in collector.spans() if s.name == "route" and s is not route]
    others = [span for span in others if span.trace_id.hex() != TRACE]
    assert [span.parent_span_id for span in others] == [b"", b""]
    assert sorted(attributes(s)["http.response.status_code"] for s in others) == [200, 404]
    (stream,) = [s for s in others if attributes(s)["http.response.status_code"] == 200]
    assert asked[2].split("-")[1:3] == [stream.trace_id.hex(), stream.span_id.hex()]


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the log says, filled when the block ends."""
    stream, lines = io.StringIO(), list[str]()
    with logging_to(LogSettings(), stream=stream):
        yield lines
    lines.extend(json.loads(line)["event"] for line in stream.getvalue().splitlines())


def make_spans(traces: Traces, many: int = 1) -> None:
    for _ in range(many):
        traces.begin([], at=time.time()).end_refused(400, at=time.time())


def begun(url: str) -> tuple[Traces, threading.Thread]:
    """Traces, and the thread that sends them."""
    before = set(threading.enumerate())
    traces = Traces(url)
    (sending,) = [t for t in threading.enumerate() if t.name == WORKER and t not in before]
    return traces, sending


def test_a_collector_that_takes_nothing_is_told_of_once_and_once_more_when_it_does() -> None:
    before = logging.getLogger("opentelemetry").level
    with Collector(400, 400, 400, 200) as collector, logged() as lines:
        traces = Traces(collector.url)
        for _ in range(5):
            make_spans(traces)
            traces._provider.force_flush()
        traces.close()
    assert len(collector.got) == 5
    assert lines == [
        "traces can't be sent to the collector; they are dropped",
        "traces are sent again",
    ]
    assert logging.getLogger("opentelemetry").level == before


def test_where_no_collector_is_the_gateway_ends_all_the_same() -> None:
    with Collector(200) as gone:
        url = gone.url
    with logged() as lines:
        traces, sending = begun(url)
        make_spans(traces, 5000)  # more than wait for it
        traces.close(seconds=0.05)
        sending.join()  # it gives up what it tries, and tries no more
    assert len(lines) == 2
    assert not any("127.0.0.1" in line for line in lines)


def test_a_collector_that_never_answers_isnt_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "600")
    with Collector(200) as stuck, logged() as lines:
        stuck.go.clear()
        traces, sending = begun(stuck.url)
        make_spans(traces, 600)  # a batch goes at once
        stuck.asked.acquire()
        traces.close(seconds=0.05)
        assert sending.is_alive()
        stuck.go.set()
        sending.join()
    assert lines[0] == "the last traces couldn't be sent within 0.05 s and are lost"
