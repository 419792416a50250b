"""The interface of graders: a grader reads one answer to one task and scores it.

`Settings` say how a run is to be graded.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final, get_args

from prefill_router.errors import ConfigError
from prefill_router.runs import Task
from prefill_router.targets import Pool

SHOWN = 500
"""Characters of an extracted answer, or of a detail, that are kept."""


@final
@dataclass(frozen=True, kw_only=True)
class Grade:
    """A grader's verdict on one answer.

    Attributes:
        score: How right the answer is, in [0, 1]. None where it couldn't be graded, which is a
            missing label and never a wrong answer.
        extracted: The part of the answer that was compared; empty where nothing was.
        detail: The reason for the score, such as the test that failed.
        missing: The reason why there is no score, as a word that can be counted, such as
            `timeout`; None where there is a score.
    """

    score: float | None = None
    extracted: str = ""
    detail: str = ""
    missing: str | None = None

    def __post_init__(self) -> None:
        if (self.score is None) == (self.missing is None):
            raise ConfigError("a grade has either a score or a reason why it has none")
        if self.score is not None and not (math.isfinite(self.score) and 0 <= self.score <= 1):
            raise ConfigError(f"a grade's score is {self.score}; scores lie in [0, 1]")


@final
@dataclass(frozen=True, kw_only=True)
class GraderTraits:
    """The properties of a grader that the grading job needs.

    Attributes:
        name: Its name in tasks.
        version: Increased with every change that may change a verdict.
        setting: What its verdicts depend on besides task and answer.
        is_cached: Whether its verdicts are expensive enough to be cached.
        at_once: How many answers it grades concurrently; 1 where it is too fast to need threads.
    """

    name: str
    version: int
    setting: str = ""
    is_cached: bool = False
    at_once: int = 1


class Grader(ABC):
    """Grades answers. Where `at_once` is above 1, `grade` is called from several threads.

    Attributes:
        about: Its name, its version and other properties.
    """

    about: GraderTraits

    @abstractmethod
    def grade(self, task: Task, text: str) -> Grade:
        """Grade one answer.

        Args:
            task: The task.
            text: The answer, without reasoning.
        """

    def close(self) -> None:  # noqa: B027 - most start nothing
        """End the grader's processes and connections; answers being graded may then fail."""


def make_grade(right: bool, *, extracted: str = "", detail: str = "") -> Grade:
    """The grade of a right or a wrong answer."""
    return Grade(score=float(right), extracted=shorten(extracted), detail=shorten(detail))


def make_missing_grade(missing: str, detail: str = "") -> Grade:
    """The grade of an answer that couldn't be graded, with the reason."""
    return Grade(missing=missing, detail=shorten(detail))


def unfit(detail: str) -> Grade:
    """The grade of an answer whose task lacks what the grader needs."""
    return make_missing_grade("unfit_task", detail)


def shorten(text: str) -> str:
    """The text; where it is longer than `SHOWN` characters, its beginning and its end."""
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


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
