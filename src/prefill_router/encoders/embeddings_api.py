"""Calls of an OpenAI-compatible `/embeddings`, by the openai SDK, which also asks again.

Nothing of what an endpoint says goes into an error, since it may quote the prompt or the key.
"""

import json
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, final

import httpx2
import numpy as np
import openai
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.encoders.address import Address
from prefill_router.encoders.own import estimated_tokens
from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.upstream.connecting import direct
from prefill_router.upstream.failures import RETRIABLE, ErrorBody, kind_of, read_error
from prefill_router.upstream.plain_http import check_encrypted

KEY, OPENAI_KEY = "PREFILL_ROUTER_EMBEDDINGS_KEY", "OPENAI_API_KEY"
_NO_KEY = "none"  # servers without keys want some word
_A_KEY = re.compile(r"[!-~]+")
_A_MODEL = re.compile(r"[!-~]{1,200}")
_ATTEMPTS = 5
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
        try:
            content = self._ask(list(texts))
        except openai.APIStatusError as error:
            raise self._failed(_kind(error), status=error.status_code) from None
        except openai.APITimeoutError as error:
            late = isinstance(error.__cause__, httpx2.ConnectTimeout)
            raise self._failed("connect_timeout" if late else "answer_timeout") from None
        except openai.APIConnectionError as error:
            is_off = isinstance(error.__cause__, httpx2.ReadError | httpx2.RemoteProtocolError)
            raise self._failed("broken_off" if is_off else "connect") from None
        except openai.OpenAIError:
            raise self._failed("refused") from None
        rows, said = self._read(content, len(texts))
        self.tokens += _usage(said) or sum(map(estimated_tokens, texts))
        model = said.get("model")
        return rows, model if self._is_name(model) else "unnamed"

    def _is_name(self, model: object) -> TypeGuard[str]:
        """Whether this may be kept as a model's name; what quotes the key may not."""
        named = isinstance(model, str) and _A_MODEL.fullmatch(model) is not None
        return named and (self._key == _NO_KEY or self._key not in str(model))

    def _ask(self, texts: list[str]) -> bytes:
        with openai.OpenAI(
            api_key=self._key,
            base_url=self._address.base_url,
            max_retries=_ATTEMPTS,
            timeout=httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            default_query=dict(self._address.query),
            http_client=_http_client(self._address.base_url, self._certificates),
        ) as client:
            if not self._address.is_openai:  # else sent to whoever the endpoint is
                client.organization = client.project = None
            raw = client.embeddings.with_raw_response.create(
                model=self._address.model, input=texts, encoding_format="float"
            )
            return raw.http_response.content

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
        return self._error("malformed", f"gave {what}; check the model and the URL", None)

    def _failed(self, failure: FailureKind, *, status: int | None = None) -> UpstreamError:
        return self._error(failure, _SAYS.get(failure, _SAYS["refused"]), status)

    def _error(self, failure: FailureKind, words: str, status: int | None) -> UpstreamError:
        place = "" if status is None else f" (HTTP {status})"
        return UpstreamError(
            f"{self._address.name}: the endpoint {words}{place}",
            failure=failure,
            status=status,
            retriable=failure in RETRIABLE,
            billed="no" if failure in ("connect", "connect_timeout") or status else "perhaps",
        )


def _kind(error: openai.APIStatusError) -> FailureKind:
    try:
        body = read_error(json.loads(error.response.content))
    except (ValueError, RecursionError, httpx2.StreamError):
        body = ErrorBody()
    return kind_of(body, error.status_code)


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


def _http_client(base_url: str, certificates: ssl.SSLContext) -> httpx2.Client:
    """A client that never follows redirects, since they'd take the key elsewhere."""
    try:
        return httpx2.Client(follow_redirects=False, verify=certificates, mounts=direct(base_url))
    except (ImportError, ValueError, httpx2.InvalidURL):  # not quoted: it may hold a key
        raise ConfigError(
            "no endpoint can be asked by way of the proxies that the environment names; check "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
        ) from None
