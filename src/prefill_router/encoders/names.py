"""Names of encoders, and what the functions that load encoders are asked for.

    NAME                       hidden states of a network: its layers, `last` and `mean`
    sentence:NAME              the embedding of a sentence-transformers model
    sentence:NAME#PROMPT       the same, each text behind the model's own prompt of that name
    endpoint:MODEL@BASE_URL    the embedding of an OpenAI-compatible endpoint
    signals:NAME               perplexity and the like, of a causal language model

The last three have one site, `own.1`. An `Address` is the `MODEL@BASE_URL` of an endpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from prefill_router.activations import POOLINGS, Provenance, Site
from prefill_router.encoders.base import candidate_layers
from prefill_router.errors import ConfigError

Scheme = Literal["sentence", "endpoint", "signals"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
OWN = Site(1, "own")
"""The site of an encoder that gives one vector of its own."""
_NAME = re.compile(rf"({'|'.join(SCHEMES)}):(.*)", re.DOTALL)


@final
@dataclass(frozen=True)
class EncoderName:
    """A name, taken apart.

    Attributes:
        scheme: None for an encoder whose hidden states are read.
        place: A hub id, a folder, the name of a packaged encoder, or MODEL@BASE_URL.
        prompt: The name of the model's own prompt; empty for its default.
    """

    scheme: Scheme | None
    place: str
    prompt: str = ""

    @classmethod
    def parse(cls, name: str) -> "EncoderName":
        """Take a name apart; any text is one."""
        found = _NAME.fullmatch(name)
        if found is None:
            return cls(None, name)
        scheme = next(scheme for scheme in SCHEMES if scheme == found[1])
        if scheme != "sentence":
            return cls(scheme, found[2])
        place, _, prompt = found[2].partition("#")
        return cls(scheme, place, prompt)

    def __str__(self) -> str:
        prefix = "" if self.scheme is None else f"{self.scheme}:"
        return f"{prefix}{self.place}{f'#{self.prompt}' if self.prompt else ''}"


def gives_own_vectors(name: str) -> bool:
    """Whether an encoder of this name gives one vector of its own, and has no layers to choose."""
    return EncoderName.parse(name).scheme is not None


def default_sites(provenance: Provenance) -> tuple[Site, ...]:
    """What is read of an encoder where nothing else is said.

    The vector itself of one that gives one; of others the candidates of layer selection: the layers
    from ceil(L/2) to L with both poolings.
    """
    if gives_own_vectors(provenance.encoder):
        return (OWN,)
    layers = candidate_layers(provenance.num_layers)
    return tuple(Site(layer, pooling) for layer in layers for pooling in POOLINGS)


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


@final
@dataclass(frozen=True, kw_only=True)
class EncoderRequest:
    """What `load_encoder` was asked for, where it is, and what its provenance must be.

    Where `source` was made of a quantised file, `file_revision` and `quantisation` are that file's.
    """

    name: str = ""
    source: str = ""
    is_local: bool = False
    revision: str | None
    template: str
    max_tokens: int | None
    dtype: str | None
    device: str | None
    layers: tuple[int, ...] | None
    batch_tokens: int | None
    trust_remote_code: bool
    expected: Provenance | None = None
    file_revision: str | None = None
    quantisation: str | None = None
