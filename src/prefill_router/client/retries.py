"""When a call that failed is made again, after how long, and when a target is not asked any more.

How long an endpoint asks to be left alone is read from the headers that are in use:
`retry-after-ms`; `Retry-After` in seconds or as an HTTP date (RFC 9110, section 10.2.3);
`x-ratelimit-reset-requests` and `-tokens` as durations such as `6m0s` (OpenAI);
`x-ratelimit-reset` as seconds or as a moment (OpenRouter: milliseconds since 1970);
`anthropic-ratelimit-*-reset` as RFC 3339.

A circuit breaker gives up targets where every further call would meet the same failure.
"""

import email.utils
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import final

from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.targets import Pool

_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_LENGTHS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_LONGEST = 86400.0  # what asks for more than a day is cut there
_A_MOMENT = 1e9  # seconds; a number above it is a moment and no duration
_IN_MILLISECONDS = 1e11
_LIMITED = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds after which to ask again; None where nothing that can be read was said.

    Args:
        headers: Of the reply, with names in lower case.
        now: The moment, in seconds since 1970.
    """
    said = _milliseconds(headers.get("retry-after-ms"))
    if said is None:
        clock = _moment(headers.get("date"))  # the endpoint's, which may differ from ours
        said = _seconds_or_date(headers.get("retry-after"), now if clock is None else clock)
    if said is None:
        said = max(_resets(headers, now), default=None)
    return None if said is None else min(max(said, 0.0), _LONGEST)


def _milliseconds(text: str | None) -> float | None:
    number = _number(text)
    return None if number is None else number / 1000


def _seconds_or_date(text: str | None, now: float) -> float | None:
    number = _number(text)
    if number is not None:
        return number
    moment = _moment(text)
    return None if moment is None else moment - now


def _moment(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """When limits that are used up are lifted; one that has something left doesn't count."""
    for prefix, place in (("x-ratelimit-reset", "x-ratelimit-remaining"),):
        for kind in ("", *(f"-{name}" for name in _LIMITED)):
            if _number(headers.get(place + kind)) not in (None, 0.0):
                continue
            found = _duration_or_moment(headers.get(prefix + kind), now)
            if found is not None:
                yield found
    for kind in _LIMITED:
        if _number(headers.get(f"anthropic-ratelimit-{kind}-remaining")) == 0.0:
            found = _rfc3339(headers.get(f"anthropic-ratelimit-{kind}-reset"), now)
            if found is not None:
                yield found


def _duration_or_moment(text: str | None, now: float) -> float | None:
    number = _number(text)
    if number is not None:
        moment = number / 1000 if number > _IN_MILLISECONDS else number
        return moment - now if moment > _A_MOMENT else moment
    found = _DURATION.fullmatch(text.strip()) if text else None
    if not found or not any(found.groups()):
        return None
    return sum(float(n) * length for n, length in zip(found.groups(), _LENGTHS, strict=True) if n)


def _rfc3339(text: str | None, now: float) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_MOST_SECONDS = 60.0
_NOT_TRIED: tuple[FailureKind, ...] = ("rate_limited",)


@final
@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter; or what the provider says, and a little more.

    Attributes:
        attempts: Calls for one question, at most, beside those refused for the rate alone.
        seconds: The first wait is at most so long, each further one at most twice the last.
        chance: Where the waits are drawn from.
        patience: With those refused for the rate there are at most so many times the attempts.
    """

    attempts: int = 5
    seconds: float = 1.0
    chance: random.Random = field(default_factory=lambda: random.Random(0), repr=False)
    patience: int = 4

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
        over = tried >= self.attempts or len(failures) >= self.attempts * self.patience
        if not error.retriable or over:
            return None
        growth = 2.0 ** min(len(failures) - 1, 64)
        if error.retry_after:  # many are told the same moment, and would meet again at it
            told = error.retry_after
            return told + self.chance.uniform(0, min(told * growth, self.seconds))
        return self.chance.uniform(0, min(self.seconds * growth, _MOST_SECONDS))


@final
class Retries:
    """The calls for one question that failed so far.

    Args:
        policy: When there is a further one.
        longest: It gives up rather than wait for longer, in seconds.
    """

    def __init__(self, policy: RetryPolicy, *, longest: float = _LONGEST) -> None:
        self._policy, self._longest = policy, longest
        self._failures: list[FailureKind] = []

    def wait(self, error: UpstreamError) -> float:
        """Seconds until the next call.

        Raises:
            UpstreamError: There is to be none; it is the error of the last.
        """
        self._failures.append(error.failure)
        wait = self._policy.wait(error, self._failures)
        if wait is None or wait > self._longest:
            raise error
        return wait


_IN_A_ROW = 3
_UNREACHED: tuple[FailureKind, ...] = ("connect", "connect_timeout")
_UNREACHED_SECONDS = 30.0
"""A server may be starting anew."""
_FOR_ALL_QUESTIONS: tuple[FailureKind, ...] = ("unauthorised", "unknown_model")


@final
@dataclass
class _Silence:
    """Since when there was no answer, and the questions that could have had one."""

    since: float
    questions: set[str] = field(default_factory=set)


@final
class CircuitBreaker:
    """Closes a target after a few refusals in a row that no other question would be spared.

    A provider that nothing reaches for half a minute is left for another time. So is a target that
    gives several questions nothing but failures for as long as patience lasts: a server may be too
    busy, or take every call and answer none.

    Args:
        pool: The targets.
        patience_seconds: So long.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        patience_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._patience, self._clock = pool, patience_seconds, clock
        self._unreached: dict[str, float] = {}
        self._silent: dict[str, _Silence] = {}
        self._refusals: Counter[tuple[FailureKind, str]] = Counter()
        self._closed: dict[str, FailureKind] = {}
        self._postponed: dict[str, str] = {}

    def refused(self, target: str) -> FailureKind | None:
        """Why a target isn't asked any more; None where it is."""
        return self._closed.get(target)

    def postponed(self, target: str) -> str | None:
        """Why a target isn't asked now but may be later; None where it is asked."""
        return self._postponed.get(target)

    def answered(self, target: str) -> None:
        """A call was answered, so the target exists and its key is a good one."""
        self._heard(target)
        for kind in _FOR_ALL_QUESTIONS:
            self._refusals.pop((kind, target), None)

    def failed(self, target: str, error: UpstreamError, *, question: str) -> None:
        """A call for this question failed."""
        if error.retriable:
            self._note_silence(target, error, question)
            return
        self._heard(target)
        if error.failure in _FOR_ALL_QUESTIONS:
            self._refusals[error.failure, target] += 1
            if self._refusals[error.failure, target] >= _IN_A_ROW:
                self._closed[target] = error.failure

    def postpone(self, target: str, why: str) -> None:
        """Ask none of the provider's targets for now."""
        provider = self._provider(target)
        for other in self._pool.names:
            if self._provider(other) == provider:
                self._postponed[other] = why

    def _provider(self, target: str) -> str:
        return self._pool.provider_of(target).name

    def _heard(self, target: str) -> None:
        self._unreached.pop(self._provider(target), None)
        self._silent.pop(target, None)

    def _note_silence(self, target: str, error: UpstreamError, question: str) -> None:
        """How long there was no answer, and whether that is too long."""
        provider, now = self._provider(target), self._clock()
        if error.failure not in _UNREACHED:
            self._unreached.pop(provider, None)
        elif now - self._unreached.setdefault(provider, now) > _UNREACHED_SECONDS:
            self.postpone(target, f"{provider} can't be reached")
        silence = self._silent.setdefault(target, _Silence(now))
        silence.questions.add(question)
        if now - silence.since > self._patience and len(silence.questions) >= _IN_A_ROW:
            self._postponed.setdefault(target, f"{target} gives no answers ({error.failure})")
