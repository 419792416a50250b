"""The grader of MMLU-Pro: the letter of a choice, found as the benchmark finds it."""

import hashlib
import re
from collections import deque
from collections.abc import Collection
from typing import Literal, final, get_args

from prefill_router.harness.grading.base import About, Grade, Grader, graded, unfit, ungraded
from prefill_router.harness.task import Task

Unextracted = Literal["wrong", "missing", "random"]
"""What an answer is in which no letter is found."""
UNEXTRACTED: tuple[Unextracted, ...] = get_args(Unextracted)

_LETTERS = "ABCDEFGHIJ"
_PHRASE = re.compile(r"answer is \(?([A-J])\)?")
_COLON = re.compile(r"(?=[aA]nswer:\s*([A-J]))")
_LONE = re.compile(r"\b[A-J]\b")


@final
class LetterGrader(Grader):
    """Right where the letter that is found is the task's.

    Args:
        unextracted: What an answer without a letter is: wrong; missing; or a letter drawn among the
            choices. The benchmark's own scripts count it as wrong when they ask, and draw when they
            count again.
    """

    def __init__(self, *, unextracted: Unextracted = "wrong") -> None:
        self._unextracted = unextracted
        self._about = About(name="mmlu_pro", version=1, setting=unextracted)

    @property
    def about(self) -> About:
        """Its name, its version, and what an answer without a letter is."""
        return self._about

    def grade(self, task: Task, text: str) -> Grade:
        """Find the letter and compare it."""
        right = right_letters(task.answer)
        if not right:
            return unfit("the task's answer must be a letter from A to J")
        found = extract_letter(text)
        if found:
            return graded(found in right, extracted=found)
        if self._unextracted == "missing":
            return ungraded("no_letter", "no rung of the ladder found a letter")
        if self._unextracted == "random":
            drawn = _drawn(task, text)
            return graded(drawn in right, detail=f"no letter found; {drawn} was drawn")
        return graded(False, detail="no letter found")

    def close(self) -> None:
        """Nothing was started."""


def right_letters(answers: Collection[str]) -> frozenset[str]:
    """The letters of a task's right answers; empty where one isn't from A to J."""
    found = frozenset(answer.strip().strip("()").upper() for answer in answers)
    return found if found <= set(_LETTERS) else frozenset()


def extract_letter(text: str) -> str | None:
    """The letter of a choice in an answer, from A to J, as MMLU-Pro's evaluation reads it.

    Three rungs, of which the first that finds a letter counts:

    1. the first `answer is (X)`, the brackets optional, in these very letters;
    2. the first line with `answer: X` or `Answer: X`, and in it the last of them;
    3. the last capital letter from A to J that stands alone.

    The benchmark's patterns (TIGER-AI-Lab/MMLU-Pro, evaluate_from_api.py) take a time that grows
    with the square of a line's or an answer's length; these find the same in linear time.
    """
    phrase = _PHRASE.search(text)
    if phrase:
        return phrase[1]
    first = _COLON.search(text)
    if first:
        end = text.find("\n", first.start())
        line = _COLON.finditer(text, first.start())
        within = [m[1] for m in line if end < 0 or m.start() < end]
        return within[-1]
    last = deque(_LONE.finditer(text), maxlen=1)
    return last[0][0] if last else None


def _drawn(task: Task, text: str) -> str:
    """A letter among the task's choices; the same answer to the same task draws the same."""
    choices = task.options.get("choices")
    count = len(choices) if isinstance(choices, list) and choices else len(_LETTERS)
    told = f"{task.query.id}\n{text}".encode("utf-8", "surrogatepass")
    draw = int.from_bytes(hashlib.sha256(told).digest()[:8])
    return _LETTERS[draw % min(count, len(_LETTERS))]
