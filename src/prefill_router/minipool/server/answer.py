"""Answers one request: reads it, has the answer generated, and sends it as it is generated."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import final

from prefill_router.minipool.server.connection import AsgiConnection, DisconnectedError, ReplySender
from prefill_router.minipool.server.faults import REFUSALS, Effects, Persona, Rule
from prefill_router.minipool.server.generation import Job, Model, Prompt
from prefill_router.minipool.server.protocol import ApiError, CompletionRequest, Replies


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
        asked: The request.
        model: The model that answers.
        persona: The dialect of the reply.
        effects: The faults to inject.
        wait: Seconds that a rate limit asks to wait.
        submit: Passes a job to the worker.
        number: The number of the request.
        prompt: The prompt, once it has been read.
        thoughts: Tokens of made-up reasoning.
        job: The generation, once it is submitted.
    """

    asked: CompletionRequest
    model: Model
    persona: Persona
    effects: Effects
    wait: float
    submit: Callable[[str, Job], None]
    number: int
    prompt: Prompt | None = None
    thoughts: int = 0
    job: Job | None = None

    @property
    def prompt_tokens(self) -> int:
        """Input tokens."""
        return self.prompt.tokens if self.prompt else 0

    @property
    def completion_tokens(self) -> int:
        """Output tokens, reasoning included."""
        return self.thoughts + (self.job.generated if self.job else 0)

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
                raise _refusal(self.effects[kind], self.wait)
        queue = self._begin()
        client.on_gone(queue.wake)
        replies = Replies(self.asked, self.persona, self.effects, number=self.number)
        sender = ReplySender(client, self.effects)
        if self.asked.stream:
            await self._stream(client, queue, replies, sender)
        else:
            await self._whole(client, queue, replies, sender)

    def end(self) -> None:
        """Free the job's row of the batch, if it still has one."""
        if self.job:
            self.job.leave()

    def _begin(self) -> TokenQueue:
        asked, chat = self.asked, self.asked.endpoint == "chat"
        prompt = self.model.read_chat(asked.messages) if chat else self.model.read_text(asked.text)
        left = self.model.context - prompt.tokens
        if left < 1:
            raise _too_long(self.model.context, prompt.tokens)
        self.prompt = prompt
        limit = min(asked.max_tokens or left, left)
        self.thoughts = min(self.persona.reasoning, limit) if chat and asked.thinks else 0
        queue = TokenQueue(each=asked.stream)
        if limit == self.thoughts:
            queue.put("", last=True)
            return queue
        self.job = Job(
            prompt=prompt,
            max_tokens=limit - self.thoughts,
            stop=asked.stop,
            sampling=asked.sampling,
            deliver=queue.put,
        )
        self.submit(self.model.name, self.job)
        return queue

    async def _stream(
        self, client: AsgiConnection, queue: TokenQueue, replies: Replies, sender: ReplySender
    ) -> None:
        await sender.begin()
        before = replies.first()
        if thoughts := self._shown_thoughts():
            events = [replies.delta(self.persona.reasoning_delta(text)) for text in thoughts]
            await sender.events(events, before=before)
            before = b""
        ended = False
        while not ended:
            pieces = await queue.take()
            ended = queue.ended
            if client.gone:
                raise DisconnectedError
            texts = [] if "empty" in self.effects else pieces
            if texts or before:
                await sender.events([replies.text(text) for text in texts], before=before)
                before = b""
        usage = self._usage() if self.asked.include_usage else None
        await sender.last(*replies.end(self._reason(), usage))

    async def _whole(
        self, client: AsgiConnection, queue: TokenQueue, replies: Replies, sender: ReplySender
    ) -> None:
        pieces = await queue.take()
        if client.gone:
            raise DisconnectedError
        text = "" if "empty" in self.effects else "".join(pieces)
        thoughts = "".join(self._shown_thoughts())
        content = replies.whole(text, thoughts, self._reason(), self._usage())
        await sender.whole(content, chunks=len(pieces))

    def _shown_thoughts(self) -> list[str]:
        """The pieces of reasoning that are sent."""
        if not self.thoughts or not self.persona.shows_reasoning:
            return []
        thoughts = self.persona.thoughts(self.thoughts)
        if self.persona.style != "nemotron":
            return thoughts
        return ["<think>", *thoughts, *(["</think>"] if self.job else [])]

    def _reason(self) -> str:
        return (self.job.finish if self.job else None) or "length"

    def _usage(self) -> dict[str, object]:
        return self.persona.usage(self.prompt_tokens, self.completion_tokens, self.thoughts)


def _too_long(context: int, tokens: int) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {context} tokens; the prompt has {tokens}.",
        param="messages",
        code="context_length_exceeded",
    )


def _refusal(rule: Rule, wait: float) -> ApiError:
    if rule.kind == "unauthorized":
        return ApiError(
            "Incorrect API key provided.",
            status=401,
            kind="authentication_error",
            code="invalid_api_key",
        )
    if rule.kind == "context_length":
        return _too_long(16, 17)
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
            headers=_retry_after(rule, rule.retry_after),
        )
    return ApiError(
        "Rate limit reached.",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers=_retry_after(rule, wait if rule.kind == "rate" else rule.retry_after),
    )


def _retry_after(rule: Rule, seconds: float | None) -> list[tuple[bytes, bytes]]:
    if seconds is None:
        return []
    if rule.form == "ms":
        return [(b"retry-after-ms", str(math.ceil(1000 * seconds)).encode())]
    if rule.form == "date":
        date = formatdate(math.ceil(time.time() + seconds), usegmt=True)
        return [(b"retry-after", date.encode())]
    return [(b"retry-after", f"{seconds:.3f}".rstrip("0").rstrip(".").encode())]
