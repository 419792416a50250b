"""The interface of encoders: from prompts to hidden states at prefill.

Also tokenisation (templates, truncation, and which prompts are refused), and the batching of
prompts of similar length.
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


class Encoder(ABC):
    """Turns prompts into states; it doesn't depend on targets."""

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """How the states are made."""

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
        """Tokens that an endpoint has reported so far; None for encoders without an endpoint."""
        return None

    @abstractmethod
    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded: it has no token, isn't Unicode, or is too long.
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
        """The states of queries, rounded as in a store; equal prompts are encoded once.

        Args:
            queries: The queries, in any order.
            sites: The sites to read.
            rounding: The type to round to: that of the store that the router was trained on.
            progress: Shows the number of tokens done.
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
            ConfigError: A site can't be read, or there is none.
        """
        lacking = [site.name for site in sites if site not in self.sites]
        if lacking or not sites:
            poolings = sorted({site.pooling for site in self.sites})
            raise ConfigError(
                f"{self.provenance.encoder} can't be read at {lacking or 'no site'}; its layers "
                f"are {self.layers[0]} to {self.layers[-1]}, with the poolings {poolings}"
            )


def distinct(prompts: Sequence[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """Each prompt once, in the order of first appearance."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


def candidate_layers(num_layers: int) -> tuple[int, ...]:
    """The default candidates of layer selection: ceil(L/2) to L."""
    return tuple(range(math.ceil(num_layers / 2), num_layers + 1))


def require_finite(
    states: Mapping[Site, States], prompts: Sequence[TokenizedPrompt], dtype: str
) -> None:
    """Check that computed states are finite.

    Raises:
        StoreError: One isn't; the message names the query and the site.
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


def tokenized(
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


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group positions into batches of similar length, longest first, each within the budget.

    A prompt that is longer than the budget becomes its own batch.

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
