"""What came of grading a run."""

from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.harness.grading.bill import Bill
from prefill_router.harness.grading.examples import Example
from prefill_router.harness.grading.tally import TargetSummary


@final
@dataclass(frozen=True, kw_only=True)
class GradingReport:
    """What came of grading a run.

    Attributes:
        targets: What came of each target, in the pool's order.
        graders: The graders that were used: name, version and what else verdicts depend on.
        skipped: Graders whose answers were left ungraded.
        left_out: Answers of targets that the run's pool no longer has, or to tasks that were added
            meanwhile.
        reused: Verdicts that were kept from an earlier grading.
        judging: What judging the run has cost so far; None where no judge was needed.
        judged: Answers that a judge gave a score.
        judge_failed: How many it failed to give one, by the reason; a limit isn't its failure.
        examples: An answer of each reason for which there is no label.
    """

    targets: tuple[TargetSummary, ...]
    graders: dict[str, dict[str, Any]]
    skipped: tuple[str, ...]
    left_out: int
    reused: int
    judging: Bill | None = None
    judged: int = 0
    judge_failed: dict[str, int] = field(default_factory=dict)
    examples: dict[str, Example] = field(default_factory=dict)

    @property
    def judge_useless(self) -> bool:
        """Whether a judge failed at answers and gave none a score."""
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
