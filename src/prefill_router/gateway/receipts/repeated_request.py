"""A sampled request as it is asked again: its prompt, its options, and what the encoder reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, cast, final

from prefill_router.data import Message, Prompt
from prefill_router.gateway.protocol import Envelope, read_envelope, scored_prompt
from prefill_router.gateway.receipts.labels import SampledRequest
from prefill_router.gateway.types import Scored
from prefill_router.targets import Endpoint, Target

_SAMPLING: Final = ("temperature", "top_p")
_FURTHER: Final = ("stop", "presence_penalty", "frequency_penalty")
_STOPS: Final = "stop_sequences"
"""Anthropic's name of `stop`."""


@final
@dataclass(frozen=True)
class RepeatedRequest:
    """A sampled request, read so that any target can be asked the same.

    Attributes:
        sample: The request as it was kept; its body must not have been purged.
    """

    sample: SampledRequest = field(repr=False)

    @cached_property
    def _envelope(self) -> Envelope:
        body = json.dumps({"model": "auto", **self.sample.body}).encode()
        return read_envelope(cast(Endpoint, self.sample.endpoint), body)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """All turns; system prompts first where they have a field of their own.

        Raises:
            RefusalError: The body isn't a request; so are the others.
        """
        return self._envelope.turns

    def scored_prompt(self, scored: Scored) -> Prompt | None:
        """What the encoder reads of it; None where it has no text."""
        return scored_prompt(self._envelope, scored)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that an answer must follow; empty for any JSON object, None for text."""
        given = self._format
        if given is None or given.get("type") not in ("json_schema", "json_object"):
            return None
        named = given.get("json_schema")
        found = named.get("schema") if isinstance(named, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def options_for(self, target: Target) -> Target:
        """The target with this request's own options, where the client gave them."""
        body, own = self.sample.body, target.request
        further = {name: body[name] for name in _FURTHER if body.get(name) is not None}
        if body.get(_STOPS):
            further["stop"] = body[_STOPS]
        if self._format is not None:
            further["response_format"] = dict(self._format)
        limit = self._envelope.max_tokens
        sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
        request = replace(
            own,
            **sampling,
            max_tokens=own.max_tokens if limit is None else max(1, min(limit, own.max_tokens)),
            extra_body={**further, **own.extra_body},
        )
        return replace(target, request=request)

    @property
    def _format(self) -> Mapping[str, Any] | None:
        """The format of answers that it asks for, in the form of chat completions."""
        body = self.sample.body
        if self.sample.endpoint == "chat":
            given = body.get("response_format")
            return given if isinstance(given, Mapping) else None
        held = body.get("text" if self.sample.endpoint == "responses" else "output_config")
        given = held.get("format") if isinstance(held, Mapping) else None
        if given is None and self.sample.endpoint == "messages":
            given = body.get("output_format")
        if not isinstance(given, Mapping) or given.get("type") == "text":
            return None
        if given.get("type") != "json_schema":
            return given
        named = {"name": "answer"} | {n: value for n, value in given.items() if n != "type"}
        return {"type": "json_schema", "json_schema": named}
