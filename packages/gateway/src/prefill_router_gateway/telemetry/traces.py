"""Traces: one span per request, with child spans for the forecast, the decision and every call.

Spans are made from the receipt once the request has ended. Only the request's own span begins
earlier, since its id is sent to the target. So tracing never delays a request, and the start of a
call is as exact as the receipt: waits between calls are placed before the last one. Spans are lost
while the collector doesn't answer, and the log says so once.

Names are those of OpenTelemetry's semantic conventions for generative AI, and the gateway's own.
The conventions still change, so only this file uses them. Source:
https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, final
from urllib.parse import urlsplit

from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports
from prefill_router.targets import Endpoint
from prefill_router_gateway.records import Receipt, RequestOutcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span, Tracer


REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
STATUS = "http.response.status_code"
ERROR = "error.type"

OPERATIONS: dict[Endpoint, str] = {
    "chat": "chat",
    "completions": "text_completion",
    "responses": "chat",
    "embeddings": "embeddings",
    "messages": "chat",
}
"""The operation name of each endpoint in the conventions."""

OUTCOME = "prefill_router.outcome"


_log = logging.getLogger(__name__)
_CARRIED = ("traceparent", "tracestate")
_FAILED = ("failed", "cut")
_CLOSE_SECONDS = 3.0


@final
class Traces:
    """Makes the spans of requests, and sends them.

    Args:
        endpoint: The OTLP endpoint, over HTTP; `/v1/traces` is added where it has no path.
        exporter: An exporter to use instead.

    Raises:
        MissingExtraError: OpenTelemetry isn't installed.
        ConfigError: The endpoint isn't a URL.
    """

    def __init__(self, endpoint: str, *, exporter: "SpanExporter | None" = None) -> None:
        with optional_imports("sending traces"):
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        resource = Resource.create({"service.name": "prefill-router"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = exporter or cast("SpanExporter", SpanSender(_make_exporter(endpoint)))
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter)
            if exporter is None
            else SimpleSpanProcessor(exporter)
        )
        self._tracer = self._provider.get_tracer("prefill_router_gateway")

    def begin(self, headers: Sequence[tuple[bytes, bytes]], *, at: float) -> "Trace":
        """Begin a request's span, as a child of the client's span if its headers name one.

        Args:
            headers: The request's headers.
            at: When it arrived, in seconds since 1970.
        """
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carried = {
            name: value.decode("latin-1")
            for raw, value in headers
            if (name := raw.decode("latin-1")) in _CARRIED
        }
        context = TraceContextTextMapPropagator().extract(carried) if carried else None
        span = self._tracer.start_span(
            "route", context=context, kind=SpanKind.SERVER, start_time=_nanoseconds(at)
        )
        return Trace(self._tracer, span)

    def close(self, *, seconds: float = _CLOSE_SECONDS) -> None:
        """Send queued spans, and end; those that can't be sent within `seconds` are lost."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._exporter.shutdown()
            _log.warning("the last traces couldn't be sent within %g s and are lost", seconds)


@final
class Trace:
    """The span of one request and its child spans."""

    def __init__(self, tracer: "Tracer", span: "Span") -> None:
        self._tracer = tracer
        self._span = span

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that replace the client's `traceparent` and `tracestate` for a target."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carried: dict[str, str] = {}
        context = set_span_in_context(self._span)
        TraceContextTextMapPropagator().inject(carried, context=context)
        return [(name.encode(), value.encode()) for name, value in carried.items()]

    def end(self, receipt: Receipt) -> None:
        """Make the child spans and end all; call it once, when the request has ended."""
        if self._span.is_recording():
            self._span.set_attributes(_request_attributes(receipt))
            self._add_children(receipt)
        self._end_span(receipt.outcome, receipt.at + receipt.outcome.total_seconds)

    def end_refused(self, status: int, *, at: float) -> None:
        """End the span of a request that was refused before a decision."""
        self._span.set_attribute(STATUS, status)
        self._span.end(_nanoseconds(at))

    def end_passed(self, call: str, outcome: RequestOutcome, *, at: float) -> None:
        """End the span of a passthrough call, which has no receipt.

        Args:
            call: The name of the call.
            outcome: The outcome.
            at: When it ended, in seconds since 1970.
        """
        attributes = {
            "prefill_router.call": call,
            STATUS: outcome.status,
            OUTCOME: outcome.kind,
            RESPONSE_MODEL: outcome.target,
        }
        self._span.set_attributes(_drop_none(attributes))
        self._end_span(outcome, at)

    def _end_span(self, outcome: RequestOutcome, at: float) -> None:
        from opentelemetry.trace import Status, StatusCode

        if outcome.kind in _FAILED:
            self._span.set_attribute(ERROR, outcome.kind)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_nanoseconds(at))

    def _add_children(self, receipt: Receipt) -> None:
        decided_at = receipt.at + receipt.decision_seconds
        if receipt.forecast_seconds is not None:
            start = decided_at - receipt.forecast_seconds
            self._add_child("forecast", start, receipt.forecast_seconds, {})
        self._add_child(
            "decide", receipt.at, receipt.decision_seconds, _decision_attributes(receipt)
        )
        start = decided_at
        attempts = receipt.outcome.attempts
        for number, attempt in enumerate(attempts):
            if number and number == len(attempts) - 1:
                ended = receipt.at + receipt.outcome.total_seconds
                start = max(start, ended - attempt.seconds)
            attributes = {
                REQUEST_MODEL: attempt.target,
                "prefill_router.attempt.end": attempt.end,
                STATUS: attempt.status,
                ERROR: None if attempt.end in ("answered", "refused") else attempt.end,
            }
            self._add_child("attempt", start, attempt.seconds, attributes, calls=True)
            start += attempt.seconds

    def _add_child(
        self,
        name: str,
        start: float,
        seconds: float,
        attributes: dict[str, Any],
        *,
        calls: bool = False,
    ) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._span),
            kind=SpanKind.CLIENT if calls else SpanKind.INTERNAL,
            start_time=_nanoseconds(start),
            attributes=_drop_none(attributes),
        )
        span.end(_nanoseconds(start + seconds))


def _request_attributes(receipt: Receipt) -> dict[str, Any]:
    choice, outcome, usage = receipt.choice, receipt.outcome, receipt.outcome.usage
    return _drop_none(
        {
            "gen_ai.operation.name": OPERATIONS[receipt.endpoint],
            "gen_ai.provider.name": "prefill_router",
            "gen_ai.request.stream": receipt.stream,
            RESPONSE_MODEL: outcome.target,
            "gen_ai.response.id": outcome.response_id,
            "gen_ai.response.time_to_first_chunk": outcome.first_byte_seconds,
            "gen_ai.conversation.id": choice.session,
            "gen_ai.usage.input_tokens": usage and usage.input_tokens,
            "gen_ai.usage.output_tokens": usage and usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage and usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage and usage.reasoning_tokens,
            STATUS: outcome.status,
            "prefill_router.decision": choice.id,
            OUTCOME: outcome.kind,
            "prefill_router.cost_usd": receipt.cost,
            "prefill_router.router": receipt.router or None,
        }
    )


def _decision_attributes(receipt: Receipt) -> dict[str, Any]:
    choice = receipt.choice
    return {
        REQUEST_MODEL: choice.target,
        "prefill_router.reason": choice.reason,
        "prefill_router.fallback": choice.fallback,
        "prefill_router.lam": choice.lam,
        "prefill_router.correctness": choice.correctness.get(choice.target),
        "prefill_router.estimated_cost_usd": choice.estimated_cost.get(choice.target),
    }


def _drop_none(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _make_exporter(endpoint: str) -> "SpanExporter":
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "traces isn't a URL; give an OTLP endpoint, for example http://127.0.0.1:4318"
        )
    with optional_imports("sending traces"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    whole = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    return OTLPSpanExporter(endpoint=whole)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


@final
class SpanSender:
    """Sends spans with another exporter, and logs when it starts or stops failing; one thread.

    Args:
        exporter: The other exporter; it retries for some seconds before it drops spans.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        self._exporter = exporter
        self._works = True

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        """Send spans; returns whether they were sent."""
        result = self._exporter.export(spans)
        works = result.name == "SUCCESS"
        if self._works and not works:
            _log.warning("traces can't be sent to the collector; they are dropped")
        elif works and not self._works:
            _log.warning("traces are sent again")
        self._works = works
        return result

    def shutdown(self) -> None:
        """Abandon current retries, and send no more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the other exporter; nothing is queued here."""
        return self._exporter.force_flush(timeout_millis)
