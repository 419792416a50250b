"""What a line of the log looks like: JSON for programs, or text for people."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, final

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.upstream.redaction import Redaction

FIELDS = "prefill_router_fields"
"""The attribute of a log record that holds further fields: plain values, or a `Receipt`."""
_TOLD = (PrefillRouterError, OSError)  # their texts hold no prompt; of others nobody knows


@final
class JsonLines(logging.Formatter):
    """One JSON object a line.

    Args:
        redaction: What takes secrets out.
    """

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redact = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        value = {
            "time": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
            **_error(record),
        }
        return self._redact(json.dumps(value, default=str))


@final
class TextLines(logging.Formatter):
    """Text for people; what would begin a new line is escaped.

    Args:
        redaction: What takes secrets out.
    """

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redact = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        told = {**_fields(record), **_error(record)}
        parts = [
            _moment(record).strftime("%Y-%m-%d %H:%M:%S"),
            record.levelname.lower(),
            record.getMessage(),
            *(f"{name}={_short(value)}" for name, value in told.items()),
        ]
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


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
