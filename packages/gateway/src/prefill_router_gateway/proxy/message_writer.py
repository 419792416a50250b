"""Writes the answers of chats as those of Anthropic's Messages API."""

import json
import uuid
from collections.abc import Iterator
from typing import Any, final

from prefill_router.endpoints import Usage
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.proxy.chat_answer import ChatAnswer, ToolCall
from prefill_router_gateway.proxy.keep_alive import PING
from prefill_router_gateway.proxy.response_metadata import parsed

_STOPS = {"length": "max_tokens", "content_filter": "refusal"}
"""The reasons that count whatever the answer has; otherwise a tool call or an end stopped it."""


def message_of(answer: ChatAnswer, usage: Usage | None, *, target: str) -> dict[str, Any]:
    """The message for a whole answer of a chat.

    Args:
        answer: The answer.
        usage: Its token counts.
        target: The name of the target, for an answer that names no model.
    """
    content: list[dict[str, Any]] = []
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        value = parsed(call.arguments.encode("utf-8", "replace") or b"{}")
        content.append({**_block(call), "input": value})
    stop = _stop(answer.reason, has_refused=answer.has_refused, has_calls=bool(answer.calls))
    head = _head(answer.id, answer.model or target, usage)
    return {**head, "content": content, "stop_reason": stop}


def _head(chat_id: str, model: str, usage: Usage | None) -> dict[str, Any]:
    return {
        "id": chat_id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _counts(usage),
    }


def _block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _counts(usage: Usage | None) -> dict[str, int]:
    """Token counts in Anthropic's form, where cached input tokens aren't among the others."""
    read, cached = (usage and usage.input_tokens) or 0, (usage and usage.cached_tokens) or 0
    return {
        "input_tokens": max(0, read - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": (usage and usage.output_tokens) or 0,
    }


def _stop(reason: str, *, has_refused: bool, has_calls: bool) -> str:
    return "refusal" if has_refused else _STOPS.get(reason, "tool_use" if has_calls else "end_turn")


@final
class MessageWriter:
    """Writes the events of a message.

    Args:
        answer: Takes the answer's text; None where it isn't kept.
        input_tokens: The estimated input tokens, for the beginning of the stream.
        target: The name of the target, for a chat that names no model.

    Attributes:
        sequence_number: Always 0; messages have none.
    """

    def __init__(self, *, answer: AnswerText | None, input_tokens: int, target: str) -> None:
        self._answer, self._input_tokens, self._target = answer, input_tokens, target
        self.sequence_number = 0
        self._index = -1  # of the latest block
        self._has_calls = False

    def begin(self, chat_id: str, model: str) -> Iterator[bytes]:
        """The event at the beginning."""
        head = _head(chat_id, model or self._target, Usage(input_tokens=self._input_tokens))
        yield self._write_event("message_start", message=head)

    def start_text(self) -> Iterator[bytes]:
        """The event at the beginning of a text."""
        yield from self._start({"type": "text", "text": ""})

    def write_text(self, text: str) -> bytes:
        """The event of a piece of the text."""
        return self._delta({"type": "text_delta", "text": text})

    def start_call(self, call: ToolCall) -> Iterator[bytes]:
        """The event at the beginning of a tool call."""
        self._has_calls = True
        yield from self._start(_block(call))

    def write_arguments(self, text: str) -> bytes:
        """The event of a piece of the call's arguments."""
        return self._delta({"type": "input_json_delta", "partial_json": text})

    def finish_part(self, *, is_cut: bool) -> Iterator[bytes]:  # noqa: ARG002
        """The event at the end of the text or call."""
        yield self._write_event("content_block_stop", index=self._index)

    def end(self, reason: str, usage: Usage | None, *, has_refused: bool) -> Iterator[bytes]:
        """The events at the end of the answer."""
        stop = _stop(reason, has_refused=has_refused, has_calls=self._has_calls)
        delta = {"stop_reason": stop, "stop_sequence": None}
        yield self._write_event("message_delta", delta=delta, usage=_counts(usage))
        yield self._write_event("message_stop")

    def fail(self, error: RefusalError) -> bytes:
        """The event of an error."""
        return self._write_event("error", error=error.body(anthropic=True)["error"])

    def wait(self) -> bytes:
        """An event that says nothing."""
        return PING

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        self._index += 1
        yield self._write_event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._write_event("content_block_delta", index=self._index, delta=delta)

    def _write_event(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, **fields}).encode()
        if self._answer is not None:
            self._answer.take_event(data)
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
