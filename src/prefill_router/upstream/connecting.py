"""The HTTP client under the SDK's: lanes, or where a proxy stands between the SDK's own way."""

import urllib.request
from collections.abc import Callable
from contextvars import ContextVar

import httpx2

from prefill_router.targets import Provider
from prefill_router.upstream.lanes import Lanes

LEAVING: ContextVar[Callable[[], None]] = ContextVar("LEAVING")
"""What to do when the request of the present task leaves."""


def http_client(provider: Provider) -> httpx2.AsyncClient:
    """A client for one provider; it never follows redirects, since they'd take the key elsewhere.

    Compression is declined, since it holds tokens back.
    """
    host = httpx2.URL(provider.base_url).host
    proxies = {name for name in urllib.request.getproxies() if name != "no"}
    direct = not proxies or bool(urllib.request.proxy_bypass(host))
    return httpx2.AsyncClient(
        transport=Lanes() if direct else None,
        limits=httpx2.Limits(max_connections=provider.concurrency),
        headers={"Accept-Encoding": "identity"},
        timeout=None,
        event_hooks={"request": [_leave]},
    )


async def _leave(request: httpx2.Request) -> None:
    del request
    LEAVING.get()()
