"""Tests that a request has itself, run on the program in its answer: Python's `assert` and `>>>`.

An answer whose program fails one is wrong. One that passes may still be, so the judge is asked. So
it is where the tests may be about something else: where the answer has no program or one that can't
be run, doesn't define what they call, or takes too long.
"""

import ast
import doctest
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from prefill_router.harness.grading import last_code_block
from prefill_router.sandbox import Sandbox

MOST: Final = 100
"""So many tests of a request are run; the others aren't."""
_FILE = "answer.py"
_PROGRAM: Final = f"""
import contextlib, io, json, os, sys

said = os.dup(1)
os.dup2(2, 1)  # what the answer prints by itself tells nothing
names = {{"__name__": "answer"}}
with open("{_FILE}", encoding="utf-8") as file:
    exec(compile(file.read(), "{_FILE}", "exec"), names)
defined = sorted(name for name, value in names.items() if callable(value))
found = []
for source in json.load(sys.stdin):
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            try:
                code = compile(source, "test", "eval")
            except SyntaxError:
                exec(compile(source, "test", "exec"), names)
            else:
                value = eval(code, names)
                if value is not None:
                    print(repr(value))
        found.append(shown.getvalue())
    except BaseException:
        found.append(None)
with os.fdopen(said, "w", encoding="utf-8") as out:
    json.dump([defined, found], out)
"""


@final
@dataclass(frozen=True)
class RequestTest:
    """A test of a request.

    Attributes:
        source: A statement, or an expression.
        shown: What it must show; None where it must only raise no error.
    """

    source: str
    shown: str | None = None

    @property
    def called(self) -> set[str]:
        """The names of the functions that it calls."""
        calls = (node for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.Call))
        return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def request_tests(text: str) -> list[RequestTest]:
    """The tests in a request's text, at most `MOST`: lines with `assert`, and examples after `>>>`.

    Examples that show an error, or leave out a part by dots, are none.
    """
    return [*_asserted(text), *_examples(text)][:MOST]


def _asserted(text: str) -> Iterator[RequestTest]:
    for line in text.split("\n"):
        source = line.strip()
        if not source.startswith("assert"):
            continue
        try:
            (statement,) = ast.parse(source).body
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        test = RequestTest(source)
        if isinstance(statement, ast.Assert) and test.called:
            yield test


def _examples(text: str) -> Iterator[RequestTest]:
    try:
        found = doctest.DocTestParser().get_examples(text)
        for one in found:
            ast.parse(one.source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for one in found:
        if one.exc_msg is None and "..." not in one.want and "```" not in one.want:
            yield RequestTest(one.source, one.want or None)


def passes(tests: Sequence[RequestTest], answer: str, sandbox: Sandbox) -> bool | None:
    """Whether the program in an answer passes tests; None where they don't tell.

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
        defined, shown = json.loads(outcome.stdout) if outcome.status == "ok" else ([], [])
        known = [
            (test, one)
            for test, one in zip(tests, shown, strict=True)
            if test.called & set(defined)
        ]
    except (ValueError, TypeError):  # the program wrote something else
        return None
    return all(_holds(test, one) for test, one in known) if known else None


def _holds(test: RequestTest, shown: str | None) -> bool:
    if shown is None:
        return False
    if test.shown is None or shown.split() == test.shown.split():
        return True
    try:
        return bool(ast.literal_eval(shown.strip()) == ast.literal_eval(test.shown.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
