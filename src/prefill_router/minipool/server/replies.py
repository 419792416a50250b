"""The bytes of replies: chunks of a stream and whole documents, made by hand since it is quick."""

import json
import time
from collections.abc import Mapping
from typing import Any, final

from prefill_router.minipool.server.faults import Effects
from prefill_router.minipool.server.personas import Persona
from prefill_router.minipool.server.request import Asked

DONE = b"data: [DONE]\n\n"
_HUGE = 1000


@final
class Replies:
    """Writes the reply to one request.

    Args:
        asked: The request.
        persona: The dialect.
        effects: What goes wrong.
        number: Of the request.
    """

    def __init__(self, asked: Asked, persona: Persona, effects: Effects, *, number: int) -> None:
        self._chat = asked.endpoint == "chat"
        self._effects = effects
        self._persona = persona
        wrong = effects.get("wrong_model")
        kind = "chat.completion" if self._chat else "text_completion"
        self._frame: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{number}",
            "object": kind + ".chunk" if self._chat and asked.stream else kind,
            "created": int(time.time()),
            "model": wrong.reply_model if wrong else asked.model,
            **persona.extra(),
        }
        frame = {**self._frame, "usage": None} if asked.include_usage else self._frame
        self._head = b"data: " + _json(frame)[:-1] + b',"choices":[{"index":0,"logprobs":null,'

    def first(self) -> bytes:
        """What begins a stream."""
        begun = self.delta({"role": "assistant", "content": ""}) if self._chat else b""
        return self._persona.opening + begun

    def text(self, text: str) -> bytes:
        """An event with a piece of the answer."""
        if not self._chat:
            return self._head + b'"text":' + _json(text) + b',"finish_reason":null}]}\n\n'
        return self._head + b'"delta":{"content":' + _json(text) + b'},"finish_reason":null}]}\n\n'

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        """An event with other fields."""
        return self._head + b'"delta":' + _json(delta) + b',"finish_reason":null}]}\n\n'

    def finish(self, reason: str) -> bytes:
        """The event that says why the answer ends."""
        rest = b'"delta":{}' if self._chat else b'"text":""'
        return self._head + rest + b',"finish_reason":' + _json(self._reason(reason)) + b"}]}\n\n"

    def end(self, reason: str, usage: Mapping[str, Any] | None) -> tuple[bytes, bytes]:
        """The event that ends the answer, and what follows it.

        Args:
            reason: Why it ends.
            usage: The counts; None where they weren't asked for.
        """
        told = None if usage is None else self._told(usage)
        if told is None:
            return self.finish(reason), DONE
        if self._persona.joins_usage:
            content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            choice = {"index": 0, **content, "finish_reason": self._reason(reason)}
            return self._event({"choices": [choice], "usage": told}), DONE
        return self.finish(reason), self._event({"choices": [], "usage": told}) + DONE

    def _event(self, fields: Mapping[str, Any]) -> bytes:
        return b"data: " + _json({**self._frame, **fields}) + b"\n\n"

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
        choice["finish_reason"] = self._reason(reason)
        told = self._told(usage)
        counts = {} if told is None else {"usage": told}
        return _json({**self._frame, "choices": [choice], **counts})

    def _reason(self, reason: str) -> str:
        rule = self._effects.get("finish")
        return rule.finish if rule else reason

    def _told(self, usage: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The counts, or what is said instead."""
        rule = self._effects.get("usage")
        if rule is None:
            return usage
        if rule.usage == "omit":
            return None
        told: Mapping[str, Any] = _lied(usage, rule.usage)
        return told


def error_value(message: str, *, code: str) -> dict[str, Any]:
    """An error of the server's own, in the shape that clients expect."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _lied(value: Any, how: str) -> Any:
    if isinstance(value, dict):
        return {key: _lied(inner, how) for key, inner in value.items()}
    if not isinstance(value, int | float):
        return value
    if how == "huge":
        return _HUGE * (value + 1)
    return {"zero": 0, "negative": -value - 1, "null": None, "text": str(value)}[how]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
