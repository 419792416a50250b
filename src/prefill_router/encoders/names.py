"""Names of encoders, and the options of the functions that load them.

    NAME                       hidden states of a network: its layers; `last`, `mean`, `rest`
    sentence:NAME              the embedding of a sentence-transformers model
    sentence:NAME#PROMPT       the same, with the model's own prompt of that name before each text
    endpoint:MODEL@BASE_URL    the embedding of an OpenAI-compatible endpoint
    decision:MODEL@BASE_URL#F  what a decision model says of the options in the file F
    signals:NAME               perplexity and related numbers of a causal language model

The last four have one site, `own.1`. An `Address` is the `MODEL@BASE_URL` of an endpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from prefill_router.activations import DEFAULT_POOLINGS, Provenance, Site
from prefill_router.encoders.base import candidate_layers
from prefill_router.errors import ConfigError

Scheme = Literal["sentence", "endpoint", "decision", "signals"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
KEY_OF: Mapping[Scheme, str] = {
    "endpoint": "PREFILL_ROUTER_EMBEDDINGS_KEY",
    "decision": "PREFILL_ROUTER_DECISIONS_KEY",
}
"""The environment variables that hold the keys of endpoints."""
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
        prompt: The name of the model's own prompt, empty for its default; of a decision model, the
            file of its options.
    """

    scheme: Scheme | None
    place: str
    prompt: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is behind an endpoint."""
        return self.scheme in ("endpoint", "decision")

    @classmethod
    def parse(cls, name: str) -> "EncoderName":
        """Parse a name; any text is valid."""
        found = _NAME.fullmatch(name)
        if found is None:
            return cls(None, name)
        scheme = next(scheme for scheme in SCHEMES if scheme == found[1])
        if scheme not in ("sentence", "decision"):
            return cls(scheme, found[2])
        place, _, prompt = found[2].partition("#")
        return cls(scheme, place, prompt)

    def __str__(self) -> str:
        prefix = "" if self.scheme is None else f"{self.scheme}:"
        return f"{prefix}{self.place}{f'#{self.prompt}' if self.prompt else ''}"


def gives_own_vectors(name: str) -> bool:
    """Whether an encoder of this name outputs one vector, without layers to choose from."""
    return EncoderName.parse(name).scheme is not None


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
        scheme: The prefix of the encoder's name.
    """

    model: str
    base_url: str
    query: tuple[tuple[str, str], ...] = ()
    scheme: Scheme = "endpoint"

    @classmethod
    def parse(cls, place: str, scheme: Scheme = "endpoint") -> "Address":
        """Parse `MODEL@BASE_URL`.

        Raises:
            ConfigError: The text has another form, or contains a password. It isn't quoted.
        """
        found = _PLACE.fullmatch(place)
        parts = None if found is None else _parts(found[2])
        if found is None or parts is None:
            raise ConfigError(
                "an endpoint's encoder is named like "
                "endpoint:text-embedding-3-small@https://api.openai.com/v1: the model, an @, and "
                "the base URL with http:// or https://"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "the URL of an endpoint has a password in it; take it out, and set the environment "
                f"variable {KEY_OF[scheme]} to the key"
            )
        host = (parts.hostname or "").lower()
        host = f"[{host}]" if ":" in host else host
        port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        url = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
        return cls(found[1], url, tuple(parse_qsl(parts.query)), scheme)

    @property
    def name(self) -> str:
        """The name in the provenance of its states."""
        return f"{self.scheme}:{self.model}@{self.base_url}"

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own endpoint, over https."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        return parts.scheme == "https" and (host == "openai.com" or host.endswith(".openai.com"))


def trusted(place: str, environment: Mapping[str, str]) -> str:
    """An endpoint from a saved file, if the environment lists it, with the query listed there.

    Args:
        place: The endpoint as `MODEL@BASE_URL`.
        environment: The variables, of which `URL` lists endpoints, separated by spaces.

    Raises:
        ConfigError: The environment doesn't list it, so the user hasn't allowed it.
    """
    address = Address.parse(place)
    for url in environment.get(URL, "").split():
        named = f"{address.model}@{url}"
        if Address.parse(named).base_url == address.base_url:
            return named
    raise ConfigError(
        f"{address.name} is used only if you name its address yourself, since it gets every "
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
    """The arguments of `load_encoder`, the encoder's location, and its expected provenance.

    If `source` was made from a quantised file, `file_revision` and `quantisation` are that file's.
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
