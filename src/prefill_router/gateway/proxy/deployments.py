"""Which of the targets' endpoints may be called now, and in which order.

A target or endpoint that fails repeatedly isn't called for a while: its circuit breaker is open.

Where a target has several endpoints, a conversation stays at one, whose prompt cache holds it.
Which one follows from the names alone (weighted rendezvous hashing), so that all replicas agree
without sharing anything, and a change of the pool moves only as many conversations as it must.
Those without headroom under their rate limits come last.
"""

import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.client import limits_left
from prefill_router.gateway.records import Header
from prefill_router.targets import Target

_HASH_BYTES = 8
_UNSAID_SECONDS = 1.0  # the wait after a rate limit where the provider names none
_OF_INPUT = ("tokens", "input-tokens")


@final
class RateHeadroom:
    """What the providers say remains of their rate limits, by deployment; it outlives a pool.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, dict[str, tuple[float, float]]] = {}  # what remains, until when

    def observe(self, deployment: str, headers: Iterable[Header]) -> None:
        """Read what remains from the headers of a response."""
        said = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers if b"ratelimit" in n}
        now = self._clock()
        for kind, left, reset in limits_left(said, now=time.time()) if said else ():
            until = now + (_UNSAID_SECONDS if reset is None else reset)
            self._left.setdefault(deployment, {})[kind] = (left, until)

    def refused(self, deployment: str, wait: float | None) -> None:
        """Note that a rate limit refused a call; it may be tried again after so many seconds."""
        until = self._clock() + (_UNSAID_SECONDS if wait is None else wait)
        self._left.setdefault(deployment, {})["refused"] = (0.0, until)

    def lacks(self, deployment: str, tokens: int) -> bool:
        """Whether a request of so many input tokens would pass a rate limit now."""
        limits, now = self._left.get(deployment), self._clock()
        return limits is not None and any(
            left < (max(tokens, 1) if kind in _OF_INPUT else 1) and until > now
            for kind, (left, until) in limits.items()
        )


@final
class DeploymentOrder:
    """In which order the endpoints of a target are called.

    Args:
        target: A target with several endpoints.
        headroom: What remains of their rate limits.
    """

    def __init__(self, target: Target, headroom: RateHeadroom) -> None:
        self._endpoints = [
            (deployment.name, endpoint.priority, endpoint.weight)
            for deployment, endpoint in zip(target.deployments, target.endpoints, strict=True)
        ]
        self._headroom = headroom

    def __call__(self, conversation: str, tokens: int) -> list[str]:
        """Their names, the first to be called first.

        Args:
            conversation: The name of the conversation, or of the request if it has none.
            tokens: Estimated input tokens; deployments whose rate limits they pass come last.
        """
        ranked = sorted(
            (
                self._headroom.lacks(name, tokens),
                priority,
                _distance(conversation, name) / weight,
                name,
            )
            for name, priority, weight in self._endpoints
        )
        return [name for *_, name in ranked]


def _distance(conversation: str, deployment: str) -> float:
    """An exponential variate that is fixed for the two names: the least by weight is first."""
    text = f"{conversation}\0{deployment}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:_HASH_BYTES], "big")
    return -math.log((drawn + 1) / (1 << 8 * _HASH_BYTES))


_log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half_open"]
"""Closed: calls are made. Open: none is made. Half open: one call is tried."""
_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")
_OPENED = "%s failed %d times in a row: it gets no calls but one every %g seconds, to test it"


@final
@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    opened_at: float | None = None
    tried_at: float | None = None
    opened: int = 0


@final
class Breakers:
    """One breaker per target or deployment, by name; they survive a reload of the pool.

    Args:
        failures: The failures in a row that open a breaker.
        seconds: The seconds that it stays open before one call is tried.
        clock: A monotonic clock, in seconds.

    Attributes:
        seconds: The seconds that a breaker stays open.
        changed: Called with a target whose breaker opened or closed, where replicas share them.
        claim: Claims a trial call for this replica, where replicas share breakers.
    """

    def __init__(
        self, *, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self.seconds, self._clock = failures, seconds, clock
        self._breakers: dict[str, _Breaker] = {}
        self.changed: Callable[[str], object] = lambda _: None
        self.claim: Callable[[str], Awaitable[bool]] | None = None
        self._deployments: Mapping[str, Sequence[str]] = {}

    @property
    def opened(self) -> Mapping[str, int]:
        """How often each target's breaker has opened."""
        return {name: breaker.opened for name, breaker in self._breakers.items()}

    def set(self, *, failures: int, seconds: float) -> None:
        """Use other settings."""
        self._most, self.seconds = failures, seconds

    def use_deployments(self, deployments: Mapping[str, Sequence[str]]) -> None:
        """Tell the deployments of targets with several: a target's state is its best one's."""
        self._deployments = deployments

    def allow(self, target: str) -> bool:
        """Whether a target may be called now; a half-open breaker allows only the first call.

        The caller must then report the result: `succeeded`, `failed` or `released`.
        """
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return True
        now = self._clock()
        waits_for = breaker.opened_at if breaker.tried_at is None else breaker.tried_at
        if now - waits_for < self.seconds:
            return False
        breaker.tried_at = now
        return True

    async def claimed(self, target: str) -> bool:
        """Whether this replica may make the call that was allowed, since no other tries it."""
        breaker = self._breakers.get(target)
        if self.claim is None or breaker is None or breaker.tried_at is None:
            return True
        return await self.claim(target)

    def learn(self, target: str, opened: float | None) -> None:
        """Take over the state of a breaker from another replica.

        Args:
            target: The target.
            opened: The seconds since its breaker opened; None where it is closed.
        """
        breaker = self._breakers.setdefault(target, _Breaker())
        if opened is None:
            breaker.opened_at = breaker.tried_at = None
            breaker.failures = 0
            return
        if breaker.opened_at is None:
            _log.warning("another replica found that %s fails: it gets no calls", target)
        breaker.opened_at = self._clock() - opened
        breaker.failures = max(breaker.failures, self._most)

    def opened_for(self, target: str) -> float | None:
        """The seconds since a breaker opened; None where it is closed."""
        breaker = self._breakers.get(target)
        found = None if breaker is None else breaker.opened_at
        return None if found is None else self._clock() - found

    def state(self, target: str) -> BreakerState:
        """The state of one target's breaker."""
        if target in self._deployments:
            return min(map(self.state, self._deployments[target]), key=_STATES.index)
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return "closed"
        waited = self._clock() - breaker.opened_at >= self.seconds
        return "half_open" if waited else "open"

    def is_open(self, target: str) -> bool:
        """Whether a target's breaker is open."""
        return self.state(target) == "open"

    def retry_in(self, target: str) -> float | None:
        """Seconds until an open breaker allows one call; None where it is closed."""
        if target in self._deployments:
            waits = [self.retry_in(name) for name in self._deployments[target]]
            return None if None in waits else min(wait for wait in waits if wait is not None)
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return None
        return max(0.0, breaker.opened_at + self.seconds - self._clock())

    def failures(self, target: str) -> int:
        """The number of a target's failures in a row."""
        breaker = self._breakers.get(target)
        return 0 if breaker is None else breaker.failures

    def succeeded(self, target: str) -> None:
        """Record a success of a target: its breaker closes."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.failures:
            self._close(target, breaker)
            breaker.failures = 0

    def began(self, target: str) -> None:
        """Record that an answer began: an open breaker closes, but the next failure reopens it."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.opened_at is not None:
            self._close(target, breaker)
            breaker.failures = self._most - 1

    def failed(self, target: str) -> None:
        """Record a failure; enough in a row, or the failure of a trial call, open the breaker."""
        breaker = self._breakers.setdefault(target, _Breaker())
        breaker.failures += 1
        tried = breaker.tried_at is not None
        if breaker.failures >= self._most and (breaker.opened_at is None or tried):
            if breaker.opened_at is None:
                _log.warning(_OPENED, target, breaker.failures, self.seconds)
            breaker.opened_at, breaker.tried_at = self._clock(), None
            breaker.opened += 1
            self.changed(target)

    def released(self, target: str) -> None:
        """Record a call that ended without saying anything about the target; another may try."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.tried_at is not None:
            breaker.tried_at = None
            self.changed(target)

    def _close(self, target: str, breaker: _Breaker) -> None:
        was_open = breaker.opened_at is not None
        breaker.opened_at = breaker.tried_at = None
        if was_open:
            _log.warning("%s answers again", target)
            self.changed(target)
