"""One call of an endpoint: how it is sent, and how its answer or its failure is read.

This module is imported only when a client is opened, because httpx2 is slow to import.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, final

import httpx2

from prefill_router.endpoints.error_body import ErrorBody, kind_of, parse_error
from prefill_router.endpoints.events import EventReader
from prefill_router.endpoints.failures import Callee, FailureCause, connect_cause, refusal_cause
from prefill_router.endpoints.json_object import MalformedError, parse_object
from prefill_router.endpoints.keys import wants_proxy
from prefill_router.endpoints.rate_limit_headers import retry_after
from prefill_router.endpoints.redaction import Redaction
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.reply_reader import ErrorEventError, ReplyReader
from prefill_router.endpoints.transport import endpoint_url, http_client, request_headers
from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.targets import Provider

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
            return self._redaction.redact_reply(await call.run(self._client, request))
        except UpstreamError as error:
            if error.partial is not None:
                error.partial = self._redaction.redact_reply(error.partial)
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
        self._began_at = self._heard_at = self._clock()
        self._request_id: str | None = None
        self._is_done = False
        self._slack = _SLACK * provider.first_token_seconds
        self._is_new = False

    async def run(self, client: httpx2.AsyncClient, request: httpx2.Request) -> Reply:
        try:
            self._began_at = self._heard_at = self._clock()
            async with asyncio.timeout_at(self._deadline()) as limit:
                try:
                    response = await client.send(request, stream=True)
                except (*_UNSENT, httpx2.HTTPError) as error:
                    raise self._connection_error(error) from None
                try:
                    if not response.is_success:
                        await response.aread()
                        raise self._refusal(response)
                    await self._read(response, limit)
                finally:
                    await response.aclose()
        except ErrorEventError as error:
            raise self._reported_error(error.error) from None
        except MalformedError:
            raise self._failure("malformed") from None
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            if self._reading.finish_reason is None and not self._is_done:
                raise self._failure(self._kind_of_end(error)) from None
        return self._conclude()

    async def trace(self, event: str, details: Any) -> None:
        """Record whether the call opened a new connection or reused one."""
        del details
        if event == "connection.connect_tcp.started":
            self._is_new = True

    async def _read(self, response: httpx2.Response, limit: asyncio.Timeout) -> None:
        headers = {name.lower(): value for name, value in response.headers.raw}
        id_bytes = next((headers[n] for n in _REQUEST_ID if n in headers), None)
        self._request_id = None if id_bytes is None else id_bytes.decode("latin-1")
        kind = headers.get(b"content-type", b"")
        if b"html" in kind:
            raise self._failure("malformed", cause="web_page")
        is_plain = headers.get(b"content-encoding", b"identity") == b"identity"
        pieces = response.aiter_raw() if is_plain else response.aiter_bytes()
        if b"json" in kind:
            limit.reschedule(self._began_at + self._provider.answer_seconds)
            await self._read_whole(pieces)
        else:
            await self._read_stream(pieces, limit)

    async def _read_whole(self, pieces: AsyncIterator[bytes]) -> None:
        content = bytearray()
        async for piece in pieces:
            content += piece
            if len(content) > _LONGEST:
                raise MalformedError("a reply without an end")
        self._heard_at, self._is_done = self._clock(), True
        self._reading.take(parse_object(bytes(content.strip())), self._heard_at)

    async def _read_stream(self, pieces: AsyncIterator[bytes], limit: asyncio.Timeout) -> None:
        events, length = EventReader(), 0
        async for piece in pieces:
            length += len(piece)
            if length > _LONGEST_STREAM:
                raise MalformedError("a stream without an end")
            self._take_events(events.feed(piece), limit)
            if events.is_done and not self._is_done:
                self._is_done = True
                limit.reschedule(self._clock() + _LAST_SECONDS)
        self._take_events(events.close(), limit)
        self._is_done = events.is_done

    def _take_events(self, events: Any, limit: asyncio.Timeout) -> None:
        now = self._clock()
        for event in events:
            self._reading.take(event, now)
            self._heard_at = now
        if self._heard_at == now and not self._is_done:
            deadline = self._deadline()
            if deadline - (limit.when() or 0.0) > self._slack:
                limit.reschedule(deadline)

    def _deadline(self) -> float:
        """When the answer times out, or earlier, when the wait for the next token does."""
        whole = self._began_at + self._provider.answer_seconds
        waiting = self._began_at if self._reading.is_empty else self._heard_at
        return min(whole, waiting + self._provider.first_token_seconds)

    def _conclude(self) -> Reply:
        reason = self._reading.finish_reason
        if reason is None and not self._is_done:
            raise self._failure("broken_off")
        if reason is None and self._reading.is_empty:
            raise self._failure("empty")
        failure = _NOT_ANSWERS.get(reason or "")
        if failure is not None:
            raise self._failure(failure)
        return self._partial_reply()

    def _partial_reply(self) -> Reply:
        return self._reading.reply(
            began=self._began_at, ended=self._heard_at, request_id=self._request_id
        )

    def _kind_of_end(self, error: Exception) -> FailureKind:
        if not isinstance(error, TimeoutError):
            return "broken_off"
        late = self._clock() >= self._began_at + self._provider.answer_seconds
        return "first_token_timeout" if self._reading.is_empty and not late else "answer_timeout"

    def _connection_error(self, cause: Exception) -> UpstreamError:
        if isinstance(cause, httpx2.TimeoutException):
            return self._failure("connect_timeout")
        if isinstance(cause, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError):
            # A server may close an idle connection while a request is on its way to it.
            idle = not self._is_new and self._clock() - self._began_at < _AT_ONCE
            return self._failure("broken_off", billed=not idle)
        return self._failure(
            "connect",
            cause=connect_cause(cause, through_proxy=wants_proxy(self._provider.base_url)),
        )

    def _refusal(self, response: httpx2.Response) -> UpstreamError:
        try:
            error = parse_error(response.content)
        except httpx2.StreamError:
            error = ErrorBody()
        headers = {name.lower(): value for name, value in response.headers.items()}
        cause = refusal_cause(response.status_code, headers.get("content-type", ""))
        return self._reported_error(
            error, status=response.status_code, headers=headers, cause=cause
        )

    def _reported_error(
        self,
        error: ErrorBody,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        cause: FailureCause | None = None,
    ) -> UpstreamError:
        """The error that an endpoint reported, instead of a reply (with a status) or within one."""
        all_headers = {**(error.headers or {}), **(headers or {})}
        kind = kind_of(error, status if status is not None else error.status)
        return self._failure(
            kind,
            cause=cause,
            status=status,
            error=error,
            location=(headers or {}).get("location"),
            wait=retry_after(all_headers, now=time.time()) if kind != "unauthorised" else None,
            billed=status is None or status in _GAVE_UP_WAITING,
        )

    def _failure(
        self,
        failure: FailureKind,
        *,
        cause: FailureCause | None = None,
        status: int | None = None,
        error: ErrorBody | None = None,
        location: str | None = None,
        wait: float | None = None,
        billed: bool = True,
    ) -> UpstreamError:
        return Callee.of_target(self._question.target, self._provider.base_url).error(
            failure,
            cause=cause,
            status=status,
            error=error,
            location=location,
            secrets=(self._question.prompt, self._key, *self._provider.secrets),
            retry_after=wait,
            billed=None if billed else "no",
            partial=self._partial_reply() if not self._reading.is_empty else None,
        )
