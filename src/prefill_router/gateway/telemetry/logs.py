"""The log: lines on standard error, written by a thread of its own so that nothing waits for it.

A line is JSON for programs, or text for people.
"""

import json
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from logging.handlers import QueueHandler
from typing import Any, final

from prefill_router.client import Redaction
from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.records import Receipt
from prefill_router.gateway.settings import LogSettings

FIELDS = "prefill_router_fields"
"""The attribute of a log record that holds further fields: plain values, or a `Receipt`."""
_TOLD = (PrefillRouterError, OSError)  # their texts hold no prompt; of others nobody knows


@final
class _Lines(logging.Formatter):
    """One line for a record: a JSON object, or text, in which what would begin a line is escaped.

    Args:
        redaction: What takes secrets out.
        form: `json` or `text`.
    """

    def __init__(self, redaction: Redaction, form: str) -> None:
        super().__init__()
        self._redact, self._form = redaction, form

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        moment, level = datetime.fromtimestamp(record.created, UTC), record.levelname.lower()
        told = {**_fields(record), **_error(record)}
        if self._form == "json":
            value = {
                "time": moment.isoformat(timespec="milliseconds"),
                "level": level,
                "logger": record.name,
                "event": record.getMessage(),
                **told,
            }
            return self._redact(json.dumps(value, default=str))
        parts = [f"{moment:%Y-%m-%d %H:%M:%S}", level, record.getMessage()]
        for name, value in told.items():
            parts.append(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}")
        return self._redact(" ".join(parts).replace("\r", "\\r").replace("\n", "\\n"))


def fields_of(receipt: Receipt) -> dict[str, Any]:
    """What the log tells of a request; what is unknown is left out."""
    choice, outcome, usage = receipt.choice, receipt.outcome, receipt.outcome.usage
    fields = {
        "id": choice.id,
        "endpoint": receipt.endpoint,
        "target": outcome.target,
        "reason": choice.reason,
        "fallback": choice.fallback,
        "lam": choice.lam,
        "outcome": outcome.kind,
        "status": outcome.status,
        "stream": receipt.stream,
        "attempts": len(outcome.attempts),
        "seconds": _rounded(outcome.total_seconds),
        "first_byte_seconds": _rounded(outcome.first_byte_seconds),
        "decision_seconds": _rounded(receipt.decision_seconds),
        "input_tokens": None if usage is None else usage.input_tokens,
        "output_tokens": None if usage is None else usage.output_tokens,
        "cost": receipt.cost,
        "key": receipt.key,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = getattr(record, FIELDS, None)
    if isinstance(given, Receipt):
        return fields_of(given)
    return dict(given) if isinstance(given, dict) else {}


def _error(record: logging.LogRecord) -> dict[str, Any]:
    """What is told of an exception: its text only where it can't hold a prompt."""
    if record.exc_info is None or record.exc_info[1] is None:
        return {}
    error = record.exc_info[1]
    frames = traceback.extract_tb(error.__traceback__)
    told: dict[str, Any] = {
        "error": type(error).__name__,
        "where": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    return {**told, "error_text": str(error)} if isinstance(error, _TOLD) else told


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


_MOST_WAITING = 10_000  # lines; what comes then is lost, and counted
_PATIENCE = 5.0  # seconds, for what still waits at the end
_OURS = ("prefill_router", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
_MUTED = (
    "opentelemetry"  # tells each failure, and where to; `sending` tells the first, and not where
)
REQUESTS = logging.getLogger("prefill_router.gateway.requests")
"""One line for each request."""


@final
class LogWriter:
    """A log that is being written."""

    def __init__(self, handler: "_Handler", writer: "_LineWriter", form: str) -> None:
        self._handler, self._writer, self._form = handler, writer, form

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these values are never written, in place of those of before."""
        self._writer.setFormatter(_Lines(Redaction(secrets), self._form))

    @property
    def lost(self) -> int:
        """How many lines nobody will read: standard error took them too slowly, or not at all."""
        return self._handler.lost + self._writer.lost


@contextmanager
def logging_to(
    settings: LogSettings, *, secrets: Iterable[str] = (), stream: TextIOBase | None = None
) -> Iterator[LogWriter]:
    """Write all that is logged, uvicorn's lines too, until the block ends.

    Args:
        settings: How.
        secrets: Values that are never written, such as the targets' keys.
        stream: Where to; None for standard error.
    """
    waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
    target = stream or sys.stderr
    form = settings.form
    if form == "auto":
        form = "text" if target.isatty() else "json"
    writer = _LineWriter(target)
    handler = _Handler(waiting)
    log = LogWriter(handler, writer, form)
    log.hide(secrets)
    root = logging.getLogger()
    loggers = [logging.getLogger(name) for name in (*_OURS, _MUTED)]
    before = [(one, one.level, one.propagate, list(one.handlers)) for one in loggers]
    for one in loggers[:-1]:
        one.setLevel(settings.level.upper())
        one.propagate = True
        one.handlers.clear()
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
        for one, level, propagates, handlers in before:
            one.setLevel(level)
            one.propagate, one.handlers[:] = propagates, handlers
        _end(waiting, thread)


def log_request(receipt: Receipt) -> None:
    """Write the line of a request; what stands in it is read later, by the thread that writes."""
    if REQUESTS.isEnabledFor(logging.INFO):
        record = logging.LogRecord(REQUESTS.name, logging.INFO, "", 0, "request", None, None)
        setattr(record, FIELDS, receipt)
        REQUESTS.handle(record)  # without the search for the caller, which says nothing here


def with_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """What to give as `extra` to a logger, so that these plain values stand in its line."""
    return {FIELDS: fields}


class _LineWriter(logging.StreamHandler[Any]):
    """Writes lines; one that can't be written is counted, and not shown as it was before."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802
        self.lost += 1


class _Handler(QueueHandler):
    """Puts records in the queue as they are, and never waits."""

    def __init__(self, waiting: "queue.Queue[Any]") -> None:
        super().__init__(waiting)
        self.lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the thread that writes it is of this process

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost += 1


def _end(waiting: "queue.Queue[Any]", thread: threading.Thread) -> None:
    """Have what still waits written, unless nobody takes it."""
    try:
        waiting.put(None, timeout=_PATIENCE)
    except queue.Full:
        return
    thread.join(_PATIENCE)
