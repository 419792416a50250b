"""The answer to one request: the client's connection, the reply, and the task that makes it.

The connection has the request, and knows whether the client is still there. A reply is sent event
by event, with the faults to inject.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, final

from prefill_router_minipool.server.effort import SampledAnswer, read_samples
from prefill_router_minipool.server.faults import CUTS, REFUSALS, Effects, Persona, Rule
from prefill_router_minipool.server.generation import Job, Model, Prompt
from prefill_router_minipool.server.protocol import (
    ApiError,
    CompletionRequest,
    Replies,
    error_value,
)

Received = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Received]]
Send = Callable[[Received], Awaitable[None]]
Header = tuple[bytes, bytes]
_MOST_BYTES = 32 * 2**20


@final
class DisconnectedError(Exception):
    """The client has disconnected."""


@final
class CutOffError(Exception):
    """An injected fault ends the reply before it is complete."""


@final
class AsgiConnection:
    """The connection of one request (ASGI)."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._disconnected = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._wakes: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self.status = 0
        self.complete = False

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has disconnected, or the connection is abandoned."""
        return self._disconnected.is_set()

    def leave(self) -> None:
        """Abandon the connection: wake everything that waits on it."""
        self._disconnected.set()
        for wake in self._wakes:
            wake()

    def on_disconnect(self, wake: Callable[[], None]) -> None:
        """Register a function to call when the client disconnects."""
        self._wakes.append(wake)

    def at_end(self, act: Callable[[], None]) -> None:
        """Register a function to call once, before the end of the reply or instead of it."""
        self._at_end.append(act)

    def close(self) -> None:
        """Call the functions of `at_end`; nothing more will be sent."""
        while self._at_end:
            self._at_end.pop()()

    async def body(self) -> bytes:
        """The request's body; from then on a disconnection is noticed.

        Raises:
            ApiError: The body is too long.
            DisconnectedError: The client disconnected before the whole body had arrived.
        """
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            if sum(map(len, parts)) > _MOST_BYTES:
                raise ApiError(f"the body is longer than {_MOST_BYTES} bytes", status=413)
        self._watch = asyncio.create_task(self._await_disconnect())
        return b"".join(parts)

    async def pause(self, seconds: float | None) -> None:
        """Wait some seconds; None waits until the client disconnects.

        Raises:
            DisconnectedError: The client disconnected meanwhile.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._disconnected.wait()
        except TimeoutError:
            return
        raise DisconnectedError

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the status and the headers."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def write(self, part: bytes) -> None:
        """Send a part of the body.

        Raises:
            DisconnectedError: The client has disconnected.
        """
        if self.is_disconnected:
            raise DisconnectedError
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"", *, complete: bool = True) -> None:
        """Send the last part of the body; `complete` says whether the reply is whole."""
        self.complete = complete and not self.is_disconnected
        self.close()
        await self._send({"type": "http.response.body", "body": part, "more_body": False})

    async def reply(self, status: int, value: Any, headers: Sequence[Header] = ()) -> None:
        """Send a JSON document."""
        content = json.dumps(value).encode()
        await self.start(status, [*document_headers(content), *headers])
        await self.end(content)

    async def _await_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave()


def document_headers(content: bytes) -> list[Header]:
    """The headers of a JSON document."""
    length = str(len(content)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length)]


_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_BAD = ("bad_json", "bad_sse")
_BROKEN = error_value("the server broke on purpose", code="server_error")


@final
class ReplySender:
    """Sends one reply.

    Args:
        client: The client's connection.
        effects: The faults to inject.
    """

    def __init__(self, client: AsgiConnection, effects: Effects) -> None:
        self._client = client
        self._slow = effects.get("slow")
        self._stall = effects.get("stall")
        self._cut = next((effects[kind] for kind in effects if kind in CUTS), None)
        self._bad = next((effects[kind] for kind in effects if kind in _BAD), None)
        self._careful = any(rule is not None for rule in (self._slow, self._cut, self._bad))
        self._chunk_count = 0

    async def begin(self) -> None:
        """Send the headers of a stream."""
        await self._client.start(200, _STREAM)
        if self._stall:
            await self._client.pause(self._stall.seconds)

    async def events(self, events: list[bytes], *, before: bytes = b"") -> None:
        """Send chunks of text; `before` is sent with the first and isn't counted as a chunk.

        Raises:
            CutOffError: A fault ends the reply here.
            DisconnectedError: The client has disconnected.
        """
        if not self._careful:
            await self._client.write(before + b"".join(events))
            return
        if before:
            await self._client.write(before)
        for event in events:
            await self._inject(last=False)
            await self._client.write(self._corrupt(event))
            self._chunk_count += 1

    async def last(self, end: bytes, rest: bytes) -> None:
        """Send the chunk that ends the answer, and what follows it.

        Raises:
            CutOffError: A fault ends the reply instead.
            DisconnectedError: The client has disconnected.
        """
        await self._inject(last=True)
        if self._bad and self._chunk_count <= self._bad.after:
            self._chunk_count = self._bad.after
            end = self._corrupt(end)
        await self._client.end(end + rest)

    async def whole(self, content: bytes, *, chunks: int) -> None:
        """Send a document that isn't streamed, after the time that its chunks would take.

        Raises:
            CutOffError: A fault ends the reply in its middle.
            DisconnectedError: The client has disconnected.
        """
        stall = self._stall.seconds if self._stall else 0.0
        slow = self._slow.seconds * max(0, chunks - 1) if self._slow else 0.0
        if stall + slow:
            await self._client.pause(stall + slow)
        if self._cut:
            await self._cut_whole(content, self._cut)
        if self._bad:
            half = content[: len(content) // 2]
            content = half if self._bad.kind == "bad_json" else b"\xff\xfe" + content
        await self._client.start(200, document_headers(content))
        await self._client.end(content)

    async def _cut_whole(self, content: bytes, rule: Rule) -> None:
        half = content[: len(content) // 2]
        if rule.kind == "error_event":
            half = json.dumps(_BROKEN).encode()
        if rule.kind in ("error_event", "truncate"):
            await self._client.start(200, document_headers(half))
            await self._client.end(half, complete=False)
        else:
            await self._client.start(200, document_headers(content))
            await self._client.write(half)
            await self._end_badly(rule)
        raise CutOffError

    async def _inject(self, *, last: bool) -> None:
        """Inject the faults that come before a chunk."""
        if self._cut and (last or self._chunk_count >= self._cut.after):
            await self._end_badly(self._cut)
        if self._slow and self._chunk_count:
            await self._client.pause(self._slow.seconds)

    async def _end_badly(self, rule: Rule) -> None:
        if rule.kind == "hang":
            await self._client.pause(None)
        if rule.kind == "truncate":
            await self._client.end(complete=False)
        if rule.kind == "error_event":
            await self._client.end(
                b"data: " + json.dumps(_BROKEN).encode() + b"\n\n", complete=False
            )
        await asyncio.sleep(0)  # sends what was written before the connection is closed
        raise CutOffError

    def _corrupt(self, event: bytes) -> bytes:
        if self._bad is None or self._chunk_count != self._bad.after:
            return event
        if self._bad.kind == "bad_json":
            return event[: len(event) // 2] + b"\n\n"
        return b"data: \xff\xfe" + event[6:]


@final
class TokenQueue:
    """Tokens that have been generated and not been sent.

    Args:
        each: Whether to wake `take` for each token, or only for the last.
    """

    def __init__(self, *, each: bool) -> None:
        self._each = each
        self._pieces: list[str] = []
        self._ready = asyncio.Event()
        self.ended = False

    def put(self, piece: str, last: bool) -> None:
        """Add a piece."""
        if piece:
            self._pieces.append(piece)
        self.ended = self.ended or last
        if last or (self._each and piece):
            self._ready.set()

    def wake(self) -> None:
        """Let `take` return, even without a piece."""
        self._ready.set()

    async def take(self) -> list[str]:
        """All pieces since the last call; waits for one, or for the end."""
        await self._ready.wait()
        self._ready.clear()
        pieces, self._pieces = self._pieces, []
        return pieces


@final
@dataclass(kw_only=True)
class AnswerTask:
    """The answer to one request.

    Attributes:
        request: The request.
        model: The model that answers.
        persona: The dialect of the reply.
        effects: The faults to inject.
        wait: Seconds that a rate limit asks to wait.
        submit: Passes a job to the worker.
        number: The number of the request.
        prompt: The prompt, once it has been read.
        thoughts: Tokens of made-up reasoning.
        job: The generation, once it is submitted.
        sampled: The generation of several samples in its place, where the request asks for effort.
    """

    request: CompletionRequest
    model: Model
    persona: Persona
    effects: Effects
    wait: float
    submit: Callable[[str, Job], None]
    number: int
    prompt: Prompt | None = None
    thoughts: int = 0
    job: Job | None = None
    sampled: SampledAnswer | None = None

    @property
    def prompt_tokens(self) -> int:
        """Input tokens."""
        return self.prompt.tokens if self.prompt else 0

    @property
    def completion_tokens(self) -> int:
        """Output tokens, reasoning included."""
        running = self.sampled or self.job
        return self.thoughts + (running.generated if running else 0)

    async def give(self, client: AsgiConnection) -> None:
        """Answer the request.

        Raises:
            ApiError: The request is refused.
            CutOffError: The reply was cut off on purpose.
            DisconnectedError: The client has left.
        """
        if "delay" in self.effects:
            await client.pause(self.effects["delay"].seconds)
        for kind in self.effects:
            if kind in REFUSALS:
                raise _make_refusal(self.effects[kind], self.wait)
        queue = self._begin()
        client.on_disconnect(queue.wake)
        replies = Replies(self.request, self.persona, self.effects, number=self.number)
        sender = ReplySender(client, self.effects)
        if self.request.stream:
            await self._send_stream(client, queue, replies, sender)
        else:
            await self._send_whole(client, queue, replies, sender)

    def end(self) -> None:
        """Free the job's row of the batch, if it still has one."""
        running = self.sampled or self.job
        if running:
            running.leave()

    def _begin(self) -> TokenQueue:
        request, chat = self.request, self.request.endpoint == "chat"
        model = self.model
        prompt = model.read_chat(request.messages) if chat else model.read_text(request.text)
        left = self.model.context - prompt.tokens
        if left < 1:
            raise _make_length_error(self.model.context, prompt.tokens)
        self.prompt = prompt
        limit = min(request.max_tokens or left, left)
        self.thoughts = min(self.persona.reasoning, limit) if chat and request.thinks else 0
        queue = TokenQueue(each=request.stream)
        if limit == self.thoughts:
            queue.put("", last=True)
            return queue
        if chat and (samples := read_samples(request.options)) is not None:
            self._sample(prompt, samples, left, queue)
            return queue
        self.job = Job(
            prompt=prompt,
            max_tokens=limit - self.thoughts,
            stop=request.stop,
            sampling=request.sampling,
            deliver=queue.put,
        )
        self.submit(self.model.name, self.job)
        return queue

    def _sample(self, prompt: Prompt, samples: int, left: int, queue: TokenQueue) -> None:
        """Begin several samples, without the model's made-up reasoning.

        Each has an equal part of the request's limit, and the whole of the context that is left.
        """
        self.thoughts = 0
        most = self.request.max_tokens
        self.sampled = SampledAnswer(
            prompt,
            samples=samples,
            max_tokens=left if most is None else max(1, min(left, most // samples)),
            stop=self.request.stop,
            sampling=self.request.sampling,
            deliver=queue.put,
        )
        for job in self.sampled.jobs:
            self.submit(self.model.name, job)

    async def _send_stream(
        self, client: AsgiConnection, queue: TokenQueue, replies: Replies, sender: ReplySender
    ) -> None:
        await sender.begin()
        before = replies.first()
        if thoughts := self._list_thoughts():
            events = [replies.delta(self.persona.reasoning_delta(text)) for text in thoughts]
            await sender.events(events, before=before)
            before = b""
        ended = False
        while not ended:
            pieces = await queue.take()
            ended = queue.ended
            if client.is_disconnected:
                raise DisconnectedError
            texts = [] if "empty" in self.effects else pieces
            if texts or before:
                await sender.events([replies.text(text) for text in texts], before=before)
                before = b""
        usage = self._count_usage() if self.request.include_usage else None
        await sender.last(*replies.end(self._find_reason(), usage))

    async def _send_whole(
        self, client: AsgiConnection, queue: TokenQueue, replies: Replies, sender: ReplySender
    ) -> None:
        pieces = await queue.take()
        if client.is_disconnected:
            raise DisconnectedError
        text = "" if "empty" in self.effects else "".join(pieces)
        thoughts = "".join(self._list_thoughts())
        content = replies.whole(text, thoughts, self._find_reason(), self._count_usage())
        await sender.whole(content, chunks=len(pieces))

    def _list_thoughts(self) -> list[str]:
        """The pieces of reasoning that are sent."""
        if not self.thoughts or not self.persona.shows_reasoning:
            return []
        thoughts = self.persona.thoughts(self.thoughts)
        if self.persona.style != "nemotron":
            return thoughts
        return ["<think>", *thoughts, *(["</think>"] if self.job else [])]

    def _find_reason(self) -> str:
        job = self.sampled.answer if self.sampled else self.job
        return (job.finish if job else None) or "length"

    def _count_usage(self) -> dict[str, object]:
        thoughts = self.sampled.reasoning if self.sampled else self.thoughts
        return self.persona.usage(self.prompt_tokens, self.completion_tokens, thoughts)


def _make_length_error(context: int, tokens: int) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {context} tokens; the prompt has {tokens}.",
        param="messages",
        code="context_length_exceeded",
    )


def _make_refusal(rule: Rule, wait: float) -> ApiError:
    if rule.kind == "unauthorized":
        return ApiError(
            "Incorrect API key provided.",
            status=401,
            kind="authentication_error",
            code="invalid_api_key",
        )
    if rule.kind == "context_length":
        return _make_length_error(16, 17)
    if rule.kind == "unsupported_field":
        return ApiError(
            f"Unsupported parameter: '{rule.field}' is not supported with this model.",
            param=rule.field,
            code="unsupported_parameter",
        )
    if rule.kind == "status":
        return ApiError(
            "The server had an error on purpose.",
            status=rule.status,
            kind="server_error",
            headers=_make_retry_headers(rule, rule.retry_after),
        )
    return ApiError(
        "Rate limit reached.",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers=_make_retry_headers(rule, wait if rule.kind == "rate" else rule.retry_after),
    )


def _make_retry_headers(rule: Rule, seconds: float | None) -> list[tuple[bytes, bytes]]:
    if seconds is None:
        return []
    if rule.form == "ms":
        return [(b"retry-after-ms", str(math.ceil(1000 * seconds)).encode())]
    if rule.form == "date":
        date = formatdate(math.ceil(time.time() + seconds), usegmt=True)
        return [(b"retry-after", date.encode())]
    return [(b"retry-after", f"{seconds:.3f}".rstrip("0").rstrip(".").encode())]
