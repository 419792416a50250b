"""Circuit breakers: targets that fail again and again aren't called for a while, or any more.

There are two, because what follows from a failure differs, and so does what is counted:

- `CircuitBreaker` serves a collection, which can leave a target out and come back in another
  session. It never tries a target again by itself. It counts refusals that every question would
  meet, time without an answer, and whether several questions fail.
- `Breakers` serve live traffic, which must have an answer now. They count failures in a row, let
  one call through after a while to see whether the target has recovered, and share that state
  among deployments, reloads and replicas.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from prefill_router.endpoints.failures import FOR_ANY_PROMPT
from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.targets import Pool

_IN_A_ROW = 3
_UNREACHED: tuple[FailureKind, ...] = ("connect", "connect_timeout")
_UNREACHED_SECONDS = 30.0
"""Long enough for a server to restart."""


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

    def reason_to_stop(self, target: str) -> FailureKind | None:
        """Why a target is no longer called; None where it still is."""
        return self._stopped.get(target)

    def reason_to_postpone(self, target: str) -> str | None:
        """Why a target is postponed; None where it isn't."""
        return self._postponed.get(target)

    def record_answer(self, target: str) -> None:
        """Record an answer: the target exists and its key is valid."""
        self._end_silence(target)
        for kind in FOR_ANY_PROMPT:
            self._refusals.pop((kind, target), None)

    def record_failure(self, target: str, error: UpstreamError, *, question: str) -> None:
        """Record that a call for this question failed."""
        if error.retriable:
            self._note_silence(target, error, question)
            return
        self._end_silence(target)
        if error.failure in FOR_ANY_PROMPT:
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

    def _end_silence(self, target: str) -> None:
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


_log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half_open"]
"""Closed: calls are made. Open: none is made. Half open: one call is tried."""
_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")
_FAILS_OTHERWISE = "%s still fails, now for another reason; %s"
_OPENED = "%s failed %d times in a row: it gets no calls but one every %g seconds, to test it%s"


@final
@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    opened_at: float | None = None
    tried_at: float | None = None
    openings: int = 0
    why: str = ""


@final
class Breakers:
    """One breaker per target or deployment, by name; they survive a reload of the pool.

    Args:
        failures: The failures in a row that open a breaker.
        seconds: The seconds that it stays open before one call is tried.
        clock: A monotonic clock, in seconds.

    Attributes:
        seconds: The seconds that a breaker stays open.
        on_change: Called with a target whose breaker opened or closed, where replicas share them.
        claim: Claims a trial call for this replica, where replicas share breakers.
    """

    def __init__(
        self, *, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_failures, self.seconds, self._clock = failures, seconds, clock
        self._breakers: dict[str, _Breaker] = {}
        self.on_change: Callable[[str], object] = lambda _: None
        self.claim: Callable[[str], Awaitable[bool]] | None = None
        self._deployments: Mapping[str, Sequence[str]] = {}
        self._shared: Mapping[str, str] = {}

    @property
    def names(self) -> set[str]:
        """The names of the breakers that are known here."""
        return set(self._breakers)

    def set(self, *, failures: int, seconds: float) -> None:
        """Use other settings."""
        self._most_failures, self.seconds = failures, seconds

    def use_pool(self, pool: Pool) -> None:
        """Use the deployments of this pool.

        The state of a target with several is that of its best one. All efforts of a model share a
        breaker, since one deployment serves them.
        """
        self._deployments, self._shared = pool.several, pool.deployment_names

    def _breaker(self, target: str) -> _Breaker | None:
        return self._breakers.get(self._name(target))

    def _name(self, target: str) -> str:
        """The breaker's name, which all efforts of a model share."""
        return self._shared.get(target, target)

    def allow(self, target: str) -> bool:
        """Whether a target may be called now; a half-open breaker allows only the first call.

        The caller must then report the result: `record_success`, `record_failure` or `release`.
        """
        breaker = self._breaker(target)
        if breaker is None or breaker.opened_at is None:
            return True
        now = self._clock()
        waits_for = breaker.opened_at if breaker.tried_at is None else breaker.tried_at
        if now - waits_for < self.seconds:
            return False
        breaker.tried_at = now
        return True

    async def claim_trial(self, target: str) -> bool:
        """Whether this replica may make the call that was allowed, since no other tries it."""
        breaker = self._breaker(target)
        if self.claim is None or breaker is None or breaker.tried_at is None:
            return True
        return await self.claim(self._name(target))

    def learn(self, target: str, seconds_open: float | None) -> None:
        """Take over the state of a breaker from another replica.

        Args:
            target: The target.
            seconds_open: The seconds since its breaker opened; None where it is closed.
        """
        breaker = self._breakers.setdefault(target, _Breaker())
        if seconds_open is None:
            breaker.opened_at = breaker.tried_at = None
            breaker.failures = 0
            return
        if breaker.opened_at is None:
            _log.warning("another replica found that %s fails: it gets no calls", target)
        breaker.opened_at = self._clock() - seconds_open
        breaker.failures = max(breaker.failures, self._most_failures)

    def seconds_open(self, target: str) -> float | None:
        """The seconds since a breaker opened; None where it is closed."""
        breaker = self._breaker(target)
        opened_at = None if breaker is None else breaker.opened_at
        return None if opened_at is None else self._clock() - opened_at

    def state(self, target: str) -> BreakerState:
        """The state of one target's breaker."""
        if target in self._deployments:
            return min(map(self.state, self._deployments[target]), key=_STATES.index)
        breaker = self._breaker(target)
        if breaker is None or breaker.opened_at is None:
            return "closed"
        is_over = self._clock() - breaker.opened_at >= self.seconds
        return "half_open" if is_over else "open"

    def is_open(self, target: str) -> bool:
        """Whether a target's breaker is open."""
        return self.state(target) == "open"

    def retry_in(self, target: str) -> float | None:
        """Seconds until an open breaker allows one call; None where it is closed."""
        if target in self._deployments:
            waits = [self.retry_in(name) for name in self._deployments[target]]
            return None if None in waits else min(wait for wait in waits if wait is not None)
        breaker = self._breaker(target)
        if breaker is None or breaker.opened_at is None:
            return None
        return max(0.0, breaker.opened_at + self.seconds - self._clock())

    def count_openings(self, target: str) -> int:
        """How often a target's breaker has opened."""
        breaker = self._breaker(target)
        return 0 if breaker is None else breaker.openings

    def failures(self, target: str) -> int:
        """The number of a target's failures in a row."""
        breaker = self._breaker(target)
        return 0 if breaker is None else breaker.failures

    def record_success(self, target: str) -> None:
        """Record a success of a target: its breaker closes."""
        breaker = self._breaker(target)
        if breaker is not None and breaker.failures:
            self._close(target, breaker)
            breaker.failures = 0

    def record_start(self, target: str) -> None:
        """Record that an answer began: an open breaker closes, but the next failure reopens it."""
        breaker = self._breaker(target)
        if breaker is not None and breaker.opened_at is not None:
            self._close(target, breaker)
            breaker.failures = self._most_failures - 1

    def record_failure(self, target: str, why: str = "") -> None:
        """Record a failure; enough in a row, or the failure of a trial call, open the breaker.

        Args:
            target: The target.
            why: What went wrong, in a sentence for the log.
        """
        target = self._name(target)
        breaker = self._breakers.setdefault(target, _Breaker())
        breaker.failures += 1
        is_trial = breaker.tried_at is not None
        if breaker.failures >= self._most_failures and (breaker.opened_at is None or is_trial):
            if breaker.opened_at is None:
                last = f"; {why}" if why else ""
                _log.warning(_OPENED, target, breaker.failures, self.seconds, last)
            elif why and why != breaker.why:
                _log.warning(_FAILS_OTHERWISE, target, why)
            breaker.why = why
            breaker.opened_at, breaker.tried_at = self._clock(), None
            breaker.openings += 1
            self.on_change(target)

    def release(self, target: str) -> None:
        """Record a call that ended without saying anything about the target; another may try."""
        breaker = self._breaker(target)
        if breaker is not None and breaker.tried_at is not None:
            breaker.tried_at = None
            self.on_change(self._name(target))

    def _close(self, target: str, breaker: _Breaker) -> None:
        target = self._name(target)
        was_open = breaker.opened_at is not None
        breaker.opened_at = breaker.tried_at = None
        if was_open:
            _log.warning("%s answers again", target)
            self.on_change(target)
