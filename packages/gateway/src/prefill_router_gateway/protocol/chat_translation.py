"""Translates requests of the Messages and Responses APIs to chat completions.

Only for targets that serve chats alone. What a chat can't say is refused by its name: every field
that isn't known to `message_to_chat` or `response_to_chat`. Hints that change no answer are left
out, and so are those that say how a model should think, unless `thinking_hints` sends them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from prefill_router.targets import Endpoint
from prefill_router_gateway.protocol.envelope import Splicer, read_envelope
from prefill_router_gateway.protocol.message_to_chat import message_hints, message_to_chat
from prefill_router_gateway.protocol.response_to_chat import response_hints, response_to_chat
from prefill_router_gateway.protocol.thinking_fields import ThinkingHint
from prefill_router_gateway.protocol.translated_fields import Fields, UntranslatableError

_CHATS: Mapping[Endpoint, Callable[..., dict[str, Any]]] = {
    "messages": message_to_chat,
    "responses": response_to_chat,
}
_HINTS: Mapping[Endpoint, Callable[[Fields], tuple[str, ...]]] = {
    "messages": message_hints,
    "responses": response_hints,
}


def untranslatable(endpoint: Endpoint, value: Fields) -> str:
    """The name of the first field of a request that a chat can't say; empty where there is none.

    Args:
        endpoint: The endpoint, one of `TRANSLATED`.
        value: The fields of the request.
    """
    try:
        _CHATS[endpoint](value, limit="max_tokens")
    except UntranslatableError as error:
        return str(error)
    except RecursionError:
        return "so many levels of nesting"
    return ""


def left_out_hints(endpoint: Endpoint, value: Fields) -> tuple[str, ...]:
    """The names of the hints of a request that a chat doesn't have.

    Args:
        endpoint: The endpoint, one of `TRANSLATED`.
        value: The fields of the request.
    """
    return _HINTS[endpoint](value)


def chat_splicer(
    endpoint: Endpoint,
    body: bytes,
    *,
    limit: str,
    hint: ThinkingHint | None = None,
    volatile: tuple[str, ...] = (),
) -> Splicer:
    """Makes the bodies of the chat for a request.

    Args:
        endpoint: The endpoint, one of `TRANSLATED`.
        body: The request, which can be translated.
        limit: The name of the chat's field for the most output tokens.
        hint: The hint on thinking for the target; None for none.
        volatile: The starts of system texts that change with each request; such a line is left out.

    Raises:
        RecursionError: It is nested too deeply for this depth of the stack.
        RefusalError: The same, of the chat.
    """
    chat = _CHATS[endpoint](json.loads(body), limit=limit, volatile=volatile)
    chat |= {} if hint is None else hint.fields
    return read_envelope("chat", json.dumps(chat).encode()).splicer
