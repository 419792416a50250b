"""One of several endpoints that serve the same target."""

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Final, final

from prefill_router.errors import ConfigError

PRICES: Final = ("input_price", "output_price", "cached_input_price", "reasoning_price")
"""The names of a target's prices, and of an endpoint's."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@final
@dataclass(frozen=True, kw_only=True)
class TargetEndpoint:
    """One of several endpoints that serve the same target.

    Attributes:
        name: Its name, unique in the target: letters, digits, dots, hyphens and underscores.
        provider: The name of the pool's provider that it is.
        base_url: The base URL of its API, where the pool lists no provider for it.
        api_key_env: The name of the environment variable that holds the key; never the key.
        model: Its own name for the model; None for that of the target.
        weight: Its share of the conversations, relative to the others of its priority.
        priority: Endpoints of a higher number are called only where those of a lower one can't be.
        input_price: As in `Target`; an endpoint without any price has those of its target.
        output_price: As in `Target`.
        cached_input_price: As in `Target`.
        reasoning_price: As in `Target`.
    """

    name: str
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    weight: float = 1.0
    priority: int = 0
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    reasoning_price: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"an endpoint has the name {self.name!r}; use letters, digits, dots, hyphens and "
                "underscores, such as east-1"
            )
        if self.provider is None and self.base_url is None:
            raise ConfigError(f"endpoint {self.name!r} has neither a provider nor a base_url")
        if isinstance(self.weight, bool) or not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(
                f"endpoint {self.name!r} has the weight {self.weight}; it must be a number above "
                "0. For one that is called only where others can't be, raise its priority"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}
