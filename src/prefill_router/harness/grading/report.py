"""The report of grading a run: counts, costs and times of each target, and examples.

Each reason for missing labels has an example that can be printed.
"""

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.data import Query, prompt_text
from prefill_router.harness.grading.base import Grade
from prefill_router.harness.grading.caches import JudgeBill
from prefill_router.harness.records import Answer

_SHOWN = 120
_QUOTED = 16
"""An error that shares this many characters in a row with the prompt counts as quoting it."""


@final
@dataclass(frozen=True, kw_only=True)
class UngradedExample:
    """An answer without a label.

    Attributes:
        query_id: The id of the task's query.
        target: The name of the target.
        detail: The error, shortened; empty where there is none, or where it quotes the prompt.
    """

    query_id: str
    target: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


def example_of(query: Query, target: str, detail: str) -> UngradedExample:
    """The example made of an answer and its grade's detail."""
    line = " ".join(detail.split())
    if _quotes(line, " ".join(prompt_text(query.prompt).split())):
        line = ""
    shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 2]} …"
    return UngradedExample(query_id=query.id, target=target, detail=shown)


def _quotes(line: str, prompt: str) -> bool:
    width = min(_QUOTED, len(prompt))
    if not width:
        return False
    return any(line[at : at + width] in prompt for at in range(len(line) - width + 1))


_Z = 1.959963984540054  # of 95 %
TRUNCATED = "length"
"""The finish reason of an answer that was cut off at its maximum of tokens."""


@final
@dataclass(frozen=True, kw_only=True)
class GradedTarget:
    """The result of one target's answers.

    Attributes:
        target: Its name.
        graded: Answers with a score.
        correct: The sum of their scores.
        missing: How many answers are missing or ungraded, by reason.
        truncated: Graded answers that were cut off at their maximum of tokens.
        cost: US dollars of all answers whose cost is known, missing ones included.
        mean_cost: Mean US dollars of a graded answer; None where no cost is known.
        median_seconds: Median seconds of graded answers; None without any.
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
class GradingTally:
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

    def summary(self) -> GradedTarget:
        """The result; it doesn't depend on the order in which answers were added."""
        return GradedTarget(
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

    For scores between 0 and 1 it is conservative, since binary scores have the largest variance.

    Args:
        correct: The sum of the scores.
        count: The number of scores; at least one.

    Returns:
        The lower and the upper bound, both in [0, 1].
    """
    share, z2 = correct / count, _Z * _Z
    middle = share + z2 / (2 * count)
    half = _Z * math.sqrt(max(share * (1 - share), 0.0) / count + z2 / (4 * count * count))
    scale = 1 + z2 / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


@final
@dataclass(frozen=True, kw_only=True)
class GradingReport:
    """The result of grading a run.

    Attributes:
        targets: The result of each target, in the pool's order.
        graders: The graders that were used, with version and setting, by name.
        skipped: Graders whose answers were left ungraded.
        left_out: Answers of targets that the run's pool no longer has, or to tasks that were added
            meanwhile.
        reused: Verdicts that an earlier grading cached.
        judging: The cost of judging the run so far; None where no judge was needed.
        judged: Answers with a score from a judge.
        judge_failed: Answers that a judge failed to score, by reason; a limit isn't its failure.
        examples: An example of each reason for a missing label.
    """

    targets: tuple[GradedTarget, ...]
    graders: dict[str, dict[str, Any]]
    skipped: tuple[str, ...]
    left_out: int
    reused: int
    judging: JudgeBill | None = None
    judged: int = 0
    judge_failed: dict[str, int] = field(default_factory=dict)
    examples: dict[str, UngradedExample] = field(default_factory=dict)

    @property
    def judge_useless(self) -> bool:
        """Whether a judge failed at every answer that it was asked about."""
        return bool(self.judge_failed) and not self.judged

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the same run graded the same way gives the same."""
        return {
            "targets": [target.to_dict() for target in self.targets],
            "graders": self.graders,
            "skipped": list(self.skipped),
            "left_out": self.left_out,
            "judging": None if self.judging is None else self.judging.to_dict(),
            "judged": self.judged,
            "judge_failed": self.judge_failed,
            "examples": {reason: example.to_dict() for reason, example in self.examples.items()},
        }
