"""Sending spans: while the collector doesn't answer they are lost, and the log says so once."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_log = logging.getLogger(__name__)


@final
class Sending:
    """Sends by another exporter, and notices whether it can; called by one thread.

    Args:
        exporter: The other one; it tries again for some seconds before it gives spans up.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        self._exporter = exporter
        self._works = True

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        """Send spans; whether they were."""
        found = self._exporter.export(spans)
        works = found.name == "SUCCESS"
        if self._works and not works:
            _log.warning("traces can't be sent: the collector doesn't take them; they are dropped")
        elif works and not self._works:
            _log.warning("traces are sent again")
        self._works = works
        return found

    def shutdown(self) -> None:
        """Give up what is being tried, and send no more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)
