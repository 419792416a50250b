"""What was tried for one call, and what of it the breakers are told."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.gateway.forwarding.arrival import Header
from prefill_router.gateway.forwarding.breakers import Breakers
from prefill_router.gateway.forwarding.lines import Line
from prefill_router.gateway.forwarding.verdicts import HARMLESS
from prefill_router.gateway.outcome import Attempt, AttemptEnd
from prefill_router.gateway.settings import Failures


@final
@dataclass(frozen=True, kw_only=True)
class Ways:
    """What all calls share.

    Attributes:
        lines: The way to each target, by its name.
        failures: What is done when one fails.
        breakers: Of the targets.
        passing: Which of a target's reply headers go to the client.
        under_way: How many calls of each target are.
        chance: Spreads retries.
    """

    lines: Mapping[str, Line]
    failures: Failures
    breakers: Breakers
    passing: Callable[[list[Header]], list[Header]]
    under_way: Counter[str]
    chance: random.Random


@final
class Track:
    """The attempts of one call, in order.

    Args:
        ways: Whose breakers and counts these are.

    Attributes:
        attempts: Those that have ended.
        wait: Seconds after which a target wants to be asked again, the least that was said.
    """

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._clock = asyncio.get_running_loop().time
        self._target: str | None = None
        self._began = 0.0
        self.attempts: list[Attempt] = []
        self.wait: float | None = None

    @property
    def target(self) -> str | None:
        """Who is being asked, or answers."""
        return self._target

    @property
    def last_asked(self) -> str | None:
        """Who was asked last."""
        asked = (a.target for a in reversed(self.attempts) if a.end != "breaker_open")
        return next(asked, None)

    def skip(self, target: str) -> None:
        """A target isn't asked, since its breaker is open."""
        self.attempts.append(Attempt(target=target, end="breaker_open", status=None, seconds=0.0))

    def begin(self, target: str) -> None:
        """A target is asked."""
        self._target, self._began = target, self._clock()
        self._ways.under_way[target] += 1

    def end(self, end: AttemptEnd, *, status: int | None, silent: bool = False) -> None:
        """The attempt that is under way, if one is, has ended.

        Args:
            end: How.
            status: Of the target's reply.
            silent: Whether its breaker isn't to know.
        """
        target, self._target = self._target, None
        if target is None:
            return
        self._ways.under_way[target] -= 1
        seconds = self._clock() - self._began
        self.attempts.append(Attempt(target=target, end=end, status=status, seconds=seconds))
        if not silent:
            self._tell(target, end)

    def _tell(self, target: str, end: AttemptEnd) -> None:
        if end == "answered" or end in HARMLESS:
            self._ways.breakers.succeeded(target)
        elif end == "disconnected":
            self._ways.breakers.released(target)
        else:
            self._ways.breakers.failed(target)
