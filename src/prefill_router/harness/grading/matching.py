"""Graders that compare texts: `exact` and `normalised`."""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import final

from prefill_router.harness.grading.base import About, Grade, Grader, graded, unfit
from prefill_router.harness.task import Task

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@final
class TextGrader(Grader):
    """Right where the whole answer is one of the task's, after the same change to both.

    Args:
        name: The grader's name.
        read: The change.
    """

    def __init__(self, name: str, read: Callable[[str], str]) -> None:
        self._about = About(name=name, version=1)
        self._read = read

    @property
    def about(self) -> About:
        """Its name and version."""
        return self._about

    def grade(self, task: Task, text: str) -> Grade:
        """Compare with every accepted answer."""
        if not task.answer:
            return unfit("the task has no answer to compare with")
        found = self._read(text)
        return graded(any(found == self._read(right) for right in task.answer), extracted=found)

    def close(self) -> None:
        """Nothing was started."""


def stripped(text: str) -> str:
    """The text without white space around it."""
    return text.strip()


def normalised(text: str) -> str:
    """The text in lower case, without punctuation, articles and needless white space.

    As in the SQuAD benchmark's evaluation: lower case first, then ASCII's punctuation and symbols
    go, then the words a, an and the, then runs of white space become one space. Beyond it, the
    punctuation of other scripts goes too, and characters that only look different become the same
    (Unicode's NFKC). A sign and a decimal point are punctuation: for numbers use `number`.
    """
    plain = unicodedata.normalize("NFKC", text).lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


@final
class _Dropping(dict[int, int | None]):
    """For `str.translate`: characters are looked up once each, when they are first met."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drop = character in string.punctuation or unicodedata.category(character)[0] == "P"
        self[code] = None if drop else code
        return self[code]


_WITHOUT_PUNCTUATION = _Dropping()
