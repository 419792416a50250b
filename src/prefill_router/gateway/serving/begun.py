"""A request from its beginning to its end: what it goes on with, and its span."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefill_router.gateway.forwarding import Header
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.live import Live
from prefill_router.gateway.telemetry import Trace


@contextmanager
def begun(
    gateway: Gateway, headers: list[Header], *, at: float
) -> Iterator[tuple[Live, Trace | None]]:
    """What a request goes on with whatever is reloaded meanwhile, and its span, if any.

    A refusal ends the span; whatever else ends the request has to.

    Args:
        gateway: The gateway.
        headers: Of the request.
        at: When it came, seconds since 1970.
    """
    trace = None if gateway.traces is None else gateway.traces.begin(headers, at=at)
    live = gateway.enter()
    try:
        yield live, trace
    except RefusalError as refusal:
        if trace is not None:
            trace.end_refused(refusal.status, at=time.time())
        raise
    finally:
        live.leave()


def headers_on(live: Live, headers: list[Header], trace: Trace | None) -> list[Header]:
    """The client's headers, as far as they go on; the trace goes on from the request's own span."""
    passed = live.passing.to_target(headers)
    if trace is None:
        return passed
    carried = trace.headers()
    names = {name for name, _ in carried}
    return [header for header in passed if header[0] not in names] + carried
