"""How a run is to be graded."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.harness.grading.letters import Unextracted
from prefill_router.targets import Pool


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is to be graded.

    Attributes:
        judge: The pool of the one target that judges; None where nothing needs one.
        soft: Take a judge's score from 0 to 1, rather than its yes or no.
        judge_samples: Replies asked of the judge for each answer; the score is their mean.
        judge_limit: US dollars that judging may cost, over all gradings of the run.
        judge_again: Ask a judge once more where none of its replies can be read.
        jobs: Programs and calculations at once.
        skip: Graders whose answers are left ungraded.
        fresh: Run programs and calculations again, rather than take kept verdicts. Judges are not
            asked again.
        unextracted: What an MMLU-Pro answer without a letter is.
        interpreter: Of the programs that are graded; None for the one that runs this.
        function: The grader `python`'s function, for all tasks; None where tasks name their own.
    """

    judge: Pool | None = None
    soft: bool = False
    judge_samples: int = 1
    judge_limit: float | None = None
    judge_again: bool = False
    jobs: int = 1
    skip: frozenset[str] = field(default_factory=frozenset)
    fresh: bool = False
    unextracted: Unextracted = "wrong"
    interpreter: Path | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs is {self.jobs}; at least 1 is needed")
        if self.judge_samples < 1:
            raise ConfigError(f"--judge-samples is {self.judge_samples}; at least 1 is needed")
        limit = self.judge_limit
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise ConfigError(f"--judge-max-cost is {limit}; it is a number of dollars")
