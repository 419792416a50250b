"""One call of an endpoint, by the openai SDK; loaded when a client is opened, since that is slow.

The SDK authenticates, sends and tells its errors apart. The answer's bytes are read here: building
an object for every chunk, as the SDK does, costs more than everything else together.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, cast, final
from urllib.parse import parse_qsl, urlsplit

import httpx2

from prefill_router.client.failures import ErrorBody, failed, kind_of, read_error
from prefill_router.client.keys import Redaction
from prefill_router.client.reply import Reply
from prefill_router.client.reply_reader import ErrorEventError, ReplyReader
from prefill_router.client.retries import retry_after
from prefill_router.client.sse import EventReader, MalformedError, parse_object
from prefill_router.client.transport import LEAVING, http_client
from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.lazy_imports import optional_imports
from prefill_router.targets import Provider
from prefill_router.targets.provider import public_address

with optional_imports("asking endpoints"):
    import openai

_PATH = "/chat/completions"
_REQUEST_ID = (b"x-request-id", b"request-id", b"x-generation-id")
_LAST_SECONDS = 1.0  # for the end of a stream whose answer is complete
_SLACK = 0.05  # of the time limits: timers are moved no more often than that
_LONGEST = 2**26  # bytes of a reply in one piece
_LONGEST_STREAM = 2**28  # bytes; a token with the likeliest others beside it takes two thousand
_AT_ONCE = 1.0  # seconds; a server that closes later has had the time to begin an answer
_GAVE_UP_WAITING = (504, 524)  # gateways, of a server behind that may go on and bill
_NOT_ANSWERS: Mapping[str, FailureKind] = {
    "content_filter": "content_filter",
    "error": "server_error",  # OpenRouter
    "insufficient_system_resource": "overloaded",  # DeepSeek
    "abort": "broken_off",  # vLLM, SGLang
}


class EndpointRequest(NamedTuple):
    """What is sent, and what errors must not repeat.

    Attributes:
        target: The target's name.
        body: The request, JSON.
        prompt: Its text.
    """

    target: str
    body: bytes
    prompt: str


@final
class ProviderClient:
    """Calls one provider.

    Args:
        provider: Whom.
        key: Its key.
        redaction: Takes keys out of what it answers.
    """

    def __init__(self, provider: Provider, key: str, redaction: Redaction) -> None:
        self._provider, self._key, self._redaction = provider, key, redaction
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=public_address(provider.base_url),
            default_query=dict(parse_qsl(urlsplit(provider.base_url).query)),
            max_retries=0,
            http_client=http_client(provider),
            timeout=httpx2.Timeout(None, connect=provider.connect_seconds),
        )
        if provider.dialect != "openai":  # else sent to whoever the provider is
            self._client.organization = self._client.project = None

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def call(self, question: EndpointRequest, reading: ReplyReader) -> Reply:
        """Ask, and read the answer.

        Raises:
            UpstreamError: There is none, or only a part of one.
        """
        call = _EndpointCall(self._client, self._provider, self._key, question, reading)
        try:
            return self._redaction.reply(await call.run())
        except UpstreamError as error:
            if error.partial is not None:
                error.partial = self._redaction.reply(error.partial)
            raise


@final
class _EndpointCall:
    """One call under way."""

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        provider: Provider,
        key: str,
        question: EndpointRequest,
        reading: ReplyReader,
    ) -> None:
        self._client, self._provider, self._key = client, provider, key
        self._question, self._reading = question, reading
        self._clock = asyncio.get_running_loop().time
        self._began = self._heard = self._clock()
        self._request_id: str | None = None
        self._is_done = False
        self._slack = _SLACK * provider.first_token_seconds
        self._limit: asyncio.Timeout | None = None
        self._is_new = False

    async def run(self) -> Reply:
        try:
            async with asyncio.timeout_at(self._deadline()) as limit:
                self._limit = limit
                response = await self._send()
                try:
                    await self._read(response, limit)
                finally:
                    await response.aclose()
        except openai.APIStatusError as error:
            raise self._refused(error.response) from None
        except openai.APIConnectionError as error:  # also what took too long to connect
            raise self._unreached(error.__cause__) from None
        except openai.OpenAIError:
            raise self._failed("refused", billed=False) from None
        except ErrorEventError as error:
            raise self._told(error.error) from None
        except MalformedError:
            raise self._failed("malformed") from None
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            if self._reading.finish_reason is None and not self._is_done:
                raise self._failed(self._ending(error)) from None
        return self._conclude()

    def leave(self) -> None:
        """The clock starts when the request leaves, not while the SDK prepares it."""
        self._began = self._heard = self._clock()
        if self._limit is not None:
            self._limit.reschedule(self._deadline())

    async def trace(self, event: str, details: Any) -> None:
        """Note whether a connection is made, or one used that there was."""
        del details
        if event == "connection.connect_tcp.started":
            self._is_new = True

    async def _send(self) -> httpx2.Response:
        mark = LEAVING.set(self)
        try:
            response = await self._client.post(
                _PATH,
                cast_to=httpx2.Response,
                content=self._question.body,
                stream=True,
                stream_cls=openai.AsyncStream[object],
            )
        finally:
            LEAVING.reset(mark)
        return cast(httpx2.Response, response)

    async def _read(self, response: httpx2.Response, limit: asyncio.Timeout) -> None:
        headers = {name.lower(): value for name, value in response.headers.raw}
        found = next((headers[n] for n in _REQUEST_ID if n in headers), None)
        self._request_id = None if found is None else found.decode("latin-1")
        kind = headers.get(b"content-type", b"")
        if b"html" in kind:
            raise MalformedError("a page")
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
        """The answer's end, or earlier: that of the wait for a token, or of a silence after one."""
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

    def _unreached(self, cause: BaseException | None) -> UpstreamError:
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
        return self._told(error, status=response.status_code, headers=headers)

    def _told(
        self,
        error: ErrorBody,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamError:
        """What the endpoint told: in place of an answer (with a status), or within one."""
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
