"""The graders `code` and `python`: programs against tests, and a function of the user's own.

The grader `code` runs an answer's code in the sandbox, within a small program of ours. The code can
read and change everything in its process, that program included. So the program decides nothing: it
passes a test's input in and the output out. Whether the output is right is decided outside, where
the expected outputs are. The grader `python` calls the user's function in this process.
"""

import importlib
import importlib.util
import inspect
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal, DecimalException
from pathlib import Path
from types import TracebackType
from typing import Any, final

from prefill_router.data import prompt_text
from prefill_router.errors import ConfigError
from prefill_router.grading.base import (
    Grade,
    Grader,
    GraderTraits,
    Settings,
    make_grade,
    make_missing_grade,
    shorten,
    unfit,
)
from prefill_router.runs import Task
from prefill_router.sandbox import Sandbox

_KINDS = ("stdin", "functional")


@final
@dataclass(frozen=True)
class ProgramTest:
    """One test of a problem.

    Attributes:
        input: The standard input, or the function's arguments as JSON, one per line.
        output: The expected standard output, or the function's expected result as JSON.
        functional: Whether the test calls a function.
    """

    input: str
    output: str
    functional: bool


@final
class CodeGrader(Grader):
    """Right where the program in the answer passes all of the task's tests.

    Each test runs in a process of its own. The first test that fails ends the grading. Expected
    outputs never enter the sandbox.

    Args:
        sandbox: Runs the programs.
        jobs: How many answers are graded concurrently.
        interpreter: The interpreter, if one was chosen; cached verdicts of others aren't used.
    """

    def __init__(self, sandbox: Sandbox, *, jobs: int = 1, interpreter: str = "") -> None:
        self._sandbox = sandbox
        self._task_tests: tuple[Task, list[ProgramTest]] | None = None
        self._stopping = threading.Event()
        facts = [f"{name} {value}" for name, value in vars(sandbox.limits).items()]
        setting = ", ".join([*facts, *([interpreter] if interpreter else [])])
        self.about = GraderTraits(
            name="code", version=2, setting=setting, is_cached=True, at_once=jobs
        )

    def grade(self, task: Task, text: str) -> Grade:
        """Run the answer's last block of code against the tests, up to the first that fails."""
        function = task.options.get("function")
        try:
            tests = self._read_task_tests(task, named=isinstance(function, str))
        except ValueError as error:
            return unfit(str(error))
        code = last_code_block(text)
        if code is None:
            return make_grade(False, detail="no block of code")
        programs = {False: STDIN_PROGRAM, True: call_program(str(function))}
        for number, test in enumerate(tests, 1):
            if self._stopping.is_set():
                return make_missing_grade("interrupted")
            failed = self._find_failure(test, programs[test.functional], code)
            if failed:
                detail = f"test {number} of {len(tests)}: {failed}"
                return make_grade(False, extracted=code, detail=detail)
        return make_grade(True, extracted=code, detail=f"{len(tests)} tests passed")

    def close(self) -> None:
        """Start no more tests; the present one ends by itself or at its limits."""
        self._stopping.set()

    def _read_task_tests(self, task: Task, *, named: bool) -> list[ProgramTest]:
        """The task's tests; answers come task by task, so the last task's tests are cached."""
        task_tests = self._task_tests
        if task_tests is None or task_tests[0] is not task:
            task_tests = self._task_tests = (
                task,
                read_tests(task.options.get("tests"), named=named),
            )
        return task_tests[1]

    def _find_failure(self, test: ProgramTest, program: str, code: str) -> str:
        """The reason why an answer fails a test; empty where it passes."""
        source = code.encode("utf-8", "replace")
        stdin = test.input.encode("utf-8", "replace")
        outcome = self._sandbox_for(test).run(program, stdin=stdin, files={ANSWER_FILE: source})
        if outcome.status != "ok":
            return f"{outcome.status} {_last_complaint(outcome.stderr)}".strip()
        output = outcome.stdout.decode("utf-8", "replace")
        if not test.functional:
            return "" if same_output(output, test.output) else "wrong output"
        equal = same_result(output, test.output)
        if equal is None:
            return "error: no result"
        return "" if equal else "wrong result"

    def _sandbox_for(self, test: ProgramTest) -> Sandbox:
        """The sandbox, with an output limit of at least twice the expected output."""
        limits = self._sandbox.limits
        most = max(limits.output_bytes, 2 * len(test.output.encode("utf-8", "replace")))
        return replace(self._sandbox, limits=replace(limits, output_bytes=most))


def open_code(settings: Settings) -> Grader:
    """The grader of programs, in a sandbox with the interpreter of the settings."""
    sandbox = Sandbox.open(python=settings.interpreter)
    return CodeGrader(sandbox, jobs=settings.jobs, interpreter=str(settings.interpreter or ""))


def read_tests(value: Any, *, named: bool) -> list[ProgramTest]:
    """The tests in a task's options.

    Args:
        value: A list of `{input, output, type}`.
        named: Whether the task names a function.

    Raises:
        ValueError: The value isn't such a list, a test is malformed, or the function has no name.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("the task has no tests; give a list of {input, output, type}")
    return [_read_test(number, test, named) for number, test in enumerate(value, 1)]


def _read_test(number: int, test: Any, named: bool) -> ProgramTest:
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
    return ProgramTest(test["input"], test["output"], kind == "functional")


def _last_complaint(stderr: bytes) -> str:
    """The last line on standard error, which names the exception."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f"({shorten(lines[-1])[:200]})" if lines else ""


ANSWER_FILE = "answer.py"
"""The file with the answer's code, in the program's folder."""

_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json typing"
)
_NAMES = f"""
import builtins, sys
sys.setrecursionlimit(50000)
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
names = {{"__name__": NAME, "__builtins__": builtins, "__file__": "{ANSWER_FILE}"}}
for star in {_MODULES.split()!r}:
    module = __import__(star)
    public = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    names.update((n, getattr(module, n)) for n in public)
names.update((n, v) for n, v in vars(builtins).items() if n[0] != "_")
names.update((n, __import__(n)) for n in {_MODULES.split()!r})
with open("{ANSWER_FILE}", encoding="utf-8") as file:
    code = compile(file.read(), "{ANSWER_FILE}", "exec")
"""
"""The names that the benchmark defines for every answer, since many answers import nothing."""

STDIN_PROGRAM = (
    _NAMES.replace("NAME", '"__main__"')
    + """
try:
    exec(code, names)
except SystemExit:
    pass
"""
)
"""Runs a whole program: a test's input is its standard input, and it prints the output.

Leaving early by `sys.exit`, with whatever status, is no error, as in the benchmark.
"""

_CALL_PROGRAM = (
    _NAMES.replace("NAME", '"answer"')
    + """
import json, os

def plain(value):
    if hasattr(value, "item"):  # numpy's numbers
        return value.item()
    raise TypeError(f"a result of the type {type(value).__name__}")

said = os.dup(1)
os.dup2(2, 1)  # what the answer prints is not its result
lines = sys.stdin.buffer.read().decode().split("\\n")
arguments = [json.loads(line) for line in lines if line.strip()]
exec(code, names)
holder = names["Solution"]() if "Solution" in names else None
function = getattr(holder, FUNCTION, None) or names[FUNCTION]
result = function(*arguments)
with os.fdopen(said, "w", encoding="utf-8") as out:
    json.dump(result, out, default=plain)
"""
)


def call_program(function: str) -> str:
    """The program that calls a function with a test's arguments, one JSON value a line.

    The function is a method of a class `Solution` where the answer has one, as at LeetCode, or else
    one of the answer itself. Its result is printed as one JSON document; tuples become lists.
    """
    return _CALL_PROGRAM.replace("FUNCTION", repr(function))


def same_output(output: str, expected: str) -> bool:
    """Whether a program's output is the expected one, by LiveCodeBench's comparison.

    White space around the whole and around each line is ignored, but the number of lines counts.
    Two lines are the same if their texts are equal, or if both consist of decimal numbers that are
    exactly equal: 1.0 is 1.00, and 0.1 is not 0.1000001.
    """
    ours, theirs = _split_lines(output), _split_lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_result(result: str, expected: str) -> bool | None:
    """Whether a function's result equals the expected one, both as JSON.

    Returns:
        None where the result isn't one JSON document.

    Raises:
        ValueError: The expected result isn't JSON.
    """
    right = read_json(expected)
    try:
        return bool(read_json(result) == right)
    except ValueError:
        return None


def read_json(text: str) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: It isn't JSON, has too long a number, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(line: str, expected: str) -> bool:
    if line == expected:
        return True
    try:
        return [Decimal(word) for word in line.split()] == [Decimal(w) for w in expected.split()]
    except (DecimalException, ValueError):  # not a number, or one that can't be compared
        return False


def last_code_block(text: str) -> str | None:
    """The content of an answer's last fenced block; None where there is none.

    As LiveCodeBench reads answers, it is the text between the last two lines that contain three
    backticks, whatever else they contain. In an answer that was cut off within a block, that is the
    text between the two fences before it.
    """
    lines = text.split("\n")
    fences = [at for at, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return None
    return "\n".join(lines[fences[-2] + 1 : fences[-1]])


Function = Callable[[dict[str, Any], str], object]
"""Takes the task as a dictionary and the answer's text; returns a truth value or a number."""
_FORM = "path/to/file.py:function, or package.module:function"


@final
class FunctionGrader(Grader):
    """Grades with a function that the command line names, or the task's option `function`.

    The function is the user's own code and runs in this process with all its permissions: don't use
    it on tasks that you don't trust. If it raises an error, the answer is ungraded, with the
    error's name.

    Args:
        function: The function for all tasks; None where each task names its own.
    """

    def __init__(self, *, function: str | None = None) -> None:
        self.about = GraderTraits(name="python", version=1)
        self._function = function
        self._functions: dict[str, Function] = {}
        if function is not None:
            self._load_once(function)

    def grade(self, task: Task, text: str) -> Grade:
        """Call the function."""
        name = self._function or task.options.get("function")
        if not isinstance(name, str):
            return unfit(f"the task names no function; give --grader-function as {_FORM}")
        function, caught = self._load_once(name), _UserErrors()
        result: object = None
        with caught:
            result = function(_describe_task(task), text)
        if caught.message:
            return make_missing_grade("function_failed", caught.message)
        return _make_grade(result)

    def _load_once(self, name: str) -> Function:
        if name not in self._functions:
            self._functions[name] = load_function(name)
        return self._functions[name]


def open_function(settings: Settings) -> Grader:
    """The grader that calls the user's function."""
    return FunctionGrader(function=settings.function)


def load_function(name: str) -> Function:
    """The function of this name, such as `grading/mine.py:grade` or `mine.grading:grade`.

    Raises:
        ConfigError: There is no such file, module or function.
    """
    place, function = place_and_name(name)
    module = _of_file(Path(place)) if place.endswith(".py") else _of_package(place)
    candidate = getattr(module, function, None)
    if not callable(candidate):
        raise ConfigError(f"{place} has no function {function!r}; name one that it has")
    return candidate  # type: ignore[no-any-return]


def place_and_name(name: str) -> tuple[str, str]:
    """The file or module of a function, and its name in it; neither is checked to exist.

    Raises:
        ConfigError: The text has another form.
    """
    place, _, function = name.rpartition(":")
    if not place or not function.isidentifier():
        raise ConfigError(f"a grader's function is {name!r}; write it as {_FORM}")
    return place, function


def _of_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"grader_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"no such file as {path}; a grader's function is named as {_FORM}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look their module up
    with _rename_load_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _of_package(name: str) -> object:
    with _rename_load_errors(name):
        return importlib.import_module(name)


@contextmanager
def _rename_load_errors(name: str) -> Iterator[None]:
    """Turn any error that the user's code raises while it is loaded into a `ConfigError`."""
    caught = _UserErrors()
    with caught:
        yield
    if caught.message:
        raise ConfigError(f"{name} can't be loaded: {caught.message}")


class _UserErrors(AbstractContextManager["_UserErrors"]):
    """Catches any exception of the user's own code, but not an interruption.

    Attributes:
        message: The exception's name and text; empty where none was raised.
    """

    def __init__(self) -> None:
        self.message = ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception | SystemExit):
            return False
        self.message = f"{type(error).__name__}: {error}"
        return True


def _describe_task(task: Task) -> dict[str, Any]:
    query = task.query
    chat = None if isinstance(query.prompt, str) else query.prompt
    messages = None if chat is None else [{"role": m.role, "content": m.content} for m in chat]
    return {
        "id": query.id,
        "prompt": prompt_text(query.prompt),
        "messages": messages,
        "benchmark": query.benchmark,
        "domain": query.domain,
        "answer": list(task.answer),
        "options": dict(task.options),
    }


def _make_grade(result: object) -> Grade:
    if inspect.isawaitable(result):
        return make_missing_grade(
            "function_failed", "the function is asynchronous; a plain one is needed"
        )
    if hasattr(result, "item"):  # a number of NumPy
        result = result.item()
    if isinstance(result, bool):
        return make_grade(result)
    number = float(result) if isinstance(result, int | float) else math.nan
    if 0 <= number <= 1:
        return Grade(score=number)
    kind = shorten(type(result).__name__)
    return make_missing_grade(
        "function_failed", f"it returned {kind}; true, false or 0 to 1 is needed"
    )
