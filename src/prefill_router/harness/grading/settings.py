"""How a run is to be graded."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final, get_args

from prefill_router.errors import ConfigError
from prefill_router.targets import Pool

Unextracted = Literal["wrong", "missing", "random"]
"""How an answer counts in which no letter is found."""
UNEXTRACTED: tuple[Unextracted, ...] = get_args(Unextracted)


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is to be graded.

    Attributes:
        judge: The pool with the judge as its only target; None where no grader needs one.
        soft: Use a judge's score from 0 to 1, rather than its yes or no.
        judge_samples: How often the judge is asked about each answer; the score is the mean.
        judge_limit: US dollars that judging may cost, over all gradings of the run.
        judge_again: Ask a judge once more where none of its replies can be read.
        jobs: Programs and calculations that run concurrently.
        skip: Names of the graders whose answers are left ungraded.
        fresh: Run programs and calculations again, rather than use cached verdicts. Judges are not
            asked again.
        unextracted: How an MMLU-Pro answer without a letter counts.
        interpreter: The Python interpreter of the graded programs; None for the present one.
        function: The function of the grader `python`, for all tasks; None where tasks name theirs.
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
