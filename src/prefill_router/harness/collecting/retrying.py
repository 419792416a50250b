"""When a call that failed is made again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from prefill_router.errors import ConfigError, FailureKind, UpstreamError

_MOST_SECONDS = 60.0
_NOT_TRIED: tuple[FailureKind, ...] = ("rate_limited",)
_PATIENCE = 4
"""Calls that were refused for the rate alone don't count, up to so many times the attempts."""


@final
@dataclass(frozen=True)
class Retrying:
    """Exponential backoff with full jitter; or what the provider says, and a little more.

    Attributes:
        attempts: Calls for one question, at most, beside those refused for the rate alone.
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

    def wait(self, error: UpstreamError, failures: Sequence[str | None]) -> float | None:
        """Seconds until the next call; None where there is to be none.

        Args:
            error: What came of the last call.
            failures: Of all calls so far.
        """
        tried = sum(failure not in _NOT_TRIED for failure in failures)
        over = tried >= self.attempts or len(failures) >= self.attempts * _PATIENCE
        if not error.retriable or over:
            return None
        growth = 2.0 ** min(len(failures) - 1, 64)
        if error.retry_after:  # many are told the same moment, and would meet again at it
            told = error.retry_after
            return told + self.chance.uniform(0, min(told * growth, self.seconds))
        return self.chance.uniform(0, min(self.seconds * growth, _MOST_SECONDS))
