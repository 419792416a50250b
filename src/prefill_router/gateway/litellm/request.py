"""What LiteLLM's Router knows of a request, as the gateway reads it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.targets import Endpoint

_PASSED = (
    *("tools", "functions", "response_format", "text", "instructions", "previous_response_id"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "prompt_cache_key", "user"),
)
_LONGEST_SESSION = 256


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is to be decided on.

    Attributes:
        endpoint: Which call it is.
        body: As a client would send it.
        session: What LiteLLM calls the conversation; None where nothing can stand in a header.
    """

    endpoint: Endpoint
    body: bytes
    session: str | None


def read_asked(
    messages: Sequence[Any] | None, request_kwargs: Mapping[str, Any] | None
) -> Asked | None:
    """A request to be decided on; None where there is nothing to read, or no JSON.

    Args:
        messages: Of a chat; None for other calls.
        request_kwargs: All else that LiteLLM knows; of another call, `input` is what is read.
    """
    known = request_kwargs or {}
    endpoint: Endpoint = "chat" if messages else "responses"
    said = list(messages) if messages else known.get("input")
    if not said:
        return None
    further = {name: known[name] for name in _PASSED if known.get(name) is not None}
    field = "messages" if endpoint == "chat" else "input"
    try:
        body = json.dumps({"model": "auto", field: said, **further}, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return None
    return Asked(endpoint=endpoint, body=body.encode(), session=_session(known))


def _session(known: Mapping[str, Any]) -> str | None:
    within = [known.get(part) for part in ("metadata", "litellm_metadata")]
    named = [known.get("litellm_session_id")]
    named += [part.get("session_id") for part in within if isinstance(part, Mapping)]
    for name in named:
        if isinstance(name, str) and name.isascii() and name.isprintable() and name.strip():
            return name.strip()[:_LONGEST_SESSION]
    return None


def _plain(value: object) -> Any:
    """Messages and schemas may be pydantic's; a schema counts by being there alone."""
    if isinstance(value, type):
        return {"type": "json_schema", "json_schema": {"name": value.__name__, "schema": {}}}
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError("no JSON")
    return dump(exclude_none=True)
