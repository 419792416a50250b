"""What can be routed: a text, or a chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_router.data import Message, Prompt
from prefill_router.errors import DataError

Request = Prompt | Sequence[Mapping[str, Any]]
"""Text, messages, or chat messages as dictionaries with `role` and `content`."""


def as_prompt(request: object) -> Prompt:
    """A request as text or messages.

    Raises:
        DataError: It is neither.
    """
    if isinstance(request, str):
        return request
    if not isinstance(request, Sequence):
        raise DataError("the request must be a text, or a list of messages with role and content")
    turns = [turn if isinstance(turn, Message) else _message(turn) for turn in request]
    if not turns:
        raise DataError("the request has no messages; give at least one, or a text")
    return tuple(turns)


def _message(turn: object) -> Message:
    role, content = (
        (turn.get("role"), turn.get("content")) if isinstance(turn, Mapping) else (None, None)
    )
    if not isinstance(role, str) or not isinstance(content, str):
        raise DataError("a chat message needs a role and a content, both texts")
    return Message(role, content)
