"""Which model of which endpoint: `MODEL@BASE_URL`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from prefill_router.errors import ConfigError

URL = "PREFILL_ROUTER_EMBEDDINGS_URL"
"""The variable that names the endpoints which a router or a store of somebody else may ask."""
_PLACE = re.compile(r"(\S+)@(https?://\S+)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@final
@dataclass(frozen=True)
class Address:
    """A model and where it is served.

    Attributes:
        model: Its name at the endpoint.
        base_url: The endpoint, without anything secret: as it stands in the provenance.
        query: What is put behind every URL, such as an `api-version`; never recorded.
    """

    model: str
    base_url: str
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, place: str) -> "Address":
        """Take `MODEL@BASE_URL` apart.

        Raises:
            ConfigError: It is something else, or holds a password. It isn't quoted.
        """
        found = _PLACE.fullmatch(place)
        parts = None if found is None else _parts(found[2])
        if found is None or parts is None:
            raise ConfigError(
                "an endpoint's embeddings are named like "
                "endpoint:text-embedding-3-small@https://api.openai.com/v1: the model, an @, and "
                "the base URL with http:// or https://"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "the URL of an endpoint has a password in it; take it out, and set the environment "
                "variable PREFILL_ROUTER_EMBEDDINGS_KEY to the key"
            )
        host = (parts.hostname or "").lower()
        host = f"[{host}]" if ":" in host else host
        port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        url = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
        return cls(found[1], url, tuple(parse_qsl(parts.query)))

    @property
    def name(self) -> str:
        """What the provenance of its embeddings calls it."""
        return f"endpoint:{self.model}@{self.base_url}"

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own, reached in a way that keeps a key secret."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        return parts.scheme == "https" and (host == "openai.com" or host.endswith(".openai.com"))


def trusted(place: str, environment: Mapping[str, str]) -> str:
    """An endpoint that was read somewhere, as the environment names it, its query included.

    Args:
        place: `MODEL@BASE_URL`.
        environment: Where `URL` names endpoints, between spaces.

    Raises:
        ConfigError: The environment doesn't name it: nobody here has said that it may be asked.
    """
    address = Address.parse(place)
    for url in environment.get(URL, "").split():
        named = f"{address.model}@{url}"
        if Address.parse(named).base_url == address.base_url:
            return named
    raise ConfigError(
        f"{address.name} is asked only where you name its address yourself, since it gets every "
        f"prompt and the key of embeddings; if you trust it, set {URL}={address.base_url}"
    )


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_good else None
