"""The line of a batch for one prompt at one target, in a provider's format.

A prompt becomes a request with the target's own options. A request of the source is kept, except
its model and the fields that set a target apart from its model. The target's effort replaces the
request's. It can go to a target of the other protocol if it has messages of text and common fields
alone.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, final, get_args

from prefill_router.assignment.prompt_file import PromptRecord
from prefill_router.data import Message, Prompt, Query
from prefill_router.endpoints import (
    MAX_TOKENS_FIELDS,
    effort_changes,
    identity_parameters,
    merge_fields,
    reasoning_fields,
    request_messages,
    request_parameters,
)
from prefill_router.errors import DataError
from prefill_router.targets import TRAITS, Dialect, Endpoint, Pool, RequestOptions, Target

BatchFormat = Literal["openai", "anthropic", "jsonl"]
FORMATS: tuple[BatchFormat, ...] = get_args(BatchFormat)
"""OpenAI's batch, Anthropic's message batch, and plain lines of id, target and prompt."""
MOST_LINES: Final[Mapping[BatchFormat, int]] = {"openai": 50_000, "anthropic": 100_000}
"""The most requests that a provider takes in one batch."""
MOST_BYTES: Final = 190_000_000
"""The most bytes of a file: OpenAI takes 200 MB, Anthropic 256 MB."""
_STREAMED = ("stream", "stream_options")
_COMMON = {"model", "messages", "temperature", "top_p", *MAX_TOKENS_FIELDS}
_SYSTEM = ("system", "developer")
_CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_ID_MARK, _PROMPT_MARK = "id-6b1f0c52", "prompt-6b1f0c52"
"""An id and a prompt that no option of a target has."""
_CHATS = ("chat", "messages")
Fields = dict[str, Any]


def default_format(pool: Pool, name: str) -> BatchFormat:
    """The format of a target: its provider's, or plain lines where the pool names no endpoint."""
    target = pool[name]
    if target.provider is None and target.base_url is None:
        return "jsonl"
    return "anthropic" if pool.provider_of(name).dialect == "anthropic" else "openai"


@final
class BatchLines:
    """Writes the lines of one target.

    Args:
        pool: The pool that has the target, its provider and its options.
        name: The target.
        format: The format.
    """

    def __init__(self, pool: Pool, name: str, format: BatchFormat) -> None:  # noqa: A002
        self.format: BatchFormat = format
        self._target: Target = pool[name]
        has_endpoint = default_format(pool, name) != "jsonl"
        own: Dialect = pool.provider_of(name).dialect if has_endpoint else "openai"
        self._dialect: Dialect = "anthropic" if format == "anthropic" else own
        self._write: Callable[[PromptRecord], Fields] = {
            "openai": self._openai,
            "anthropic": self._anthropic,
            "jsonl": self._plain,
        }[format]

    def line(self, record: PromptRecord) -> bytes:
        """The line of one prompt.

        Raises:
            DataError: The request can't be written in this format; the message has the id.
            ConfigError: The target has an option for which its dialect has no field.
        """
        try:
            return f"{self._text(record)}\n".encode()
        except DataError as error:
            error.reword(lambda message: f"prompt {record.query.id!r}: {message}")
            raise
        except ValueError:  # NaN, or a lone surrogate
            raise DataError(
                f"prompt {record.query.id!r}: the request isn't JSON in UTF-8; write it again"
            ) from None

    def _text(self, record: PromptRecord) -> str:
        """The line as a text; that of a new request differs from others in two places alone."""
        prompt = record.query.prompt
        if record.request is not None or not isinstance(prompt, str) or self._template is None:
            return _ENCODER.encode(self._write(record))
        if self.format == "anthropic":
            _check_custom_id(record.query.id)
        before, between, after = self._template
        name, text = _ENCODER.encode(record.query.id), _ENCODER.encode(prompt)
        return f"{before}{name}{between}{text}{after}"

    @cached_property
    def _template(self) -> tuple[str, str, str] | None:
        """What a new request's line has before its id, before its prompt, and after it.

        None where the line has one of the two in another place, or more than once.
        """
        text = _ENCODER.encode(self._write(PromptRecord(Query(_ID_MARK, _PROMPT_MARK))))
        before, id_mark, rest = text.partition(f'"{_ID_MARK}"')
        between, prompt_mark, after = rest.partition(f'"{_PROMPT_MARK}"')
        is_clear = id_mark and prompt_mark and text.count(_ID_MARK) == text.count(_PROMPT_MARK) == 1
        return (before, between, after) if is_clear else None

    @cached_property
    def _parameters(self) -> Fields:
        """The fields of a new request, besides its messages."""
        fields = request_parameters(self._target, self._dialect)
        surplus = set(_STREAMED)
        if self._target.request == RequestOptions() and self.format == "openai":
            surplus |= set(MAX_TOKENS_FIELDS)  # nobody chose it, and it may be above the model's
        return {name: value for name, value in fields.items() if name not in surplus}

    @cached_property
    def _identity(self) -> Fields:
        return identity_parameters(self._target, self._dialect)

    @cached_property
    def _refused_fields(self) -> tuple[str, ...]:
        """The fields that the target's model refuses because it thinks."""
        thinking = reasoning_fields(self._target, self._dialect).get("thinking")
        is_on = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        return TRAITS[self._dialect].refused_by_thinking if is_on else ()

    def _for_target(self, endpoint: Endpoint, request: Mapping[str, Any]) -> Fields:
        """A request to the target's model, with what sets the target apart from it.

        Raises:
            DataError: The target has an effort that this endpoint can't say.
        """
        changes = self._changes(endpoint, request)
        model = self._target.model or self._target.name
        body = {**request, "model": model, **changes}
        return {n: value for n, value in body.items() if value is not None or n not in changes}

    def _changes(self, endpoint: Endpoint, request: Mapping[str, Any]) -> Fields:
        """The new values of a request's fields besides its model; None for those that leave."""
        target, efforts_in = self._target, TRAITS[self._dialect].efforts_in
        if target.effort is not None and endpoint not in efforts_in:
            raise DataError(
                f"a request for {endpoint} can't say the effort of {target.name!r}; keep the "
                f"target out with --at-most {target.name}=0"
            )
        if endpoint in _CHATS:
            fields = self._identity
        elif endpoint in efforts_in:
            fields = reasoning_fields(target, self._dialect, endpoint)
        else:
            return {}
        if target.effort is None and not target.request.has_reasoning:
            return merge_fields(request, fields)
        return effort_changes(endpoint, request, fields, self._refused_fields)

    def _openai(self, record: PromptRecord) -> Fields:
        endpoint: Endpoint = "chat"
        if record.request is not None and record.wire == "chat":
            endpoint, request = _endpoint_of(record.url), record.request
        else:
            own = _translate_fields(record, TRAITS[self._dialect].max_tokens)
            messages = request_messages(self._target, self._dialect, _prompt_of(record))
            request = {**self._parameters, **own, "messages": messages}
        body = self._for_target(endpoint, request)
        return {"custom_id": record.query.id, "method": "POST", "url": record.url, "body": body}

    def _anthropic(self, record: PromptRecord) -> Fields:
        _check_custom_id(record.query.id)
        if record.request is not None and record.wire == "messages":
            request = record.request
        else:
            own = _translate_fields(record, "max_tokens")
            request = {**self._parameters, **own, **_anthropic_turns(_prompt_of(record))}
        return {"custom_id": record.query.id, "params": self._for_target("messages", request)}

    def _plain(self, record: PromptRecord) -> Fields:
        head = {"id": record.query.id, "target": self._target.name}
        if record.request is not None:
            return {**head, "request": record.request}
        prompt = record.query.prompt
        if isinstance(prompt, str):
            return {**head, "prompt": prompt}
        return {**head, "messages": [vars(message) for message in prompt]}


def _check_custom_id(name: str) -> None:
    """Check that an id is one that Anthropic takes.

    Raises:
        DataError: It isn't.
    """
    if not _CUSTOM_ID.fullmatch(name):
        raise DataError(
            "the id can't be sent to Anthropic, which takes at most 64 letters, digits, "
            "hyphens and underscores; change the ids of the prompts, or leave them all out"
        )


def _endpoint_of(url: str) -> Endpoint:
    """The protocol of an OpenAI batch's line; `completions` for any that isn't known."""
    if url.endswith("/responses"):
        return "responses"
    if url.endswith("/embeddings"):
        return "embeddings"
    return "chat" if url.endswith("/chat/completions") else "completions"


def _prompt_of(record: PromptRecord) -> Prompt:
    """The whole prompt, also of a request of the other protocol.

    Raises:
        DataError: A message has something else than text.
    """
    if record.request is None:
        return record.query.prompt
    system, turns = record.request.get("system"), record.request.get("messages")
    messages = [*([{"role": "system", "content": system}] if system else []), *(turns or ())]
    text_messages = [
        message
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("content"), str)
    ]
    if not text_messages or len(text_messages) < len(messages):
        raise _translation_error("messages of other content than one text")
    return tuple(Message(str(message.get("role")), message["content"]) for message in text_messages)


def _translate_fields(record: PromptRecord, limit: str) -> Fields:
    """The common fields of a request of the other protocol.

    Args:
        record: The prompt.
        limit: The name of the field that limits output tokens.

    Raises:
        DataError: It has other fields, too.
    """
    request = record.request
    if request is None:
        return {}
    surplus = sorted(set(request) - _COMMON - {"system"})
    if surplus:
        raise _translation_error(f"the fields {surplus}")
    tokens = [request[name] for name in MAX_TOKENS_FIELDS if name in request]
    sampling = {name: request[name] for name in ("temperature", "top_p") if name in request}
    return {**sampling, **({limit: tokens[0]} if tokens else {})}


def _translation_error(what: str) -> DataError:
    return DataError(
        f"the request has {what}, which can't be translated to the other provider's protocol; "
        "leave them out, keep targets of that protocol out with --at-most NAME=0, or write plain "
        "lines with --format jsonl"
    )


def _anthropic_turns(prompt: Prompt) -> Fields:
    """The messages of an Anthropic request, with the system's texts in a field of their own."""
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    system = "\n\n".join(turn.content for turn in turns if turn.role in _SYSTEM)
    others = [vars(turn) for turn in turns if turn.role not in _SYSTEM]
    unknown = sorted({turn["role"] for turn in others} - {"user", "assistant"})
    if unknown or not others:
        raise _translation_error(f"messages of {unknown}" if unknown else "no message of a user")
    return {**({"system": system} if system else {}), "messages": others}
