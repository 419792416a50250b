"""Reads a request's body once; targets get the original bytes, with their own model's name.

The standard library's decoder parses the values. Only the outermost object is traversed here, which
tells where each value is in the text: so `Splicer` can replace one of them, such as the model's
name, while every other byte stays the same. The types of the fields that the gateway reads are
checked. All other fields are forwarded unchecked, so that new fields need no new gateway.
`scored_prompt` is the text that the encoder reads.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import NoneType
from typing import Any, NoReturn, final

from prefill_router.agents import (
    Harnesses,
    RequestReading,
    load_harnesses,
    read_request,
)
from prefill_router.data import Message, Prompt
from prefill_router.lazy_imports import without_collection
from prefill_router.targets import Ability, Endpoint
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol.headers import (
    OPENROUTER_FIELDS,
    OpenRouterOptions,
    take_options,
)
from prefill_router_gateway.protocol.turns import (
    AgentTurns,
    read_loop,
    read_needs,
    read_session_hint,
    read_turns,
    token_id_bytes,
)
from prefill_router_gateway.records import Header, Scored

Span = tuple[int, int]
"""The start and end of a value in the text, in characters."""

_LONG = 2**16  # bytes
_MOST_FIELDS = 1000
_SPACE = r"[ \t\n\r]*"
_space = re.compile(_SPACE).match
_plain_name = re.compile(rf'"([^"\\\x00-\x1f]*)"{_SPACE}:{_SPACE}').match
_next = re.compile(rf"{_SPACE}([,}}]){_SPACE}").match


@final
class UnreadableJsonError(ValueError):
    """A text isn't one JSON object, or repeats a field; the message quotes no value."""


def _no_constant(_: str) -> NoReturn:
    raise UnreadableJsonError("it has NaN or Infinity as a number, which JSON doesn't allow")


_read = json.JSONDecoder(parse_constant=_no_constant).raw_decode


@final
class JsonFields:
    """A parsed JSON object.

    Attributes:
        value: Its fields.
        spans: The span of each field's value.
        start: The position just after the opening brace.
    """

    __slots__ = ("spans", "start", "value")

    def __init__(self, value: dict[str, Any], spans: Mapping[str, Span], start: int) -> None:
        self.value, self.spans, self.start = value, spans, start


def without_collecting(body: bytes) -> AbstractContextManager[None]:
    """Disable garbage collection while a long body is parsed: JSON has no cycles.

    Repeated collection during parsing would take ten times as long as the parsing itself, and
    delay all other requests.
    """
    return without_collection() if len(body) > _LONG else nullcontext()


def read_fields(text: str) -> JsonFields:
    """Read a text that is one JSON object.

    Raises:
        UnreadableJsonError: It isn't one JSON object, or repeats a field.
        RecursionError: It is nested too deeply.
    """
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise UnreadableJsonError('it isn\'t a JSON object; send one, like {"model": "auto"}')
    try:
        fields, end = read_fields_at(text, start)
    except UnreadableJsonError:
        raise
    except json.JSONDecodeError as error:
        raise UnreadableJsonError(
            f"it isn't JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # the interpreter's limit of digits
        raise UnreadableJsonError("a number in it has too many digits") from None
    if _skip(text, end) != len(text):
        raise UnreadableJsonError(f"it has more after its JSON object, at character {end}")
    return fields


def read_fields_at(text: str, start: int) -> tuple[JsonFields, int]:
    """Read the object with its opening brace at `start`; also returns the position just after it.

    Raises:
        ValueError: As for `read_fields`, or from the standard library's decoder.
        RecursionError: It is nested too deeply.
    """
    value: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    at = _skip(text, start + 1)
    if text[at : at + 1] == "}":
        return JsonFields(value, spans, start + 1), at + 1
    while True:
        named = _plain_name(text, at)
        key, at = (named[1], named.end()) if named else _any_name(text, at)
        if key in value:
            name = ascii(key) if len(key) <= 64 else "a field"
            raise UnreadableJsonError(f"it has {name} twice; keep one of them")
        if len(value) == _MOST_FIELDS:
            raise UnreadableJsonError(f"it has more than {_MOST_FIELDS} fields")
        value[key], end = _read(text, at)
        spans[key] = (at, end)
        mark = _next(text, end)
        if mark is None:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, _skip(text, end))
        if mark[1] == "}":
            return JsonFields(value, spans, start + 1), mark.end(1)
        at = mark.end()


def _any_name(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("Expecting a field's name in double quotes", text, at)
    name, at = _read(text, at)  # it has escapes
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
    return name, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _space(text, at)
    return at if space is None else space.end()


_USAGE_REQUEST = b'"include_usage":true'
TRANSLATED: tuple[Endpoint, ...] = ("messages", "responses")
"""The endpoints whose requests are translated to chats for targets that serve chats alone."""
LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
"""What chat APIs call the most output tokens, the older name first."""


@final
class Splicer:
    """Replaces the model's name in a body.

    Args:
        body: The body.
        text: The body, decoded.
        fields: Its parsed fields; one of them is `model`.
        can_ask: Whether a request for the token counts of a stream may be added.

    Attributes:
        body: The body.

    Raises:
        UnreadableJsonError: Its `stream_options` repeat a field.
    """

    def __init__(self, body: bytes, text: str, fields: JsonFields, *, can_ask: bool) -> None:
        self.body = body
        self._names = frozenset(fields.value)
        self._start, self._end = _in_bytes(body, text, fields.spans["model"])
        self._usage: tuple[int, int, bytes] | None = None
        if can_ask:
            span, put = _usage_edit(text, fields)
            self._usage = (*_in_bytes(body, text, span), put)

    def body_for(
        self,
        model: str,
        *,
        ask_usage: bool,
        further: Mapping[str, bytes] | None = None,
        rename: tuple[str, str] | None = None,
    ) -> bytes:
        """The body with another model.

        Every byte but those of the model's name, of `stream_options` and of a renamed limit stays
        the same. Further fields are inserted after the model's name.

        Args:
            model: The target's own model name.
            ask_usage: Whether to request the token counts of a stream, if `can_ask`.
            further: Fields that are added where the client sent none, with JSON values.
            rename: One of `LIMIT_NAMES`, and the other to put in its place; None for none.
        """
        name = json.dumps(model).encode()
        for added, value in (further or {}).items():
            if added not in self._names:
                name += b"," + json.dumps(added).encode() + b":" + value
        edits = [(self._start, self._end, name)]
        if self._usage is not None and ask_usage:
            edits.append(self._usage)
        if rename is not None and rename[0] in self._names and rename[1] not in self._names:
            edits.append((*_name_in_bytes(self.body, rename[0]), json.dumps(rename[1]).encode()))
        return _apply_edits(self.body, edits)


def _apply_edits(body: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The body with other bytes in these places, which don't overlap."""
    pieces, at = list[bytes](), 0
    for start, end, put in sorted(edits):
        pieces += (body[at:start], put)
        at = end
    return b"".join((*pieces, body[at:]))


def _name_in_bytes(body: bytes, name: str) -> Span:
    """Where the name of a field is, quotes included; it may be written with escapes."""
    text = body.decode()
    value, _ = read_fields(text).spans[name]
    end = text.rindex('"', 0, text.rindex(":", 0, value)) + 1
    return _in_bytes(body, text, (text.rindex('"', 0, end - 1), end))


def size_in_bytes(body: bytes, text: str, span: Span) -> int:
    """The size in bytes of a part of the text."""
    start, end = _in_bytes(body, text, span)
    return end - start


def _in_bytes(body: bytes, text: str, span: Span) -> Span:
    start, end = span
    if len(body) == len(text):  # one byte per character
        return span
    first = len(text[:start].encode())
    return first, first + len(text[start:end].encode())


def _usage_edit(text: str, fields: JsonFields) -> tuple[Span, bytes]:
    if "stream_options" not in fields.spans:
        after = fields.spans["model"][1]
        return (after, after), b',"stream_options":{' + _USAGE_REQUEST + b"}"
    start, end = fields.spans["stream_options"]
    if text[start] != "{":  # null
        return (start, end), b"{" + _USAGE_REQUEST + b"}"
    inner, _ = read_fields_at(text, start)
    if "include_usage" in inner.spans:
        return inner.spans["include_usage"], b"true"
    return (inner.start, inner.start), _USAGE_REQUEST + (b"," if inner.value else b"")


_SCHEMAS = ("tools", "functions")


@final
class Envelope:
    """One request's body; made by `read_envelope`.

    Properties that only routing needs are computed on first use, so that a request for a named
    target doesn't pay for them. Nothing keeps it while a request waits: its fields and texts may
    take twenty times the memory of the bytes.

    Attributes:
        endpoint: The endpoint.
        value: The body's fields; they must not be changed.
        model: The model name that the client sent.
        stream: Whether the answer is to be streamed.
        usage_asked: Whether the client requested that a stream ends with its token counts.
        can_ask_usage: Whether `body_for` can request token counts that the client didn't.
        max_tokens: The most output tokens; None where no limit is given.
        splicer: Makes the bodies for targets; it keeps the original bytes and no fields.
        options: What OpenRouter's routing fields ask for; None where there are none.
    """

    def __init__(
        self, endpoint: Endpoint, value: dict[str, Any], *, splicer: Splicer, schema_bytes: int
    ) -> None:
        self.endpoint, self.value = endpoint, value
        self.model: str = value["model"]
        self.stream = value.get("stream") is True
        self.max_tokens = read_limit(value)
        options = value.get("stream_options")
        self.usage_asked = options is not None and options.get("include_usage") is True
        self.can_ask_usage = _can_ask(endpoint, value)
        self.splicer, self._schema_bytes = splicer, schema_bytes
        self.options: OpenRouterOptions | None = None

    def body_for(
        self, model: str, *, ask_usage: bool, further: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The client's bytes with another model's name in them, and nothing else changed.

        Args:
            model: The target's own model name.
            ask_usage: Whether to request token counts at the end of a `chat` or `completions`
                stream; ignored where `can_ask_usage` is False.
            further: Fields that are added where the client sent none, with JSON values.
        """
        return self.splicer.body_for(model, ask_usage=ask_usage, further=further)

    @cached_property
    def turns(self) -> tuple[Message, ...]:
        """The text of every turn, system prompts first where they have a field of their own.

        Tool calls and their results count as text, other content parts don't.
        """
        return read_turns(self.endpoint, self.value)

    @cached_property
    def key_turns(self) -> tuple[Message, ...]:
        """The turns up to the first user turn, which stay the same throughout a conversation.

        Empty where there is no user turn; then the conversation can't be recognised by its turns.
        """
        for i, turn in enumerate(self.turns):
            if turn.role == "user":
                return self.turns[: i + 1]
        return ()

    @cached_property
    def text_bytes(self) -> int:
        """Bytes of all the text, tool schemas included; a token id counts as four."""
        texts = (turn.content for turn in self.turns)
        count = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        return count + self._schema_bytes + token_id_bytes(self.endpoint, self.value)

    @cached_property
    def needs(self) -> frozenset[Ability]:
        """The abilities that a target needs to answer it."""
        return read_needs(self.endpoint, self.value)

    @cached_property
    def _loop(self) -> tuple[str, ...] | None:
        return read_loop(self.endpoint, self.value)

    @property
    def in_tool_loop(self) -> bool:
        """Whether it ends with the results of tool calls."""
        return self._loop is not None

    @property
    def tool_call_ids(self) -> tuple[str, ...]:
        """The ids of the tool calls whose results end it, in order; empty if none."""
        return self._loop or ()

    @property
    def previous_response_id(self) -> str | None:
        """The id of the stored response that it continues, in the Responses API."""
        if self.endpoint != "responses":
            return None
        return self.value.get("previous_response_id") or None

    def read(self, headers: Sequence[Header], harnesses: Harnesses) -> RequestReading:
        """Who asks, and what.

        Args:
            headers: The request's headers, with names in lower case.
            harnesses: The marks of agents.
        """
        return read_request(
            AgentTurns(self.endpoint, self.value),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            harnesses=harnesses,
            session=self.session_hint,
            max_tokens=self.max_tokens,
        )

    @property
    def session_hint(self) -> str | None:
        """The client's own name of the conversation, see `read_session_hint`."""
        return read_session_hint(self.endpoint, self.value)


def read_envelope(endpoint: Endpoint, body: bytes) -> Envelope:
    """Read a request's body; OpenRouter's routing fields are taken out of it.

    Raises:
        RefusalError: It isn't one JSON object in UTF-8, is nested too deeply, repeats a field, has
            no model, or has a field of the wrong type.
    """
    body = body.removeprefix(BOM_UTF8)  # some editors and shells write one (RFC 8259, 8.1)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RefusalError(
            f"the body isn't UTF-8 at byte {error.start}; send JSON in UTF-8, uncompressed"
        ) from None
    try:
        with without_collecting(body):
            fields = read_fields(text)
        value = fields.value
        if not OPENROUTER_FIELDS.isdisjoint(value) and endpoint != "embeddings":
            options, others = take_options(text, fields.value, fields.spans)
            if options is not None:
                envelope = read_envelope(endpoint, others)
                envelope.options = options
                return envelope
        if has_lone_surrogate(body, value):
            raise RefusalError(
                "a text in the body has a lone surrogate, half a character; send whole characters"
            )
        check_fields(endpoint, value)
        sizes = [size_in_bytes(body, text, fields.spans[n]) for n in _SCHEMAS if n in value]
        splicer = Splicer(body, text, fields, can_ask=_can_ask(endpoint, value))
    except UnreadableJsonError as error:
        raise RefusalError(f"the body can't be read: {error}") from None
    except RecursionError:
        raise RefusalError("the body is nested too deeply; use fewer levels") from None
    return Envelope(endpoint, value, splicer=splicer, schema_bytes=sum(sizes))


def _can_ask(endpoint: Endpoint, value: dict[str, Any]) -> bool:
    if endpoint not in ("chat", "completions") or value.get("stream") is not True:
        return False
    options = value.get("stream_options")
    return options is None or options.get("include_usage") is not True


_FLAG = (bool, NoneType)
_CONTENT = (str, list, NoneType)
_MOST_TOKENS = 10**9
_LIMITS = (*reversed(LIMIT_NAMES), "max_output_tokens")
_escaped_surrogate = re.compile(rb"\\u[dD][89a-fA-F]").search
_INPUT: dict[Endpoint, str] = {
    "chat": "messages",
    "messages": "messages",
    "responses": "input",
    "completions": "prompt",
    "embeddings": "input",
}
"""The field of each endpoint that has the input."""


def check_fields(endpoint: Endpoint, value: Mapping[str, Any]) -> None:
    """Check the fields that the gateway reads.

    Raises:
        RefusalError: One of them is missing or has the wrong type.
    """
    _check_model(value.get("model"))
    if not isinstance(value.get("stream"), _FLAG):
        raise _wrong("stream", "true or false")
    options = value.get("stream_options")
    if options is not None:
        if not isinstance(options, dict):
            raise _wrong("stream_options", "an object")
        if not isinstance(options.get("include_usage"), _FLAG):
            raise _wrong("stream_options.include_usage", "true or false")
    field = _INPUT[endpoint]
    content = value.get(field)
    if field == "messages":
        _check_turns(content)
    elif not isinstance(content, _CONTENT):
        raise _wrong(field, "a text or a list")
    elif endpoint == "responses":
        _check_items(content)
    if not isinstance(value.get("previous_response_id"), str | None):
        raise _wrong("previous_response_id", "a text")


def read_limit(value: Mapping[str, Any]) -> int | None:
    """The most output tokens of the answer; None where no limit is given.

    Values below 1 are ignored: some servers accept -1 for no limit. The most that is returned is a
    billion.

    Raises:
        RefusalError: A limit isn't a whole number.
    """
    for name in _LIMITS:
        limit = value.get(name)
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit % 1 != 0:
            raise _wrong(name, "a whole number")
        return min(int(limit), _MOST_TOKENS) if limit >= 1 else None
    return None


def has_lone_surrogate(body: bytes, value: Mapping[str, Any]) -> bool:
    r"""Whether a text in the body has a lone surrogate, written as an escape such as `\ud800`.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if _escaped_surrogate(body) is None:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_model(model: object) -> None:
    if model is None:
        raise RefusalError(
            'the request has no model; send "model": "auto", or a target\'s name', param="model"
        )
    if not isinstance(model, str):
        raise _wrong("model", 'a text, for example "auto"')
    if not model.strip():
        raise RefusalError(
            'the model\'s name is empty; send "model": "auto", or a target\'s name', param="model"
        )


def _check_turns(turns: object) -> None:
    if not isinstance(turns, list):
        raise _wrong("messages", "a list of messages")
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise _wrong(f"messages[{i}]", "an object with role and content")
        if not isinstance(turn.get("role"), str):
            raise _wrong(f"messages[{i}].role", "a text, for example user")
        if not isinstance(turn.get("content"), _CONTENT):
            raise _wrong(f"messages[{i}].content", "a text or a list of parts")


def _check_items(items: object) -> None:
    if isinstance(items, list):
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                raise _wrong(f"input[{i}]", "an object")


def _wrong(field: str, due: str) -> RefusalError:
    return RefusalError(f"{field} must be {due}", param=field)


def scored_prompt(
    envelope: Envelope, scored: Scored, reading: RequestReading | None = None
) -> Prompt | None:
    """The prompt that the encoder reads of a request; None where it has no text.

    A single user turn is returned as its text, whatever `scored` is: encoders read both alike, and
    one cached forecast serves both.

    Args:
        envelope: The request; None is returned for several texts to complete or to embed at once.
        scored: The turns to read. The last user turn means the last one with text.
        reading: Who asks and what; by default it is read of the body alone, by the marks that the
            gateway has.
    """
    turns = envelope.turns
    if envelope.endpoint in ("completions", "embeddings"):
        return _prompt(turns) if len(turns) == 1 else None
    if scored == "ask":
        reading = reading or envelope.read((), load_harnesses())
        if reading.ask is not None:
            return reading.scored_text
    with_system = scored in ("last_user_with_system", "conversation_with_system")
    if scored in ("ask", "last_user", "last_user_with_system"):
        asks = (turn for turn in reversed(turns) if turn.role == "user" and _has_text(turn))
        last = next(asks, None)
        if last is None:
            return None
        if not with_system:
            return last.content
        turns = (*(turn for turn in turns if turn.role == "system"), last)
    return _prompt(tuple(turn for turn in turns if with_system or turn.role != "system"))


def _prompt(turns: tuple[Message, ...]) -> Prompt | None:
    texts = tuple(turn for turn in turns if _has_text(turn))
    if not texts:
        return None
    return texts[0].content if len(texts) == 1 and texts[0].role == "user" else texts


def _has_text(turn: Message) -> bool:
    return bool(turn.content) and not turn.content.isspace()
