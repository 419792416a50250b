"""A target: one language model that requests can be routed to."""

import math
from dataclasses import dataclass, field
from typing import Any, Final, final

from prefill_router.errors import ConfigError
from prefill_router.targets.ability import ABILITIES, ENDPOINTS, Ability, Endpoint
from prefill_router.targets.provider import check_address, check_variable
from prefill_router.targets.request import RequestOptions

MOST_PRICE: Final = 1e5
"""US dollars per million tokens; more is a mistake, such as a price in another unit."""


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """One language model that requests can be routed to.

    Attributes:
        name: Its name, unique in the pool.
        input_price: US dollars per million input tokens; None where unknown.
        output_price: US dollars per million output tokens; None where unknown.
        cached_input_price: The same of input tokens read from the provider's cache; None where
            they cost what others do.
        reasoning_price: The same of reasoning tokens; None where they cost what output does.
        provider: The name of the pool's provider that serves it.
        base_url: Its OpenAI-compatible endpoint, where the pool lists no provider for it.
        api_key_env: The environment variable that holds the endpoint's key; never the key.
        model: The endpoint's own name for it, where that differs from `name`.
        request: What it is asked with.
        accepts: What it can do beside answering texts; what isn't named, it can't.
        context_tokens: Tokens that fit, prompt and answer together; None for no known limit.
        serves: The calls that it serves; None for those of its provider's dialect.
    """

    name: str
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    reasoning_price: float | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    request: RequestOptions = field(default_factory=RequestOptions)
    accepts: tuple[Ability, ...] = ()
    context_tokens: int | None = None
    serves: tuple[Endpoint, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a target has an empty name; give it one")
        check_variable(self.api_key_env, f"target {self.name!r}")
        if self.base_url is not None:
            check_address(self.base_url, f"target {self.name!r}")
        special = (self.cached_input_price, self.reasoning_price)
        for price in (self.input_price, self.output_price, *special):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(
                    f"target {self.name!r} has the price {price}; prices are US dollars per "
                    "million tokens, finite and not negative"
                )
            if price is not None and (isinstance(price, bool) or price > MOST_PRICE):
                raise ConfigError(
                    f"target {self.name!r} has the price {price}; a price is a number, of US "
                    f"dollars per million tokens, and more than {MOST_PRICE:,.0f} a mistake"
                )
        if (self.input_price is None) != (self.output_price is None):
            raise ConfigError(
                f"target {self.name!r} has one price of two; give both the input and the output "
                "price, or neither"
            )
        if any(price is not None for price in special) and self.input_price is None:
            raise ConfigError(
                f"target {self.name!r} has a cached or reasoning price alone; give its input and "
                "output price too"
            )
        self._check_abilities()
        if self.provider is not None and (self.base_url or self.api_key_env):
            raise ConfigError(
                f"target {self.name!r} has a provider and an endpoint of its own; keep one of them"
            )

    def _check_abilities(self) -> None:
        for what, given, known in (
            ("accepts", self.accepts, ABILITIES),
            ("serves", self.serves or (), ENDPOINTS),
        ):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ConfigError(
                    f"target {self.name!r} {what} {unknown}; known are {', '.join(known)}"
                )
        if self.context_tokens is not None and self.context_tokens < 1:
            raise ConfigError(
                f"target {self.name!r} has context_tokens {self.context_tokens}; at least 1 is "
                "needed"
            )

    @property
    def has_price(self) -> bool:
        """Whether its prices are known."""
        return self.input_price is not None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values, without what isn't known."""
        known = {
            k: _plain(v) for k, v in vars(self).items() if v not in (None, ()) and k != "request"
        }
        asked = {} if self.request == RequestOptions() else {"request": self.request.to_dict()}
        return {**known, **asked}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
