"""Verifiers: labels that need no judge, since what the request asked for can be checked.

An answer that breaks the JSON schema of its request, doesn't match the user's pattern, or fails the
tests in the request is wrong. One that doesn't may still be, so the judge is asked. The user's own
function decides where it returns a number, and leaves the rest to the judge.

Tests are Python's `assert` and `>>>`, run on the program in the answer. The judge is asked too
where they may be about something else: where the answer has no program or one that can't be run,
doesn't define what they call, or takes too long.
"""

import ast
import doctest
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from prefill_router.data import Query
from prefill_router.errors import ConfigError
from prefill_router.grading import FunctionGrader, Grade, last_code_block
from prefill_router.runs import Task
from prefill_router.sandbox import Sandbox
from prefill_router_gateway.receipts import RepeatedRequest

MOST: Final = 100
"""So many tests of a request are run; the others aren't."""
_FILE = "answer.py"
_PROGRAM: Final = f"""
import contextlib, io, json, os, sys

pipe = os.dup(1)
os.dup2(2, 1)  # what the answer prints by itself is no result
names = {{"__name__": "answer"}}
with open("{_FILE}", encoding="utf-8") as file:
    exec(compile(file.read(), "{_FILE}", "exec"), names)
defined = sorted(name for name, value in names.items() if callable(value))
outputs = []
for source in json.load(sys.stdin):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            try:
                code = compile(source, "test", "eval")
            except SyntaxError:
                exec(compile(source, "test", "exec"), names)
            else:
                value = eval(code, names)
                if value is not None:
                    print(repr(value))
        outputs.append(printed.getvalue())
    except BaseException:
        outputs.append(None)
with os.fdopen(pipe, "w", encoding="utf-8") as out:
    json.dump([defined, outputs], out)
"""


@final
@dataclass(frozen=True)
class RequestTest:
    """A test of a request.

    Attributes:
        source: A statement, or an expression.
        expected: What it must print; None where it must only raise no error.
    """

    source: str
    expected: str | None = None

    @property
    def function_names(self) -> set[str]:
        """The names of the functions that it calls."""
        calls = (node for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.Call))
        return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def request_tests(text: str) -> list[RequestTest]:
    """The tests in a request's text, at most `MOST`: lines with `assert`, and examples after `>>>`.

    Examples that show an error, or leave out a part by dots, are none.
    """
    return [*_read_asserts(text), *_read_examples(text)][:MOST]


def _read_asserts(text: str) -> Iterator[RequestTest]:
    for line in text.split("\n"):
        source = line.strip()
        if not source.startswith("assert"):
            continue
        try:
            (statement,) = ast.parse(source).body
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        test = RequestTest(source)
        if isinstance(statement, ast.Assert) and test.function_names:
            yield test


def _read_examples(text: str) -> Iterator[RequestTest]:
    try:
        examples = doctest.DocTestParser().get_examples(text)
        for example in examples:
            ast.parse(example.source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for example in examples:
        if example.exc_msg is None and "..." not in example.want and "```" not in example.want:
            yield RequestTest(example.source, example.want or None)


def passes(tests: Sequence[RequestTest], answer: str, sandbox: Sandbox) -> bool | None:
    """Whether the program in an answer passes tests; None where they don't decide.

    Raises:
        SandboxError: The sandbox failed.
    """
    code = last_code_block(answer)
    if code is None or not tests:
        return None
    stdin = json.dumps([test.source for test in tests]).encode()
    source = code.encode("utf-8", "replace")
    outcome = sandbox.run(_PROGRAM, stdin=stdin, files={_FILE: source})
    try:
        defined, outputs = json.loads(outcome.stdout) if outcome.status == "ok" else ([], [])
        relevant = [
            (test, output)
            for test, output in zip(tests, outputs, strict=True)
            if test.function_names & set(defined)
        ]
    except (ValueError, TypeError):  # the program wrote something else
        return None
    return all(_passes_test(test, output) for test, output in relevant) if relevant else None


def _passes_test(test: RequestTest, output: str | None) -> bool:
    if output is None:
        return False
    if test.expected is None or output.split() == test.expected.split():
        return True
    try:
        return bool(ast.literal_eval(output.strip()) == ast.literal_eval(test.expected.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


UNCHECKED: Final = ("pattern", "patternProperties", "unevaluatedProperties", "uniqueItems")
"""Keywords of a schema that may take any time to check; whether they hold is left to the judge."""
MOST_CHECKS: Final = 100_000
"""The most keywords that are checked of one answer."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


@final
@dataclass(frozen=True)
class Verification:
    """What a verifier found.

    Attributes:
        name: The verifier: `schema`, `pattern`, `tests` or `function`.
        score: From 0 (wrong) to 1 (right).
    """

    name: str
    score: float


@final
class Verifiers:
    """The verifiers of answers.

    Args:
        pattern: A regular expression that is found in every right answer; None for none.
        function: The user's function, as `grade --grader-function` takes it; None for none. It runs
            in this process, with all its permissions.
        tests: Whether the tests in requests are run on the programs in answers.

    Raises:
        ConfigError: The pattern isn't one, or there is no such function.
        SandboxError: Tests are to be run, and there is no sandbox.
    """

    def __init__(
        self, *, pattern: str | None = None, function: str | None = None, tests: bool = False
    ) -> None:
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"the pattern {pattern!r} can't be read: {error}") from None
        self._function = None if function is None else FunctionGrader(function=function)
        self._sandbox = Sandbox.open() if tests else None

    def verify(self, request: RepeatedRequest, answer: str) -> Verification | None:
        """What the first verifier that knows says of an answer; None where none does."""
        schema = request.schema
        if schema is not None and not follows(schema, answer):
            return Verification("schema", 0.0)
        if self._pattern is not None and self._pattern.search(answer) is None:
            return Verification("pattern", 0.0)
        if self._sandbox is not None:
            question = next((m.content for m in reversed(request.prompt) if m.role == "user"), "")
            if passes(request_tests(question), answer, self._sandbox) is False:
                return Verification("tests", 0.0)
        if self._function is not None:
            task = Task(query=Query(request.sample.id, request.prompt), grader="python")
            grade: Grade = self._function.grade(task, answer)
            if grade.score is not None:
                return Verification("function", grade.score)
        return None


def follows(schema: Mapping[str, Any], answer: str) -> bool:
    """Whether an answer is JSON that follows a schema; an empty one asks for any object.

    The schema comes from a client, so it can do little harm. Nothing that it refers to is fetched,
    and `UNCHECKED` is skipped. A schema that is invalid, refers to nothing, or takes more than
    `MOST_CHECKS`, refuses nothing. Without the package `jsonschema`, only the type and the required
    fields of the outermost value are checked.
    """
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    if not schema:
        return isinstance(value, dict)
    try:
        import jsonschema
        from referencing import Registry
        from referencing.exceptions import Unresolvable
    except ImportError:
        return _follows_outermost(schema, value)
    try:
        dialect = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        dialect.check_schema(schema)
        checked = jsonschema.validators.extend(dialect, _limit_checks(dialect.VALIDATORS))
        return not any(checked(schema, registry=Registry()).iter_errors(value))
    except jsonschema.SchemaError:
        return True
    except (Unresolvable, ValueError, TypeError, LookupError, RecursionError):
        return True


_Check = Callable[..., Iterable[Any]]


def _limit_checks(checks: Mapping[str, _Check]) -> dict[str, _Check]:
    """The checks of a schema's keywords, of which so many are made and no more."""
    countdown = itertools.count(MOST_CHECKS, -1)

    def limit_check(check: _Check) -> _Check:
        def count(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
            if next(countdown) <= 0:
                raise ValueError("the schema takes too many checks")
            yield from check(validator, keyword, value, schema) or ()

        return count

    def pass_over(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
        del validator, keyword, value, schema
        yield from ()

    def check_additional(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:  # which properties these are, its patterns say
            yield from checks["additionalProperties"](validator, keyword, value, schema) or ()

    own = {**dict.fromkeys(UNCHECKED, pass_over), "additionalProperties": check_additional}
    return {name: limit_check(own.get(name, check)) for name, check in checks.items()}


def _follows_outermost(schema: Mapping[str, Any], value: object) -> bool:
    kind = _TYPES.get(str(schema.get("type")))
    if kind is not None and not isinstance(value, kind):
        return False
    required = schema.get("required")
    if not isinstance(value, dict) or not isinstance(required, list):
        return True
    return all(name in value for name in required)
