"""What came of grading, target by target: counts, costs, times."""

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any, final

from prefill_router.harness.answer import Answer
from prefill_router.harness.grading.base import Grade

_Z = 1.959963984540054  # of 95 %
TRUNCATED = "length"
"""The finish reason of an answer that was cut off at its maximum of tokens."""


@final
@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """What came of one target's answers.

    Attributes:
        target: Its name.
        graded: Answers with a score.
        correct: The sum of their scores.
        missing: How many answers are missing or ungraded, by the reason.
        truncated: Graded answers that were cut off at their maximum of tokens.
        cost: US dollars of all answers whose cost is known, missing ones included.
        mean_cost: US dollars of a graded answer; None where no cost is known.
        median_seconds: Of graded answers; None without any.
    """

    target: str
    graded: int
    correct: float
    missing: dict[str, int]
    truncated: int
    cost: float
    mean_cost: float | None
    median_seconds: float | None

    @property
    def accuracy(self) -> float | None:
        """Mean score of the graded answers; None without any."""
        return self.correct / self.graded if self.graded else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The accuracy's 95 % interval; None without graded answers."""
        return wilson(self.correct, self.graded) if self.graded else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "accuracy": self.accuracy,
            "interval": None if self.interval is None else list(self.interval),
        }


@final
class Tally:
    """Counts one target's answers as they are graded."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._scores: list[float] = []
        self._missing: Counter[str] = Counter()
        self._truncated = 0
        self._spent: list[float] = []
        self._costs: list[float] = []
        self._seconds: list[float] = []

    def add(self, answer: Answer, grade: Grade) -> None:
        """Count an answer."""
        if answer.cost is not None:
            self._spent.append(answer.cost)
        if grade.score is None:
            self._missing[grade.missing or "ungraded"] += 1
            return
        self._scores.append(grade.score)
        if answer.cost is not None:
            self._costs.append(answer.cost)
        if answer.reply is not None:
            self._seconds.append(answer.reply.seconds)
            self._truncated += answer.reply.finish_reason == TRUNCATED

    def unasked(self, count: int) -> None:
        """Count questions that were never asked."""
        if count:
            self._missing["not_asked"] += count

    def summary(self) -> TargetSummary:
        """What has come of it; the order in which answers were added makes no difference."""
        return TargetSummary(
            target=self._target,
            graded=len(self._scores),
            correct=math.fsum(self._scores),
            missing=dict(sorted(self._missing.items())),
            truncated=self._truncated,
            cost=math.fsum(self._spent),
            mean_cost=math.fsum(self._costs) / len(self._costs) if self._costs else None,
            median_seconds=statistics.median(self._seconds) if self._seconds else None,
        )


def wilson(correct: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    For scores between 0 and 1 it is wider than needed, since nothing varies more than yes and no.

    Args:
        correct: The sum of the scores.
        count: How many there are; at least one.

    Returns:
        Its ends, both in [0, 1].
    """
    share, z2 = correct / count, _Z * _Z
    middle = share + z2 / (2 * count)
    half = _Z * math.sqrt(max(share * (1 - share), 0.0) / count + z2 / (4 * count * count))
    scale = 1 + z2 / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)
