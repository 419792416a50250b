"""Targets that are not asked any more, because every call would meet the same."""

import time
from collections import Counter
from collections.abc import Callable
from typing import final

from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.targets import Pool

_IN_A_ROW = 3
_UNREACHED: tuple[FailureKind, ...] = ("connect", "connect_timeout")
_TOO_MUCH: tuple[FailureKind, ...] = ("rate_limited", "overloaded")
_UNREACHED_SECONDS = 30.0
"""A server may be starting anew."""
_FOR_ALL_QUESTIONS: tuple[FailureKind, ...] = ("unauthorised", "unknown_model")


@final
class Circuit:
    """Closes a target after a few refusals in a row that no other question would be spared.

    A key that is refused is that of all targets of its provider; an unknown model is a target's
    own matter. A provider that nothing reaches for half a minute is left for another time, and so
    is one that only says, for as long as patience lasts, that it is asked too much.

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
        self._pool, self._clock = pool, clock
        self._patience = {"can't be reached": _UNREACHED_SECONDS, "is busy": patience_seconds}
        self._since: dict[tuple[str, str], float] = {}
        self._beside = {
            target.name: [
                other.name
                for other in pool
                if pool.provider_of(other.name).name == pool.provider_of(target.name).name
            ]
            for target in pool
        }
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
        """A call was answered, so the target exists and its provider's key is a good one."""
        for why in self._patience:
            self._since.pop((self._pool.provider_of(target).name, why), None)
        self._refusals.pop(("unknown_model", target), None)
        for name in self._beside[target]:
            self._refusals.pop(("unauthorised", name), None)

    def failed(self, target: str, error: UpstreamError) -> None:
        """A call failed."""
        self._note_silence(target, error)
        if error.failure not in _FOR_ALL_QUESTIONS:
            return
        names = self._beside[target] if error.failure == "unauthorised" else [target]
        self._refusals.update((error.failure, name) for name in names)
        if self._refusals[error.failure, target] >= _IN_A_ROW:
            self._closed.update(dict.fromkeys(names, error.failure))

    def postpone(self, target: str, why: str) -> None:
        """Ask none of the provider's targets for now."""
        self._postponed.update(dict.fromkeys(self._beside[target], why))

    def _note_silence(self, target: str, error: UpstreamError) -> None:
        """How long a provider has done nothing but this, and whether that is too long."""
        provider, now = self._pool.provider_of(target).name, self._clock()
        for why, kinds in (("can't be reached", _UNREACHED), ("is busy", _TOO_MUCH)):
            if error.failure not in kinds:
                self._since.pop((provider, why), None)
            elif now - self._since.setdefault((provider, why), now) > self._patience[why]:
                self.postpone(target, f"{provider} {why}")
