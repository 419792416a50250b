"""The interface of encoders: hidden states of prompts at prefill.

An `Encoder` turns prompts into hidden states; a `VectorEncoder` outputs one vector per prompt.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import (
    POOLINGS,
    MemoryActivations,
    Provenance,
    Rounding,
    Site,
    round_states,
)
from prefill_router.data import Query
from prefill_router.encoders.batching import batches
from prefill_router.encoders.encoder_names import OWN
from prefill_router.encoders.tokenisation import TokenizedPrompt, distinct_prompts, tokenize_prompts
from prefill_router.errors import ConfigError, StoreError, name_option
from prefill_router.progress import Progress, SilentProgress

States = Float32[NDArray[np.float32], "query hidden"]


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

    @property
    def workers(self) -> int:
        """The most batches that are computed at once."""
        return 1

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

    def with_prefix_cache(self, *, most_bytes: int) -> "Encoder":
        """The encoder with a cache of shared prefixes, or itself if it doesn't support one.

        Args:
            most_bytes: The limit of the cache in bytes.
        """
        del most_bytes
        return self

    def expect_tokens(self, tokens: int, *, progress: Progress | None = None) -> None:
        """Prepare for reading so many tokens, where that makes it faster.

        Args:
            tokens: The number of tokens that will be read.
            progress: Shows what is prepared.
        """
        del tokens, progress

    def with_workers(self, count: int) -> "Encoder":
        """The encoder with so many batches at once, each by one thread, on a processor's cores.

        Encoders that compute on a GPU, or elsewhere, are themselves.

        Args:
            count: The most batches at once; the threads share the weights.
        """
        del count
        return self

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
            rounding: The type to round to: that of the store that the router was fitted on.
            progress: Shows the number of tokens done.
        """
        prompts = distinct_prompts(self.tokenize(queries))
        states = self.states(prompts, sites, progress=progress or SilentProgress())
        return MemoryActivations(
            self.provenance,
            tuple(prompt.key for prompt in prompts),
            {site: round_states(value, rounding) for site, value in states.items()},
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
            option = name_option(" (--dtype float32)", "")
            fix = "" if dtype == "float32" else f"; encode in float32{option}"
            raise StoreError(
                f"the states of {len(bad)} queries at {site.name} aren't finite in {dtype}, the "
                f"first is query {prompts[bad[0]].query_id!r}{fix}"
            )


Batch = tuple[list[int], Float32[NDArray[np.float32], "site query hidden"]]
"""The numbers of some prompts, and their states at each site."""


class BatchEncoder(Encoder):
    """An encoder that reads prompts in batches.

    Attributes:
        made_by: The provenance of its states.
    """

    made_by: Provenance

    @property
    def provenance(self) -> Provenance:
        """How the states are made."""
        return self.made_by

    @abstractmethod
    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of every prompt, in batches of any order; the sites are distinct."""

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site can't be read.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        distinct_sites = tuple(dict.fromkeys(sites))
        shape = (len(distinct_sites), len(prompts), self.made_by.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        with (progress or SilentProgress()).task("tokens", total=float(sum(lengths))) as advance:
            for numbers, batch in self.read_batches(prompts, distinct_sites):
                rows[:, numbers] = batch
                advance(float(sum(lengths[i] for i in numbers)))
        states = dict(zip(distinct_sites, rows, strict=True))
        require_finite(states, prompts, self.made_by.dtype)
        return states


class NetworkEncoder(BatchEncoder):
    """An encoder of the layers of a network.

    Attributes:
        tokenizer: The network's tokenizer.
    """

    tokenizer: Any

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded, or the template refuses its roles.
        """
        return tokenize_prompts(queries, self.tokenizer, self.made_by)


@final
@dataclass(frozen=True, eq=False)
class TokenizingEncoder(NetworkEncoder):
    """An encoder whose weights aren't loaded: it tokenises, for those that are elsewhere.

    Attributes:
        made_by: The provenance of the states that it would have.
        tokenizer: The network's tokenizer.
        last_layer: The last layer that is read elsewhere.
    """

    made_by: Provenance
    tokenizer: Any
    last_layer: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are read elsewhere."""
        return tuple(range(self.last_layer + 1))

    def read_batches(
        self,
        prompts: Sequence[TokenizedPrompt],  # noqa: ARG002
        sites: Sequence[Site],  # noqa: ARG002
    ) -> Iterator[Batch]:
        """No states.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"the weights of {self.made_by.encoder} aren't loaded here; load it with them"
        )


class VectorEncoder(BatchEncoder):
    """An encoder with the single site `own.1`; it batches prompts of similar length.

    Attributes:
        batch_tokens: The most tokens, padding included, in one batch.
    """

    batch_tokens: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The single layer, 1 by convention."""
        return (OWN.layer,)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The single site, `own.1`."""
        return (OWN,)

    @abstractmethod
    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The vector of each prompt of a batch, in order."""

    def read_batches(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],  # noqa: ARG002
    ) -> Iterator[Batch]:
        """The vectors of prompts of similar length."""
        for numbers in batches([len(prompt.ids) for prompt in prompts], self.batch_tokens):
            yield numbers, self.vectors([prompts[i] for i in numbers])[None]
