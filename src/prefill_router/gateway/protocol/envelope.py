"""A request's body, read once, and sent on as the bytes that it came as.

The fields that the gateway reads are checked to be of the kinds they should be. What it doesn't
read goes on to the target unchecked, so that new fields need no new gateway. `scored_prompt` is
what the encoder reads of a request.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import cached_property
from types import NoneType
from typing import Any, final

from prefill_router.data import Message, Prompt
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.protocol.json_splice import (
    Splicer,
    UnreadableJsonError,
    read_fields,
    size_in_bytes,
    without_collecting,
)
from prefill_router.gateway.protocol.turns import (
    read_loop,
    read_needs,
    read_session_hint,
    read_turns,
    token_id_bytes,
)
from prefill_router.gateway.types import Scored
from prefill_router.targets import Ability, Endpoint

_SCHEMAS = ("tools", "functions")


@final
class Envelope:
    """What one request asks for; `read_envelope` makes it.

    What only routing needs is read when it is first asked for, so that a request for a named
    target doesn't pay for it.

    Attributes:
        endpoint: What was asked.
        value: The body's fields. Nothing may change them.
        model: The name that the client sent as its model.
        stream: Whether the answer is to be sent as it comes.
        usage_asked: Whether the client itself asked that a stream ends with its token counts.
        can_ask_usage: Whether `body_for` can ask for token counts that it didn't ask for.
        max_tokens: At most so many tokens in the answer; None where nothing is said.
        splicer: Makes the bodies for targets; it keeps the bytes that came, and no field.
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

    def forget(self) -> None:
        """Let go of the fields and texts, which may take twenty times as much as the bytes.

        To be called once all has been read that stands in them; bodies can still be made.
        """
        self.value = {}
        for name in ("turns", "key_turns"):
            self.__dict__.pop(name, None)

    def body_for(
        self, model: str, *, ask_usage: bool, further: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The client's bytes with another model's name in them, and nothing else changed.

        Args:
            model: What the target calls itself.
            ask_usage: Whether a stream of `chat` or `completions` is also to end with its token
                counts; it changes nothing where `can_ask_usage` is False.
            further: Fields, their values in JSON, that are added where the client sent none.
        """
        return self.splicer.body_for(model, ask_usage=ask_usage, further=further)

    @cached_property
    def turns(self) -> tuple[Message, ...]:
        """The text of every turn, system prompts first where they have a field of their own.

        Calls of tools and their results count as text, other content parts don't.
        """
        return read_turns(self.endpoint, self.value)

    @cached_property
    def key_turns(self) -> tuple[Message, ...]:
        """The turns up to the user's first, which stay the same as a conversation goes on.

        Empty where the user says nothing: then nothing names the conversation.
        """
        for i, turn in enumerate(self.turns):
            if turn.role == "user":
                return self.turns[: i + 1]
        return ()

    @cached_property
    def text_bytes(self) -> int:
        """Bytes of all the text, tools' schemas included; a token id counts as four."""
        texts = (turn.content for turn in self.turns)
        said = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        return said + self._schema_bytes + token_id_bytes(self.endpoint, self.value)

    @cached_property
    def needs(self) -> frozenset[Ability]:
        """What a target must be able to do to answer it."""
        return read_needs(self.endpoint, self.value)

    @cached_property
    def _loop(self) -> tuple[str, ...] | None:
        return read_loop(self.endpoint, self.value)

    @property
    def in_tool_loop(self) -> bool:
        """Whether it ends with the results of tools that the last answer called."""
        return self._loop is not None

    @property
    def tool_call_ids(self) -> tuple[str, ...]:
        """The calls whose results end it, in order; empty where none do, or they have no ids."""
        return self._loop or ()

    @property
    def previous_response_id(self) -> str | None:
        """The stored response that it goes on from, in the Responses API."""
        if self.endpoint != "responses":
            return None
        return self.value.get("previous_response_id") or None

    @property
    def session_hint(self) -> str | None:
        """What the client itself calls the conversation, see `read_session_hint`."""
        return read_session_hint(self.endpoint, self.value)


def read_envelope(endpoint: Endpoint, body: bytes) -> Envelope:
    """Read a request's body.

    Raises:
        RefusalError: It isn't one JSON object in UTF-8, is nested too deeply, names a field twice
            or no model, or a field that the gateway reads isn't of its kind.
    """
    body = body.removeprefix(BOM_UTF8)  # some editors and shells write one (RFC 8259, 8.1)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RefusalError(
            f"the body isn't UTF-8, from its byte {error.start} on; send JSON in UTF-8, "
            "uncompressed"
        ) from None
    try:
        with without_collecting(body):
            fields = read_fields(text)
        value = fields.value
        if has_lone_surrogate(body, value):
            raise RefusalError(
                "a text in the body has half a character (a lone surrogate); send whole ones"
            )
        check_fields(endpoint, value)
        sizes = [size_in_bytes(body, text, fields.spans[n]) for n in _SCHEMAS if n in value]
        splicer = Splicer(body, text, fields, can_ask=_can_ask(endpoint, value))
    except UnreadableJsonError as error:
        raise RefusalError(f"the body can't be read: {error}") from None
    except RecursionError:
        raise RefusalError("the body is nested too deeply; send it flatter") from None
    return Envelope(endpoint, value, splicer=splicer, schema_bytes=sum(sizes))


def _can_ask(endpoint: Endpoint, value: dict[str, Any]) -> bool:
    if endpoint not in ("chat", "completions") or value.get("stream") is not True:
        return False
    options = value.get("stream_options")
    return options is None or options.get("include_usage") is not True


_FLAG = (bool, NoneType)
_CONTENT = (str, list, NoneType)
_MOST_TOKENS = 10**9
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_escaped_surrogate = re.compile(rb"\\u[dD][89a-fA-F]").search
_INPUT: dict[Endpoint, str] = {
    "chat": "messages",
    "messages": "messages",
    "responses": "input",
    "completions": "prompt",
    "embeddings": "input",
}
"""The field of each endpoint that holds what is asked."""


def check_fields(endpoint: Endpoint, value: Mapping[str, Any]) -> None:
    """Check the fields that the gateway reads.

    Raises:
        RefusalError: One of them is missing, or isn't of its kind.
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
    given = value.get(field)
    if field == "messages":
        _check_turns(given)
    elif not isinstance(given, _CONTENT):
        raise _wrong(field, "a text or a list")
    elif endpoint == "responses":
        _check_items(given)
    if not isinstance(value.get("previous_response_id"), str | None):
        raise _wrong("previous_response_id", "a text")


def read_limit(value: Mapping[str, Any]) -> int | None:
    """At most how many tokens the answer may have; None where nothing says so.

    What is below 1 says nothing: some servers take -1 for no limit. More than a billion is given as
    a billion.

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
    r"""Whether a text in it has half a character, written as an escape such as `\ud800`.

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
            'the request names no model; send "model": "auto", or a target\'s name', param="model"
        )
    if not isinstance(model, str):
        raise _wrong("model", 'a text, such as "auto"')
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
            raise _wrong(f"messages[{i}].role", "a text, such as user")
        if not isinstance(turn.get("content"), _CONTENT):
            raise _wrong(f"messages[{i}].content", "a text or a list of parts")


def _check_items(items: object) -> None:
    if isinstance(items, list):
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                raise _wrong(f"input[{i}]", "an object")


def _wrong(field: str, due: str) -> RefusalError:
    return RefusalError(f"{field} must be {due}", param=field)


def scored_prompt(envelope: Envelope, scored: Scored) -> Prompt | None:
    """What the encoder reads of a request; None where it has no text to read.

    What is but one turn of the user is given as its text, whatever was asked for: encoders read
    both alike, and one forecast serves both.

    Args:
        envelope: The request. Of several texts to complete or to embed at once none is read.
        scored: Which turns. The last turn of the user is the last that has text.
    """
    turns = envelope.turns
    if envelope.endpoint in ("completions", "embeddings"):
        return _prompt(turns) if len(turns) == 1 else None
    with_system = scored in ("last_user_with_system", "conversation_with_system")
    if scored in ("last_user", "last_user_with_system"):
        said = (turn for turn in reversed(turns) if turn.role == "user" and _has_text(turn))
        last = next(said, None)
        if last is None:
            return None
        if not with_system:
            return last.content
        turns = (*(turn for turn in turns if turn.role == "system"), last)
    return _prompt(tuple(turn for turn in turns if with_system or turn.role != "system"))


def _prompt(turns: tuple[Message, ...]) -> Prompt | None:
    told = tuple(turn for turn in turns if _has_text(turn))
    if not told:
        return None
    return told[0].content if len(told) == 1 and told[0].role == "user" else told


def _has_text(turn: Message) -> bool:
    return bool(turn.content) and not turn.content.isspace()
