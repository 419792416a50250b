"""Programs against tests: what passes, what fails and how, and what can't be forged."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.grading.graded_runs import run_of, task
from prefill_router.errors import SandboxError
from prefill_router.grading import Grade, Settings, grade_run
from prefill_router.grading.code import (
    CodeGrader,
    last_code_block,
    read_tests,
    same_output,
    same_result,
)
from prefill_router.runs.run import Run
from prefill_router.sandbox import Limits, Sandbox

pytestmark = pytest.mark.slow

ADDING = ({"input": "1 2\n", "output": "3\n"}, {"input": "10 -4", "output": "6"})
CALLED = (
    {"input": "[1, 2]\n3", "output": "[1, 2, 3]", "type": "functional"},
    {"input": "[]\n0", "output": "[0]", "type": "functional"},
)
QUICK = Limits(cpu_seconds=1, wall_seconds=3, memory_bytes=512 << 20)


@pytest.fixture(scope="session")
def grader() -> CodeGrader:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; apt-get install bubblewrap")
    try:
        return CodeGrader(Sandbox.open(limits=QUICK))
    except SandboxError as error:
        pytest.skip(f"this machine has no sandbox: {error}")


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


def grade_program(grader: CodeGrader, code: str, tests: Any = ADDING) -> Grade:
    return grader.grade(task(grader="code", tests=list(tests)), block(code))


def grade_function(grader: CodeGrader, code: str, tests: Any = CALLED) -> Grade:
    question = task(grader="code", tests=list(tests), function="extend")
    return grader.grade(question, block(code))


@pytest.mark.parametrize(
    "code",
    [
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "print(sum(int(w) for w in stdin.readline().split()))".replace("stdin", "sys.stdin"),
        "def main():\n    print(eval(input().replace(' ', '+')))\n"
        "if __name__ == '__main__':\n    main()",
        "from __future__ import annotations\nprint(float(sum(map(Decimal, input().split()))))"
        "\nfrom decimal import Decimal".replace("\nprint", "\nfrom decimal import Decimal\nprint"),
        "print(reduce(add, map(int, input().split())))",  # names of the benchmark's own imports
        "print(3 if input() == '1 2' else 6)\nexit(1)",
        "setrecursionlimit(maxsize % 9999)\nprint(sum(loads(f'[{input()}]'.replace(' ', ','))))",
        "import threading\nsys.setrecursionlimit(10**6)\n"
        "t = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\n"
        "t.start()\nt.join()",
    ],
)
def test_whole_programs_that_are_right(grader: CodeGrader, code: str) -> None:
    grade = grade_program(grader, code)
    assert (grade.score, grade.detail) == (1.0, "2 tests passed")


def test_output_may_be_as_large_as_what_is_expected(grader: CodeGrader) -> None:
    lines = "7 77 777\n" * 200_000
    large = [{"input": "200000", "output": lines, "type": "stdin"}]
    assert len(lines) > QUICK.output_bytes
    assert grade_program(grader, "print('7 77 777 \\n' * int(input()))", large).score == 1.0
    assert (
        grade_program(grader, "print('7 77 778\\n' * int(input()))", large).detail
        == "test 1 of 1: wrong output"
    )
    flood = grade_program(grader, "while True: print('7 77 777\\n' * 10**5)", large)
    assert flood.detail == "test 1 of 1: output"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("print(3)", "test 2 of 2: wrong output"),
        ("pass", "test 1 of 2: wrong output"),
        ("print(3, 'PASSED')", "test 1 of 2: wrong output"),
        ("print(1 / 0)", "test 1 of 2: error (ZeroDivisionError: division by zero)"),
        ("def f(:", "test 1 of 2: error (SyntaxError: invalid syntax)"),
        ("import os\nprint(3, flush=True)\nos._exit(1)", "test 1 of 2: error"),
        ("while True: pass", "test 1 of 2: timeout"),
        ("x = bytearray(10**10)", "test 1 of 2: memory (MemoryError)"),
        ("while True: print('x' * 10**5)", "test 1 of 2: output"),
    ],
)
def test_how_programs_fail(grader: CodeGrader, code: str, detail: str) -> None:
    grade = grade_program(grader, code)
    assert (grade.score, grade.detail) == (0.0, detail)


@pytest.mark.parametrize(
    "code",
    [
        "class Solution:\n    def extend(self, xs: List[int], x: int) -> List[int]:\n"
        "        print('debugging')\n        return xs + [x]",
        "def extend(xs, x):\n    return (*xs, x)",  # tuples are lists
        "def extend(xs, x):\n    return [float(v) for v in [*xs, x]]",
        "class Scalar:\n    def __init__(self, v): self.v = v\n    def item(self): return self.v\n"
        "def extend(xs, x):\n    return [Scalar(v) for v in [*xs, x]]",  # as numpy has them
        "class Solution:\n    @cache\n    def extend(self, *a): pass\n"
        "    def extend(self, xs, x):\n        return list(chain(xs, [x]))",
    ],
)
def test_functions_that_are_right(grader: CodeGrader, code: str) -> None:
    assert grade_function(grader, code).score == 1.0


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def extend(xs, x): return xs", "test 1 of 2: wrong result"),
        ("def extend(xs, x): return {x}", "error (TypeError"),
        ("def other(xs, x): return xs", "error (KeyError"),
        ("def extend(xs, x): return None", "test 1 of 2: wrong result"),
        ("def extend(xs): return xs", "error (TypeError"),
        ("def extend(xs, x):\n    raise SystemExit", "test 1 of 2: error: no result"),
        ("import os\ndef extend(xs, x): os._exit(0)", "test 1 of 2: error: no result"),
    ],
)
def test_how_functions_fail(grader: CodeGrader, code: str, detail: str) -> None:
    grade = grade_function(grader, code)
    assert grade.score == 0.0
    assert detail in grade.detail


FORGERIES = {
    "says that it passed": "print('PASSED'); print('{\"passed\": true}')",
    "leaves at once": "import os\nos._exit(0)",
    "leaves in a way that looks right": "import atexit, os\natexit.register(os._exit, 0)",
    "equals everything": (
        "class Any(list):\n    def __eq__(self, other): return True\n"
        "def extend(xs, x): return Any([9])"
    ),
    "changes how results are told": (
        "import json\njson.dump = lambda *a, **k: None\nimport builtins\n"
        "builtins.print = lambda *a, **k: None\ndef extend(xs, x): return [9]"
    ),
    "looks through its callers": (
        "import sys\ndef extend(xs, x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for name, value in list(frame.f_globals.items()):\n"
        "            if 'expect' in name or 'output' in name: return value\n"
        "        frame = frame.f_back\n    return [9]"
    ),
    "looks for the outputs in files": (
        "import glob\ndef extend(xs, x):\n    for folder in ('box', 'tmp', 'dev/shm'):\n"
        "        for name in glob.glob(f'/{folder}/**', recursive=True):\n"
        "            try:\n                text = open(name).read()\n"
        "            except OSError:\n                continue\n"
        "            if '[1, 2, 3]' in text:\n                return [1, 2, 3]\n    return [9]"
    ),
    "changes the program that runs it": (
        "for name in ('/box/prog.py', '/box/answer.py'):\n    try:\n"
        "        open(name, 'w').write('print([1, 2, 3])')\n    except OSError:\n        pass\n"
        "def extend(xs, x): return [9]"
    ),
    "writes several results": (
        "import os\nfor fd in range(3, 20):\n    try:\n"
        "        os.write(fd, b'[1, 2, 3]\\n[0]\\n')\n    except OSError:\n        pass\n"
        "def extend(xs, x): return [9]"
    ),
    "speaks for itself and for the next": (
        "import os, sys\nsys.stdout.write('3\\n6\\n')\nsys.stdout.flush()\nos._exit(0)"
    ),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_no_forgery_makes_a_wrong_answer_right(grader: CodeGrader, how: str) -> None:
    assert grade_program(grader, FORGERIES[how]).score == 0.0
    assert grade_function(grader, FORGERIES[how]).score == 0.0


def test_an_output_that_no_program_could_foresee_never_enters(grader: CodeGrader) -> None:
    secret = "a text that only the grader has"
    snoop = (
        "import os\nfound = []\nfor folder, _, names in os.walk('/'):\n"
        "    if folder.startswith(('/usr', '/sys', '/py')):\n        continue\n"
        "    for name in names:\n        try:\n"
        "            found.append(open(os.path.join(folder, name), 'rb').read(10**5))\n"
        "        except OSError:\n            pass\n"
        "text = b' '.join(found).decode('utf-8', 'replace')\n"
        "at = text.find('a text that ' + 'only')\nprint(text[at:at + 31] if at >= 0 else 'nothing')"
    )
    assert len(secret) == 31
    tests = [{"input": secret, "output": secret}]  # the search itself works: inputs are found
    assert grade_program(grader, "print(input())", tests).score == 1.0
    assert grade_program(grader, snoop, [{"input": "", "output": secret}]).score == 0.0


def test_an_answer_without_code_is_wrong(grader: CodeGrader) -> None:
    question = task(grader="code", tests=list(ADDING))
    grade = grader.grade(question, "print(3)")
    assert (grade.score, grade.detail) == (0.0, "no block of code")


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({}, "has no tests"),
        ({"tests": []}, "has no tests"),
        ({"tests": [{"input": "1"}]}, "test 1 must be"),
        ({"tests": [{"input": "1", "output": "1", "type": "odd"}]}, "test 1 must be"),
        ({"tests": [CALLED[0]]}, "the task names none"),
        (
            {"tests": [{"input": "1", "output": "x", "type": "functional"}], "function": "f"},
            "must be JSON",
        ),
    ],
)
def test_tasks_that_cannot_be_graded(
    grader: CodeGrader, options: dict[str, Any], detail: str
) -> None:
    grade = grader.grade(task(grader="code", **options), block("print(3)"))
    assert grade.missing == "unfit_task"
    assert detail in grade.detail


def test_several_answers_at_once_and_again(grader: CodeGrader, tmp_path: Path) -> None:
    del grader  # skipped where there is no sandbox
    right, wrong = block("print(sum(map(int, input().split())))"), block("print(0)")
    tasks = {
        task(f"q{n}", grader="code", tests=list(ADDING)): {"small": right, "large": wrong}
        for n in range(3)
    }
    folder = run_of(tmp_path / "run", tasks)
    with Run.open(folder) as run:
        first = grade_run(run, tmp_path / "out", settings=Settings(jobs=2))
        again = grade_run(run, tmp_path / "out")
    assert [target.correct for target in first.targets] == [3, 0]
    assert first.reused == 0
    assert again.reused == 6
    assert again.targets == first.targets


@pytest.mark.parametrize("fresh", [False, True])
def test_the_same_answer_of_two_targets_has_one_verdict(
    grader: CodeGrader, tmp_path: Path, *, fresh: bool
) -> None:
    del grader  # skipped where there is no sandbox
    by_chance = block("import os\nprint(os.urandom(1)[0] % 2)")
    tests = [{"input": "", "output": "1"}]
    tasks = {
        task(f"q{n}", grader="code", tests=tests): dict.fromkeys(("small", "large"), by_chance)
        for n in range(10)
    }
    folder = run_of(tmp_path / "run", tasks)
    with Run.open(folder) as run:
        first = grade_run(run, tmp_path / "out", settings=Settings(jobs=2, fresh=fresh))
        again = grade_run(run, tmp_path / "out")
    small, large = first.targets
    assert small.correct == large.correct
    assert again.targets == first.targets
    assert (first.reused, again.reused) == (0, 20)


def test_another_interpreter_can_be_named(grader: CodeGrader, tmp_path: Path) -> None:
    del grader  # skipped where there is no sandbox
    system = Path("/usr/bin/python3")
    if not system.exists() or Path(sys.base_prefix) == Path("/usr"):
        pytest.skip("there is no second interpreter at /usr/bin/python3")
    answer_text = block("import sys\nprint(sys.base_prefix)")
    tests = [{"input": "", "output": "/usr"}]
    folder = run_of(
        tmp_path / "run", {task("q", grader="code", tests=tests): {"small": answer_text}}
    )
    with Run.open(folder) as run:
        ours = grade_run(run, tmp_path / "out")
        theirs = grade_run(run, tmp_path / "out", settings=Settings(interpreter=system))
    assert (ours.targets[0].correct, theirs.targets[0].correct) == (0, 1)
    assert theirs.reused == 0


def test_without_a_sandbox_grading_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(
        tmp_path / "run",
        {task("q", grader="code", tests=list(ADDING)): {"small": block("print(3)")}},
    )
    monkeypatch.setattr("prefill_router.sandbox.sandbox_process._SYSTEM_PATH", str(tmp_path))
    with Run.open(folder) as run:
        with pytest.raises(SandboxError, match="bubblewrap"):
            grade_run(run, tmp_path / "out")
        report = grade_run(run, tmp_path / "out", settings=Settings(skip=frozenset({"code"})))
    assert report.targets[0].missing == {"skipped": 1}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\na\n```", "a"),
        ("```python\na\n```\nor\n```python\nb\nc\n```", "b\nc"),
        ("```python\na", None),
        ("no code", None),
        ("```a``` b ```c```", None),
        ("  ```py\n  a\n  ```", "  a"),
    ],
)
def test_the_last_block(text: str, code: str | None) -> None:
    assert last_code_block(text) == code


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  3  \n4 ", "3\n4", True),
        ("3\n\n4", "3\n4", False),
        ("1.0 2", "1 2.00", True),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("0.1", "0.10000001", False),
        ("10000000000000001", "10000000000000000", False),
        ("yes", "Yes", False),
        ("nan", "NaN", False),
        ("sNaN", "1", False),
        ("1e3", "1000", True),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs_are_compared_as_the_benchmark_does(
    output: str, expected: str, *, same: bool
) -> None:
    assert same_output(output, expected) is same


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("[1, 2]", "[1,2]", True),
        ("1.0", "1", True),
        ("[1] [1]", "[1]", None),
        ("", "[1]", None),
        ('"a"', "'a'", ValueError),
        ("NaN", "NaN", False),
        ("[" * 100_000, "[]", None),
        ("9" * 5000, "1", None),
    ],
)
def test_results_are_compared_as_json(
    output: str, expected: str, same: bool | type[ValueError] | None
) -> None:
    if same is ValueError:
        with pytest.raises(ValueError, match="Expecting value"):
            same_result(output, expected)
    else:
        assert same_result(output, expected) is same


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=50), st.text(max_size=50))
def test_any_two_outputs_can_be_compared(first: str, second: str) -> None:
    assert same_output(first, first)
    assert same_output(first, second) == same_output(second, first)


def test_tests_keep_their_order() -> None:
    cases = read_tests(list(ADDING + CALLED), named=True)
    assert [case.functional for case in cases] == [False, False, True, True]
    assert cases[1].input == "10 -4"
