"""The names of encoders, and what a name and its options ask for.

A name has one of these forms:

    NAME                       hidden states of a network: its layers; `last`, `mean`, `rest`
    sentence:NAME              the embedding of a sentence-transformers model
    sentence:NAME#PROMPT       the same, with the model's own prompt of that name before each text
    endpoint:MODEL@BASE_URL    the embedding of an OpenAI-compatible endpoint
    signals:NAME               perplexity and related numbers of a causal language model

All but the first have one site, `own.1`. An `Address` is the `MODEL@BASE_URL` of an endpoint.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from prefill_router.activations import (
    DEFAULT_POOLINGS,
    Provenance,
    Site,
)
from prefill_router.errors import ConfigError

Scheme = Literal["sentence", "endpoint", "signals"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
KEY = "PREFILL_ROUTER_EMBEDDINGS_KEY"
"""The environment variable that holds the key of an endpoint."""
OWN = Site(1, "own")
"""The site of an encoder that outputs one vector per prompt."""
_NAME = re.compile(rf"({'|'.join(SCHEMES)}):(.*)", re.DOTALL)


@final
@dataclass(frozen=True)
class EncoderName:
    """The parsed name of an encoder.

    Attributes:
        scheme: The prefix; None for an encoder whose hidden states are read.
        place: A hub id, a folder, the name of a packaged encoder, or MODEL@BASE_URL.
        prompt: The name of the model's own prompt, empty for its default.
    """

    scheme: Scheme | None
    place: str
    prompt: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is behind an endpoint."""
        return self.scheme == "endpoint"

    @classmethod
    def parse(cls, name: str) -> "EncoderName":
        """Parse a name; any text is valid."""
        match = _NAME.fullmatch(name)
        if match is None:
            return cls(None, name)
        scheme = next(scheme for scheme in SCHEMES if scheme == match[1])
        if scheme != "sentence":
            return cls(scheme, match[2])
        place, _, prompt = match[2].partition("#")
        return cls(scheme, place, prompt)

    def __str__(self) -> str:
        prefix = "" if self.scheme is None else f"{self.scheme}:"
        return f"{prefix}{self.place}{f'#{self.prompt}' if self.prompt else ''}"


def gives_own_vectors(name: str) -> bool:
    """Whether an encoder of this name outputs one vector, without layers to choose from."""
    return EncoderName.parse(name).scheme is not None


def candidate_layers(num_layers: int) -> tuple[int, ...]:
    """The default candidates of layer selection: ceil(L/2) to L."""
    return tuple(range(math.ceil(num_layers / 2), num_layers + 1))


def default_sites(provenance: Provenance) -> tuple[Site, ...]:
    """The sites of an encoder that are read by default.

    For an encoder that outputs one vector, that vector; for others the candidates of layer
    selection: the layers from ceil(L/2) to L with the default poolings.
    """
    if gives_own_vectors(provenance.encoder):
        return (OWN,)
    layers = candidate_layers(provenance.num_layers)
    return tuple(Site(layer, pooling) for layer in layers for pooling in DEFAULT_POOLINGS)


URL = "PREFILL_ROUTER_EMBEDDINGS_URL"
"""The environment variable that lists the endpoints which saved routers and stores may use."""
_PLACE = re.compile(r"(\S+)@(https?://\S+)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@final
@dataclass(frozen=True)
class Address:
    """A model and its endpoint.

    Attributes:
        model: The model's name at the endpoint.
        base_url: The endpoint's URL without secrets, as it is recorded in the provenance.
        query: The query string of every URL, such as an `api-version`; never recorded.
    """

    model: str
    base_url: str
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, place: str) -> "Address":
        """Parse `MODEL@BASE_URL`.

        Raises:
            ConfigError: The text has another form, or contains a password. It isn't quoted.
        """
        match = _PLACE.fullmatch(place)
        parts = None if match is None else _url_parts(match[2])
        if match is None or parts is None:
            raise ConfigError(
                "an endpoint's encoder is named like "
                "endpoint:text-embedding-3-small@https://api.openai.com/v1: the model, an @, and "
                "the base URL with http:// or https://"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "the URL of an endpoint has a password in it; take it out, and set the environment "
                f"variable {KEY} to the key"
            )
        host = (parts.hostname or "").lower()
        host = f"[{host}]" if ":" in host else host
        port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        url = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
        return cls(match[1], url, tuple(parse_qsl(parts.query)))

    @property
    def name(self) -> str:
        """The name in the provenance of its states."""
        return f"endpoint:{self.model}@{self.base_url}"

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own endpoint, over https."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        return parts.scheme == "https" and (host == "openai.com" or host.endswith(".openai.com"))


def find_trusted_endpoint(place: str, environment: Mapping[str, str]) -> str:
    """An endpoint from a saved file, if the environment lists it, with the query listed there.

    Args:
        place: The endpoint as `MODEL@BASE_URL`.
        environment: The variables, of which `URL` lists endpoints, separated by spaces.

    Raises:
        ConfigError: The environment doesn't list it, so the user hasn't allowed it.
    """
    address = Address.parse(place)
    for url in environment.get(URL, "").split():
        place_at_url = f"{address.model}@{url}"
        if Address.parse(place_at_url).base_url == address.base_url:
            return place_at_url
    raise ConfigError(
        f"{address.name} would get every prompt, and the key in {KEY}, so it needs your "
        f"permission; to give it, set {URL}={address.base_url}"
    )


def _url_parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_good else None


@final
@dataclass(frozen=True, kw_only=True)
class EncoderRequest:
    """The arguments of `load_encoder`, the encoder's location, and its expected provenance.

    If `source` was made from a quantised file, `file_revision` and `quantisation` are that file's.
    `as_network` is set where the torch network itself is needed. `compile_blocks` allows compiling
    on a GPU, where the work is large enough. Without `with_weights` only prompts are tokenised.
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
    as_network: bool = False
    compile_blocks: bool = True
    with_weights: bool = True


def check_batch_tokens(request: EncoderRequest) -> None:
    """Check the limit on tokens per batch.

    Raises:
        ConfigError: It is below 1.
    """
    if request.batch_tokens is not None and request.batch_tokens < 1:
        raise ConfigError(f"a batch has {request.batch_tokens} tokens; it needs at least one")


def check_vector_options(request: EncoderRequest) -> None:
    """Refuse options that don't apply to encoders that output one vector per prompt.

    Raises:
        ConfigError: Layers or a chat template are requested.
    """
    if request.layers is not None and set(request.layers) != {OWN.layer}:
        raise ConfigError(
            f"{request.name} outputs one vector and has no layers to choose from; leave --layers "
            "out"
        )
    if request.template == "chat":
        raise ConfigError(
            f"{request.name} reads the text itself, without a chat template; leave --template out"
        )
