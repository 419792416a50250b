"""How often a failed call is repeated, and after how long a wait."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from prefill_router.endpoints.rate_limit_headers import LONGEST_WAIT
from prefill_router.errors import ConfigError, FailureKind, UpstreamError

_MOST_SECONDS = 60.0
_NOT_TRIED: tuple[FailureKind, ...] = ("rate_limited",)


@final
@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, or the provider's wait with a little jitter.

    Attributes:
        attempts: The most calls for one question, without rate-limited ones.
        seconds: The longest first wait; the bound doubles with each further wait.
        chance: The random generator of the jitter.
        patience: All calls, rate-limited ones included, are at most this many times `attempts`.
    """

    attempts: int = 5
    seconds: float = 1.0
    chance: random.Random = field(default_factory=random.Random, repr=False)
    patience: int = 4

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"{self.attempts} attempts make no call; at least 1 is needed")
        if not self.seconds >= 0:
            raise ConfigError(f"a wait of {self.seconds} seconds; it must be 0 or more")

    def wait(self, error: UpstreamError, failures: Sequence[str | None]) -> float | None:
        """Seconds until the next call; None to give up.

        Args:
            error: The error of the last call.
            failures: The failures of all calls so far.
        """
        tried = sum(failure not in _NOT_TRIED for failure in failures)
        over = tried >= self.attempts or len(failures) >= self.attempts * self.patience
        if not error.retriable or over:
            return None
        growth = 2.0 ** min(len(failures) - 1, 64)
        if error.retry_after:  # many clients get the same time; jitter spreads their retries
            wait = error.retry_after
            return wait + self.chance.uniform(0, min(wait * growth, self.seconds))
        return self.chance.uniform(0, min(self.seconds * growth, _MOST_SECONDS))


@final
class Retries:
    """Counts the failed calls for one question.

    Args:
        policy: When to retry.
        longest: The longest wait in seconds; it gives up rather than wait longer.
    """

    def __init__(self, policy: RetryPolicy, *, longest: float = LONGEST_WAIT) -> None:
        self._policy, self._longest = policy, longest
        self._failures: list[FailureKind] = []

    def wait(self, error: UpstreamError) -> float:
        """Seconds until the next call.

        Raises:
            UpstreamError: The error of the last call, where there is no retry.
        """
        self._failures.append(error.failure)
        wait = self._policy.wait(error, self._failures)
        if wait is None or wait > self._longest:
            raise error
        return wait
