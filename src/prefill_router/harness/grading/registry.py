"""The graders, defined here and nowhere else, the settings of grading, and what opens graders."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.harness.grading.base import Grader
from prefill_router.harness.grading.caches import JudgeBill, Judgments
from prefill_router.harness.grading.code import CodeGrader
from prefill_router.harness.grading.judge import JUDGES, JudgeGrader, Kind
from prefill_router.harness.grading.judge_client import JudgeClient, only_target
from prefill_router.harness.grading.mathematics import MathGrader
from prefill_router.harness.grading.python_function import FunctionGrader
from prefill_router.harness.grading.text import (
    LetterGrader,
    NumberGrader,
    TextGrader,
    Unextracted,
    normalised,
    stripped,
)
from prefill_router.sandbox import Sandbox
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


@final
class Graders:
    """The graders of one run, each opened when it is first asked for.

    Args:
        settings: How the run is to be graded.
        folder: The run's.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._open: dict[str, Grader] = {}
        self._line: tuple[JudgeClient, Judgments] | None = None

    def __getitem__(self, name: str) -> Grader:
        """The grader of this name.

        Raises:
            ConfigError: There is none, or it needs something that wasn't given or isn't installed.
            SandboxError: It needs the sandbox, and there is none.
        """
        if name not in self._open:
            self._open[name] = grader_named(name).open(self)
        return self._open[name]

    def open(self, names: Set[str]) -> None:
        """Open these.

        Raises:
            ConfigError: As when one is asked for; all that need a judge are named at once.
            SandboxError: One needs the sandbox, and there is none.
        """
        judges = [name for name in GRADERS if name in names & JUDGES]
        if judges:
            self._check_judge(judges)
        for name in sorted(names):
            self[name]

    @property
    def opened(self) -> Mapping[str, Grader]:
        """Those that were asked for, by name."""
        return self._open

    @property
    def bill(self) -> JudgeBill | None:
        """What judging the run has cost so far; None where no judge was needed."""
        if self._line is None:
            return None
        line, judgments = self._line
        return judgments.bill(held_back=line.held_back * self.settings.judge_samples)

    def judge(self, kind: Kind) -> Grader:
        """A grader that asks the judge; all of them share one line to it."""
        pool = self._check_judge([kind])
        if self._line is None:
            judgments = Judgments(self._folder)
            limit = self.settings.judge_limit
            try:
                line = JudgeClient(pool, judgments, limit=limit)
            except PrefillRouterError:
                judgments.close()
                raise
            self._line = (line, judgments)
        return JudgeGrader(
            kind,
            *self._line,
            soft=self.settings.soft,
            samples=self.settings.judge_samples,
            again=self.settings.judge_again,
            at_once=pool.provider_of(only_target(pool).name).concurrency,
        )

    def _check_judge(self, kinds: Sequence[str]) -> Pool:
        """The judge."""
        pool = self.settings.judge
        if pool is None:
            names = " and ".join(kinds)
            who = f"grader {names} needs" if len(kinds) == 1 else f"graders {names} need"
            skips = " ".join(f"--skip {kind}" for kind in kinds)
            raise ConfigError(
                f"the {who} a judge: give --judge with a pool file of one target, or leave these "
                f"answers ungraded with {skips}"
            )
        return pool

    def stop(self) -> None:
        """Break off what is under way; nothing more can be graded."""
        for grader in self._open.values():
            grader.close()
        if self._line is not None:
            self._line[0].stop()

    def close(self) -> None:
        """Close what the graders shared, once they are stopped and no thread uses them."""
        if self._line is not None:
            line, judgments = self._line
            line.close()
            judgments.close()


@final
@dataclass(frozen=True, kw_only=True)
class GraderKind:
    """A grader that tasks can name.

    Attributes:
        summary: What it does, in a line.
        open: Makes it.
    """

    summary: str
    open: Callable[[Graders], Grader]


def _code(graders: Graders) -> Grader:
    settings = graders.settings
    sandbox = Sandbox.open(python=settings.interpreter)
    return CodeGrader(sandbox, jobs=settings.jobs, interpreter=str(settings.interpreter or ""))


GRADERS: Final[Mapping[str, GraderKind]] = {
    "exact": GraderKind(
        summary="the whole answer, but for white space around it",
        open=lambda _: TextGrader("exact", stripped),
    ),
    "normalised": GraderKind(
        summary="the same without case, punctuation, articles and odd white space",
        open=lambda _: TextGrader("normalised", normalised),
    ),
    "mmlu_pro": GraderKind(
        summary="the letter of a choice, found as MMLU-Pro finds it",
        open=lambda graders: LetterGrader(unextracted=graders.settings.unextracted),
    ),
    "number": GraderKind(
        summary="the number that the answer ends on", open=lambda _: NumberGrader()
    ),
    "math": GraderKind(
        summary="equality of LaTeX and of expressions, by math-verify",
        open=lambda graders: MathGrader(jobs=graders.settings.jobs),
    ),
    "python": GraderKind(
        summary="a function of your own",
        open=lambda graders: FunctionGrader(function=graders.settings.function),
    ),
    "judge": GraderKind(
        summary="another language model, by the task's rubric",
        open=lambda graders: graders.judge("judge"),
    ),
    "hle": GraderKind(
        summary="another language model, which compares with the right answer",
        open=lambda graders: graders.judge("hle"),
    ),
    "code": GraderKind(
        summary="programs against tests, in a sandbox, as LiveCodeBench does", open=_code
    ),
}
"""Every grader by its name in tasks."""


def grader_named(name: str) -> GraderKind:
    """The grader of this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in GRADERS:
        raise ConfigError(f"there is no grader {name!r}; the graders are {', '.join(GRADERS)}")
    return GRADERS[name]
