"""One call of an endpoint: its address and headers, its HTTP client, and how it is sent and read.

Clients never follow redirects, which would send the key elsewhere. This module is imported only
when a client is opened, because httpx2 is slow to import.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, final
from urllib.parse import parse_qsl, urlsplit

import httpx2

from prefill_router.endpoints.events import EventReader
from prefill_router.endpoints.failures import ErrorBody, failed, kind_of, read_error
from prefill_router.endpoints.json_object import MalformedError, parse_object
from prefill_router.endpoints.keys import is_loopback
from prefill_router.endpoints.rate_limit_headers import retry_after
from prefill_router.endpoints.redaction import Redaction
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.reply_reader import ErrorEventError, ReplyReader
from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.targets import Provider, public_address

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_OPENAI_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that tell OpenAI which account pays, and the environment variables that hold them."""


def endpoint_url(base_url: str, path: str) -> httpx2.URL:
    """The URL of a call: the base_url, the path, and then the base_url's query."""
    query = dict(parse_qsl(urlsplit(base_url).query))
    return httpx2.URL(public_address(base_url).rstrip("/") + path, params=query or None)


def request_headers(key: str, *, is_openai: bool) -> dict[str, str]:
    """The headers of every call.

    Args:
        key: The endpoint's API key.
        is_openai: Whether it is OpenAI; only OpenAI is sent the user's organisation and project.
    """
    account = {name: os.environ.get(variable) for name, variable in _OPENAI_ACCOUNT.items()}
    return {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # compression delays streamed tokens
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "User-Agent": "prefill-router",
        **{name: value for name, value in account.items() if value and is_openai},
    }


def http_client(provider: Provider, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """An HTTP client for one provider.

    Raises:
        ConfigError: The environment's proxies or certificates can't be used.
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
            f"provider {provider.name!r} can't be reached with the proxies or certificates set in "
            "the environment; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (http:// or https://) "
            "and SSL_CERT_FILE"
        ) from None


def direct(base_url: str) -> dict[str, None]:
    """The mounts of a client that bypass any proxy for a server on this machine.

    A proxy elsewhere could read this unencrypted traffic.
    """
    host = httpx2.URL(base_url).host
    name = f"[{host}]" if ":" in host else host
    return {f"all://{name}": None} if is_loopback(host) else {}


_PATH = "/chat/completions"
_REQUEST_ID = (b"x-request-id", b"request-id", b"x-generation-id")
_LAST_SECONDS = 1.0  # how long to wait for a stream to close once its answer is complete
_SLACK = 0.05  # share of first_token_seconds; a deadline is moved only by more than this
_LONGEST = 2**26  # bytes of a reply that isn't streamed
_LONGEST_STREAM = 2**28  # bytes; a token with its top_logprobs takes about two thousand
_UNSENT = (httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError)
_AT_ONCE = 1.0  # seconds; a server that closes later may have begun an answer
_GAVE_UP_WAITING = (504, 524)  # gateway timeouts; the server behind may go on and bill
_NOT_ANSWERS: Mapping[str, FailureKind] = {
    "content_filter": "content_filter",
    "error": "server_error",  # OpenRouter
    "insufficient_system_resource": "overloaded",  # DeepSeek
    "abort": "broken_off",  # vLLM, SGLang
}


class EndpointRequest(NamedTuple):
    """One request, and the prompt, which errors must not quote.

    Attributes:
        target: The target's name.
        body: The request body as JSON.
        prompt: The text of the prompt.
    """

    target: str
    body: bytes
    prompt: str


@final
class ProviderClient:
    """Calls one provider's endpoint.

    Args:
        provider: The provider to call.
        key: Its API key.
        redaction: Removes keys from its replies.
    """

    def __init__(self, provider: Provider, key: str, redaction: Redaction) -> None:
        self._provider, self._key, self._redaction = provider, key, redaction
        headers = request_headers(key, is_openai=provider.dialect == "openai")
        self._client = http_client(provider, headers)
        self._url = endpoint_url(provider.base_url, _PATH)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def call(self, question: EndpointRequest, reading: ReplyReader) -> Reply:
        """Send the request and read the reply.

        Raises:
            UpstreamError: There is no reply, or only part of one.
        """
        call = _EndpointCall(self._provider, self._key, question, reading)
        request = self._client.build_request(
            "POST", self._url, content=question.body, extensions={"trace": call.trace}
        )
        try:
            return self._redaction.reply(await call.run(self._client, request))
        except UpstreamError as error:
            if error.partial is not None:
                error.partial = self._redaction.reply(error.partial)
            raise


@final
class _EndpointCall:
    """One call in flight."""

    def __init__(
        self,
        provider: Provider,
        key: str,
        question: EndpointRequest,
        reading: ReplyReader,
    ) -> None:
        self._provider, self._key = provider, key
        self._question, self._reading = question, reading
        self._clock = asyncio.get_running_loop().time
        self._began = self._heard = self._clock()
        self._request_id: str | None = None
        self._is_done = False
        self._slack = _SLACK * provider.first_token_seconds
        self._is_new = False

    async def run(self, client: httpx2.AsyncClient, request: httpx2.Request) -> Reply:
        try:
            self._began = self._heard = self._clock()
            async with asyncio.timeout_at(self._deadline()) as limit:
                try:
                    response = await client.send(request, stream=True)
                except (*_UNSENT, httpx2.HTTPError) as error:
                    raise self._unreached(error) from None
                try:
                    if not response.is_success:
                        await response.aread()
                        raise self._refused(response)
                    await self._read(response, limit)
                finally:
                    await response.aclose()
        except ErrorEventError as error:
            raise self._reported(error.error) from None
        except MalformedError:
            raise self._failed("malformed") from None
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            if self._reading.finish_reason is None and not self._is_done:
                raise self._failed(self._ending(error)) from None
        return self._conclude()

    async def trace(self, event: str, details: Any) -> None:
        """Record whether the call opened a new connection or reused one."""
        del details
        if event == "connection.connect_tcp.started":
            self._is_new = True

    async def _read(self, response: httpx2.Response, limit: asyncio.Timeout) -> None:
        headers = {name.lower(): value for name, value in response.headers.raw}
        found = next((headers[n] for n in _REQUEST_ID if n in headers), None)
        self._request_id = None if found is None else found.decode("latin-1")
        kind = headers.get(b"content-type", b"")
        if b"html" in kind:
            raise MalformedError("an HTML page")
        is_plain = headers.get(b"content-encoding", b"identity") == b"identity"
        pieces = response.aiter_raw() if is_plain else response.aiter_bytes()
        if b"json" in kind:
            limit.reschedule(self._began + self._provider.answer_seconds)
            await self._read_whole(pieces)
        else:
            await self._read_stream(pieces, limit)

    async def _read_whole(self, pieces: AsyncIterator[bytes]) -> None:
        found = bytearray()
        async for piece in pieces:
            found += piece
            if len(found) > _LONGEST:
                raise MalformedError("a reply without an end")
        self._heard, self._is_done = self._clock(), True
        self._reading.take(parse_object(bytes(found.strip())), self._heard)

    async def _read_stream(self, pieces: AsyncIterator[bytes], limit: asyncio.Timeout) -> None:
        events, length = EventReader(), 0
        async for piece in pieces:
            length += len(piece)
            if length > _LONGEST_STREAM:
                raise MalformedError("a stream without an end")
            self._take(events.feed(piece), limit)
            if events.done and not self._is_done:
                self._is_done = True
                limit.reschedule(self._clock() + _LAST_SECONDS)
        self._take(events.close(), limit)
        self._is_done = events.done

    def _take(self, events: Any, limit: asyncio.Timeout) -> None:
        now = self._clock()
        for event in events:
            self._reading.take(event, now)
            self._heard = now
        if self._heard == now and not self._is_done:
            deadline = self._deadline()
            if deadline - (limit.when() or 0.0) > self._slack:
                limit.reschedule(deadline)

    def _deadline(self) -> float:
        """When the answer times out, or earlier, when the wait for the next token does."""
        whole = self._began + self._provider.answer_seconds
        waiting = self._began if self._reading.is_empty else self._heard
        return min(whole, waiting + self._provider.first_token_seconds)

    def _conclude(self) -> Reply:
        reason = self._reading.finish_reason
        if reason is None and not self._is_done:
            raise self._failed("broken_off")
        if reason is None and self._reading.is_empty:
            raise self._failed("empty")
        failure = _NOT_ANSWERS.get(reason or "")
        if failure is not None:
            raise self._failed(failure)
        return self._so_far()

    def _so_far(self) -> Reply:
        return self._reading.reply(
            began=self._began, ended=self._heard, request_id=self._request_id
        )

    def _ending(self, error: Exception) -> FailureKind:
        if not isinstance(error, TimeoutError):
            return "broken_off"
        late = self._clock() >= self._began + self._provider.answer_seconds
        return "first_token_timeout" if self._reading.is_empty and not late else "answer_timeout"

    def _unreached(self, cause: Exception) -> UpstreamError:
        if isinstance(cause, httpx2.TimeoutException):
            return self._failed("connect_timeout")
        if isinstance(cause, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError):
            # A server may close an idle connection while a request is on its way to it.
            idle = not self._is_new and self._clock() - self._began < _AT_ONCE
            return self._failed("broken_off", billed=not idle)
        return self._failed("connect")

    def _refused(self, response: httpx2.Response) -> UpstreamError:
        try:
            error = read_error(parse_object(response.content.strip()))
        except (MalformedError, httpx2.StreamError):
            error = ErrorBody()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return self._reported(error, status=response.status_code, headers=headers)

    def _reported(
        self,
        error: ErrorBody,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamError:
        """The error that an endpoint reported, instead of a reply (with a status) or within one."""
        said = {**(error.headers or {}), **(headers or {})}
        kind = kind_of(error, status if status is not None else error.status)
        return self._failed(
            kind,
            status=status,
            error=error,
            wait=retry_after(said, now=time.time()) if kind != "unauthorised" else None,
            billed=status is None or status in _GAVE_UP_WAITING,
        )

    def _failed(
        self,
        failure: FailureKind,
        *,
        status: int | None = None,
        error: ErrorBody | None = None,
        wait: float | None = None,
        billed: bool = True,
    ) -> UpstreamError:
        return failed(
            self._question.target,
            failure,
            status=status,
            error=error,
            secrets=(self._question.prompt, self._key),
            retry_after=wait,
            billed=None if billed else "no",
            partial=self._so_far() if not self._reading.is_empty else None,
        )
