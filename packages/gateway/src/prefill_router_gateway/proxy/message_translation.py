"""Translates answers of chat completions to those of Anthropic's Messages API.

Only for requests that were translated to chats (`protocol.chat_translation`). Reasoning is left
out: it would need Anthropic's signature. Arguments of a tool call that aren't a JSON object are a
failure of the target, never a made-up input, unless the limit of tokens cut them off.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, final

from prefill_router.endpoints import Usage, read_error
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.proxy.response_metadata import ResponseMetadata, StreamObserver, parsed
from prefill_router_gateway.records import AnswerText

_STOPS = {"length": "max_tokens", "content_filter": "refusal"}
"""The reasons that count whatever the answer has; otherwise a tool call or an end stopped it."""
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_BAD_ARGUMENTS = "the target wrote arguments of a tool call that aren't a JSON object"


def message(chat: Mapping[str, Any], usage: Usage | None, *, target: str) -> dict[str, Any] | None:
    """The message for a whole chat completion; None where it has none, or can't be read.

    Args:
        chat: The completion.
        usage: Its token counts.
        target: The name of the target, for a completion that names no model.
    """
    choices = chat.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(said, Mapping):
        return None
    content: list[dict[str, Any]] = []
    if text := _text(said):
        content.append({"type": "text", "text": text})
    reason = _string(choice.get("finish_reason"))
    for call in _calls(said):
        block, arguments = _called(call)
        value = parsed(arguments.encode("utf-8", "replace") or b"{}")
        if block["name"] and value is not None:
            content.append({**block, "input": value})
        elif reason != "length":
            return None
    stop = _stop(reason, refused=bool(said.get("refusal")), called=len(content) > bool(text))
    return {**_head(chat, usage, target), "content": content, "stop_reason": stop}


def _head(chat: Mapping[str, Any], usage: Usage | None, target: str) -> dict[str, Any]:
    return {
        "id": _string(chat.get("id")) or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": _string(chat.get("model")) or target,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _counts(usage),
    }


def _counts(usage: Usage | None) -> dict[str, int]:
    """Token counts in Anthropic's form, where cached input tokens aren't among the others."""
    read, cached = (usage and usage.input_tokens) or 0, (usage and usage.cached_tokens) or 0
    return {
        "input_tokens": max(0, read - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": (usage and usage.output_tokens) or 0,
    }


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _text(said: Mapping[str, Any]) -> str:
    """The text of a message or of a delta; a refusal is text too."""
    content = said.get("content")
    parts = content if isinstance(content, list) else ()
    texts = [_string(part.get("text")) for part in parts if isinstance(part, Mapping)]
    return _string(content) + "".join(texts) + _string(said.get("refusal"))


def _stop(reason: str, *, refused: bool, called: bool) -> str:
    return "refusal" if refused else _STOPS.get(reason, "tool_use" if called else "end_turn")


def _calls(said: Mapping[str, Any]) -> list[Any]:
    calls = said.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _called(call: object) -> tuple[dict[str, Any], str]:
    """The block of a tool call, without its input, and its arguments."""
    given = call if isinstance(call, Mapping) else {}
    function = given.get("function")
    named = function if isinstance(function, Mapping) else {}
    identity = _string(given.get("id")) or f"toolu_{uuid.uuid4().hex}"
    block = {"type": "tool_use", "id": identity, "name": _string(named.get("name")), "input": {}}
    return block, _arguments_text(named.get("arguments"))


def _arguments_text(arguments: object) -> str:
    """The text of a call's arguments; some servers send the object itself."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments)
    except RecursionError:  # parsed with a shallower stack
        return "null"  # which is no object, and so a failure of the target


@final
class MessageStream:
    """Takes the place of the `StreamObserver` of a chat, and translates what passes it.

    Args:
        observer: Reads the chat.
        answer: Takes the answer's text; None where it isn't kept.
        input_tokens: The estimated input tokens, for the beginning of the stream.
        target: The name of the target.

    Attributes:
        facts: What has been read of the chat.
        sequence_number: Always 0; messages have none.
    """

    def __init__(
        self,
        observer: StreamObserver,
        *,
        answer: AnswerText | None,
        input_tokens: int,
        target: str,
    ) -> None:
        self._observer, self._answer = observer, answer
        self._input_tokens, self._target = input_tokens, target
        self.facts: ResponseMetadata = observer.facts
        self.sequence_number = 0
        self._data: list[bytes] = []
        self._index = -1  # of the latest block
        self._open: str | None = None
        self._call: object = None  # what tells the open call from others
        self._arguments: list[str] = []
        self._calls: set[object] = set()
        self._reason = ""
        self._has_begun = self._has_refused = self._is_over = False

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward.

        Raises:
            BrokenResponseError: A line is too long.
        """
        return self.translate(self._observer.feed(piece))

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""
        last = self.translate(self._observer.close() + b"\n\n")
        return last + (b"".join(self._end()) if self.facts.is_complete else b"")

    def translate(self, lines: bytes) -> bytes:
        """Translate whole lines of the chat's stream."""
        events = list[bytes]()
        for line in lines.split(b"\n")[:-1]:
            stripped = line.rstrip(b"\r")
            if stripped.startswith(b"data:"):
                self._data.append(stripped[5:].strip())
            elif not stripped and self._data:
                data, self._data = b"\n".join(self._data), []
                told = self._end() if data == b"[DONE]" else self._event(parsed(data) or {})
                events += list(told) or ([] if self._is_over else [_PING])
        return b"".join(events)

    def _event(self, value: Mapping[str, Any]) -> Iterator[bytes]:
        if self._is_over:
            return
        if value.get("error"):
            yield self._failed(read_error(value).words or "the target failed")
            return
        if not self._has_begun:
            self._has_begun = True
            head = _head(value, Usage(input_tokens=self._input_tokens), self._target)
            yield self._written("message_start", message=head)
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return
        delta = choice.get("delta")
        if isinstance(delta, Mapping):
            yield from self._said(delta)
        self._reason = self._reason or _string(choice.get("finish_reason"))

    def _said(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        if text := _text(delta):
            self._has_refused = self._has_refused or bool(delta.get("refusal"))
            if self._open != "text":
                yield from self._start({"type": "text", "text": ""})
            if not self._is_over:
                yield self._delta({"type": "text_delta", "text": text})
        for call in _calls(delta):
            if not self._is_over:
                yield from self._called(call)

    def _called(self, call: object) -> Iterator[bytes]:
        block, arguments = _called(call)
        given = call if isinstance(call, Mapping) else {}
        mark = given["index"] if isinstance(given.get("index"), int) else None
        key = (mark, _string(given.get("id")))
        is_other = key not in self._calls and (bool(key[1]) or mark != self._call)
        if self._open != "tool_use" or (block["name"] and is_other):
            if not block["name"]:
                yield self._failed("the target wrote a tool call without a name")
                return
            yield from self._start(block)
            self._call = mark
            self._calls.add(key)
        elif mark is not None and mark != self._call:
            yield self._failed("the target wrote several tool calls at once")
            return
        if arguments and not self._is_over:
            self._arguments.append(arguments)
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _start(self, block: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self._finish_block()
        if not self._is_over:
            self._index, self._open = self._index + 1, block["type"]
            yield self._written("content_block_start", index=self._index, content_block=block)

    def _finish_block(self) -> Iterator[bytes]:
        if self._open is None:
            return
        written, self._arguments = "".join(self._arguments).encode("utf-8", "replace"), []
        is_cut = self._reason == "length"  # what has arrived is passed on, as Anthropic does
        if self._open == "tool_use" and written and parsed(written) is None and not is_cut:
            yield self._failed(_BAD_ARGUMENTS)
            return
        self._open = None
        yield self._written("content_block_stop", index=self._index)

    def _end(self) -> Iterator[bytes]:
        if not self._is_over and self._has_begun:
            yield from self._finish_block()
        if self._is_over or not self._has_begun:
            return
        usage, _ = self.facts.usage(input_tokens=self._input_tokens)
        stop = _stop(self._reason, refused=self._has_refused, called=bool(self._calls))
        delta = {"stop_reason": stop, "stop_sequence": None}
        yield self._written("message_delta", delta=delta, usage=_counts(usage))
        yield self._written("message_stop")
        self._is_over = True

    def _failed(self, words: str) -> bytes:
        """The event of an error, which ends the stream."""
        self._is_over = True
        error = RefusalError(words, status=502).body(anthropic=True)
        if self.facts.error is None:
            self.facts.error = read_error(error)
        return self._written("error", error=error["error"])

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return self._written("content_block_delta", index=self._index, delta=delta)

    def _written(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, **fields}).encode()
        if self._answer is not None:
            self._answer.take_event(data)
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
