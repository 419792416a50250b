"""A grader by vowels: an answer is right where it has as many as the task's."""

from prefill_router.harness.grading.base import Grade, Grader, GraderTraits, Settings, graded, unfit
from prefill_router.harness.run import Task


class VowelGrader(Grader):
    about = GraderTraits(name="vowels", version=1)

    def grade(self, task: Task, text: str) -> Grade:
        if not task.answer:
            return unfit("the task has no answer to compare with")
        return graded(vowels(text) == vowels(task.answer[0]), extracted=str(vowels(text)))


def vowels(text: str) -> int:
    return sum(letter in "aeiou" for letter in text.lower())


def open_vowels(_: Settings) -> Grader:
    return VowelGrader()
