"""What an encoder is: prompts go in, hidden states at prefill come out.

From queries to token ids (templates, the cut to the limit, the prompts that are refused), and the
batches of prompts of similar length in which encoders read them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float32, Int32
from numpy.typing import NDArray

from prefill_router.activations import (
    POOLINGS,
    MemoryActivations,
    Provenance,
    Rounding,
    Site,
    rounded,
)
from prefill_router.data import Message, Query, prompt_key, prompt_text
from prefill_router.errors import ConfigError, PromptError, StoreError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

States = Float32[NDArray[np.float32], "query hidden"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """A prompt as the encoder reads it.

    Attributes:
        key: Content key of the prompt (`data.prompt_key`).
        query_id: A query that has this prompt; named in errors.
        ids: Token ids, after truncation.
        count: Tokens before truncation, with the template.
        text: What is read by an encoder that tokenises by itself; empty for others.
    """

    key: str
    query_id: str
    ids: Int32[NDArray[np.int32], " token"]
    count: int
    text: str = ""

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut out."""
        return self.count > len(self.ids)


class Encoder(ABC):
    """Turns prompts into states; it has no opinion on targets."""

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """What makes the states."""

    @property
    @abstractmethod
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read: up to the last block that is loaded."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that can be read."""
        return tuple(Site(layer, pooling) for layer in self.layers for pooling in POOLINGS)

    @property
    def billed_tokens(self) -> int | None:
        """Tokens that an endpoint says it has read so far; None where none is asked."""
        return None

    @abstractmethod
    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, cut to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded: no token, not Unicode, or far too long.
        """

    @abstractmethod
    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> Mapping[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """

    def encode(
        self,
        queries: Sequence[Query],
        sites: Sequence[Site],
        *,
        rounding: Rounding = "bfloat16",
        progress: Progress | None = None,
    ) -> MemoryActivations:
        """The states of queries, rounded as a store keeps them; equal prompts are encoded once.

        Args:
            queries: In any order.
            sites: What to read.
            rounding: The type to round to: that of the store that the router was trained on.
            progress: Shows how many tokens are done.
        """
        prompts = distinct(self.tokenize(queries))
        states = self.states(prompts, sites, progress=progress or SilentProgress())
        return MemoryActivations(
            self.provenance,
            tuple(prompt.key for prompt in prompts),
            {site: rounded(value, rounding) for site, value in states.items()},
            np.array([prompt.count for prompt in prompts], dtype=np.int64),
            rounding,
        )

    def check_sites(self, sites: Sequence[Site]) -> None:
        """Check that these sites can be read.

        Raises:
            ConfigError: They can't.
        """
        lacking = [site.name for site in sites if site not in self.sites]
        if lacking or not sites:
            poolings = sorted({site.pooling for site in self.sites})
            raise ConfigError(
                f"{self.provenance.encoder} can't be read at {lacking or 'no site'}; its layers "
                f"are {self.layers[0]} to {self.layers[-1]}, with the poolings {poolings}"
            )


def distinct(prompts: Sequence[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """Each prompt once, in the order of first sight."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


def candidate_layers(num_layers: int) -> tuple[int, ...]:
    """The layers that are candidates by default: ceil(L/2) to L."""
    return tuple(range(math.ceil(num_layers / 2), num_layers + 1))


def require_finite(
    states: Mapping[Site, States], prompts: Sequence[TokenizedPrompt], dtype: str
) -> None:
    """Check computed states.

    Raises:
        StoreError: One isn't finite; the message names the query and the site.
    """
    for site in sorted(states):
        bad = np.flatnonzero(~np.isfinite(states[site]).all(axis=1))
        if len(bad):
            fix = "" if dtype == "float32" else "; encode in float32 (--dtype float32)"
            raise StoreError(
                f"the states of {len(bad)} queries at {site.name} aren't finite in {dtype}, the "
                f"first is query {prompts[bad[0]].query_id!r}{fix}"
            )


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


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions in batches of similar length, the longest first, each within the budget.

    A prompt that is longer than the budget is a batch of its own.

    Raises:
        ConfigError: The budget isn't positive.
    """
    if budget < 1:
        raise ConfigError(f"the budget of tokens per batch is {budget}; it must be positive")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while order:
        count = max(1, budget // lengths[order[0]])
        yield order[:count]
        order = order[count:]
