"""What a router's own encoder costs: its prefill, by the token or by the machine's hour."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress
from prefill_router.router import Router
from prefill_router.router.states import cached_states, finished_store
from prefill_router.studies.end_to_end.latency import Latency

PerQuery = Float[NDArray[np.float64], " query"]
_MILLION = 1e6
_HOUR = 3600.0


@final
@dataclass(frozen=True, kw_only=True)
class Charge:
    """What encoding is charged at; one of both.

    Attributes:
        per_million_tokens: US dollars per million tokens that the encoders read.
        per_hour: US dollars per hour of the machine that routes, of which a decision takes its
            mean latency.
    """

    per_million_tokens: float | None = None
    per_hour: float | None = None

    def __post_init__(self) -> None:
        given = [p for p in (self.per_million_tokens, self.per_hour) if p is not None]
        if len(given) != 1 or not (np.isfinite(given[0]) and given[0] >= 0):
            raise ConfigError(
                "the encoder needs one price, 0 or more: US dollars per million input tokens, or "
                "US dollars per hour of the machine that it runs on"
            )

    @property
    def said(self) -> str:
        """The price in words."""
        if self.per_hour is not None:
            return f"${self.per_hour:g} per hour of routing, one request at a time"
        return f"${self.per_million_tokens:g} per million input tokens"

    def dollars(self, tokens: PerQuery, latency: Latency | None) -> PerQuery:
        """What each query's encoding costs.

        Args:
            tokens: What the encoders read of each query.
            latency: Of a decision.

        Raises:
            ConfigError: It is charged by the hour and the latency isn't known.
        """
        if self.per_million_tokens is not None:
            return tokens * self.per_million_tokens / _MILLION
        if latency is None:
            raise ConfigError("an encoder that is charged by the hour needs a routing latency")
        return np.full(len(tokens), latency.mean * (self.per_hour or 0.0) / _HOUR)


def tokens_read(
    router: Router,
    dataset: RoutingDataset,
    *,
    stores: Sequence[Activations] = (),
    cache: Path,
    progress: Progress,
) -> PerQuery:
    """How many tokens the router's encoders read of each query, all together.

    Prompts that an encoder cuts count as long as what it reads. Features of the text alone read
    nothing.

    Args:
        router: Whose encoders.
        dataset: The queries.
        stores: States that are there.
        cache: Keeps the states that aren't and are made now.
        progress: Shows how far the encoding is.
    """
    total = np.zeros(len(dataset))
    for source in router.features.sources:
        sites = router.features.sites_of(source.provenance)
        held = finished_store(
            stores, source.provenance, sites, source.rounding, dataset.prompt_keys
        ) or cached_states(
            dataset,
            router.encoder(source.provenance),
            cache,
            sites=sites,
            rounding=source.rounding,
            progress=progress,
        )
        total += np.minimum(held.tokens(dataset.prompt_keys), source.provenance.max_tokens)
    return total
