"""The graders `judge` and `hle`: another language model says how right an answer is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final, get_args

from prefill_router.harness.grading.asking import JudgeLine
from prefill_router.harness.grading.base import (
    About,
    Grade,
    Grader,
    shortened,
    unfit,
    ungraded,
)
from prefill_router.harness.grading.judgments import Judgments, judgment_key
from prefill_router.harness.grading.prompts import Kind, judge_prompt
from prefill_router.harness.grading.verdicts import Verdict, read_verdict
from prefill_router.harness.task import Task

JUDGES: Final = frozenset(get_args(Kind))
"""The graders that ask a judge."""
FAILED: Final = "judge_"
"""Begins the reasons of answers that a judge gave no score."""
OVER_LIMIT: Final = f"{FAILED}limit"
"""The one of them that isn't the judge's failure."""
UNREADABLE: Final = f"{FAILED}unreadable"
_VERSION = 2
_NO_VERDICT = (
    "the judge's reply ends on no verdict; if it was cut off, raise max_tokens in its pool file"
)


@final
class JudgeGrader(Grader):
    """Asks a judge, once for each answer and for ever: its replies are kept beside the run.

    Args:
        kind: `hle` compares with the task's answer; `judge` goes by its option `rubric`.
        line: The line to the judge.
        judgments: The replies so far.
        soft: Take the judge's score from 0 to 1, rather than its yes or no.
        samples: Ask so many times; the score is the mean.
        again: Ask once more where no reply so far can be read.
        at_once: How many answers at once.
    """

    def __init__(
        self,
        kind: Kind,
        line: JudgeLine,
        judgments: Judgments,
        *,
        soft: bool = False,
        samples: int = 1,
        again: bool = False,
        at_once: int = 1,
    ) -> None:
        asked = f"{line.judge.name}, {'soft' if soft else 'yes or no'}, {samples} replies"
        self._about = About(name=kind, version=_VERSION, setting=asked, at_once=at_once)
        self._kind: Kind = kind
        self._line = line
        self._judgments = judgments
        self._soft = soft
        self._samples = samples
        self._again = again
        self._asked_again: set[tuple[str, int]] = set()
        self._under_way: set[str] = set()
        self._ended = threading.Condition()

    @property
    def about(self) -> About:
        """Its name, its version, and who judges."""
        return self._about

    def grade(self, task: Task, text: str) -> Grade:
        """Read the judge's replies, and ask for those that are lacking."""
        lacking = self._lacks(task)
        if lacking:
            return unfit(lacking)
        prompt = judge_prompt(self._kind, task, text, soft=self._soft)
        key = self._key(prompt)
        verdicts: list[Verdict] = []
        with self._alone(key):
            for sample in range(self._samples):
                found = self._kept(key, sample) or self._asked(prompt, sample)
                if isinstance(found, Grade):
                    return found
                verdicts.append(found)
        return _grade(verdicts)

    def close(self) -> None:
        """The line and the judgments may be another grader's too; who opened them closes them."""

    def _key(self, prompt: str) -> str:
        return judgment_key(self._line.judge, prompt)

    def _lacks(self, task: Task) -> str:
        if self._kind == "hle":
            return "" if task.answer else "the task has no answer to compare with"
        rubric = task.options.get("rubric")
        given = isinstance(rubric, str) and bool(rubric.strip())
        return "" if given else "the task has no rubric to judge by"

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Wait while another thread asks the same: targets often give the same answer."""
        with self._ended:
            self._ended.wait_for(lambda: key not in self._under_way)
            self._under_way.add(key)
        try:
            yield
        finally:
            with self._ended:
                self._under_way.remove(key)
                self._ended.notify_all()

    def _kept(self, key: str, sample: int) -> Verdict | Grade | None:
        """What the replies so far say; None where the judge is to be asked."""
        texts = self._judgments.texts(key, sample)
        found = (read_verdict(text, soft=self._soft) for text in texts)
        verdict = next((verdict for verdict in found if verdict is not None), None)
        if verdict is not None or not texts:
            return verdict
        if self._again and (key, sample) not in self._asked_again:
            self._asked_again.add((key, sample))
            return None
        return ungraded(UNREADABLE, _NO_VERDICT)

    def _asked(self, prompt: str, sample: int) -> Verdict | Grade:
        asked = self._line.ask(prompt, sample)
        if asked.text is None:
            return ungraded(f"{FAILED}{asked.failure}", asked.detail)
        self._asked_again.add((self._key(prompt), sample))
        verdict = read_verdict(asked.text, soft=self._soft)
        return verdict or ungraded(UNREADABLE, _NO_VERDICT)


def _grade(verdicts: list[Verdict]) -> Grade:
    last = verdicts[-1]
    sure = "" if last.confidence is None else f"stated confidence {last.confidence:.0%}; "
    return Grade(
        score=sum(verdict.score for verdict in verdicts) / len(verdicts),
        extracted=shortened(last.extracted),
        detail=shortened(sure + last.reasoning),
    )
