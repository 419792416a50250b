"""What LiteLLM's Router knows of a request, as the gateway reads it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.targets import Endpoint

_PASSED = (
    *("tools", "functions", "response_format", "text", "instructions", "previous_response_id"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "prompt_cache_key", "user"),
)
_LONGEST_SESSION = 256
_NO_CHATS = [
    [{"role": "user", "content": text}]
    for text in (
        *("prompt", "default text", "files-api-fake-text", "batch-api-fake-text"),
        "vector-store-api-fake-text",
    )
]
"""What stands for the messages in calls that have none, in LiteLLM 1.106 to 1.109."""


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
    messages: Sequence[Any] | None,
    input: Any,  # noqa: A002  LiteLLM's name
    request_kwargs: Mapping[str, Any] | None,
) -> Asked | None:
    """A request to be decided on; None where there is nothing to read, or no JSON.

    Args:
        messages: Of a chat; of pictures, speech, files and the like a text that LiteLLM puts there.
        input: Of a call of the Responses API, or what is to be embedded: vectors of two models
            don't mix.
        request_kwargs: All else that LiteLLM knows; `input` again, but for embeddings.
    """
    known = request_kwargs or {}
    endpoint: Endpoint = "chat" if messages else "responses"
    said = list(messages) if messages else input if "input" in known else None
    if not said or said in _NO_CHATS:
        return None
    further = {name: known[name] for name in _PASSED if known.get(name) is not None}
    field = "messages" if endpoint == "chat" else "input"
    try:
        body = json.dumps({"model": "auto", field: said, **further}, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return None
    return Asked(endpoint=endpoint, body=body.encode(), session=_session(known))


def failed_before(request_kwargs: Mapping[str, Any] | None) -> Counter[str]:
    """How often each deployment failed at this request, by its id; LiteLLM notes it on retries."""
    failed: Counter[str] = Counter()
    for part in _metadata(request_kwargs or {}):
        records = part.get("previous_models")
        for record in records if isinstance(records, list | tuple) else ():
            place = record.get("deployment_id") if isinstance(record, Mapping) else None
            if isinstance(place, str):
                failed[place] += 1
    return failed


def _metadata(known: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = (known.get("metadata"), known.get("litellm_metadata"))
    return [part for part in parts if isinstance(part, Mapping)]


def _session(known: Mapping[str, Any]) -> str | None:
    named = [known.get("litellm_session_id")]
    named += [part.get("session_id") for part in _metadata(known)]
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
