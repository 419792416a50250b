"""Counts what comes of asking, and says it while it goes on."""

import time
from collections import Counter
from decimal import Decimal
from typing import Any, final

from prefill_router.harness.answer import Answer
from prefill_router.progress import Advance

_EVERY_SECONDS = 0.2


@final
class Tally:
    """Counts what comes of asking.

    Args:
        advance: Told of every question that is finished.
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._unsaid = 0
        self._said = time.monotonic()
        self._left: Counter[str] = Counter()
        self.calls = 0
        self.answered: Counter[str] = Counter()
        self.missing: Counter[tuple[str, str]] = Counter()
        self.cost = 0.0

    def called(self) -> None:
        """A call has ended."""
        self.calls += 1

    def recorded(self, answer: Answer) -> None:
        """An answer is on the disk."""
        self.cost += answer.cost or 0.0
        if answer.missing is None:
            self.answered[answer.target] += 1
        else:
            self.missing[answer.target, answer.missing] += 1
        self._step()

    def repeated(self, target: str, reason: str) -> None:
        """An answer is missing for the reason that the run names already."""
        self.missing[target, reason] += 1
        self._step()

    def left(self, why: str) -> None:
        """A question isn't asked, for this reason."""
        self._left[why] += 1
        self._step()

    def not_asked(self) -> dict[str, int]:
        """How many questions were not asked, by why."""
        return dict(self._left)

    def missing_of(self, target: str) -> dict[str, int]:
        """How many of a target's answers stayed missing, by reason."""
        return {reason: n for (name, reason), n in self.missing.items() if name == target}

    def say(self) -> None:
        """Say how far it is."""
        missing = f", {self.missing.total():,} missing" if self.missing else ""
        left = f", {self._left.total():,} not asked" if self._left else ""
        self._advance(self._unsaid, note=f"{_dollars(self.cost)}{missing}{left}")
        self._unsaid, self._said = 0, time.monotonic()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        reasons: Counter[str] = Counter()
        for (_, reason), number in self.missing.items():
            reasons[reason] += number
        return {
            "calls": self.calls,
            "answered": self.answered.total(),
            "missing": dict(reasons),
            "not_asked": self.not_asked(),
            "cost": self.cost,
        }

    def _step(self) -> None:
        self._unsaid += 1
        if time.monotonic() - self._said > _EVERY_SECONDS:
            self.say()


def _dollars(value: float) -> str:
    """US dollars; under a cent two digits that aren't zero."""
    return f"${Decimal(f'{value:.1e}'):f}" if 0 < value < 0.01 else f"${value:,.4f}"
