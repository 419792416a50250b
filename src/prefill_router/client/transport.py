"""The HTTP client under the SDK's: no redirects, no compression, word of when a request leaves."""

from contextvars import ContextVar
from typing import Any, Protocol

import httpx2

from prefill_router.client.keys import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.targets import Provider

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn


class RequestObserver(Protocol):
    """Who has a request sent, and is told how that goes."""

    def leave(self) -> None:
        """The request leaves."""

    async def trace(self, event: str, details: Any) -> None:
        """Something happens to it, under httpcore's name for it."""


LEAVING: ContextVar[RequestObserver] = ContextVar("LEAVING")
"""Who sends the request of the present task."""


def http_client(provider: Provider) -> httpx2.AsyncClient:
    """A client for one provider; it never follows redirects, since they'd take the key elsewhere.

    Compression is declined, since it holds tokens back.

    Raises:
        ConfigError: The environment's proxies or certificates are unfit.
    """
    limits = httpx2.Limits(
        max_connections=provider.concurrency,
        max_keepalive_connections=provider.concurrency,
        keepalive_expiry=_IDLE_SECONDS,
    )
    try:
        return httpx2.AsyncClient(
            limits=limits,
            headers={"Accept-Encoding": "identity"},
            timeout=None,
            event_hooks={"request": [_leave]},
            mounts=direct(provider.base_url),
        )
    except (ImportError, OSError, ValueError, httpx2.InvalidURL):  # not quoted: it may hold a key
        raise ConfigError(
            f"provider {provider.name!r} can't be asked by way of the proxies or certificates that "
            "the environment names; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (http:// or https://) "
            "and SSL_CERT_FILE"
        ) from None


def direct(base_url: str) -> dict[str, None]:
    """That no proxy comes between neighbours, as the mounts of a client.

    A proxy elsewhere would read, unencrypted, what is meant for this machine.
    """
    host = httpx2.URL(base_url).host
    name = f"[{host}]" if ":" in host else host
    return {f"all://{name}": None} if is_loopback(host) else {}


async def _leave(request: httpx2.Request) -> None:
    sender = LEAVING.get()
    request.extensions["trace"] = sender.trace
    sender.leave()
