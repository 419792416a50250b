"""Embeddings of an OpenAI-compatible endpoint: the encoder, and the calls of `/embeddings`.

An endpoint says neither how it counts tokens nor which weights it runs. Tokens are estimated (one
for four bytes), and the revision is the name that the endpoint gives its model: where it gives
another one later, its embeddings are refused.

It is asked again where that may help. Nothing of what an endpoint says goes into an error, since it
may quote the prompt or the key.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, final

import httpx2
import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Provenance
from prefill_router.client import (
    RETRIABLE,
    ErrorBody,
    Retries,
    RetryPolicy,
    check_encrypted,
    direct,
    kind_of,
    read_error,
    request_headers,
    retry_after,
)
from prefill_router.data import Query, prompt_text
from prefill_router.encoders.base import States, TokenizedPrompt, check_prompt
from prefill_router.encoders.names import Address, EncoderName, EncoderRequest
from prefill_router.encoders.single_vector import (
    VectorEncoder,
    check_options,
    estimated_tokens,
    vector_prompt,
)
from prefill_router.errors import (
    ConfigError,
    FailureKind,
    PromptError,
    ProvenanceError,
    UpstreamError,
)
from prefill_router.short_repr import short_repr

KEY, OPENAI_KEY = "PREFILL_ROUTER_EMBEDDINGS_KEY", "OPENAI_API_KEY"
_NO_KEY = "none"  # servers without keys want some word
_A_KEY = re.compile(r"[!-~]+")
_A_MODEL = re.compile(r"[!-~]{1,200}")
_ATTEMPTS = 6
_LONGEST_WAIT = 60.0  # seconds; an endpoint that says more is asked again as if it had said nothing
_SECONDS, _CONNECT_SECONDS = 120.0, 10.0
_SAYS: dict[FailureKind, str] = {
    "connect": "can't be reached; check its URL, and that it runs",
    "connect_timeout": "took no connection in time; check its URL",
    "answer_timeout": "gave no answer in time; lower --batch-tokens",
    "rate_limited": "is asked too often; go on later",
    "overloaded": "has too much to do; go on later",
    "server_error": "failed by itself; go on later",
    "broken_off": "broke off before the end of its answer; go on later",
    "unauthorised": f"refuses the key, or the account has no credit; set {KEY}",
    "unknown_model": "doesn't know this model, or has no embeddings there; check name and URL",
    "context_too_long": "can't take so long a prompt; lower --max-tokens",
    "content_filter": "filtered a prompt; leave it out",
    "refused": "refuses the request; check that the model gives embeddings of text",
}
Rows = Float32[NDArray[np.float32], "text hidden"]


@final
class EmbeddingsApi:
    """Asks one model for embeddings.

    Args:
        address: Which, and where.
        environment: Where the key is; by default the process's environment.

    Attributes:
        tokens: Read so far, as the endpoint counts them, or estimated where it doesn't say.

    Raises:
        ConfigError: The key can't be one, or would go over plain http to another machine.
    """

    def __init__(self, address: Address, *, environment: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._key = _key(address, os.environ if environment is None else environment)
        self._certificates = _certificates()
        self.tokens = 0

    def embed(self, texts: Sequence[str]) -> tuple[Rows, str]:
        """The embeddings of texts, in order, and the name that the endpoint gives the model.

        Raises:
            UpstreamError: It gives none, or what is none.
        """
        content = self._ask(list(texts))
        rows, said = self._read(content, len(texts))
        self.tokens += _usage(said) or sum(map(estimated_tokens, texts))
        model = said.get("model")
        return rows, model if self._is_name(model) else "unnamed"

    def _is_name(self, model: object) -> TypeGuard[str]:
        """Whether this may be kept as a model's name; what quotes the key may not."""
        named = isinstance(model, str) and _A_MODEL.fullmatch(model) is not None
        return named and (self._key == _NO_KEY or self._key not in str(model))

    def _ask(self, texts: list[str]) -> bytes:
        asked = {"input": texts, "model": self._address.model, "encoding_format": "float"}
        retries = Retries(RetryPolicy(_ATTEMPTS, patience=1))
        with _http_client(self._address, self._key, self._certificates) as client:
            while True:
                try:
                    return self._call(client, asked)
                except UpstreamError as error:
                    time.sleep(retries.wait(error))

    def _call(self, client: httpx2.Client, asked: Mapping[str, Any]) -> bytes:
        url = f"{self._address.base_url}/embeddings"
        try:
            response = client.post(url, json=asked)
        except httpx2.TimeoutException as error:
            late = isinstance(error, httpx2.ConnectTimeout)
            raise self._failed("connect_timeout" if late else "answer_timeout") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            is_off = isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError)
            raise self._failed("broken_off" if is_off else "connect") from None
        except (httpx2.InvalidURL, ValueError):
            raise self._failed("refused") from None
        if not response.is_success:
            raise self._refused(response)
        return response.content

    def _read(self, content: bytes, count: int) -> tuple[Rows, dict[str, Any]]:
        try:
            said = json.loads(content)
            found = {item["index"]: item["embedding"] for item in said["data"]}
            size, given = len(said["data"]), set(found)
            if size != count or given != set(range(count)):
                raise self._malformed(f"{size} embeddings for {count} texts, or of wrong numbers")
            rows = np.array([found[number] for number in range(count)])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise self._malformed("what aren't embeddings of one width") from None
        if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu":
            raise self._malformed("what aren't embeddings of one width")
        with np.errstate(over="ignore"):
            exact: Rows = rows.astype(np.float32)
        if not np.isfinite(exact).all() or not exact.any(axis=1).all():
            raise self._malformed("embeddings that aren't finite, or of nothing but zeros")
        return exact, said

    def _malformed(self, what: str) -> UpstreamError:
        return self._error("malformed", f"gave {what}; check the model and the URL")

    def _refused(self, response: httpx2.Response) -> UpstreamError:
        try:
            body = read_error(json.loads(response.content))
        except (ValueError, RecursionError):
            body = ErrorBody()
        wait = retry_after({n.lower(): v for n, v in response.headers.items()}, now=time.time())
        error = self._failed(kind_of(body, response.status_code), status=response.status_code)
        error.retry_after = wait if wait is None or wait <= _LONGEST_WAIT else None
        return error

    def _failed(self, failure: FailureKind, *, status: int | None = None) -> UpstreamError:
        return self._error(failure, _SAYS.get(failure, _SAYS["refused"]), status)

    def _error(self, failure: FailureKind, words: str, status: int | None = None) -> UpstreamError:
        place = "" if status is None else f" (HTTP {status})"
        return UpstreamError(
            f"{self._address.name}: the endpoint {words}{place}",
            failure=failure,
            status=status,
            retriable=failure in RETRIABLE,
            billed="no" if failure in ("connect", "connect_timeout") or status else "perhaps",
        )


def _usage(said: Mapping[str, Any]) -> int | None:
    usage = said.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("total_tokens"))
    return next((n for n in counts if isinstance(n, int) and n > 0), None)


def _key(address: Address, environment: Mapping[str, str]) -> str:
    """The key for this endpoint; OpenAI's own goes to nobody else."""
    names = (KEY, OPENAI_KEY) if address.is_openai else (KEY,)
    key = next((environment[n].strip() for n in names if environment.get(n)), _NO_KEY)
    if not _A_KEY.fullmatch(key):
        raise ConfigError(
            f"the environment variable {KEY} can't be a key: it has spaces or letters that no "
            "header takes"
        )
    if key != _NO_KEY:
        check_encrypted(address.base_url, environment, whose="the key of embeddings")
    return key


def _certificates() -> ssl.SSLContext:
    """Whom to trust; read once, since it takes longer than a request."""
    try:
        return httpx2.create_ssl_context()
    except (OSError, ValueError):
        raise ConfigError(
            "the certificates that the environment names can't be read; check SSL_CERT_FILE and "
            "SSL_CERT_DIR"
        ) from None


def _http_client(address: Address, key: str, certificates: ssl.SSLContext) -> httpx2.Client:
    """A client that never follows redirects, since they'd take the key elsewhere."""
    try:
        return httpx2.Client(
            headers=request_headers(key, is_openai=address.is_openai),
            params=dict(address.query),
            timeout=httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            verify=certificates,
            mounts=direct(address.base_url),
        )
    except (ImportError, ValueError, httpx2.InvalidURL):  # not quoted: it may hold a key
        raise ConfigError(
            "no endpoint can be asked by way of the proxies that the environment names; check "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
        ) from None


MOST_TOKENS = 8192
_BATCH_TOKENS = 16_384
_MOST_INPUTS = 64
_PROBE = "embedding"
_OF_ONE_TEXT = ("context_too_long", "content_filter", "refused")
"""Failures that one text may be the reason for."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EndpointEncoder(VectorEncoder):
    """A model behind an endpoint. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its embeddings.
        api: Asks for them.
        most_tokens: At most so many tokens, as estimated, in one request.
    """

    made_by: Provenance
    api: EmbeddingsApi
    most_tokens: int

    @property
    def provenance(self) -> Provenance:
        """What makes the embeddings."""
        return self.made_by

    @property
    def batch_tokens(self) -> int:
        """At most so many tokens, as estimated, in one request."""
        return self.most_tokens

    @property
    def billed_tokens(self) -> int:
        """Tokens read so far, as the endpoint counts them, or estimated where it doesn't say."""
        return self.api.tokens

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The text of each query's prompt, in order, cut to the limit, and its estimated tokens.

        Raises:
            PromptError: A prompt can't be encoded, or is empty.
        """
        for query in queries:
            check_prompt(query)
        return [self._as_read(query, prompt_text(query.prompt)) for query in queries]

    def _as_read(self, query: Query, text: str) -> TokenizedPrompt:
        count, limit = estimated_tokens(text), self.made_by.max_tokens
        ids = [0] * min(count, limit)
        kept = text if count <= limit else _cut(text, limit)
        return vector_prompt(query, kept, ids, count, self.made_by.encoder)

    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The embedding of each prompt, in order.

        Raises:
            UpstreamError: The endpoint gives none.
            PromptError: It refuses one prompt.
            ProvenanceError: It serves another model by now.
        """
        parts = [prompts[i : i + _MOST_INPUTS] for i in range(0, len(prompts), _MOST_INPUTS)]
        return np.concatenate([rows for part in parts for rows in self._asked(part)])

    def _asked(self, prompts: Sequence[TokenizedPrompt]) -> Iterator[States]:
        """Ask; where something is refused, by halves, which finds the prompt that is the reason."""
        try:
            rows, model = self.api.embed([prompt.text for prompt in prompts])
        except UpstreamError as error:
            if error.failure not in _OF_ONE_TEXT:
                raise
            if len(prompts) == 1:
                raise PromptError(str(error), query_id=prompts[0].query_id) from None
            middle = len(prompts) // 2
            yield from self._asked(prompts[:middle])
            yield from self._asked(prompts[middle:])
            return
        self._check(rows, model)
        yield rows

    def _check(self, rows: States, model: str) -> None:
        served, width = _revision(model), rows.shape[1]
        if served != self.made_by.revision or width != self.made_by.hidden_size:
            raise ProvenanceError(
                f"{self.made_by.encoder} gives embeddings of {served}, {width} wide; needed are "
                f"those of {self.made_by.revision}, {self.made_by.hidden_size} wide: encode the "
                "queries again"
            )


def load_endpoint_encoder(request: EncoderRequest) -> EndpointEncoder:
    """Get ready to ask an endpoint; unless its provenance is known, it is asked for one embedding.

    Raises:
        ConfigError: The name, the key or an option doesn't fit.
        UpstreamError: The endpoint gives no embedding.
        ProvenanceError: It isn't the encoder that is expected.
    """
    check_options(request)
    address = Address.parse(EncoderName.parse(request.name).place)
    api = EmbeddingsApi(address)
    if request.batch_tokens is not None and request.batch_tokens < 1:
        raise ConfigError(f"a batch has {request.batch_tokens} tokens; it needs at least one")
    if request.expected is not None:
        made_by = replace(request.expected, encoder=address.name)
        request.expected.require(made_by, what=f"the encoder {address.name}")
    else:
        made_by = _provenance(request, address, api)
    return EndpointEncoder(made_by, api, request.batch_tokens or _BATCH_TOKENS)


def _provenance(request: EncoderRequest, address: Address, api: EmbeddingsApi) -> Provenance:
    if request.revision is not None or request.dtype is not None:
        raise ConfigError("an endpoint has no revision or dtype to choose; leave them out")
    asked = request.max_tokens
    if asked is not None and asked < 1:
        raise ConfigError(f"max_tokens is {asked}; it must be at least 1")
    rows, model = api.embed([_PROBE])
    return Provenance(
        encoder=address.name,
        revision=_revision(model),
        template="plain",
        template_hash="text",
        max_tokens=asked or MOST_TOKENS,
        dtype="unknown",
        num_layers=1,
        hidden_size=rows.shape[1],
    )


def _revision(model: str) -> str:
    return f"served:{model}"


def _cut(text: str, limit: int) -> str:
    """About so many tokens of a text: half from the beginning, half from the end."""
    content = text.encode()
    size = len(content) * limit // (2 * estimated_tokens(text))
    tail = content[len(content) - size :].decode(errors="ignore")
    return content[:size].decode(errors="ignore") + tail
