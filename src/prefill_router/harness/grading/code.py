"""The grader `code`: programs against tests, in the sandbox; pass@1 of LiveCodeBench."""

import threading
from dataclasses import dataclass, replace
from typing import Any, final

from prefill_router.harness.grading.base import (
    About,
    Grade,
    Grader,
    graded,
    shortened,
    unfit,
    ungraded,
)
from prefill_router.harness.grading.blocks import last_block
from prefill_router.harness.grading.comparing import read_json, same_output, same_result
from prefill_router.harness.grading.drivers import ANSWER, STDIN, call_program
from prefill_router.harness.task import Task
from prefill_router.sandbox import Sandbox

_KINDS = ("stdin", "functional")


@final
@dataclass(frozen=True)
class Case:
    """One test of a problem.

    Attributes:
        input: What the program reads, or its function's arguments as JSON, one a line.
        output: What it is expected to print, or the function's result as JSON.
        functional: Whether a function is called.
    """

    input: str
    output: str
    functional: bool


@final
class CodeGrader(Grader):
    """Right where the program in the answer passes all of the task's tests.

    Each test has a process of its own. The first test that fails ends the grading. Expected outputs
    never enter the sandbox.

    Args:
        sandbox: Where programs run.
        jobs: How many answers at once.
        interpreter: The interpreter, where it was chosen; verdicts of another aren't taken over.
    """

    def __init__(self, sandbox: Sandbox, *, jobs: int = 1, interpreter: str = "") -> None:
        self._sandbox = sandbox
        self._read: tuple[Task, list[Case]] | None = None
        self._stopping = threading.Event()
        facts = [f"{name} {value}" for name, value in vars(sandbox.limits).items()]
        setting = ", ".join([*facts, *([interpreter] if interpreter else [])])
        self._about = About(name="code", version=2, setting=setting, kept=True, at_once=jobs)

    @property
    def about(self) -> About:
        """Its name, its version, and the sandbox's limits."""
        return self._about

    def grade(self, task: Task, text: str) -> Grade:
        """Run the answer's last block of code against the tests, up to the first that fails."""
        function = task.options.get("function")
        try:
            tests = self._tests(task, named=isinstance(function, str))
        except ValueError as error:
            return unfit(str(error))
        code = last_block(text)
        if code is None:
            return graded(False, detail="no block of code")
        programs = {False: STDIN, True: call_program(str(function))}
        for number, test in enumerate(tests, 1):
            if self._stopping.is_set():
                return ungraded("interrupted")
            failed = self._failed(test, programs[test.functional], code)
            if failed:
                told = f"test {number} of {len(tests)}: {failed}"
                return graded(False, extracted=code, detail=told)
        return graded(True, extracted=code, detail=f"{len(tests)} tests passed")

    def close(self) -> None:
        """Run no further tests; the one that runs ends by itself or by its limits."""
        self._stopping.set()

    def _tests(self, task: Task, *, named: bool) -> list[Case]:
        """The task's tests; answers come task by task, so the last ones are kept at hand."""
        known = self._read
        if known is None or known[0] is not task:
            known = self._read = (task, read_tests(task.options.get("tests"), named=named))
        return known[1]

    def _failed(self, test: Case, program: str, code: str) -> str:
        """How an answer fails a test; empty where it passes."""
        source = code.encode("utf-8", "replace")
        stdin = test.input.encode("utf-8", "replace")
        outcome = self._roomy(test).run(program, stdin=stdin, files={ANSWER: source})
        if outcome.status != "ok":
            return f"{outcome.status} {_complaint(outcome.stderr)}".strip()
        found = outcome.stdout.decode("utf-8", "replace")
        if not test.functional:
            return "" if same_output(found, test.output) else "wrong output"
        equal = same_result(found, test.output)
        if equal is None:
            return "error: no result"
        return "" if equal else "wrong result"

    def _roomy(self, test: Case) -> Sandbox:
        """The sandbox; where a test expects much output, with room for twice as much."""
        limits = self._sandbox.limits
        most = max(limits.output_bytes, 2 * len(test.output.encode("utf-8", "replace")))
        return replace(self._sandbox, limits=replace(limits, output_bytes=most))


def read_tests(value: Any, *, named: bool) -> list[Case]:
    """The tests in a task's options.

    Args:
        value: A list of `{input, output, type}`.
        named: Whether the task names a function.

    Raises:
        ValueError: They are no such list, a test is malformed, or a function isn't named.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("the task has no tests; give a list of {input, output, type}")
    return [_read_test(number, test, named) for number, test in enumerate(value, 1)]


def _read_test(number: int, test: Any, named: bool) -> Case:
    whole = isinstance(test, dict) and all(
        isinstance(test.get(key), str) for key in ("input", "output")
    )
    kind = test.get("type", "stdin") if whole else None
    if not whole or kind not in _KINDS:
        raise ValueError(f"test {number} must be {{input, output, type}}; types are {_KINDS}")
    if kind == "functional":
        if not named:
            raise ValueError(f"test {number} calls a function and the task names none")
        try:
            read_json(test["output"])
        except ValueError:
            raise ValueError(f"test {number}: the output of a function must be JSON") from None
    return Case(test["input"], test["output"], kind == "functional")


def _complaint(stderr: bytes) -> str:
    """The last line of a complaint, which names the exception."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f"({shortened(lines[-1])[:200]})" if lines else ""
