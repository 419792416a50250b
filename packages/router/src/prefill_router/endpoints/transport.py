"""How HTTP calls of endpoints are made: addresses, headers, certificates and clients.

Clients never follow redirects, which would send the key elsewhere. This module is imported only
when a client is opened, because httpx2 is slow to import.
"""

import os
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import httpx2

from prefill_router.endpoints.keys import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.targets import Provider, public_address

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_OPENAI_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that tell OpenAI which account pays, and the environment variables that hold them."""


def endpoint_url(base_url: str, path: str) -> httpx2.URL:
    """The URL of a call: the base_url, the path, and then the base_url's query."""
    query = dict(parse_qsl(urlsplit(base_url).query))
    return httpx2.URL(public_address(base_url).rstrip("/") + path, params=query or None)


def request_headers(key: str, *, is_openai: bool) -> dict[str, str]:
    """The headers of every call.

    Args:
        key: The endpoint's API key.
        is_openai: Whether it is OpenAI; only OpenAI is sent the user's organisation and project.
    """
    account = {name: os.environ.get(variable) for name, variable in _OPENAI_ACCOUNT.items()}
    return {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # compression delays streamed tokens
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "User-Agent": "prefill-router",
        **{name: value for name, value in account.items() if value and is_openai},
    }


def http_client(provider: Provider, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """An HTTP client for one provider.

    Raises:
        ConfigError: The environment's proxies or certificates can't be used.
    """
    try:
        return httpx2.AsyncClient(
            limits=httpx2.Limits(
                max_connections=provider.concurrency,
                max_keepalive_connections=provider.concurrency,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            headers=headers,
            timeout=httpx2.Timeout(None, connect=provider.connect_seconds),
            mounts=direct_mounts(provider.base_url),
        )
    except (ImportError, OSError, ValueError, httpx2.InvalidURL):  # not quoted: it may hold a key
        raise ConfigError(
            f"provider {provider.name!r} can't be reached with the proxies or certificates set in "
            "the environment; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (http:// or https://) "
            "and SSL_CERT_FILE"
        ) from None


def direct_mounts(base_url: str) -> dict[str, None]:
    """The mounts of a client that bypass any proxy for a server on this machine.

    A proxy elsewhere could read this unencrypted traffic.
    """
    host = httpx2.URL(base_url).host
    name = f"[{host}]" if ":" in host else host
    return {f"all://{name}": None} if is_loopback(host) else {}


def trusted_certificates() -> ssl.SSLContext:
    """The certificates that are trusted; load them once, since that takes longer than a call.

    Raises:
        ConfigError: Those that the environment names can't be read.
    """
    try:
        return httpx2.create_ssl_context()
    except (OSError, ValueError):
        raise ConfigError(
            "the certificates set in the environment can't be read; check SSL_CERT_FILE and "
            "SSL_CERT_DIR"
        ) from None
