"""What calls of any endpoint share: addresses, headers, and an HTTP client.

Clients never follow redirects, since they'd take the key elsewhere.
"""

import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import httpx2

from prefill_router.client.keys import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.targets import Provider
from prefill_router.targets.provider import public_address

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_OF_OPENAI = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that tell OpenAI who pays, and the variables that hold them."""


def endpoint_url(base_url: str, path: str) -> httpx2.URL:
    """The address of a call: the query of the base_url comes after the path."""
    query = dict(parse_qsl(urlsplit(base_url).query))
    return httpx2.URL(public_address(base_url).rstrip("/") + path, params=query or None)


def request_headers(key: str, *, is_openai: bool) -> dict[str, str]:
    """The headers of every call.

    Args:
        key: The endpoint's.
        is_openai: Whether it is OpenAI, which alone is told of one's organisation and project.
    """
    told = {name: os.environ.get(variable) for name, variable in _OF_OPENAI.items()}
    return {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # compression holds tokens back
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "User-Agent": "prefill-router",
        **{name: value for name, value in told.items() if value and is_openai},
    }


def http_client(provider: Provider, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for one provider.

    Raises:
        ConfigError: The environment's proxies or certificates are unfit.
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
