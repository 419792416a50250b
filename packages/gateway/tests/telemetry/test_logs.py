"""The log's lines, which hold no secret, and traces."""

import asyncio
import gc
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest

from packages.gateway.tests.guard.guarded_server import bearer_header, build_key, serve_guarded
from packages.gateway.tests.telemetry.receipts import AT, RECEIPT, attempt, receipt, render_text
from prefill_router.endpoints.redaction import REDACTED, Redaction
from prefill_router.errors import ConfigError, MissingExtraError
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.settings import LogSettings
from prefill_router_gateway.telemetry import (
    Metrics,
    Traces,
    log as log_module,
    log_request,
    logging_to,
    with_fields,
)
from prefill_router_gateway.telemetry.log import FIELDS

SECRET = 'sé"cret/+key'
log = logging.getLogger("prefill_router_gateway.test")


def write_lines(
    *, form: Literal["json", "text"] = "json", level: str = "info", work: Any
) -> list[str]:
    stream = io.StringIO()
    settings = LogSettings.model_validate({"form": form, "level": level})
    with logging_to(settings, secrets=[SECRET, "abc"], stream=stream):
        work()
    return stream.getvalue().splitlines()


def test_a_request_is_one_line() -> None:
    (line,) = write_lines(work=lambda: log_request(RECEIPT))
    value = json.loads(line)
    assert value.pop("time").endswith("+00:00")
    assert value == {
        "level": "info",
        "logger": "prefill_router_gateway.requests",
        "event": "request",
        "id": RECEIPT.choice.id,
        "endpoint": "chat",
        "target": "small",
        "reason": "policy",
        "lam": 0.5,
        "outcome": "answered",
        "status": 200,
        "stream": True,
        "attempts": 1,
        "seconds": 2.0,
        "first_byte_seconds": 0.25,
        "decision_seconds": 0.03,
        "input_tokens": 100,
        "output_tokens": 50,
        "cost": 0.002,
        "key": "alice",
    }


def test_no_prompt_is_in_it() -> None:
    private_receipt = replace(
        RECEIPT, prompt="the prompt", requested="the prompt", details={"x": "the prompt"}
    )
    for form in ("json", "text"):
        (line,) = write_lines(form=form, work=lambda: log_request(private_receipt))
        assert "the prompt" not in line


def test_text_is_for_people() -> None:
    (line,) = write_lines(form="text", work=lambda: log_request(RECEIPT))
    assert " info request id=pr_0123" in line
    assert "target=small reason=policy" in line
    lines = write_lines(form="text", work=lambda: log.warning("two\nlines %s", "a\rb"))
    assert [line.split(" ", 2)[2] for line in lines] == ["warning two\\nlines a\\rb"]


def test_levels() -> None:
    def work() -> None:
        log.debug("d")
        log_request(RECEIPT)
        log.warning("w")
        logging.getLogger("uvicorn.error").info("u")
        logging.getLogger("some.library").info("too much")
        logging.getLogger("some.library").warning("l")

    events = [json.loads(line)["event"] for line in write_lines(work=work)]
    assert events == ["request", "w", "u", "l"]
    assert len(write_lines(level="debug", work=work)) == 5
    assert len(write_lines(level="error", work=work)) == 1


def test_fields_of_other_lines() -> None:
    (line,) = write_lines(work=lambda: log.info("reload", extra=with_fields({"targets": 3})))
    assert json.loads(line)["targets"] == 3


def test_errors_are_told_without_what_may_quote_a_prompt() -> None:
    def work() -> None:
        for error in (KeyError("a prompt"), ConfigError("a reason"), ConnectionError("no route")):
            try:
                raise error
            except (KeyError, ConfigError, OSError):
                log.exception("failed")

    first, second, third = map(json.loads, write_lines(work=work))
    assert first["error"] == "KeyError"
    assert "a prompt" not in json.dumps(first)
    assert first["where"][-1].endswith(" work")
    assert second["error_text"] == "a reason"
    assert third["error_text"] == "no route"
    for line in write_lines(form="text", work=work):
        assert "a prompt" not in line


@pytest.mark.slow
def test_errors_that_asyncio_tells_are_without_it_too() -> None:
    async def fail_in_task(prompt: str) -> None:
        raise KeyError(prompt)

    def fail_in_callback(prompt: str) -> None:
        raise KeyError(prompt)

    async def run_both() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(fail_in_callback, "a prompt")
        task = loop.create_task(fail_in_task("a prompt"))
        await asyncio.wait([task])
        del task
        gc.collect()

    lines = write_lines(form="text", work=lambda: asyncio.run(run_both()))
    callback, task = lines
    assert "Exception in callback test_errors" in callback
    assert "Task exception was never retrieved" in task
    assert all("error=KeyError" in line and "a prompt" not in line for line in lines)


@pytest.mark.parametrize("form", ["json", "text"])
def test_known_secrets_are_taken_out_wherever_they_are(form: Literal["json", "text"]) -> None:
    def work() -> None:
        log.info("in the event %s", SECRET)
        log.info("in fields", extra=with_fields({"a": {"b": [SECRET]}, SECRET: 1}))
        log.info("in an address http://127.0.0.1/?key=s%C3%A9%22cret%2F%2Bkey")
        log.info("authorization: Bearer 0123456789abcdef0123")
        log.info("a client's pr-0123456789_abcdefABCDEF-0123456789abcdefghijk")
        log.info("sk-proj-0123456789abcdef")
        try:
            raise ConfigError(f"in an error {SECRET}")
        except ConfigError:
            log.exception("failed")
        log_request(receipt(outcome={"target": SECRET}))

    lines = write_lines(form=form, work=work)
    assert len(lines) == 8
    for line in lines:
        assert REDACTED in line
        assert "cret" not in line.replace("secret", "").replace(REDACTED, "")
        assert "0123456789abcdef" not in line.replace(RECEIPT.choice.id, "")


def test_what_is_no_secret_stays() -> None:
    redact = Redaction(["abc", "longer-secret"])
    assert redact("abc pr_0123456789abcdef0123456789abcdef sk-short Bearer") == (
        "abc pr_0123456789abcdef0123456789abcdef sk-short Bearer"
    )
    assert redact("a longer-secret") == f"a {REDACTED}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_people_at_a_terminal_get_text_and_programs_get_json() -> None:
    for stream, starts in ((Terminal(), "20"), (io.StringIO(), "{")):
        with logging_to(LogSettings(), stream=stream):
            log_request(RECEIPT)
        assert stream.getvalue().startswith(starts)


class StuckStream(io.StringIO):
    """Writes nothing until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_a_stuck_error_stream_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_MOST_WAITING", 10)
    stream = StuckStream()
    with logging_to(LogSettings(), stream=stream) as log_writer:
        for n in range(20):
            log.info("line %d", n)
        lost = log_writer.lost
        stream.go.set()
    assert lost in (9, 10)  # the writer may already hold one line
    assert len(stream.getvalue().splitlines()) == 20 - lost


def test_a_line_that_cant_be_written_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with logging_to(LogSettings(), stream=stream) as log_writer:
        log.info("odd", extra={FIELDS: {("no", "name"): "a secret"}})
        log.info("after it")
    assert log_writer.lost == 1
    assert "after it" in stream.getvalue()
    assert "secret" not in stream.getvalue() + capsys.readouterr().err


def test_logging_is_as_before_afterwards() -> None:
    before = list(logging.getLogger().handlers), logging.getLogger("prefill_router").level
    write_lines(level="debug", work=lambda: None)
    after = list(logging.getLogger().handlers), logging.getLogger("prefill_router").level
    assert before == after


def test_a_secret_that_is_sent_everywhere_comes_back_nowhere() -> None:
    secret = "pr-sent-everywhere-0123456789abcdef"
    known_key = "pr-known-0123456789abcdef0123"
    metrics = Metrics(["small"])

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        if scope["path"] == "/v1/refused":
            raise RefusalError("no such thing", status=404)
        raise ZeroDivisionError((await receive())["body"].decode())

    headers = [("x-a", secret), ("cookie", secret), ("origin", f"http://{secret}")]
    bodies = []
    stream = io.StringIO()
    with (
        logging_to(LogSettings(level="debug"), stream=stream),
        serve_guarded(app, keys=[build_key("alice", known_key)]) as server,
    ):
        for path in (f"/v1/{secret}?key={secret}", "/v1/chat/completions", f"/page/{secret}"):
            for extra in ([], headers[:2], headers):
                for key in (secret, known_key):
                    reply = server.post(path, [bearer_header(key), *extra], f'"{secret}"'.encode())
                    bodies.append(reply.body + repr(reply.headers).encode())
        for status in server.refusal_statuses:
            metrics.count_refusal(status)
        bodies.append(server.ask("GET", "/", host=secret).body)
        bodies.append(server.ask("POST", "/v1/x", [("content-type", secret)], b"").body)
        bodies.append(server.ask("GET", "/v1/refused", [bearer_header(known_key)]).body)
    output = b"".join(bodies) + (render_text(metrics) + stream.getvalue()).encode()
    assert len(bodies) == 21
    assert b"ZeroDivisionError" in output
    for word in (secret, known_key):
        assert word.encode() not in output


@pytest.fixture
def spans() -> Iterator[tuple[Traces, Any]]:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    traces = Traces("http://127.0.0.1:1", exporter=exporter)
    yield traces, exporter
    traces.close()


def test_a_request_is_a_tree_of_spans(spans: tuple[Traces, Any]) -> None:
    traces, exporter = spans
    full_receipt = receipt(
        outcome={
            "attempts": (attempt("large", "overloaded", 0.5), attempt("small", seconds=1.0)),
        }
    )
    trace = traces.begin([(b"accept", b"x")], at=AT)
    trace.end(replace(full_receipt, prompt="the prompt", requested="the prompt"))
    spans_by_name = {}
    for span in exporter.get_finished_spans():
        spans_by_name.setdefault(span.name, []).append(span)
        assert "the prompt" not in span.to_json()
    (route,), (forecast,), (decide,) = (
        spans_by_name["route"],
        spans_by_name["forecast"],
        spans_by_name["decide"],
    )
    first_attempt, last_attempt = spans_by_name["attempt"]
    assert route.parent is None
    for span in (forecast, decide, first_attempt, last_attempt):
        assert span.parent.span_id == route.context.span_id

    def times(span: Any) -> list[float]:
        return [
            pytest.approx((t - AT * 1e9) / 1e9, abs=1e-6) for t in (span.start_time, span.end_time)
        ]

    assert times(route) == [0.0, 2.0]
    assert times(decide) == [0.0, 0.03]
    assert times(forecast) == [0.01, 0.03]
    assert times(first_attempt) == [0.03, 0.53]
    assert times(last_attempt) == [1.0, 2.0]
    assert first_attempt.attributes["error.type"] == "overloaded"
    assert route.attributes["gen_ai.operation.name"] == "chat"
    assert route.attributes["gen_ai.response.model"] == "small"
    assert route.attributes["gen_ai.usage.input_tokens"] == 100
    assert route.attributes["http.response.status_code"] == 200
    assert route.attributes["prefill_router.decision"] == full_receipt.choice.id
    assert decide.attributes["prefill_router.correctness"] == 0.6
    assert route.status.is_ok or route.status.is_unset


def test_a_clients_trace_goes_on_to_the_target(spans: tuple[Traces, Any]) -> None:
    traces, exporter = spans
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    trace = traces.begin([(b"traceparent", parent), (b"tracestate", b"vendor=1")], at=AT)
    headers = dict(trace.headers())
    trace.end(receipt(outcome={"kind": "cut"}))
    (route,) = [span for span in exporter.get_finished_spans() if span.name == "route"]
    version, trace_id, span_id, flags = headers[b"traceparent"].decode().split("-")
    assert (version, trace_id, flags) == ("00", "0af7651916cd43dd8448eb211c80319c", "01")
    assert span_id == f"{route.context.span_id:016x}"
    assert headers[b"tracestate"] == b"vendor=1"
    assert f"{route.parent.span_id:016x}" == "b7ad6b7169203331"
    assert not route.status.is_ok
    assert route.attributes["error.type"] == "cut"


def test_a_trace_that_the_client_doesnt_record_isnt_recorded(spans: tuple[Traces, Any]) -> None:
    traces, exporter = spans
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    trace = traces.begin([(b"traceparent", parent)], at=AT)
    assert dict(trace.headers())[b"traceparent"].endswith(b"-00")
    trace.end(RECEIPT)
    malformed = traces.begin([(b"traceparent", b"\xff nonsense")], at=AT)
    malformed.end_refused(400, at=AT + 1)
    (span,) = exporter.get_finished_spans()
    assert span.attributes["http.response.status_code"] == 400
    assert span.parent is None


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://a", "http://"])
def test_endpoints_are_addresses(endpoint: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with pytest.raises(ConfigError, match="isn't a URL"):
        Traces(endpoint)


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router-gateway\[otel\]"):
        Traces("http://127.0.0.1:1")
