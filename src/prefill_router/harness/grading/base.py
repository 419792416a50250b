"""What a grader is: it reads one answer to one task and says how right it is."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.harness.records import Task

SHOWN = 500
"""Characters of an extracted answer, or of a detail, that are kept."""


@final
@dataclass(frozen=True, kw_only=True)
class Grade:
    """What a grader says of one answer.

    Attributes:
        score: How right it is, in [0, 1]; None where it couldn't be graded, which is a missing
            label and never a wrong answer.
        extracted: What was read out of the answer and compared; empty where nothing was.
        detail: Why the score is what it is, such as the test that failed.
        missing: Why there is no score, in a word that can be counted, such as `timeout`; None
            where there is one.
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
    """A grader, as the job of grading needs to know it.

    Attributes:
        name: Its name in tasks.
        version: Raised with every change that may change a verdict.
        setting: What else its verdicts depend on beside task and answer.
        kept: Whether its verdicts are dear enough to be kept for the next time.
        at_once: How many answers it grades at once; 1 where that takes no time worth sharing.
    """

    name: str
    version: int
    setting: str = ""
    kept: bool = False
    at_once: int = 1


class Grader(ABC):
    """Grades answers. Where `at_once` is above 1, `grade` is called from several threads.

    Attributes:
        about: Its name, its version, and how it is to be used.
    """

    about: GraderTraits

    @abstractmethod
    def grade(self, task: Task, text: str) -> Grade:
        """Grade one answer.

        Args:
            task: What was asked.
            text: The answer, without reasoning.
        """

    def close(self) -> None:  # noqa: B027 - most start nothing
        """End what it started: processes, connections. What is being graded may fail then."""


def graded(right: bool, *, extracted: str = "", detail: str = "") -> Grade:
    """A right or a wrong answer."""
    return Grade(score=float(right), extracted=shortened(extracted), detail=shortened(detail))


def ungraded(missing: str, detail: str = "") -> Grade:
    """An answer that couldn't be graded, and why."""
    return Grade(missing=missing, detail=shortened(detail))


def unfit(detail: str) -> Grade:
    """An answer to a task that lacks what its grader needs."""
    return ungraded("unfit_task", detail)


def shortened(text: str) -> str:
    """The text; where it is longer than `SHOWN` characters, its beginning and its end."""
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
