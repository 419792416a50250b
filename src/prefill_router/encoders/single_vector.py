"""Encoders that output one vector per prompt."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from prefill_router.activations import Site
from prefill_router.data import Query, prompt_key
from prefill_router.encoders.base import Encoder, States, TokenizedPrompt, batches, require_finite
from prefill_router.encoders.names import OWN, EncoderRequest
from prefill_router.errors import ConfigError, PromptError
from prefill_router.progress import Progress, SilentProgress

_BYTES_PER_TOKEN = 4


class VectorEncoder(Encoder):
    """An encoder with the single site `own.1`; it batches prompts of similar length."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The single layer, 1 by convention."""
        return (OWN.layer,)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The single site, `own.1`."""
        return (OWN,)

    @property
    @abstractmethod
    def batch_tokens(self) -> int:
        """The most tokens, padding included, in one batch."""

    @abstractmethod
    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The vector of each prompt of a batch, in order."""

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The vector of each prompt, in order, at the single site.

        Raises:
            ConfigError: Another site is requested.
            StoreError: A vector isn't finite.
        """
        self.check_sites(sites)
        rows = np.empty((len(prompts), self.provenance.hidden_size), dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        with (progress or SilentProgress()).task("tokens", total=float(sum(lengths))) as advance:
            for numbers in batches(lengths, self.batch_tokens):
                rows[numbers] = self.vectors([prompts[i] for i in numbers])
                advance(float(sum(lengths[i] for i in numbers)))
        states = {OWN: rows}
        require_finite(states, prompts, self.provenance.dtype)
        return states


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
    held = np.array(ids, dtype=np.int32)
    return TokenizedPrompt(prompt_key(query.prompt), query.id, held, count, text)


def estimated_tokens(text: str) -> int:
    """The estimated number of tokens of a text: one per four bytes of UTF-8, rounded up."""
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


def check_options(request: EncoderRequest) -> None:
    """Refuse options that don't apply to these encoders.

    Raises:
        ConfigError: Layers or a chat template are requested.
    """
    if request.layers is not None and set(request.layers) != {OWN.layer}:
        raise ConfigError(
            f"{request.name} outputs one vector and has no layers to choose from; leave --layers "
            "out"
        )
    if request.template == "chat":
        raise ConfigError(
            f"{request.name} reads the text itself, without a chat template; leave --template out"
        )
