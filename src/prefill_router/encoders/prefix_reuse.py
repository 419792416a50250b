"""An encoder that reads the beginnings that prompts share only once.

Conversations grow at their end, and system prompts repeat. A causal network's states of a token
depend on the tokens up to it alone, so what it computed of a beginning is kept and used again. The
states are those of a whole reading, but for rounding.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders.base import Encoder, States, TokenizedPrompt, require_finite
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.prefix_check import why_not
from prefill_router.encoders.prefix_pass import read_on
from prefill_router.encoders.prefix_store import BLOCK, PrefixStore
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress

MOST_BYTES = 512 << 20


@final
class PrefixReusing(Encoder):
    """An encoder around another one; not for use by several threads at once.

    Prompts that lose their middle, and those of less than a block of tokens, are read as ever.

    Attributes:
        reused_tokens: How many tokens weren't read again so far.
        read_tokens: How many were read.
    """

    def __init__(self, encoder: Encoder, *, most_bytes: int = MOST_BYTES) -> None:
        """Put a causal encoder inside.

        Args:
            encoder: What reads.
            most_bytes: Of what is kept, on the encoder's device.

        Raises:
            ConfigError: It isn't known that this encoder can go on from a beginning.
        """
        if not isinstance(encoder, HubEncoder):
            raise ConfigError(
                f"{encoder.provenance.encoder} isn't read at a network's blocks, so nothing of it "
                "can be used again; use it as it is"
            )
        reason = why_not(encoder)
        if reason is not None:
            raise ConfigError(f"{reason}; use the encoder as it is")
        self.reused_tokens = self.read_tokens = 0
        self._encoder = encoder
        self._most_bytes = most_bytes
        self._store = PrefixStore(most_bytes=most_bytes)
        self._sites: tuple[Site, ...] = ()

    @property
    def provenance(self) -> Provenance:
        """What makes the states: that of the encoder inside."""
        return self._encoder.provenance

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return self._encoder.layers

    @property
    def kept_bytes(self) -> int:
        """How much memory the beginnings take that are kept."""
        return self._store.nbytes

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, cut to the encoder's limit."""
        return self._encoder.tokenize(queries)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        What is kept is of one choice of sites; another choice begins anew.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        wanted = tuple(dict.fromkeys(sites))
        self._begin(wanted)
        depth = max(site.layer for site in wanted)
        long = [i for i, prompt in enumerate(prompts) if depth and _is_worth_it(prompt)]
        short = sorted(set(range(len(prompts))) - set(long))
        shape = (len(wanted), len(prompts), self.provenance.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        total = float(sum(len(prompt.ids) for prompt in prompts))
        with (progress or SilentProgress()).task("tokens", total=total) as advance:
            plain = self._encoder.states([prompts[i] for i in short], wanted)
            rows[:, short] = np.stack([plain[site] for site in wanted])
            count = sum(len(prompts[i].ids) for i in short)
            self.read_tokens += count
            advance(float(count))
            for i in long:
                rows[:, i] = self._read(prompts[i])
                advance(float(len(prompts[i].ids)))
        states = dict(zip(wanted, rows, strict=True))
        require_finite(states, prompts, self.provenance.dtype)
        return states

    def _begin(self, sites: tuple[Site, ...]) -> None:
        if sites != self._sites:
            self._sites, self._store = sites, PrefixStore(most_bytes=self._most_bytes)

    def _read(self, prompt: TokenizedPrompt) -> States:
        before = self._store.longest(prompt.ids)
        rows, blocks = read_on(self._encoder, prompt.ids, before, self._sites)
        self._store.keep(prompt.ids, blocks)
        self.reused_tokens += len(before) * BLOCK
        self.read_tokens += len(prompt.ids) - len(before) * BLOCK
        found: States = rows.cpu().numpy()
        return found


def with_prefix_reuse(encoder: Encoder, *, most_bytes: int = MOST_BYTES) -> Encoder:
    """The encoder, reading shared beginnings once where it is known how; else as it is."""
    try:
        return PrefixReusing(encoder, most_bytes=most_bytes)
    except ConfigError:
        return encoder


def _is_worth_it(prompt: TokenizedPrompt) -> bool:
    return not prompt.truncated and len(prompt.ids) > BLOCK
