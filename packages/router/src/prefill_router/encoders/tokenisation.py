"""From prompts to token ids: templates, truncation, and which prompts are refused."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray

from prefill_router.activations import (
    Provenance,
)
from prefill_router.data import Message, Query, prompt_key, prompt_text
from prefill_router.errors import PromptError, name_option
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """A prompt as the encoder reads it.

    Attributes:
        key: Content key of the prompt (`data.prompt_key`).
        query_id: A query that has this prompt; named in errors.
        ids: Token ids, after truncation.
        count: The number of tokens before truncation, with the template.
        text: The text for an encoder that tokenises by itself; empty for others.
    """

    key: str
    query_id: str
    ids: Int32[NDArray[np.int32], " token"]
    count: int
    text: str = ""

    @property
    def truncated(self) -> bool:
        """Whether the prompt was truncated."""
        return self.count > len(self.ids)


def distinct_prompts(prompts: Sequence[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """Each prompt once, in the order of first appearance."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


Template = Literal["chat", "plain"]
Render = Callable[[Query, list[dict[str, str]]], str]
"""Renders messages with a chat template, including the generation prompt."""
MOST_CHARACTERS = 10_000_000
"""Longer prompts are refused: no encoder's context is that long, and tokenising takes minutes."""


def as_messages(query: Query) -> list[dict[str, str]]:
    """The prompt as chat messages; plain text becomes one user message."""
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
            f"the prompt has {length:,} characters; at most {MOST_CHARACTERS:,} are supported: "
            "shorten it",
            query_id=query.id,
        )
    try:
        for turn in turns:
            turn.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt has a lone surrogate at character {error.start}, which isn't valid "
            "Unicode; replace it, for example with U+FFFD",
            query_id=query.id,
        ) from None


def pair_tokens(
    queries: Sequence[Query],
    ids: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    encoder: str,
) -> list[TokenizedPrompt]:
    """Pair queries with their tokens, truncated to the limit.

    Raises:
        PromptError: A prompt has no token.
    """
    return [
        _pair_prompt(query, row, max_tokens, encoder)
        for query, row in zip(queries, ids, strict=True)
    ]


def _pair_prompt(
    query: Query, ids: Sequence[int], max_tokens: int, encoder: str
) -> TokenizedPrompt:
    if not len(ids):
        raise PromptError(
            f"the prompt has no token for {encoder}; remove the query, or use a chat template",
            query_id=query.id,
        )
    cut = cut_middle(ids, max_tokens)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, np.array(cut, np.int32), len(ids))


def cut_middle(ids: Sequence[int], limit: int) -> Sequence[int]:
    """At most `limit` tokens: half from the beginning and half from the end."""
    if len(ids) <= limit:
        return ids
    tail = limit // 2
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]


def input_text(query: Query, template: Template, render: Render) -> str:
    """The input of the tokenizer: the rendered chat, or the plain text with its turns joined."""
    if template == "plain":
        return prompt_text(query.prompt)
    return render(query, as_messages(query))


def _parts(messages: tuple[Message, ...]) -> tuple[str, ...]:
    return tuple(part for m in messages for part in (m.role, m.content))


def tokenize_prompts(
    queries: Sequence[Query], tokenizer: Any, made_by: Provenance
) -> list[TokenizedPrompt]:
    """The tokens of each query's prompt, in order, as the provenance says.

    Raises:
        PromptError: A prompt can't be encoded, or the template refuses its roles.
    """
    for query in queries:
        check_prompt(query)
    if not queries:
        return []

    def render(query: Query, messages: list[dict[str, str]]) -> str:
        return _rendered(query, messages, tokenizer, made_by.encoder)

    texts = [input_text(query, made_by.template, render) for query in queries]
    ids = tokenizer(texts, add_special_tokens=made_by.template == "plain")["input_ids"]
    return pair_tokens(queries, ids, max_tokens=made_by.max_tokens, encoder=made_by.encoder)


def _rendered(query: Query, messages: list[dict[str, str]], tokenizer: Any, encoder: str) -> str:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError):
        roles = [message["role"] for message in messages]
        option = name_option("--template plain")
        raise PromptError(
            f"the chat template of {encoder} refuses a chat with the roles {roles}; change the "
            f"chat, or encode with {option}",
            query_id=query.id,
        ) from None
    return str(text)


_BYTES_PER_TOKEN = 4


def vector_prompt(
    query: Query, text: str, ids: Sequence[int], count: int, encoder: str
) -> TokenizedPrompt:
    """A prompt for an encoder that reads text.

    Args:
        query: The query.
        text: The text for the encoder.
        ids: The text's tokens, after truncation.
        count: The number of tokens before truncation.
        encoder: The encoder's name, for error messages.

    Raises:
        PromptError: The prompt has no token.
    """
    if not count:
        raise PromptError(
            f"the prompt has no token for {encoder}; remove the query", query_id=query.id
        )
    tokens = np.array(ids, dtype=np.int32)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, tokens, count, text)


def estimate_text_tokens(text: str) -> int:
    """The estimated number of tokens of a text: one per four bytes of UTF-8, rounded up."""
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)
