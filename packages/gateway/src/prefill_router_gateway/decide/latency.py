"""How long targets take, learned from their answers, and how that changes the choice.

Seconds until the first token, and per output token, are means of each target's latest answers. An
estimate that no answer has renewed for a while is left out for one request, so that a target that
was slow is tried again.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router_gateway.decide.candidates import PerTarget
from prefill_router_gateway.records import PredictedWaits, Receipt
from prefill_router_gateway.settings import LatencySettings

_FADE = 0.9  # by each further answer, the weight of the earlier ones
_FRESH_SECONDS = 300.0


@final
@dataclass(slots=True)
class _Speed:
    at: float = 0.0
    firsts: float = 0.0  # sums over answers, of which earlier ones fade
    streams: float = 0.0
    seconds: float = 0.0
    tokens: float = 0.0

    @property
    def first(self) -> float:
        return self.firsts / self.streams if self.streams else 0.0

    def learn(self, first: float | None, seconds: float, tokens: int) -> None:
        """Learn from an answer: seconds until its first token (of streams alone), and in all."""
        if first is not None:
            self.firsts = _FADE * self.firsts + first
            self.streams = _FADE * self.streams + 1
        self.seconds = _FADE * self.seconds + max(seconds - (first or self.first), 0.0)
        self.tokens = _FADE * self.tokens + tokens


@final
class TargetSpeeds:
    """The speed of each target, from the answers of this gateway.

    Args:
        clock: Returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._speeds: dict[str, _Speed] = {}

    def observe(self, receipt: Receipt) -> None:
        """Learn from a request that was answered; others say nothing."""
        outcome, usage = receipt.outcome, receipt.outcome.usage
        written = None if usage is None else usage.output_tokens
        first_byte = outcome.first_byte_seconds
        if outcome.kind != "answered" or outcome.target is None:
            return
        if first_byte is None or not written:
            return
        seconds = outcome.attempts[-1].seconds
        first = max(first_byte - (outcome.total_seconds - seconds), 0.0) if receipt.stream else None
        speed = self._speeds.setdefault(outcome.target, _Speed())
        speed.learn(first, seconds, written)
        speed.at = max(speed.at, receipt.at + outcome.total_seconds)

    def predict(
        self, settings: LatencySettings, names: Sequence[str], written: PerTarget
    ) -> PredictedWaits:
        """Predict the waiting for each target that was measured recently.

        Args:
            settings: What is waited for, and how it enters the choice.
            names: The targets.
            written: Expected output tokens of each; NaN where unknown.
        """
        now, whole = self._clock(), settings.until == "answer"
        seconds = {
            name: speed.first + (speed.seconds / speed.tokens * tokens if whole else 0.0)
            for name, tokens in zip(names, written.tolist(), strict=True)
            if (speed := self._speeds.get(name)) is not None
            and now - speed.at <= _FRESH_SECONDS
            and not (whole and np.isnan(tokens))
        }
        return PredictedWaits(
            seconds=seconds,
            deadline_seconds=settings.deadline_seconds,
            dollars_per_second=settings.dollars_per_second,
            keep=settings.keep,
        )

    def note_choice(self, target: str) -> None:
        """Note that a target is tried, so that its old estimate holds until the answer is in."""
        if (speed := self._speeds.get(target)) is not None:
            speed.at = max(speed.at, self._clock())


def waiting_dollars(waits: PredictedWaits, names: Iterable[str]) -> PerTarget:
    """What the waiting for each target costs, in US dollars."""
    seconds = [waits.seconds.get(name, 0.0) for name in names]
    return waits.dollars_per_second * np.array(seconds, dtype=np.float64)


def order_ready(
    order: list[int],
    correctness: PerTarget | None,
    names: tuple[str, ...],
    waits: PredictedWaits | None,
    limited: Collection[int],
    rank: Callable[[PerTarget, PerTarget, list[int]], list[int]],
) -> list[int]:
    """The policy's order, with the targets first that are quick and accurate enough.

    Args:
        order: The columns of the targets in the policy's order.
        correctness: Every target's probability of a correct answer; None without a forecast.
        names: All targets.
        waits: The predicted waiting; None where it doesn't count.
        limited: The columns of the targets that come last.
        rank: The policy's order of some columns, given probabilities, and the US dollars that the
            waiting for each target costs.
    """
    ready = [k for k in order if k not in limited] or order
    if waits is not None and correctness is not None:
        least = waits.keep * correctness[ready[0]]
        good = [k for k in sorted(ready) if correctness[k] >= least]
        quick = [k for k in good if not waits.is_late(names[k])] or good
        ready = rank(correctness, waiting_dollars(waits, names), quick)
    return [*ready, *(k for k in order if k not in ready)]
