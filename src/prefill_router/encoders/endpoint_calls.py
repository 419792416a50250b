"""Calls of an endpoint that serves an encoder.

Calls are retried where that may help. Errors never quote the endpoint's response, since it may
contain the prompt or the key.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import httpx2

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
from prefill_router.encoders.names import KEY_OF, Address
from prefill_router.errors import ConfigError, FailureKind, UpstreamError

_OPENAI_KEY = "OPENAI_API_KEY"
_NO_KEY = "none"  # servers without keys still require a value
_A_KEY = re.compile(r"[!-~]+")
_A_MODEL = re.compile(r"[!-~]{1,200}")
_ATTEMPTS = 6
_LONGEST_WAIT = 60.0  # seconds; a longer retry-after of an endpoint is ignored
_SECONDS, _CONNECT_SECONDS = 120.0, 10.0
_SAYS: dict[FailureKind, str] = {
    "connect": "can't be reached; check its URL, and that it runs",
    "connect_timeout": "didn't accept the connection in time; check its URL",
    "answer_timeout": "didn't respond in time; lower --batch-tokens",
    "rate_limited": "has reached its rate limit; try again later",
    "overloaded": "is overloaded; try again later",
    "server_error": "had an internal error; try again later",
    "broken_off": "closed the connection before the end of its response; try again later",
    "unauthorised": "refuses the key, or the account has no credit; set {key}",
    "unknown_model": "has no such model, or no {nouns} at this URL; check name and URL",
    "context_too_long": "can't read a prompt of this length; lower --max-tokens",
    "content_filter": "refused a prompt by its content filter; remove the prompt",
    "refused": "refuses the request; check that the model returns {nouns} of text",
}


@final
@dataclass(frozen=True)
class EndpointCall:
    """A kind of call.

    Attributes:
        path: The path after the base URL.
        nouns: What it returns, in the plural, for error messages.
    """

    path: str
    nouns: str


@final
class EndpointCalls:
    """Calls of one kind to one model.

    Args:
        address: The model and its endpoint.
        call: The kind of call.
        environment: The variables that hold the key; by default the process's environment.

    Raises:
        ConfigError: The key is malformed, or would go over plain http to another machine.
    """

    def __init__(
        self, address: Address, call: EndpointCall, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.address, self.call = address, call
        self._key = _key(address, call, os.environ if environment is None else environment)
        self._certificates = _certificates()

    def model(self, said: Mapping[str, Any]) -> str:
        """The model's name in a response, which must not contain the key."""
        name = said.get("model")
        if not isinstance(name, str) or not _A_MODEL.fullmatch(name):
            return "unnamed"
        return "unnamed" if self._key != _NO_KEY and self._key in name else name

    @contextmanager
    def connected(self) -> Iterator[httpx2.Client]:
        """A client that never follows redirects, since they could send the key elsewhere."""
        address = self.address
        try:
            client = httpx2.Client(
                headers=request_headers(self._key, is_openai=address.is_openai),
                params=dict(address.query),
                timeout=httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
                verify=self._certificates,
                mounts=direct(address.base_url),
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
                return self._asked(client, body)
            except UpstreamError as error:
                time.sleep(retries.wait(error))

    def _asked(self, client: httpx2.Client, body: Mapping[str, Any]) -> bytes:
        try:
            response = client.post(f"{self.address.base_url}/{self.call.path}", json=body)
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

    def malformed(self, what: str) -> UpstreamError:
        """The error of a response that isn't what was asked for."""
        return self._error("malformed", f"returned {what}; check the model and the URL")

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
        words = _SAYS.get(failure, _SAYS["refused"])
        told = words.format(nouns=self.call.nouns, key=KEY_OF[self.address.scheme])
        return self._error(failure, told, status)

    def _error(self, failure: FailureKind, words: str, status: int | None = None) -> UpstreamError:
        place = "" if status is None else f" (HTTP {status})"
        return UpstreamError(
            f"{self.address.name}: the endpoint {words}{place}",
            failure=failure,
            status=status,
            retriable=failure in RETRIABLE,
            billed="no" if failure in ("connect", "connect_timeout") or status else "perhaps",
        )


def _key(address: Address, call: EndpointCall, environment: Mapping[str, str]) -> str:
    """The key for this endpoint; OpenAI's own key is sent to OpenAI only."""
    variable = KEY_OF[address.scheme]
    names = (variable, _OPENAI_KEY) if address.is_openai else (variable,)
    key = next((environment[n].strip() for n in names if environment.get(n)), _NO_KEY)
    if not _A_KEY.fullmatch(key):
        raise ConfigError(
            f"the environment variable {variable} can't be a key: it has characters that aren't "
            "allowed in a header; set it to the key alone"
        )
    if key != _NO_KEY:
        check_encrypted(address.base_url, environment, whose=f"the key of {call.nouns}")
    return key


def _certificates() -> ssl.SSLContext:
    """The trusted certificates; loaded once, since that takes longer than a request."""
    try:
        return httpx2.create_ssl_context()
    except (OSError, ValueError):
        raise ConfigError(
            "the certificates that the environment names can't be read; check SSL_CERT_FILE and "
            "SSL_CERT_DIR"
        ) from None
