"""When a call that failed is made again."""

import random
from dataclasses import dataclass, field
from typing import final

from prefill_router.errors import ConfigError, UpstreamError

_MOST_SECONDS = 60.0


@final
@dataclass(frozen=True)
class Retrying:
    """Exponential backoff with full jitter, or what the provider says where that is longer.

    Attributes:
        attempts: Calls for one question, at most.
        seconds: The first wait is at most so long, each further one at most twice the last.
        chance: Where the waits are drawn from.
    """

    attempts: int = 5
    seconds: float = 1.0
    chance: random.Random = field(default_factory=lambda: random.Random(0), repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"{self.attempts} attempts ask nothing; at least 1 is needed")
        if not self.seconds >= 0:
            raise ConfigError(f"a wait of {self.seconds} seconds; it can't be negative")

    def wait(self, error: UpstreamError, made: int) -> float | None:
        """Seconds until the next call; None where there is to be none.

        Args:
            error: What came of the last call.
            made: How many were made.
        """
        if not error.retriable or made >= self.attempts:
            return None
        longest = min(self.seconds * 2 ** (made - 1), _MOST_SECONDS)
        wait = self.chance.uniform(0, longest)
        return max(wait, error.retry_after or 0.0)
