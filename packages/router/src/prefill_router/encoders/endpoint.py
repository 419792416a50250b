"""Embeddings of an OpenAI-compatible endpoint: the encoder, and its calls to `/embeddings`.

An endpoint reveals neither its tokenizer nor which weights it runs. Tokens are estimated (one per
four bytes), and the revision is the model name in the endpoint's responses: if that name changes
later, its embeddings are refused.

Calls are retried where that may help. Errors never quote the endpoint's response, since it may
contain the prompt or the key.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import httpx2
import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Provenance
from prefill_router.data import Query, prompt_text
from prefill_router.encoders.base import States, VectorEncoder
from prefill_router.encoders.encoder_names import (
    KEY,
    Address,
    EncoderName,
    EncoderRequest,
    check_batch_tokens,
    check_vector_options,
)
from prefill_router.encoders.tokenisation import (
    TokenizedPrompt,
    check_prompt,
    estimate_text_tokens,
    vector_prompt,
)
from prefill_router.endpoints import (
    FOR_ONE_PROMPT,
    NO_KEY,
    Callee,
    ErrorBody,
    Retries,
    RetryPolicy,
    check_encrypted,
    connect_cause,
    direct_mounts,
    kind_of,
    read_error,
    refusal_cause,
    request_headers,
    retry_after,
    trusted_certificates,
    wants_proxy,
)
from prefill_router.errors import (
    ConfigError,
    PromptError,
    ProvenanceError,
    UpstreamError,
    name_option,
)
from prefill_router.short_repr import short_repr

_OPENAI_KEY = "OPENAI_API_KEY"
_A_KEY = re.compile(r"[!-~]+")
_A_MODEL = re.compile(r"[!-~]{1,200}")
_ATTEMPTS = 6
_LONGEST_WAIT = 60.0  # seconds; a longer retry-after of an endpoint is ignored
_SECONDS, _CONNECT_SECONDS = 120.0, 10.0
_UNKNOWN_MODEL = ("has no such model, or no embeddings at this URL", "check name and URL")
_ADVICE = {
    "connect_timeout": "check its URL",
    "rate_limited": "try again later",
    "broken_off": "try again later",
    "unauthorised": f"set {KEY}",
    "content_filter": "remove the prompt",
    "unsupported": "check that the model returns embeddings of text",
    "refused": "check that the model returns embeddings of text",
}
_LOWERED = {
    "answer_timeout": "--batch-tokens",
    "context_too_long": "--max-tokens",
}
"""The option that may help against a failure if it is lowered."""


@final
class EndpointCalls:
    """Calls for the embeddings of one model.

    Args:
        address: The model and its endpoint.
        environment: The variables that hold the key; by default the process's environment.

    Raises:
        ConfigError: The key is malformed, or would go over plain http to another machine.
    """

    def __init__(self, address: Address, *, environment: Mapping[str, str] | None = None) -> None:
        self.address = address
        self._key = _key(address, os.environ if environment is None else environment)
        self._certificates = trusted_certificates()

    @property
    def _callee(self) -> Callee:
        lower = {kind: f"lower {name_option(option)}" for kind, option in _LOWERED.items()}
        return Callee(
            subject=f"{self.address.name}: the endpoint",
            words={"unknown_model": _UNKNOWN_MODEL},
            advice={**_ADVICE, **lower},
        )

    def model(self, response: Mapping[str, Any]) -> str:
        """The model's name in a response, which must not contain the key."""
        name = response.get("model")
        if not isinstance(name, str) or not _A_MODEL.fullmatch(name):
            return "unnamed"
        return "unnamed" if self._key != NO_KEY and self._key in name else name

    @contextmanager
    def connect(self) -> Iterator[httpx2.Client]:
        """A client that never follows redirects, since they could send the key elsewhere."""
        address = self.address
        try:
            client = httpx2.Client(
                headers=request_headers(self._key, is_openai=address.is_openai),
                params=dict(address.query),
                timeout=httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
                verify=self._certificates,
                mounts=direct_mounts(address.base_url),
            )
        except (ImportError, ValueError, httpx2.InvalidURL):  # not quoted: it may hold a key
            raise ConfigError(
                "the proxies that the environment names can't be used; check "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            ) from None
        with client:
            yield client

    def ask(self, client: httpx2.Client, body: Mapping[str, Any]) -> bytes:
        """The response to a request, which is repeated where that may help.

        Raises:
            UpstreamError: The call fails.
        """
        retries = Retries(RetryPolicy(_ATTEMPTS, patience=1))
        while True:
            try:
                return self._post(client, body)
            except UpstreamError as error:
                time.sleep(retries.wait(error))

    def _post(self, client: httpx2.Client, body: Mapping[str, Any]) -> bytes:
        try:
            response = client.post(f"{self.address.base_url}/embeddings", json=body)
        except httpx2.TimeoutException as error:
            late = isinstance(error, httpx2.ConnectTimeout)
            raise self._callee.error("connect_timeout" if late else "answer_timeout") from None
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            raise self._callee.error("broken_off") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            proxied = wants_proxy(self.address.base_url)
            cause = connect_cause(error, through_proxy=proxied)
            raise self._callee.error("connect", cause=cause) from None
        except (httpx2.InvalidURL, ValueError):
            raise self._callee.error("refused") from None
        if not response.is_success:
            raise self._refusal(response)
        return response.content

    def malformed_error(self, what: str) -> UpstreamError:
        """The error of a response that isn't what was asked for."""
        words = {"malformed": (f"returned {what}", "check the model and the URL")}
        return replace(self._callee, words=words).error("malformed")

    def _refusal(self, response: httpx2.Response) -> UpstreamError:
        try:
            body = read_error(json.loads(response.content))
        except (ValueError, RecursionError):
            body = ErrorBody()
        headers = {name.lower(): value for name, value in response.headers.items()}
        wait = retry_after(headers, now=time.time())
        return self._callee.error(
            kind_of(body, response.status_code),
            cause=refusal_cause(response.status_code, headers.get("content-type", "")),
            status=response.status_code,
            location=headers.get("location"),
            secrets=(self._key,),
            retry_after=wait if wait is None or wait <= _LONGEST_WAIT else None,
            billed="no",
        )


def _key(address: Address, environment: Mapping[str, str]) -> str:
    """The key for this endpoint; OpenAI's own key is sent to OpenAI only."""
    names = (KEY, _OPENAI_KEY) if address.is_openai else (KEY,)
    key = next((environment[n].strip() for n in names if environment.get(n)), NO_KEY)
    if not _A_KEY.fullmatch(key):
        raise ConfigError(
            f"the environment variable {KEY} can't be a key: it has characters that aren't allowed "
            "in a header; set it to the key alone"
        )
    if key != NO_KEY:
        check_encrypted(address.base_url, environment, whose="the key of embeddings")
    return key


Rows = Float32[NDArray[np.float32], "text hidden"]


@final
class EmbeddingsApi:
    """A client for the embeddings of one model.

    Args:
        address: The model and its endpoint.
        environment: The variables that hold the key; by default the process's environment.

    Attributes:
        name: The encoder's name.
        tokens: Tokens read so far, as the endpoint reports them, or else estimated.

    Raises:
        ConfigError: The key is malformed, or would go over plain http to another machine.
    """

    def __init__(self, address: Address, *, environment: Mapping[str, str] | None = None) -> None:
        self._calls = EndpointCalls(address, environment=environment)
        self.name, self.tokens = address.name, 0

    def embed(self, texts: Sequence[str]) -> tuple[Rows, str]:
        """The embeddings of texts, in order, and the model name in the response.

        Raises:
            UpstreamError: The call fails, or its response isn't valid embeddings.
        """
        model = self._calls.address.model
        body = {"input": list(texts), "model": model, "encoding_format": "float"}
        with self._calls.connect() as client:
            content = self._calls.ask(client, body)
        rows, response = self._read(content, len(texts))
        self.tokens += _usage(response) or sum(map(estimate_text_tokens, texts))
        return rows, self._calls.model(response)

    def _read(self, content: bytes, count: int) -> tuple[Rows, dict[str, Any]]:
        try:
            response = json.loads(content)
            embeddings = {item["index"]: item["embedding"] for item in response["data"]}
            size, indices = len(response["data"]), set(embeddings)
            if size != count or indices != set(range(count)):
                raise self._calls.malformed_error(
                    f"{size} embeddings for {count} texts, or wrong indices"
                )
            rows = np.array([embeddings[number] for number in range(count)])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise self._calls.malformed_error(
                "something other than embeddings of one width"
            ) from None
        if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu":
            raise self._calls.malformed_error("something other than embeddings of one width")
        with np.errstate(over="ignore"):
            exact: Rows = rows.astype(np.float32)
        if not np.isfinite(exact).all() or not exact.any(axis=1).all():
            raise self._calls.malformed_error("embeddings that aren't finite, or are all zeros")
        return exact, response


def _usage(response: Mapping[str, Any]) -> int | None:
    usage = response.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("total_tokens"))
    return next((n for n in counts if isinstance(n, int) and n > 0), None)


MOST_TOKENS = 8192
_BATCH_TOKENS = 16_384
_MOST_INPUTS = 64
_PROBE = "embedding"


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EndpointEncoder(VectorEncoder):
    """An embedding model behind an endpoint. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its embeddings.
        api: The client of the endpoint.
        batch_tokens: The most estimated tokens in one request.
    """

    made_by: Provenance
    api: EmbeddingsApi
    batch_tokens: int

    @property
    def billed_tokens(self) -> int:
        """Tokens read so far, as the endpoint reports them, or else estimated."""
        return self.api.tokens

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The text of each query's prompt, in order, truncated, and its estimated tokens.

        Raises:
            PromptError: A prompt can't be encoded, or is empty.
        """
        for query in queries:
            check_prompt(query)
        return [self._truncate_prompt(query, prompt_text(query.prompt)) for query in queries]

    def _truncate_prompt(self, query: Query, text: str) -> TokenizedPrompt:
        count, limit = estimate_text_tokens(text), self.made_by.max_tokens
        ids = [0] * min(count, limit)
        cut_text = text if count <= limit else _cut(text, limit)
        return vector_prompt(query, cut_text, ids, count, self.made_by.encoder)

    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The embedding of each prompt, in order.

        Raises:
            UpstreamError: The endpoint returns none.
            PromptError: The endpoint refuses one prompt.
            ProvenanceError: The endpoint serves another model now.
        """
        parts = [prompts[i : i + _MOST_INPUTS] for i in range(0, len(prompts), _MOST_INPUTS)]
        return np.concatenate([rows for part in parts for rows in self._embed_batch(part)])

    def _embed_batch(self, prompts: Sequence[TokenizedPrompt]) -> Iterator[States]:
        """Call the endpoint; a refused batch is split in half until the refused prompt is found."""
        try:
            rows, model = self.api.embed([prompt.text for prompt in prompts])
        except UpstreamError as error:
            if error.failure not in FOR_ONE_PROMPT:
                raise
            if len(prompts) == 1:
                raise PromptError(str(error), query_id=prompts[0].query_id) from None
            middle = len(prompts) // 2
            yield from self._embed_batch(prompts[:middle])
            yield from self._embed_batch(prompts[middle:])
            return
        self._check(rows, model)
        yield rows

    def _check(self, rows: States, model: str) -> None:
        revision, width = _revision(model), rows.shape[1]
        if revision != self.made_by.revision or width != self.made_by.hidden_size:
            raise ProvenanceError(
                f"{self.made_by.encoder} returns embeddings of {revision}, {width} wide, not those "
                f"of {self.made_by.revision}, {self.made_by.hidden_size} wide; encode the queries "
                "again"
            )


def load_endpoint_encoder(request: EncoderRequest) -> EndpointEncoder:
    """Load an endpoint's encoder; unless its provenance is known, it requests one embedding.

    Raises:
        ConfigError: The name, the key or an option is invalid.
        UpstreamError: The endpoint returns no embedding.
        ProvenanceError: It isn't the expected encoder.
    """
    check_vector_options(request)
    api = EmbeddingsApi(Address.parse(EncoderName.parse(request.name).place))
    check_batch_tokens(request)
    if request.expected is not None:
        made_by = replace(request.expected, encoder=api.name)
        request.expected.require(made_by, what=f"the encoder {api.name}")
    else:
        made_by = _provenance(request, api)
    return EndpointEncoder(made_by, api, request.batch_tokens or _BATCH_TOKENS)


def _provenance(request: EncoderRequest, api: EmbeddingsApi) -> Provenance:
    if request.revision is not None or request.dtype is not None:
        raise ConfigError("an endpoint has no choice of revision or dtype; leave them out")
    max_tokens = request.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 1")
    rows, model = api.embed([_PROBE])
    return Provenance(
        encoder=api.name,
        revision=_revision(model),
        template="plain",
        template_hash="text",
        max_tokens=max_tokens or MOST_TOKENS,
        dtype="unknown",
        num_layers=1,
        hidden_size=rows.shape[1],
    )


def _revision(model: str) -> str:
    return f"served:{model}"


def _cut(text: str, limit: int) -> str:
    """About `limit` tokens of a text: half from the beginning and half from the end."""
    content = text.encode()
    size = len(content) * limit // (2 * estimate_text_tokens(text))
    tail = content[len(content) - size :].decode(errors="ignore")
    return content[:size].decode(errors="ignore") + tail
