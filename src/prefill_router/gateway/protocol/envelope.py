"""A request's body, read once, and sent on as the bytes that it came as."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

from prefill_router.data import Message
from prefill_router.gateway.protocol.checking import check_fields, has_lone_surrogate, read_limit
from prefill_router.gateway.protocol.needs import read_needs
from prefill_router.gateway.protocol.sessions import read_loop, read_session_hint
from prefill_router.gateway.protocol.splicing import Splicer, size_in_bytes
from prefill_router.gateway.protocol.turns import read_turns, token_id_bytes
from prefill_router.gateway.protocol.walking import UnreadableError, read_fields, without_collecting
from prefill_router.gateway.refusal import RefusalError
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
    except UnreadableError as error:
        raise RefusalError(f"the body can't be read: {error}") from None
    except RecursionError:
        raise RefusalError("the body is nested too deeply; send it flatter") from None
    return Envelope(endpoint, value, splicer=splicer, schema_bytes=sum(sizes))


def _can_ask(endpoint: Endpoint, value: dict[str, Any]) -> bool:
    if endpoint not in ("chat", "completions") or value.get("stream") is not True:
        return False
    options = value.get("stream_options")
    return options is None or options.get("include_usage") is not True
