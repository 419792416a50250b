"""Targets that are not asked any more, because every call would meet the same."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.targets import Pool

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
class Circuit:
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
