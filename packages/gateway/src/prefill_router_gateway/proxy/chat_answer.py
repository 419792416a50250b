"""Reads the answers of chat completions that are translated to another API.

Only for requests that were translated to chats (`protocol.chat_translation`). `MessageWriter` and
`ResponseWriter` write what is read here in their API. Reasoning is left out where anything else is
answered, since it would need the other API's signature. Reasoning alone is passed on as the text:
clients send an answer back, and only its text is accepted by every target.
Arguments of a tool call that aren't a JSON object are a failure of the target, never a made-up
input, unless the limit of tokens cut them off.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from prefill_router.endpoints import Usage, read_error, without_key
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.proxy.response_metadata import ResponseMetadata, StreamObserver, parsed

_LONGEST_REASONING = 2**18
"""After so many characters, no more of a reasoning is kept for an answer that has nothing else."""
_BAD_ARGUMENTS = "the target wrote arguments of a tool call that aren't a JSON object"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call of a chat.

    Attributes:
        id: Its id.
        name: The tool's name; empty where the chat gives none.
        arguments: Its arguments, a text.
    """

    id: str
    name: str
    arguments: str


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """A whole answer of a chat.

    Attributes:
        id: Its id; empty where the chat gives none.
        model: The model that it names; empty for none.
        text: Its text, or its reasoning where it has nothing else.
        calls: Its tool calls, whose arguments are JSON objects.
        reason: Why it ended, in the words of chats; empty where unknown.
        has_refused: Whether the model refused.
    """

    id: str
    model: str
    text: str
    calls: tuple[ToolCall, ...]
    reason: str
    has_refused: bool


def read_answer(chat: Mapping[str, Any]) -> ChatAnswer | None:
    """The answer of a whole chat completion; None where it has none, or can't be read."""
    choices = chat.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    reply = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(reply, Mapping):
        return None
    reason, calls = string(choice.get("finish_reason")), list[ToolCall]()
    for value in _tool_calls(reply):
        call = _read_tool_call(value)
        if call.name and parsed(call.arguments.encode("utf-8", "replace") or b"{}") is not None:
            calls.append(call)
        elif reason != "length":
            return None
    return ChatAnswer(
        id=string(chat.get("id")),
        model=string(chat.get("model")),
        text=_read_text(reply) or ("" if calls else _read_reasoning(reply)),
        calls=tuple(calls),
        reason=reason,
        has_refused=bool(reply.get("refusal")),
    )


def string(value: object) -> str:
    """The value, where it is a text; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def _read_text(reply: Mapping[str, Any]) -> str:
    """The text of a message or of a delta; a refusal is text too."""
    content = reply.get("content")
    parts = content if isinstance(content, list) else ()
    texts = [string(part.get("text")) for part in parts if isinstance(part, Mapping)]
    return string(content) + "".join(texts) + string(reply.get("refusal"))


def _read_reasoning(reply: Mapping[str, Any]) -> str:
    """The reasoning of a message or of a delta, by either of its names."""
    return string(reply.get("reasoning_content")) or string(reply.get("reasoning"))


def _tool_calls(reply: Mapping[str, Any]) -> list[Any]:
    calls = reply.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _read_tool_call(call: object) -> ToolCall:
    fields = call if isinstance(call, Mapping) else {}
    function = fields.get("function")
    function_fields = function if isinstance(function, Mapping) else {}
    return ToolCall(
        id=string(fields.get("id")) or f"call_{uuid.uuid4().hex}",
        name=string(function_fields.get("name")),
        arguments=_arguments_text(function_fields.get("arguments")),
    )


def _arguments_text(arguments: object) -> str:
    """The text of a call's arguments; some servers send the object itself."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments)
    except RecursionError:  # parsed with a shallower stack
        return "null"  # which is no object, and so a failure of the target


@runtime_checkable
class AnswerWriter(Protocol):
    """Writes the events of an API for what a chat's stream says, in its order."""

    @property
    def sequence_number(self) -> int:
        """The number that the next event would have; 0 where events have none."""
        ...

    def begin(self, chat_id: str, model: str) -> Iterator[bytes]:
        """The events at the beginning."""
        ...

    def start_text(self) -> Iterator[bytes]:
        """The events at the beginning of a text."""
        ...

    def write_text(self, text: str) -> bytes:
        """The event of a piece of the text."""
        ...

    def start_call(self, call: ToolCall) -> Iterator[bytes]:
        """The events at the beginning of a tool call, whose arguments follow."""
        ...

    def write_arguments(self, text: str) -> bytes:
        """The event of a piece of the call's arguments."""
        ...

    def finish_part(self, *, is_cut: bool) -> Iterator[bytes]:
        """The events at the end of the text or call, which the limit of tokens may have cut."""
        ...

    def end(self, reason: str, usage: Usage | None, *, has_refused: bool) -> Iterator[bytes]:
        """The events at the end of the answer."""
        ...

    def fail(self, error: RefusalError) -> bytes:
        """The event of an error, which ends the stream."""
        ...

    def wait(self) -> bytes:
        """What shows that the target lives, while it writes nothing that is passed on."""
        ...


@final
class TranslatedStream:
    """Takes the place of the `StreamObserver` of a chat, and translates what passes it.

    Args:
        observer: Reads the chat.
        writer: Writes the events of the other API.
        input_tokens: The estimated input tokens, where the target reports none.

    Attributes:
        facts: What has been read of the chat.
    """

    def __init__(
        self, observer: StreamObserver, writer: AnswerWriter, *, input_tokens: int
    ) -> None:
        self._observer, self._writer, self._input_tokens = observer, writer, input_tokens
        self.facts: ResponseMetadata = observer.facts
        self._data: list[bytes] = []
        self._is_text: bool | None = None  # whether the open part is a text; None for no part
        self._mark: object = None  # what tells the open call from others
        self._arguments: list[str] = []
        self._calls: set[object] = set()
        self._reason = ""
        self._reasoning: list[str] = []  # until anything else comes
        self._reasoning_length = 0
        self._has_begun = self._has_refused = self._is_over = self._has_part = False

    @property
    def sequence_number(self) -> int:
        """The number that the next event of a Responses stream would have."""
        return self._writer.sequence_number

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
                written = self._end() if data == b"[DONE]" else self._event(parsed(data) or {})
                events += list(written) or ([] if self._is_over else [self._writer.wait()])
        return without_key(b"".join(events), self._observer.key_forms)

    def _event(self, value: Mapping[str, Any]) -> Iterator[bytes]:
        if self._is_over:
            return
        if value.get("error"):
            yield self._fail(read_error(value).words or "the target failed")
            return
        if not self._has_begun:
            self._has_begun = True
            yield from self._writer.begin(string(value.get("id")), string(value.get("model")))
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return
        delta = choice.get("delta")
        if isinstance(delta, Mapping):
            yield from self._read_delta(delta)
        self._reason = self._reason or string(choice.get("finish_reason"))

    def _read_delta(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        if text := _read_text(delta):
            self._has_refused = self._has_refused or bool(delta.get("refusal"))
            if not self._is_text:
                yield from self._start(None)
            if not self._is_over:
                yield self._writer.write_text(text)
        for call in _tool_calls(delta):
            if not self._is_over:
                yield from self._read_call(call)
        if not self._has_part and self._reasoning_length < _LONGEST_REASONING:
            self._reasoning.append(_read_reasoning(delta))
            self._reasoning_length += len(self._reasoning[-1])

    def _read_call(self, value: object) -> Iterator[bytes]:
        call, fields = _read_tool_call(value), value if isinstance(value, Mapping) else {}
        mark = fields["index"] if isinstance(fields.get("index"), int) else None
        key = (mark, string(fields.get("id")))
        is_other = key not in self._calls and (bool(key[1]) or mark != self._mark)
        if self._is_text is not False or (call.name and is_other):
            if not call.name:
                yield self._fail("the target wrote a tool call without a name")
                return
            yield from self._start(call)
            self._mark = mark
            self._calls.add(key)
        elif mark is not None and mark != self._mark:
            yield self._fail("the target wrote several tool calls at once")
            return
        if call.arguments and not self._is_over:
            self._arguments.append(call.arguments)
            yield self._writer.write_arguments(call.arguments)

    def _start(self, call: ToolCall | None) -> Iterator[bytes]:
        """Start a call, or for None a text."""
        yield from self._finish_part()
        if not self._is_over:
            self._has_part, self._reasoning = True, []
            self._is_text = call is None
            yield from self._writer.start_text() if call is None else self._writer.start_call(call)

    def _finish_part(self) -> Iterator[bytes]:
        if self._is_text is None:
            return
        written, self._arguments = "".join(self._arguments).encode("utf-8", "replace"), []
        is_cut = self._reason == "length"  # what has arrived is passed on, as providers do
        if not self._is_text and written and parsed(written) is None and not is_cut:
            yield self._fail(_BAD_ARGUMENTS)
            return
        self._is_text = None
        yield from self._writer.finish_part(is_cut=is_cut)

    def _end(self) -> Iterator[bytes]:
        if not self._is_over and self._has_begun:
            yield from self._finish_part()
        if self._is_over or not self._has_begun:
            return
        if reasoning := "".join(self._reasoning):
            yield from self._start(None)
            yield self._writer.write_text(reasoning)
            yield from self._finish_part()
        usage, _ = self.facts.usage(input_tokens=self._input_tokens)
        yield from self._writer.end(self._reason, usage, has_refused=self._has_refused)
        self._is_over = True

    def _fail(self, words: str) -> bytes:
        """The event of an error, which ends the stream."""
        self._is_over = True
        error = RefusalError(words, status=502)
        if self.facts.error is None:
            self.facts.error = read_error(error.body(anthropic=True))
        return self._writer.fail(error)
