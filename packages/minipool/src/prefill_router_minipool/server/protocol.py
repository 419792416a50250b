"""The OpenAI protocol: parses requests, and writes the bytes of replies.

Errors have the form that clients expect. Chunks of a stream are joined from bytes, which is fast.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

from prefill_router.errors import PrefillRouterError
from prefill_router_minipool.server.faults import Effects, Persona
from prefill_router_minipool.server.generation import Message, Sampling

Endpoint = Literal["chat", "text"]
_PROMPT_FIELDS = ("messages", "prompt")


@final
class ApiError(PrefillRouterError):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        body: The error in the form of OpenAI's API.
        headers: Further headers of the reply.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@final
@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A parsed request.

    Attributes:
        endpoint: Chat or text completion.
        model: The model's name.
        messages: The turns; a text completion has one.
        stream: Whether the answer is sent as it is generated.
        include_usage: Whether a stream ends with a chunk that has the usage.
        max_tokens: Most tokens to generate; None for as many as the context allows.
        stop: Texts that end the answer.
        sampling: How tokens are chosen.
        thinks: False where the request turns reasoning off.
        options: All fields except the prompt, unchanged.
    """

    endpoint: Endpoint
    model: str
    messages: tuple[Message, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    thinks: bool
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the last turn."""
        return self.messages[-1][1]


def read_request(body: bytes, endpoint: Endpoint) -> CompletionRequest:
    """Parse a request's body; unknown fields are kept in `options` and have no effect.

    Raises:
        ApiError: The body isn't a JSON object, a field is missing or malformed, or `n` isn't 1.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("the body isn't JSON; send one JSON object") from None
    if not isinstance(value, dict):
        raise ApiError("the body isn't a JSON object; send one")
    if value.get("n") not in (None, 1):
        raise ApiError("only n=1 is served; ask several times", param="n")
    _check_text(value)
    stream_options = _read_field(value, "stream_options", dict) or {}
    limits = [_read_field(value, key, int) for key in ("max_completion_tokens", "max_tokens")]
    limit = next((number for number in limits if number is not None), None)
    if limit is not None and limit < 1:
        raise ApiError(f"max_tokens is {limit}; ask for at least 1", param="max_tokens")
    return CompletionRequest(
        endpoint=endpoint,
        model=_require_text(value, "model"),
        messages=_read_messages(value) if endpoint == "chat" else (("user", _read_prompt(value)),),
        stream=bool(_read_field(value, "stream", bool)),
        include_usage=stream_options.get("include_usage") is True,
        max_tokens=limit,
        stop=_read_stops(value.get("stop")),
        sampling=_read_sampling(value),
        thinks=_read_thinks(value),
        options={key: option for key, option in value.items() if key not in _PROMPT_FIELDS},
    )


def _check_text(value: Mapping[str, Any]) -> None:
    """Refuse lone surrogates, which JSON can write and which aren't text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise ApiError("the body has lone surrogates, or is nested too deeply") from None


def _read_field(value: Mapping[str, Any], key: str, kind: type) -> Any:
    content = value.get(key)
    allowed = (int, float) if kind is float else (kind,)
    if content is None:
        return None
    if isinstance(content, allowed) and isinstance(content, bool) == (kind is bool):
        return content
    raise ApiError(f"{key} must be of the type {kind.__name__}", param=key)


def _require_text(value: Mapping[str, Any], key: str) -> str:
    text = _read_field(value, key, str)
    if not isinstance(text, str):
        raise ApiError(f"{key} is missing", param=key)
    return text


def _read_messages(value: Mapping[str, Any]) -> tuple[Message, ...]:
    rows = _read_field(value, "messages", list)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ApiError("messages must be a list of at least one message", param="messages")
    return tuple((_require_text(row, "role"), _join_content(row.get("content"))) for row in rows)


def _join_content(content: object) -> str:
    """The text of a message; its parts are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ApiError("content must be text, or parts of the type text", param="messages")
    return "".join(text for text in texts if isinstance(text, str))


def _read_prompt(value: Mapping[str, Any]) -> str:
    prompt = value.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ApiError("prompt must be one text", param="prompt")
    return prompt


def _read_stops(stop: object) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise ApiError("stop must be a text or a list of texts", param="stop")
    return tuple(text for text in stops if text)


def _read_sampling(value: Mapping[str, Any]) -> Sampling:
    temperature, top_p = (
        _read_field(value, "temperature", float) or 0.0,
        _read_field(value, "top_p", float),
    )
    top_p = 1.0 if top_p is None else top_p
    if not 0 <= temperature <= 2:
        raise ApiError("temperature must lie in [0, 2]", param="temperature")
    if not 0 < top_p <= 1:
        raise ApiError("top_p must lie in (0, 1]", param="top_p")
    seed = _read_field(value, "seed", int)
    return Sampling(temperature=float(temperature), top_p=float(top_p), seed=seed or 0)


def _read_thinks(value: Mapping[str, Any]) -> bool:
    """Whether reasoning is on, by Qwen's field and by that of vLLM's and SGLang's templates."""
    template = value.get("chat_template_kwargs")
    fields = template if isinstance(template, dict) else {}
    return value.get("enable_thinking") is not False and fields.get("enable_thinking") is not False


DONE = b"data: [DONE]\n\n"
_HUGE = 1000


@final
class Replies:
    """Writes the reply to one request.

    Args:
        request: The request.
        persona: The dialect.
        effects: The faults to inject.
        number: The number of the request.
    """

    def __init__(
        self, request: CompletionRequest, persona: Persona, effects: Effects, *, number: int
    ) -> None:
        self._chat = request.endpoint == "chat"
        self._effects = effects
        self._persona = persona
        wrong = effects.get("wrong_model")
        kind = "chat.completion" if self._chat else "text_completion"
        self._frame: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{number}",
            "object": kind + ".chunk" if self._chat and request.stream else kind,
            "created": int(time.time()),
            "model": wrong.reply_model if wrong else request.model,
            **persona.extra(),
        }
        frame = {**self._frame, "usage": None} if request.include_usage else self._frame
        self._head = b"data: " + _to_json(frame)[:-1] + b',"choices":[{"index":0,"logprobs":null,'

    def first(self) -> bytes:
        """The beginning of a stream."""
        start = self.delta({"role": "assistant", "content": ""}) if self._chat else b""
        return self._persona.opening + start

    def text(self, text: str) -> bytes:
        """An event with a piece of the answer."""
        if not self._chat:
            return self._head + b'"text":' + _to_json(text) + b',"finish_reason":null}]}\n\n'
        delta = b'"delta":{"content":' + _to_json(text) + b'},"finish_reason":null}]}\n\n'
        return self._head + delta

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        """An event with other fields."""
        return self._head + b'"delta":' + _to_json(delta) + b',"finish_reason":null}]}\n\n'

    def finish(self, reason: str) -> bytes:
        """The event with the reason why the answer ends."""
        rest = b'"delta":{}' if self._chat else b'"text":""'
        final_reason = _to_json(self._find_reason(reason))
        return self._head + rest + b',"finish_reason":' + final_reason + b"}]}\n\n"

    def end(self, reason: str, usage: Mapping[str, Any] | None) -> tuple[bytes, bytes]:
        """The event that ends the answer, and what follows it.

        Args:
            reason: Why it ends.
            usage: The token counts; None where they weren't asked for.
        """
        counts = None if usage is None else self._report_usage(usage)
        if counts is None:
            return self.finish(reason), DONE
        if self._persona.joins_usage:
            content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            choice = {"index": 0, **content, "finish_reason": self._find_reason(reason)}
            return self._make_event({"choices": [choice], "usage": counts}), DONE
        return self.finish(reason), self._make_event({"choices": [], "usage": counts}) + DONE

    def _make_event(self, fields: Mapping[str, Any]) -> bytes:
        return b"data: " + _to_json({**self._frame, **fields}) + b"\n\n"

    def whole(self, text: str, thoughts: str, reason: str, usage: Mapping[str, Any]) -> bytes:
        """The document of an answer that isn't streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            if thoughts and self._persona.style == "nemotron":
                message["content"] = thoughts + text
            elif thoughts and self._persona.shows_reasoning:
                message.update(self._persona.reasoning_delta(thoughts))
            choice["message"] = message
        else:
            choice["text"] = text
        choice["finish_reason"] = self._find_reason(reason)
        counts = self._report_usage(usage)
        fields = {} if counts is None else {"usage": counts}
        return _to_json({**self._frame, "choices": [choice], **fields})

    def _find_reason(self, reason: str) -> str:
        rule = self._effects.get("finish")
        return rule.finish if rule else reason

    def _report_usage(self, usage: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The token counts to report, falsified where a fault says so."""
        rule = self._effects.get("usage")
        if rule is None:
            return usage
        if rule.usage == "omit":
            return None
        counts: Mapping[str, Any] = _falsify(usage, rule.usage)
        return counts


def error_value(message: str, *, code: str) -> dict[str, Any]:
    """A server error in the form that clients expect."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _falsify(value: Any, how: str) -> Any:
    if isinstance(value, dict):
        return {key: _falsify(inner, how) for key, inner in value.items()}
    if not isinstance(value, int | float):
        return value
    if how == "huge":
        return _HUGE * (value + 1)
    return {"zero": 0, "negative": -value - 1, "null": None, "text": str(value)}[how]


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
