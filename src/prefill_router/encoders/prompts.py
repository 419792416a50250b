"""From queries to token ids, and the prompts that are refused."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from prefill_router.data import Message, Query, prompt_key, prompt_text
from prefill_router.encoders.base import TokenizedPrompt
from prefill_router.errors import PromptError

Template = Literal["chat", "plain"]
Render = Callable[[Query, list[dict[str, str]]], str]
"""Puts messages through a chat template, with the generation prompt."""
MOST_CHARACTERS = 10_000_000
"""Longer prompts are refused: no encoder reads a hundredth of one, and tokenising takes minutes."""


def as_messages(query: Query) -> list[dict[str, str]]:
    """The prompt as chat messages; plain text is one message of the user."""
    turns = (Message("user", query.prompt),) if isinstance(query.prompt, str) else query.prompt
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def check_prompt(query: Query) -> None:
    """Check that a prompt is text that can be encoded.

    Raises:
        PromptError: It isn't Unicode, or is longer than `MOST_CHARACTERS`.
    """
    turns = (query.prompt,) if isinstance(query.prompt, str) else _parts(query.prompt)
    length = sum(map(len, turns))
    if length > MOST_CHARACTERS:
        raise PromptError(
            f"the prompt has {length:,} characters; at most {MOST_CHARACTERS:,} are encoded: "
            "shorten it",
            query_id=query.id,
        )
    try:
        for turn in turns:
            turn.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt has a lone surrogate at character {error.start}, which no Unicode text "
            "has; replace it, say with U+FFFD",
            query_id=query.id,
        ) from None


def tokenized(
    queries: Sequence[Query],
    ids: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    encoder: str,
) -> list[TokenizedPrompt]:
    """Pair queries with their tokens, cut to the limit.

    Raises:
        PromptError: A prompt has no token.
    """
    return [
        _tokenized(query, row, max_tokens, encoder) for query, row in zip(queries, ids, strict=True)
    ]


def _tokenized(query: Query, ids: Sequence[int], max_tokens: int, encoder: str) -> TokenizedPrompt:
    if not len(ids):
        raise PromptError(
            f"the prompt has no token for {encoder}; remove the query, or use a chat template",
            query_id=query.id,
        )
    cut = cut_middle(ids, max_tokens)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, np.array(cut, np.int32), len(ids))


def cut_middle(ids: Sequence[int], limit: int) -> Sequence[int]:
    """At most `limit` tokens: half from the beginning, half from the end."""
    if len(ids) <= limit:
        return ids
    tail = limit // 2
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]


def input_text(query: Query, template: Template, render: Render) -> str:
    """What the tokenizer is given: the chat rendered, or the text alone, its turns joined."""
    if template == "plain":
        return prompt_text(query.prompt)
    return render(query, as_messages(query))


def _parts(messages: tuple[Message, ...]) -> tuple[str, ...]:
    return tuple(part for m in messages for part in (m.role, m.content))
