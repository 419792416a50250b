"""The interface of encoders: their names, tokenisation, batches, and hidden states at prefill.

An `Encoder` turns prompts into hidden states; a `VectorEncoder` outputs one vector per prompt.
Tokenisation covers templates, truncation, and which prompts are refused. Prompts of similar length
are batched together. An encoder's name has one of these forms:

    NAME                       hidden states of a network: its layers; `last`, `mean`, `rest`
    sentence:NAME              the embedding of a sentence-transformers model
    sentence:NAME#PROMPT       the same, with the model's own prompt of that name before each text
    endpoint:MODEL@BASE_URL    the embedding of an OpenAI-compatible endpoint
    signals:NAME               perplexity and related numbers of a causal language model

All but the first have one site, `own.1`. An `Address` is the `MODEL@BASE_URL` of an endpoint.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import numpy as np
from jaxtyping import Float32, Int32
from numpy.typing import NDArray

from prefill_router.activations import (
    DEFAULT_POOLINGS,
    POOLINGS,
    MemoryActivations,
    Provenance,
    Rounding,
    Site,
    round_states,
)
from prefill_router.data import Message, Query, prompt_key, prompt_text
from prefill_router.errors import ConfigError, PromptError, StoreError, name_option
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

States = Float32[NDArray[np.float32], "query hidden"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """A prompt as the encoder reads it.

    Attributes:
        key: Content key of the prompt (`data.prompt_key`).
        query_id: A query that has this prompt; named in errors.
        ids: Token ids, after truncation.
        count: The number of tokens before truncation, with the template.
        text: The text for an encoder that tokenises by itself; empty for others.
    """

    key: str
    query_id: str
    ids: Int32[NDArray[np.int32], " token"]
    count: int
    text: str = ""

    @property
    def truncated(self) -> bool:
        """Whether the prompt was truncated."""
        return self.count > len(self.ids)


class Encoder(ABC):
    """Turns prompts into states; it doesn't depend on targets."""

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """How the states are made."""

    @property
    @abstractmethod
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read: up to the last block that is loaded."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that can be read."""
        return tuple(Site(layer, pooling) for layer in self.layers for pooling in POOLINGS)

    @property
    def billed_tokens(self) -> int | None:
        """Tokens that an endpoint has reported so far; None for encoders without an endpoint."""
        return None

    @property
    def workers(self) -> int:
        """The most batches that are computed at once."""
        return 1

    @abstractmethod
    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded: it has no token, isn't Unicode, or is too long.
        """

    @abstractmethod
    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> Mapping[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """

    def with_prefix_cache(self, *, most_bytes: int) -> "Encoder":
        """The encoder with a cache of shared prefixes, or itself if it doesn't support one.

        Args:
            most_bytes: The limit of the cache in bytes.
        """
        del most_bytes
        return self

    def expect_tokens(self, tokens: int, *, progress: Progress | None = None) -> None:
        """Prepare for reading so many tokens, where that makes it faster.

        Args:
            tokens: The number of tokens that will be read.
            progress: Shows what is prepared.
        """
        del tokens, progress

    def with_workers(self, count: int) -> "Encoder":
        """The encoder with so many batches at once, each by one thread, on a processor's cores.

        Encoders that compute on a GPU, or elsewhere, are themselves.

        Args:
            count: The most batches at once; the threads share the weights.
        """
        del count
        return self

    def encode(
        self,
        queries: Sequence[Query],
        sites: Sequence[Site],
        *,
        rounding: Rounding = "bfloat16",
        progress: Progress | None = None,
    ) -> MemoryActivations:
        """The states of queries, rounded as in a store; equal prompts are encoded once.

        Args:
            queries: The queries, in any order.
            sites: The sites to read.
            rounding: The type to round to: that of the store that the router was trained on.
            progress: Shows the number of tokens done.
        """
        prompts = distinct_prompts(self.tokenize(queries))
        states = self.states(prompts, sites, progress=progress or SilentProgress())
        return MemoryActivations(
            self.provenance,
            tuple(prompt.key for prompt in prompts),
            {site: round_states(value, rounding) for site, value in states.items()},
            np.array([prompt.count for prompt in prompts], dtype=np.int64),
            rounding,
        )

    def check_sites(self, sites: Sequence[Site]) -> None:
        """Check that these sites can be read.

        Raises:
            ConfigError: A site can't be read, or there is none.
        """
        lacking = [site.name for site in sites if site not in self.sites]
        if lacking or not sites:
            poolings = sorted({site.pooling for site in self.sites})
            raise ConfigError(
                f"{self.provenance.encoder} can't be read at {lacking or 'no site'}; its layers "
                f"are {self.layers[0]} to {self.layers[-1]}, with the poolings {poolings}"
            )


def distinct_prompts(prompts: Sequence[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """Each prompt once, in the order of first appearance."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


def candidate_layers(num_layers: int) -> tuple[int, ...]:
    """The default candidates of layer selection: ceil(L/2) to L."""
    return tuple(range(math.ceil(num_layers / 2), num_layers + 1))


def require_finite(
    states: Mapping[Site, States], prompts: Sequence[TokenizedPrompt], dtype: str
) -> None:
    """Check that computed states are finite.

    Raises:
        StoreError: One isn't; the message names the query and the site.
    """
    for site in sorted(states):
        bad = np.flatnonzero(~np.isfinite(states[site]).all(axis=1))
        if len(bad):
            option = name_option(" (--dtype float32)", "")
            fix = "" if dtype == "float32" else f"; encode in float32{option}"
            raise StoreError(
                f"the states of {len(bad)} queries at {site.name} aren't finite in {dtype}, the "
                f"first is query {prompts[bad[0]].query_id!r}{fix}"
            )


Template = Literal["chat", "plain"]
Render = Callable[[Query, list[dict[str, str]]], str]
"""Renders messages with a chat template, including the generation prompt."""
MOST_CHARACTERS = 10_000_000
"""Longer prompts are refused: no encoder's context is that long, and tokenising takes minutes."""


def as_messages(query: Query) -> list[dict[str, str]]:
    """The prompt as chat messages; plain text becomes one user message."""
    turns = (Message("user", query.prompt),) if isinstance(query.prompt, str) else query.prompt
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def check_prompt(query: Query) -> None:
    """Check that a prompt is text that can be encoded.

    Raises:
        PromptError: It isn't Unicode, or is longer than `MOST_CHARACTERS`.
    """
    turns = (query.prompt,) if isinstance(query.prompt, str) else _parts(query.prompt)
    length = sum(map(len, turns))
    if length > MOST_CHARACTERS:
        raise PromptError(
            f"the prompt has {length:,} characters; at most {MOST_CHARACTERS:,} are supported: "
            "shorten it",
            query_id=query.id,
        )
    try:
        for turn in turns:
            turn.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt has a lone surrogate at character {error.start}, which isn't valid "
            "Unicode; replace it, for example with U+FFFD",
            query_id=query.id,
        ) from None


def pair_tokens(
    queries: Sequence[Query],
    ids: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    encoder: str,
) -> list[TokenizedPrompt]:
    """Pair queries with their tokens, truncated to the limit.

    Raises:
        PromptError: A prompt has no token.
    """
    return [
        _pair_prompt(query, row, max_tokens, encoder)
        for query, row in zip(queries, ids, strict=True)
    ]


def _pair_prompt(
    query: Query, ids: Sequence[int], max_tokens: int, encoder: str
) -> TokenizedPrompt:
    if not len(ids):
        raise PromptError(
            f"the prompt has no token for {encoder}; remove the query, or use a chat template",
            query_id=query.id,
        )
    cut = cut_middle(ids, max_tokens)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, np.array(cut, np.int32), len(ids))


def cut_middle(ids: Sequence[int], limit: int) -> Sequence[int]:
    """At most `limit` tokens: half from the beginning and half from the end."""
    if len(ids) <= limit:
        return ids
    tail = limit // 2
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]


def input_text(query: Query, template: Template, render: Render) -> str:
    """The input of the tokenizer: the rendered chat, or the plain text with its turns joined."""
    if template == "plain":
        return prompt_text(query.prompt)
    return render(query, as_messages(query))


def _parts(messages: tuple[Message, ...]) -> tuple[str, ...]:
    return tuple(part for m in messages for part in (m.role, m.content))


def tokenize_prompts(
    queries: Sequence[Query], tokenizer: Any, made_by: Provenance
) -> list[TokenizedPrompt]:
    """The tokens of each query's prompt, in order, as the provenance says.

    Raises:
        PromptError: A prompt can't be encoded, or the template refuses its roles.
    """
    for query in queries:
        check_prompt(query)
    if not queries:
        return []

    def render(query: Query, messages: list[dict[str, str]]) -> str:
        return _rendered(query, messages, tokenizer, made_by.encoder)

    texts = [input_text(query, made_by.template, render) for query in queries]
    ids = tokenizer(texts, add_special_tokens=made_by.template == "plain")["input_ids"]
    return pair_tokens(queries, ids, max_tokens=made_by.max_tokens, encoder=made_by.encoder)


def _rendered(query: Query, messages: list[dict[str, str]], tokenizer: Any, encoder: str) -> str:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError):
        roles = [message["role"] for message in messages]
        option = name_option("--template plain")
        raise PromptError(
            f"the chat template of {encoder} refuses a chat with the roles {roles}; change the "
            f"chat, or encode with {option}",
            query_id=query.id,
        ) from None
    return str(text)


MOST_PADDING = 0.1
"""The share of a batch that may be padding."""
SMALL_BATCH = 128
"""Tokens of a batch in which padding costs nothing: a processor reads its weights as long."""


def batches(
    lengths: Sequence[int], budget: int, *, small: int = SMALL_BATCH
) -> Iterator[list[int]]:
    """Group positions into batches of similar length, longest first, each within the budget.

    A prompt that is longer than the budget becomes its own batch. Prompts are padded to the longest
    of their batch, and at most a tenth of that is padding, except in a small batch.

    Args:
        lengths: The number of tokens of each prompt.
        budget: The most tokens in a batch, padding included.
        small: The tokens up to which a batch may have any padding.

    Raises:
        ConfigError: The budget isn't positive.
    """

    def fits(batch: list[int], tokens: int) -> bool:
        size = (len(batch) + 1) * lengths[batch[0]]
        return size <= budget and (size <= small or size - tokens <= MOST_PADDING * size)

    return _group(lengths, budget, fits)


def packed_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group positions into batches without padding, longest first, each within the budget.

    A prompt that is longer than the budget becomes its own batch.

    Raises:
        ConfigError: The budget isn't positive.
    """
    return _group(lengths, budget, lambda _, tokens: tokens <= budget)


def _group(
    lengths: Sequence[int], budget: int, fits: Callable[[list[int], int], bool]
) -> Iterator[list[int]]:
    """Fill one batch after another, longest first.

    Args:
        lengths: The number of tokens of each prompt.
        budget: The budget of tokens per batch.
        fits: Whether a batch can have one more prompt, by the number of tokens with it.
    """
    if budget < 1:
        raise ConfigError(f"the budget of tokens per batch is {budget}; it must be positive")
    batch: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens += lengths[number]
        if batch and not fits(batch, tokens):
            yield batch
            batch, tokens = [], lengths[number]
        batch.append(number)
    if batch:
        yield batch


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
        f"{address.name} is used only if you name its address yourself, since it gets every "
        f"prompt and the key in {KEY}; if you trust it, set {URL}={address.base_url}"
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


_BYTES_PER_TOKEN = 4


Batch = tuple[list[int], Float32[NDArray[np.float32], "site query hidden"]]
"""The numbers of some prompts, and their states at each site."""


class BatchEncoder(Encoder):
    """An encoder that reads prompts in batches.

    Attributes:
        made_by: The provenance of its states.
    """

    made_by: Provenance

    @property
    def provenance(self) -> Provenance:
        """How the states are made."""
        return self.made_by

    @abstractmethod
    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of every prompt, in batches of any order; the sites are distinct."""

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site can't be read.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        distinct_sites = tuple(dict.fromkeys(sites))
        shape = (len(distinct_sites), len(prompts), self.made_by.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        with (progress or SilentProgress()).task("tokens", total=float(sum(lengths))) as advance:
            for numbers, batch in self.read_batches(prompts, distinct_sites):
                rows[:, numbers] = batch
                advance(float(sum(lengths[i] for i in numbers)))
        states = dict(zip(distinct_sites, rows, strict=True))
        require_finite(states, prompts, self.made_by.dtype)
        return states


class NetworkEncoder(BatchEncoder):
    """An encoder of the layers of a network.

    Attributes:
        tokenizer: The network's tokenizer.
    """

    tokenizer: Any

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded, or the template refuses its roles.
        """
        return tokenize_prompts(queries, self.tokenizer, self.made_by)


@final
@dataclass(frozen=True, eq=False)
class TokenizingEncoder(NetworkEncoder):
    """An encoder whose weights aren't loaded: it tokenises, for those that are elsewhere.

    Attributes:
        made_by: The provenance of the states that it would have.
        tokenizer: The network's tokenizer.
        last_layer: The last layer that is read elsewhere.
    """

    made_by: Provenance
    tokenizer: Any
    last_layer: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are read elsewhere."""
        return tuple(range(self.last_layer + 1))

    def read_batches(
        self,
        prompts: Sequence[TokenizedPrompt],  # noqa: ARG002
        sites: Sequence[Site],  # noqa: ARG002
    ) -> Iterator[Batch]:
        """No states.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"the weights of {self.made_by.encoder} aren't loaded here; load it with them"
        )


class VectorEncoder(BatchEncoder):
    """An encoder with the single site `own.1`; it batches prompts of similar length.

    Attributes:
        batch_tokens: The most tokens, padding included, in one batch.
    """

    batch_tokens: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The single layer, 1 by convention."""
        return (OWN.layer,)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The single site, `own.1`."""
        return (OWN,)

    @abstractmethod
    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The vector of each prompt of a batch, in order."""

    def read_batches(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],  # noqa: ARG002
    ) -> Iterator[Batch]:
        """The vectors of prompts of similar length."""
        for numbers in batches([len(prompt.ids) for prompt in prompts], self.batch_tokens):
            yield numbers, self.vectors([prompts[i] for i in numbers])[None]


def vector_prompt(
    query: Query, text: str, ids: Sequence[int], count: int, encoder: str
) -> TokenizedPrompt:
    """A prompt for an encoder that reads text.

    Args:
        query: The query.
        text: The text for the encoder.
        ids: The text's tokens, after truncation.
        count: The number of tokens before truncation.
        encoder: The encoder's name, for error messages.

    Raises:
        PromptError: The prompt has no token.
    """
    if not count:
        raise PromptError(
            f"the prompt has no token for {encoder}; remove the query", query_id=query.id
        )
    tokens = np.array(ids, dtype=np.int32)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, tokens, count, text)


def estimate_text_tokens(text: str) -> int:
    """The estimated number of tokens of a text: one per four bytes of UTF-8, rounded up."""
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


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
