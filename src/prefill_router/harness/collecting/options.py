"""How a run is collected."""

import math
import random
from dataclasses import dataclass
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.harness.runs.run import Retry


@final
@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """How a run is collected.

    Attributes:
        limit: US dollars that the whole run may cost, what was spent before included; None for no
            limit.
        attempts: Calls for one question, at most.
        retry: Which missing answers of earlier times are asked for again.
        assume_free: Whether targets without prices cost nothing, where there is a limit.
        settled: Whether what was at risk up to now counts no more, since the bill is known.
        assume_output_tokens: Output tokens of an answer, where none is recorded yet; for estimates.
        backoff_seconds: The longest first wait before a call is made again.
        patience_seconds: A provider that asks to wait longer isn't asked any more this time.
        seed: Of the waits.
    """

    limit: float | None = None
    attempts: int = 5
    retry: Retry = "failed"
    assume_free: bool = False
    settled: bool = False
    assume_output_tokens: int = 1000
    backoff_seconds: float = 1.0
    patience_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and not (math.isfinite(self.limit) and self.limit >= 0):
            raise ConfigError(f"the limit is {self.limit} dollars; it must be a number, 0 or above")
        if self.attempts < 1:
            raise ConfigError(f"{self.attempts} attempts ask nothing; at least 1 is needed")
        if self.assume_output_tokens < 0:
            raise ConfigError(
                f"answers of {self.assume_output_tokens} tokens; the number can't be negative"
            )
        for what in ("backoff_seconds", "patience_seconds"):
            if not 0 <= getattr(self, what) < math.inf:
                raise ConfigError(f"{what} is {getattr(self, what)}; it must be 0 or above")

    def chance(self) -> random.Random:
        """Where waits are drawn from."""
        return random.Random(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))
