"""Anchors: requests whose answers of a target were judged right, and that it is asked again.

An answer to an anchor is kept and judged like any on the side, under the target's name with how
often it was asked. So it is paid once, and no dataset takes it for the first answer.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple, final

from prefill_router.data import CUT
from prefill_router.short_repr import short_repr
from prefill_router_gateway.receipts import (
    AnswerLabel,
    SampledRequest,
    SideAnswer,
    read_learning,
)

LEARNED: Final = 40
"""The repetitions that only show how often a target repeats itself."""
_STAY = 9.0, 1.0
"""Grades that were the same again and that weren't, assumed before any is known."""
_ASKED = re.compile(r"(.+) \(asked (\d+)\)", re.DOTALL)


class AnchorQuestion(NamedTuple):
    """A target that is asked a request, and how often it has been asked by now.

    Attributes:
        id: The request's decision.
        target: The target.
        number: How often it was asked, this time included.
    """

    id: str
    target: str
    number: int

    @classmethod
    def of(cls, decision: str, name: str) -> "AnchorQuestion":
        """The question that an answer under this name is to."""
        match = _ASKED.fullmatch(name)
        return cls(decision, match[1], int(match[2])) if match else cls(decision, name, 1)

    @property
    def name(self) -> str:
        """The name under which the answer is kept."""
        return self.target if self.number == 1 else f"{self.target} (asked {self.number})"


class FirstJudgment(NamedTuple):
    """The first judgment of an answer.

    Attributes:
        at: When the answer was given, in seconds since 1970.
        score: From 0 (wrong) to 1 (right).
        error: The estimated probability that the score is wrong.
        number: How often the target had been asked, this time included.
    """

    at: float
    score: float
    error: float
    number: int


class Observation(NamedTuple):
    """A grade and what was expected of it.

    Attributes:
        at: When the answer was given, in seconds since 1970.
        score: From 0 (wrong) to 1 (right).
        expected: The probability that the answer is right.
        error: The probability that the score is wrong.
    """

    at: float
    score: float
    expected: float
    error: float


@short_repr
@final
@dataclass(frozen=True)
class AnswerGrades:
    """What is known of targets' answers to sampled requests.

    Attributes:
        grades: By target and request, the grades of its answers in order of time.
        repeated: By target and request, when it was asked again.
    """

    grades: Mapping[str, Mapping[str, Sequence[FirstJudgment]]]
    repeated: Mapping[str, Mapping[str, Sequence[float]]]

    @classmethod
    def read(cls, url: str) -> "AnswerGrades":
        """Read them from a database of receipts; raises as `read_learning`."""
        grades: dict[str, dict[str, list[FirstJudgment]]] = defaultdict(lambda: defaultdict(list))
        repeated: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        arrived, times = {sample.id: sample.at for sample in read_learning(url, SampledRequest)}, {}
        for answer in read_learning(url, SideAnswer):
            question = AnchorQuestion.of(answer.id, answer.target)
            times[answer.id, answer.target] = answer.at
            if question.number > 1:
                repeated[question.target][answer.id].append(answer.at)
        first = {
            (label.id, label.target): label
            for label in reversed([*read_learning(url, AnswerLabel)])
        }
        for cell, label in first.items():
            question = AnchorQuestion.of(*cell)
            at = times.get(cell, arrived.get(label.id))
            if at is not None:
                grade = FirstJudgment(at, label.score, label.error, question.number)
                grades[question.target][label.id].append(grade)
        for by_request in grades.values():
            for judgments in by_request.values():
                judgments.sort(key=attrgetter("at"))
        return cls(grades, repeated)

    def since(self, target: str, start: float) -> dict[str, list[FirstJudgment]]:
        """The grades of a target's answers after a time, by request."""
        grades = self.grades.get(target, {})
        later = {
            name: [judgment for judgment in judgments if judgment.at > start]
            for name, judgments in grades.items()
        }
        return {name: judgments for name, judgments in later.items() if judgments}


@final
class AnchorExpectation:
    """The expected next grade of an anchor, from how often a grade was the same again.

    Answers to the same question repeat themselves, so the last grade says most. How often right
    ones stay right, and wrong ones wrong, is learned from all anchors of the target. An anchor that
    has just changed shows little when it is asked again, and another shows more.
    """

    def __init__(self) -> None:
        self._right, self._wrong = list(_STAY), list(_STAY)  # the same again, and not

    def after(self, last: float) -> float:
        """The expected grade after this one."""
        (same, other), is_right = (self._right, True) if last >= CUT else (self._wrong, False)
        return (same if is_right else other) / (same + other)

    def add(self, last: float, following: float) -> None:
        """Learn from two grades in a row."""
        counts = self._right if last >= CUT else self._wrong
        counts[int((last >= CUT) != (following >= CUT))] += 1


def anchor_observations(grades: Iterable[Sequence[FirstJudgment]]) -> Iterator[Observation]:
    """The grades of answers that were right at first and asked again, with what was expected.

    The first `LEARNED` only show how often answers repeat themselves.

    Args:
        grades: The grades of each request, in order of time.
    """
    pairs = [
        pair for judgments in grades if judgments[0].score >= CUT for pair in pairwise(judgments)
    ]
    expected = AnchorExpectation()
    for number, (last, now) in enumerate(sorted(pairs, key=lambda pair: pair[1].at)):
        if number >= LEARNED:
            yield Observation(now.at, now.score, expected.after(last.score), 0.0)
        expected.add(last.score, now.score)
