"""What the encoders cost: their price, and the number of tokens that they read."""

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
from prefill_router.money import list_price
from prefill_router.progress import Progress
from prefill_router.router import Router, encode_cached, find_finished_store

PerQuery = Float[NDArray[np.float64], " query"]
_MILLION, _HOUR = 1e6, 3600


@final
@dataclass(frozen=True, kw_only=True)
class Charge:
    """The price of encoding, in one of two units.

    Attributes:
        per_million_tokens: US dollars per million tokens that the encoders read.
        per_hour: US dollars per hour of the routing machine, which a decision occupies for the mean
            latency.
    """

    per_million_tokens: float | None = None
    per_hour: float | None = None

    def __post_init__(self) -> None:
        prices = [p for p in (self.per_million_tokens, self.per_hour) if p is not None]
        if len(prices) != 1 or not (np.isfinite(prices[0]) and prices[0] >= 0):
            raise ConfigError(
                "the encoder needs one price, 0 or more: US dollars per million input tokens, or "
                "US dollars per hour of the machine that it runs on"
            )

    @property
    def words(self) -> str:
        """The price in words."""
        if self.per_hour is not None:
            return f"{list_price(self.per_hour)} per hour of routing, one request at a time"
        return f"{list_price(self.per_million_tokens or 0)} per million input tokens"

    def dollars(self, tokens: PerQuery, seconds: float | None = None) -> PerQuery:
        """The cost of encoding each query, US dollars.

        Args:
            tokens: Number of tokens that the encoders read of each query.
            seconds: The mean latency of a decision, for a price by the hour.

        Raises:
            ConfigError: It is charged by the hour and the latency isn't given.
        """
        if self.per_million_tokens is not None:
            return tokens * self.per_million_tokens / _MILLION
        if seconds is None:
            raise ConfigError("an encoder that is charged by the hour needs a routing latency")
        return np.full(len(tokens), seconds * (self.per_hour or 0.0) / _HOUR)


def count_tokens(
    router: Router,
    dataset: RoutingDataset,
    *,
    stores: Sequence[Activations] = (),
    cache: Path,
    progress: Progress,
) -> PerQuery:
    """The number of tokens that all encoders of the router read of each query.

    Truncated prompts count with the tokens that are read. Features of the text alone count as 0.

    Args:
        router: The router with the encoders.
        dataset: The queries.
        stores: Existing states.
        cache: Keeps the states that are missing and encoded now.
        progress: Reports the progress of the encoding.
    """
    total = np.zeros(len(dataset))
    for source in router.features.sources:
        sites = router.features.sites_of(source.provenance)
        store = find_finished_store(
            stores, source.provenance, sites, source.rounding, dataset.prompt_keys
        ) or encode_cached(
            dataset,
            router.encoder(source.provenance),
            cache,
            sites=sites,
            rounding=source.rounding,
            progress=progress,
        )
        total += np.minimum(store.tokens(dataset.prompt_keys), source.provenance.max_tokens)
    return total
