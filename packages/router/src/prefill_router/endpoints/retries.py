"""When calls wait: rate limits, retries, and targets that are no longer called.

How long an endpoint asks clients to wait is read from the headers in use:
`retry-after-ms`; `Retry-After` in seconds or as an HTTP date (RFC 9110, section 10.2.3);
`x-ratelimit-reset-requests` and `-tokens` as durations such as `6m0s` (OpenAI);
`x-ratelimit-reset` as seconds or as a time (OpenRouter: milliseconds since 1970);
`anthropic-ratelimit-*-reset` as RFC 3339.

A circuit breaker stops calling targets where every further call would fail in the same way.

The rate limits of a provider: concurrent calls, calls and tokens per minute, and pauses.

When a provider reports a rate limit, its concurrency is halved; while it answers, the concurrency
grows again step by step.
"""

import asyncio
import email.utils
import math
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import final

from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.targets import Pool, Provider

_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_LENGTHS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_LONGEST = 86400.0  # seconds; longer waits are cut to a day
_TIMESTAMP = 1e9  # seconds; a number above it is a time since 1970, not a duration
_IN_MILLISECONDS = 1e11
_LIMITED = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds to wait before a retry; None where no readable header gives them.

    Args:
        headers: The response headers, with names in lower case.
        now: The current time, in seconds since 1970.
    """
    said = _milliseconds(headers.get("retry-after-ms"))
    if said is None:
        clock = _moment(headers.get("date"))  # the endpoint's clock, which may differ from ours
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
    """Seconds until each used-up limit is reset; limits with a remainder are skipped."""
    for kind in ("", *(f"-{name}" for name in _LIMITED)):
        if _number(headers.get(f"x-ratelimit-remaining{kind}")) not in (None, 0.0):
            continue
        found = _duration_or_moment(headers.get(f"x-ratelimit-reset{kind}"), now)
        if found is not None:
            yield found
    for kind in _LIMITED:
        if _number(headers.get(f"anthropic-ratelimit-{kind}-remaining")) == 0.0:
            found = _rfc3339(headers.get(f"anthropic-ratelimit-{kind}-reset"), now)
            if found is not None:
                yield found


def limits_left(
    headers: Mapping[str, str], *, now: float
) -> Iterator[tuple[str, float, float | None]]:
    """What a provider says remains of its rate limits.

    Args:
        headers: The response headers, with names in lower case.
        now: The current time, in seconds since 1970.

    Yields:
        The limit (`requests`, `tokens`, ...), what remains of it, and the seconds until its reset;
        None where they aren't said.
    """
    for kind in _LIMITED:
        for name, read in (
            (f"x-ratelimit-{{}}-{kind}", _duration_or_moment),
            (f"anthropic-ratelimit-{kind}-{{}}", _rfc3339),
        ):
            left = _number(headers.get(name.format("remaining")))
            reset = read(headers.get(name.format("reset")), now)
            if left is not None:
                yield kind, left, reset


def _duration_or_moment(text: str | None, now: float) -> float | None:
    number = _number(text)
    if number is not None:
        moment = number / 1000 if number > _IN_MILLISECONDS else number
        return moment - now if moment > _TIMESTAMP else moment
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

    def __init__(self, policy: RetryPolicy, *, longest: float = _LONGEST) -> None:
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


_IN_A_ROW = 3
_UNREACHED: tuple[FailureKind, ...] = ("connect", "connect_timeout")
_UNREACHED_SECONDS = 30.0
"""Long enough for a server to restart."""
_FOR_ALL_QUESTIONS: tuple[FailureKind, ...] = ("unauthorised", "unknown_model")


@final
@dataclass
class _Silence:
    """When a target's failures in a row began, and the questions that failed since."""

    since: float
    questions: set[str] = field(default_factory=set)


@final
class CircuitBreaker:
    """Stops calls to a target after a few refusals in a row that any question would meet.

    A provider that can't be reached for half a minute is postponed. So is a target that fails on
    several questions, and on nothing but failures, for `patience_seconds`: its server may be too
    busy, or accept calls and never answer.

    Args:
        pool: The targets.
        patience_seconds: How long a target may fail before it is postponed.
        clock: A monotonic clock, in seconds.
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
        self._stopped: dict[str, FailureKind] = {}
        self._postponed: dict[str, str] = {}

    def refused(self, target: str) -> FailureKind | None:
        """Why a target is no longer called; None where it still is."""
        return self._stopped.get(target)

    def postponed(self, target: str) -> str | None:
        """Why a target is postponed; None where it isn't."""
        return self._postponed.get(target)

    def answered(self, target: str) -> None:
        """Record an answer: the target exists and its key is valid."""
        self._heard(target)
        for kind in _FOR_ALL_QUESTIONS:
            self._refusals.pop((kind, target), None)

    def failed(self, target: str, error: UpstreamError, *, question: str) -> None:
        """Record that a call for this question failed."""
        if error.retriable:
            self._note_silence(target, error, question)
            return
        self._heard(target)
        if error.failure in _FOR_ALL_QUESTIONS:
            self._refusals[error.failure, target] += 1
            if self._refusals[error.failure, target] >= _IN_A_ROW:
                self._stopped[target] = error.failure

    def postpone(self, target: str, why: str) -> None:
        """Call none of the provider's targets for now."""
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
        """Record a retriable failure, and postpone what has failed for too long."""
        provider, now = self._provider(target), self._clock()
        if error.failure not in _UNREACHED:
            self._unreached.pop(provider, None)
        elif now - self._unreached.setdefault(provider, now) > _UNREACHED_SECONDS:
            self.postpone(target, f"{provider} can't be reached")
        silence = self._silent.setdefault(target, _Silence(now))
        silence.questions.add(question)
        if now - silence.since > self._patience and len(silence.questions) >= _IN_A_ROW:
            self._postponed.setdefault(target, f"{target} returns no answers ({error.failure})")


_MINUTE = 60.0
_BURST_CALLS = 0.1
_BURST_TOKENS = 0.2
"""The share of a minute's allowance that may be used at once; the rest is spread evenly."""
_LEAST_STEP = 0.1
_SOON = 0.001


@final
class TokenBucket:
    """A token bucket: limits an amount per minute, some of it at once and the rest evenly.

    Args:
        each_minute: The amount allowed in any 60 seconds.
        burst: The part of it that is allowed at once.
        now: The clock's time in seconds.
    """

    def __init__(self, each_minute: float, *, burst: float, now: float) -> None:
        self._most = self._level = burst
        self._rate = (each_minute - burst + 1) / _MINUTE  # the next one comes after the minute
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until this amount may pass; an amount above the burst needs a full bucket."""
        self._level = min(self._level + (now - self._at) * self._rate, self._most)
        self._at = now
        lacking = min(amount, self._most) - self._level
        return max(lacking / self._rate, 0.0)

    def take(self, amount: float) -> None:
        """Take this amount from the bucket; a negative one is given back."""
        self._level = min(self._level - amount, self._most)


@final
class ProviderGate:
    """Limits the calls to one provider; used from one event loop.

    Args:
        provider: The provider, with its limits.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._width = provider.concurrency
        self._window = float(provider.concurrency)
        self._in_flight = 0
        self._resumes = self._narrowed = clock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._corrected = asyncio.Event()
        calls, tokens = provider.requests_per_minute, provider.tokens_per_minute
        self._calls = calls and TokenBucket(
            calls, burst=max(_BURST_CALLS * calls, 1.0), now=clock()
        )
        self._tokens = tokens and TokenBucket(tokens, burst=_BURST_TOKENS * tokens, now=clock())

    @property
    def window(self) -> float:
        """The number of concurrent calls that is allowed at present."""
        return self._window

    async def enter(self) -> None:
        """Wait for a slot among the concurrent calls."""
        while self._in_flight >= max(int(self._window), 1):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # whoever waits behind this one
                raise
        self._in_flight += 1

    def leave(self) -> None:
        """Release the slot."""
        self._in_flight -= 1
        self._wake()

    async def pace(self, tokens: float) -> None:
        """Wait until a call of about this many tokens may begin."""
        while (seconds := self._wait(tokens)) > 0:
            self._corrected.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, _SOON)):
                    await self._corrected.wait()
        if self._calls:
            self._calls.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def correct(self, tokens: float) -> None:
        """Take the tokens that a call used beyond those expected; a negative number gives back."""
        if self._tokens:
            self._tokens.take(tokens)
            self._corrected.set()

    def pause(self, seconds: float) -> None:
        """Let no call begin for this many seconds."""
        self._resumes = max(self._resumes, self._clock() + seconds)

    def narrow(self, began: float) -> None:
        """Halve the concurrency, since the provider reported a rate limit.

        Args:
            began: When the call began, by the clock; calls that were in flight when the window
                was last narrowed don't narrow it again.
        """
        if began >= self._narrowed:
            self._window = max(self._window / 2, 1.0)
            self._narrowed = self._clock()

    def widen(self) -> None:
        """Raise the concurrency a little, since the provider answered."""
        if self._window < self._width:
            self._window = min(self._window + max(1 / self._window, _LEAST_STEP), self._width)
            self._wake()

    def now(self) -> float:
        """The clock's time in seconds."""
        return self._clock()

    def _wait(self, tokens: float) -> float:
        now = self._clock()
        waits = [self._resumes - now]
        waits += [self._calls.wait(1, now)] if self._calls else []
        waits += [self._tokens.wait(tokens, now)] if self._tokens else []
        return max(waits)

    def _wake(self) -> None:
        free = int(self._window) - self._in_flight
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
