"""A query: what somebody asked, as text or as chat messages."""

import hashlib
import json
from dataclasses import dataclass
from typing import final

from prefill_router.brief import brief
from prefill_router.errors import DataError


@brief
@final
@dataclass(frozen=True)
class Message:
    """One turn of a chat.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: The text of the turn.
    """

    role: str
    content: str


Prompt = str | tuple[Message, ...]
"""Plain text, or chat messages in order."""


@brief
@final
@dataclass(frozen=True)
class Query:
    """One query.

    Attributes:
        id: Unique in its dataset; every join is by it.
        prompt: Text or chat messages.
        benchmark: Where it comes from; empty where unknown.
        domain: Its subject or category; empty where unknown.
    """

    id: str
    prompt: Prompt
    benchmark: str = ""
    domain: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise DataError("a query has an empty id; give each query an id of its own")
        if isinstance(self.prompt, tuple) and not self.prompt:
            raise DataError(f"query {self.id!r} is a chat without messages; give at least one")


def prompt_key(prompt: Prompt) -> str:
    """SHA-256 of a prompt's content, in hexadecimal: equal prompts, and only they, share it.

    A lone surrogate, which has no encoding, is hashed as it stands and doesn't fail here.
    """
    plain = prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]
    text = json.dumps(plain, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def prompt_text(prompt: Prompt) -> str:
    """The text of a prompt alone: a chat's turns, separated by blank lines."""
    return prompt if isinstance(prompt, str) else "\n\n".join(m.content for m in prompt)
