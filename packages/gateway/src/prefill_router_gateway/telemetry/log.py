"""The log: a line for each request and for what else happens.

A line is JSON for programs, or text for people. A thread of its own writes it to standard error, so
that requests never wait.
"""

import json
import logging
import queue
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from logging.handlers import QueueHandler
from typing import Any, final

from prefill_router.endpoints import Redaction
from prefill_router.errors import PrefillRouterError
from prefill_router_gateway.records import Receipt
from prefill_router_gateway.settings import LogSettings

FIELDS = "prefill_router_fields"
"""The attribute of a log record with further fields: plain values, or a `Receipt`."""
_SAFE = (PrefillRouterError, OSError)  # their messages quote no prompt; those of others may
_QUOTE_START = re.compile(r"[(<\n]")  # where asyncio's text goes on with values


@final
class _LineFormatter(logging.Formatter):
    """Formats a record as one line: a JSON object, or text with escaped line breaks.

    Args:
        redaction: Removes secrets.
        form: `json` or `text`.
        worker: The number of this worker; None for none.
    """

    def __init__(self, redaction: Redaction, form: str, worker: int | None) -> None:
        super().__init__()
        self._redact, self._form = redaction, form
        self._own = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        moment, level = datetime.fromtimestamp(record.created, UTC), record.levelname.lower()
        fields = {**self._own, **_read_fields(record), **_error_fields(record)}
        if self._form == "json":
            value = {
                "time": moment.isoformat(timespec="milliseconds"),
                "level": level,
                "logger": record.name,
                "event": _describe_event(record),
                **fields,
            }
            return self._redact(json.dumps(value, default=str))
        parts = [f"{moment:%Y-%m-%d %H:%M:%S}", level, _describe_event(record)]
        for name, value in fields.items():
            parts.append(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}")
        return self._redact(" ".join(parts).replace("\r", "\\r").replace("\n", "\\n"))


def fields_of(receipt: Receipt) -> dict[str, Any]:
    """The log fields of a request; unknown values are left out."""
    choice, outcome, usage = receipt.choice, receipt.outcome, receipt.outcome.usage
    fields = {
        "id": choice.id,
        "endpoint": receipt.endpoint,
        "target": outcome.target,
        "deployment": outcome.deployment,
        "reason": choice.reason,
        "fallback": choice.fallback,
        "lam": choice.lam,
        "outcome": outcome.kind,
        "status": outcome.status,
        "stream": receipt.stream,
        "attempts": len(outcome.attempts),
        "seconds": _round_seconds(outcome.total_seconds),
        "first_byte_seconds": _round_seconds(outcome.first_byte_seconds),
        "decision_seconds": _round_seconds(receipt.decision_seconds),
        "input_tokens": None if usage is None else usage.input_tokens,
        "output_tokens": None if usage is None else usage.output_tokens,
        "cost": receipt.cost,
        "key": receipt.key,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _read_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, FIELDS, None)
    if isinstance(fields, Receipt):
        return fields_of(fields)
    return dict(fields) if isinstance(fields, dict) else {}


def _describe_event(record: logging.LogRecord) -> str:
    """What happened; asyncio's own text without arguments and exceptions, which quote prompts."""
    text = record.getMessage()
    return _QUOTE_START.split(text, 1)[0].strip() if record.name == "asyncio" else text


def _error_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The log fields of an exception, with its message only if it can't quote a prompt."""
    if record.exc_info is None or record.exc_info[1] is None:
        return {}
    error = record.exc_info[1]
    frames = traceback.extract_tb(error.__traceback__)
    fields: dict[str, Any] = {
        "error": type(error).__name__,
        "where": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    return {**fields, "error_text": str(error)} if isinstance(error, _SAFE) else fields


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


_MOST_WAITING = 10_000  # lines; further ones are lost, and counted
_PATIENCE = 5.0  # seconds; how long the end waits for queued lines
_OURS = (
    *("prefill_router", "prefill_router_gateway"),
    *("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"),
)
_MUTED = (
    "opentelemetry"  # logs every failure with its URL; `SpanSender` logs only the first, without it
)
REQUESTS = logging.getLogger("prefill_router_gateway.requests")
"""Logs one line per request."""


@final
class LogWriter:
    """The running log."""

    def __init__(
        self, handler: "_Handler", writer: "_LineWriter", form: str, worker: int | None
    ) -> None:
        self._handler, self._writer, self._form = handler, writer, form
        self._worker = worker

    def hide(self, secrets: Iterable[str]) -> None:
        """Redact these values from now on, in place of the earlier ones."""
        self._writer.setFormatter(_LineFormatter(Redaction(secrets), self._form, self._worker))

    @property
    def lost(self) -> int:
        """The number of lost lines: standard error was too slow or failed."""
        return self._handler.lost + self._writer.lost


@contextmanager
def logging_to(
    settings: LogSettings,
    *,
    secrets: Iterable[str] = (),
    stream: TextIOBase | None = None,
    worker: int | None = None,
) -> Iterator[LogWriter]:
    """Write all that is logged, uvicorn's lines too, until the block ends.

    Args:
        settings: The settings of the log.
        secrets: Values that are never written, for example the targets' keys.
        stream: The stream to write to; None for standard error.
        worker: The number of this worker, which each line has; None where there is only one.
    """
    waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
    target = stream or sys.stderr
    form = settings.form
    if form == "auto":
        form = "text" if target.isatty() else "json"
    writer = _LineWriter(target)
    handler = _Handler(waiting)
    log = LogWriter(handler, writer, form, worker)
    log.hide(secrets)
    root = logging.getLogger()
    loggers = [logging.getLogger(name) for name in (*_OURS, _MUTED)]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    for logger in loggers[:-1]:
        logger.setLevel(settings.level.upper())
        logger.propagate = True
        logger.handlers.clear()
    loggers[-1].setLevel(logging.CRITICAL)
    root.addHandler(handler)

    def write() -> None:
        while (record := waiting.get()) is not None:
            writer.handle(record)

    thread = threading.Thread(target=write, name="log", daemon=True)
    thread.start()
    try:
        yield log
    finally:
        root.removeHandler(handler)
        for logger, level, propagates, handlers in before:
            logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagates, handlers
        _end_thread(waiting, thread)


def log_request(receipt: Receipt) -> None:
    """Log a request; the line is formatted later, by the thread that writes."""
    if REQUESTS.isEnabledFor(logging.INFO):
        record = logging.LogRecord(REQUESTS.name, logging.INFO, "", 0, "request", None, None)
        setattr(record, FIELDS, receipt)
        REQUESTS.handle(record)  # skips the slow lookup of the caller, which isn't useful here


def with_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The `extra` argument for a logger, to add these plain values to its line."""
    return {FIELDS: fields}


class _LineWriter(logging.StreamHandler[Any]):
    """Writes lines, and counts those that can't be written, without printing them elsewhere."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802
        self.lost += 1


class _Handler(QueueHandler):
    """Queues records unformatted, and never waits."""

    def __init__(self, waiting: "queue.Queue[Any]") -> None:
        super().__init__(waiting)
        self.lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # a thread of this process formats it

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost += 1


def _end_thread(waiting: "queue.Queue[Any]", thread: threading.Thread) -> None:
    """Write the queued lines, unless that takes too long."""
    try:
        waiting.put(None, timeout=_PATIENCE)
    except queue.Full:
        return
    thread.join(_PATIENCE)
