"""Writes the answers of chats as those of OpenAI's Responses API."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, final

from prefill_router.endpoints import Usage
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import split_name
from prefill_router_gateway.proxy.chat_answer import ChatAnswer, ToolCall

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_of(answer: ChatAnswer, usage: Usage | None, *, target: str) -> dict[str, Any]:
    """The response for a whole answer of a chat.

    Args:
        answer: The answer.
        usage: Its token counts.
        target: The name of the target, for an answer that names no model.
    """
    output = [_message(_new_id("msg"), answer.text)] if answer.text else []
    output += [_call(_new_id("fc"), call) for call in answer.calls]
    head = _head(_new_id("resp"), answer.model or target)
    return {**head, **_end(answer.reason, usage), "output": output}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _head(response_id: str, model: str) -> dict[str, Any]:
    """A response that has begun; it isn't stored, and so can't be continued by its id."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def _end(reason: str, usage: Usage | None) -> dict[str, Any]:
    cut = _CUT.get(reason)
    ended = {"status": "completed"} if cut is None else {"status": "incomplete"}
    details = None if cut is None else {"reason": cut}
    return {**ended, "incomplete_details": details, "usage": _counts(usage or Usage())}


def _counts(usage: Usage) -> dict[str, Any]:
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(item_id: str, text: str) -> dict[str, Any]:
    item = {"id": item_id, "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [_text(text)]}


def _call(item_id: str, call: ToolCall) -> dict[str, Any]:
    namespace, name = split_name(call.name)
    item = {"id": item_id, "type": "function_call", "status": "completed", "call_id": call.id}
    within = {} if namespace is None else {"namespace": namespace}
    return {**item, **within, "name": name, "arguments": call.arguments or "{}"}


@final
class ResponseWriter:
    """Writes the events of a response.

    Args:
        answer: Takes the answer's text; None where it isn't kept.
        target: The name of the target, for a chat that names no model.

    Attributes:
        sequence_number: The number of the next event.
    """

    def __init__(self, *, answer: AnswerText | None, target: str) -> None:
        self._answer, self._target = answer, target
        self.sequence_number = 0
        self._response: Mapping[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        self._item: dict[str, Any] = {}  # the open one, without what is written piece by piece
        self._call: ToolCall | None = None
        self._pieces: list[str] = []

    def begin(self, chat_id: str, model: str) -> Iterator[bytes]:  # noqa: ARG002
        """The events at the beginning."""
        self._response = _head(_new_id("resp"), model or self._target)
        yield self._write_event("response.created", response=self._response)
        yield self._write_event("response.in_progress", response=self._response)

    def start_text(self) -> Iterator[bytes]:
        """The events at the beginning of a text."""
        self._call, self._item = None, _message(_new_id("msg"), "")
        yield self._add_item({**self._item, "content": []})
        yield self._of_part("response.content_part.added", part=_text(""))

    def write_text(self, text: str) -> bytes:
        """The event of a piece of the text."""
        self._pieces.append(text)
        return self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def start_call(self, call: ToolCall) -> Iterator[bytes]:
        """The event at the beginning of a tool call."""
        self._call, self._item = call, _call(_new_id("fc"), call)
        yield self._add_item({**self._item, "arguments": ""})

    def write_arguments(self, text: str) -> bytes:
        """The event of a piece of the call's arguments."""
        self._pieces.append(text)
        return self._of_item("response.function_call_arguments.delta", delta=text)

    def finish_part(self, *, is_cut: bool) -> Iterator[bytes]:
        """The events at the end of the text or call."""
        text, self._pieces = "".join(self._pieces), []
        self._item["status"] = "incomplete" if is_cut else "completed"
        if self._call is None:
            self._item["content"] = [_text(text)]
            yield self._of_part("response.output_text.done", text=text, logprobs=[])
            yield self._of_part("response.content_part.done", part=_text(text))
        else:
            self._item["arguments"] = text or "{}"
            call = {"name": self._item["name"], "arguments": self._item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **call)
        place = len(self._output)
        yield self._write_event("response.output_item.done", output_index=place, item=self._item)
        self._output.append(self._item)

    def end(self, reason: str, usage: Usage | None, *, has_refused: bool) -> Iterator[bytes]:  # noqa: ARG002
        """The event at the end of the answer."""
        whole = {**self._response, **_end(reason, usage), "output": self._output}
        yield self._write_event(f"response.{whole['status']}", response=whole)

    def fail(self, error: RefusalError) -> bytes:
        """The event of an error."""
        return self._write_event("error", code=error.code, message=str(error), param=None)

    def wait(self) -> bytes:
        """A comment."""
        return b": waiting\n\n"

    def _add_item(self, item: Mapping[str, Any]) -> bytes:
        unfinished = {**item, "status": "in_progress"}
        place = len(self._output)
        return self._write_event("response.output_item.added", output_index=place, item=unfinished)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        return self._write_event(kind, **place, **fields)

    def _of_part(self, kind: str, **fields: Any) -> bytes:
        return self._of_item(kind, content_index=0, **fields)

    def _write_event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self.sequence_number, **fields}
        data = json.dumps(event).encode()
        self.sequence_number += 1
        if self._answer is not None:
            self._answer.take_event(data)
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
