"""The log: lines on standard error, written by a thread of its own so that nothing waits for it."""

import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOBase
from logging.handlers import QueueHandler
from typing import Any, final

from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.gateway.settings import Logs
from prefill_router.gateway.telemetry.lines import FIELDS, JsonLines, TextLines
from prefill_router.upstream.redaction import Redaction

_MOST_WAITING = 10_000  # lines; what comes then is lost, and counted
_PATIENCE = 5.0  # seconds, for what still waits at the end
_OURS = ("prefill_router", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
_MUTED = (
    "opentelemetry"  # tells each failure, and where to; `sending` tells the first, and not where
)
_FORMS: dict[str, Callable[[Redaction], logging.Formatter]] = {
    "json": JsonLines,
    "text": TextLines,
}
REQUESTS = logging.getLogger("prefill_router.gateway.requests")
"""One line for each request."""


@final
class Log:
    """A log that is being written."""

    def __init__(self, handler: "_Handler", writer: "_Writer", form: str) -> None:
        self._handler, self._writer, self._form = handler, writer, form

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these values are never written, in place of those of before."""
        self._writer.setFormatter(_FORMS[self._form](Redaction(secrets)))

    @property
    def lost(self) -> int:
        """How many lines nobody will read: standard error took them too slowly, or not at all."""
        return self._handler.lost + self._writer.lost


@contextmanager
def logging_to(
    settings: Logs, *, secrets: Iterable[str] = (), stream: TextIOBase | None = None
) -> Iterator[Log]:
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
    writer = _Writer(target)
    handler = _Handler(waiting)
    log = Log(handler, writer, form)
    log.hide(secrets)
    root = logging.getLogger()
    before = {name: _state(logging.getLogger(name)) for name in (*_OURS, _MUTED)}
    for name in _OURS:
        _take_over(logging.getLogger(name), settings.level)
    logging.getLogger(_MUTED).setLevel(logging.CRITICAL)
    root.addHandler(handler)
    thread = threading.Thread(target=_write, args=(waiting, writer), name="log", daemon=True)
    thread.start()
    try:
        yield log
    finally:
        root.removeHandler(handler)
        for name, state in before.items():
            _restore(logging.getLogger(name), state)
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


class _Writer(logging.StreamHandler[Any]):
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


def _write(waiting: "queue.Queue[Any]", writer: logging.Handler) -> None:
    while (record := waiting.get()) is not None:
        writer.handle(record)


def _end(waiting: "queue.Queue[Any]", thread: threading.Thread) -> None:
    """Have what still waits written, unless nobody takes it."""
    try:
        waiting.put(None, timeout=_PATIENCE)
    except queue.Full:
        return
    thread.join(_PATIENCE)


_State = tuple[int, bool, list[logging.Handler]]


def _state(logger: logging.Logger) -> _State:
    return logger.level, logger.propagate, list(logger.handlers)


def _take_over(logger: logging.Logger, level: str) -> None:
    logger.setLevel(level.upper())
    logger.propagate = True
    logger.handlers.clear()


def _restore(logger: logging.Logger, state: _State) -> None:
    logger.setLevel(state[0])
    logger.propagate = state[1]
    logger.handlers[:] = state[2]
