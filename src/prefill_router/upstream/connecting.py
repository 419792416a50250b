"""The HTTP client under the SDK's: no redirects, no compression, word of when a request leaves."""

from collections.abc import Callable
from contextvars import ContextVar

import httpx2

from prefill_router.targets import Provider

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
LEAVING: ContextVar[Callable[[], None]] = ContextVar("LEAVING")
"""What to do when the request of the present task leaves."""


def http_client(provider: Provider) -> httpx2.AsyncClient:
    """A client for one provider; it never follows redirects, since they'd take the key elsewhere.

    Compression is declined, since it holds tokens back.
    """
    limits = httpx2.Limits(
        max_connections=provider.concurrency,
        max_keepalive_connections=provider.concurrency,
        keepalive_expiry=_IDLE_SECONDS,
    )
    return httpx2.AsyncClient(
        limits=limits,
        headers={"Accept-Encoding": "identity"},
        timeout=None,
        event_hooks={"request": [_leave]},
    )


async def _leave(request: httpx2.Request) -> None:
    del request
    LEAVING.get()()
