"""How a target is asked: what goes into its requests beside the prompt."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.errors import ConfigError

MOST_TOKENS = 128_000
"""The paper's maximum of output tokens (its Section on correctness labels)."""
_OURS = ("messages", "model", "stream", "stream_options")
_NUMBERS = ("max_tokens", "max_completion_tokens", "thinking_budget", "n")


@final
@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What a target is asked with. None leaves the provider's own default.

    Attributes:
        max_tokens: Of the answer, reasoning included.
        reasoning_effort: Such as `high`, for targets that have the parameter.
        enable_thinking: Whether to reason, for targets with that switch.
        temperature: Of sampling.
        top_p: Of sampling.
        top_k: Of sampling.
        seed: Of sampling, where the provider takes one.
        extra_body: Further fields of the request, sent as they are.
    """

    max_tokens: int = MOST_TOKENS
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; at least 1 is needed")
        for what in ("temperature", "top_p"):
            value = getattr(self, what)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{what} is {value}; it must be a number, not negative")
        ours = sorted(set(self.extra_body) & set(_OURS))
        if ours:
            raise ConfigError(f"extra_body sets {ours}, which asking sets itself; leave them out")
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"extra_body isn't JSON: {error}") from None
        for name in _NUMBERS:
            number = self.extra_body.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(
                    f"extra_body sets {name} to {number!r}; it must be a whole number above 0, "
                    "since it bounds what a call can cost"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what is left to the provider."""
        plain = {k: v for k, v in vars(self).items() if v is not None and k != "extra_body"}
        return {**plain, **({"extra_body": dict(self.extra_body)} if self.extra_body else {})}
