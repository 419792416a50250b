"""The interface of graders: a grader reads one answer to one task and scores it."""

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
    """A grader's verdict on one answer.

    Attributes:
        score: How right the answer is, in [0, 1]; None where it couldn't be graded, which is a
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
        kept: Whether its verdicts are expensive enough to be cached.
        at_once: How many answers it grades concurrently; 1 where it is too fast to need threads.
    """

    name: str
    version: int
    setting: str = ""
    kept: bool = False
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


def graded(right: bool, *, extracted: str = "", detail: str = "") -> Grade:
    """The grade of a right or a wrong answer."""
    return Grade(score=float(right), extracted=shortened(extracted), detail=shortened(detail))


def ungraded(missing: str, detail: str = "") -> Grade:
    """The grade of an answer that couldn't be graded, with the reason."""
    return Grade(missing=missing, detail=shortened(detail))


def unfit(detail: str) -> Grade:
    """The grade of an answer whose task lacks what the grader needs."""
    return ungraded("unfit_task", detail)


def shortened(text: str) -> str:
    """The text; where it is longer than `SHOWN` characters, its beginning and its end."""
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
