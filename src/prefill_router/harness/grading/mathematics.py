"""The grader of mathematics: equality of LaTeX and of expressions, by `math-verify`."""

import importlib.metadata
import importlib.util
from typing import final

from prefill_router.errors import MissingExtraError
from prefill_router.harness.grading.base import About, Grade, Grader, graded, unfit, ungraded
from prefill_router.harness.grading.workers import WorkerGoneError, WorkerPool
from prefill_router.harness.task import Task

SECONDS = 10.0
_WORKER = "prefill_router.harness.grading.equality_worker"
_READ = 10_000
"""Characters at the end of an answer in which its result is looked for."""


@final
class MathGrader(Grader):
    """Right where the answer is the task's letter for letter, or its result equals it.

    `math-verify` looks for the last result (in a box, in LaTeX, as a plain expression) and compares
    by algebra. A task with an answer that it can't read is unfit, whatever was answered: labels of
    the lucky ones alone would mislead. It limits its time by signals, which fail in threads and
    can't interrupt everything, so it runs in processes that are killed after `SECONDS`: such an
    answer isn't graded.

    Args:
        jobs: How many processes.
        seconds: The time limit of one answer.

    Raises:
        MissingExtraError: The package `math-verify` isn't installed.
    """

    def __init__(self, *, jobs: int = 1, seconds: float = SECONDS) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", extra="math", needed_for="the grader math")
        library = f"math-verify {importlib.metadata.version('math-verify')}"
        self._about = About(name="math", version=3, setting=library, kept=True, at_once=jobs)
        self._pool = WorkerPool(_WORKER, count=jobs, seconds=seconds)

    @property
    def about(self) -> About:
        """Its name, its version and the library's, and how many processes it has."""
        return self._about

    def grade(self, task: Task, text: str) -> Grade:
        """Compare in one of the processes."""
        if not task.answer:
            return unfit("the task has no answer to compare with")
        bare = text.strip()
        same = bare in map(str.strip, task.answer)  # the library reads few that aren't marked
        request = {"right": list(task.answer), "found": "" if same else text[-_READ:]}
        try:
            said = self._pool.ask(request)
        except WorkerGoneError as gone:
            return ungraded("timeout" if gone.overrun else "undecided", str(gone))
        if said["unread"]:
            return unfit("math-verify can't read the task's answer, or one of them")
        if said["equal"] is None:
            return ungraded("undecided", "it took too much")
        if same:
            return graded(True, extracted=bare)
        return graded(said["equal"], extracted=said["read"])

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
