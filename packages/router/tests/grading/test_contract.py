"""The contract of every grader; a grader that breaks it is found."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import pytest

from packages.router.tests.grading.graded_runs import task
from packages.router.tests.part_cases import check_cases
from prefill_router.errors import ConfigError, SandboxError
from prefill_router.grading import GRADERS, Grade, Grader, Graders, Settings
from prefill_router.grading.base import SHOWN, GraderTraits
from prefill_router.runs import Task
from prefill_router.targets import Pool, Target
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

ODD = ("", " \n\t", "\x00", "\ud800", "é" * 20_000, "`" * 5000, "{" * 3000, "\\boxed{" * 500)
YES, NO = '{"correct": "yes"}', '{"correct": "no"}'
ADDING = [{"input": "1 2", "output": "3"}]


def judge_answer(prompt: str) -> str:
    return YES if "forty-two" in prompt.rsplit("answer to grade", 1)[1] else NO


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "exact": ({"answer": "42"}, "42\n", "43"),
    "normalised": ({"answer": "The Answer!"}, "answer", "question"),
    "mmlu_pro": ({"answer": "C"}, "The answer is (C).", "The answer is (D)."),
    "number": ({"answer": "42"}, "It is 42.0", "It is 43"),
    "math": ({"answer": "1/2"}, "$0.5$", "$0.6$"),
    "python": ({"function": "{}/mine.py:grade"}, "42", "43"),
    "judge": ({"rubric": "Does it say forty-two?"}, "forty-two", "forty-three"),
    "hle": ({"answer": "42"}, "forty-two", "forty-three"),
    "code": (
        {"tests": ADDING},
        "```\nprint(sum(map(int, input().split())))\n```",
        "```\nprint(4)\n```",
    ),
}
"""What a task of each grader has, an answer that is right and one that is wrong."""


@contextmanager
def open_grader(name: str, folder: Path) -> Iterator[Grader]:
    if name == "math":
        pytest.importorskip("math_verify", reason="the package math-verify isn't installed")
    if name == "code" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; apt-get install bubblewrap")
    (folder / "mine.py").write_text("def grade(task, text):\n    return text == '42'\n")
    with serve([ScriptedModel("judge", judge_answer)]) as server:
        judge = Pool((Target(name="judge", base_url=server.base_url),))
        graders = Graders(Settings(judge=judge), folder)
        try:
            yield graders[name]
        except SandboxError as error:
            pytest.skip(f"this machine has no sandbox: {error}")
        finally:
            graders.stop()
            graders.close()


def make_task(name: str, folder: Path) -> Task:
    options = dict(CASES[name][0])
    if name == "python":
        options["function"] = options["function"].format(folder)
    return task(grader=name, **options)


def check(grader: Grader, question: Task, right: str, wrong: str) -> None:
    """What every grader must do."""
    assert grader.grade(question, right).score == 1.0
    assert grader.grade(question, wrong).score == 0.0
    assert grader.grade(question, right) == grader.grade(question, right)
    for odd in ODD:
        grade = grader.grade(question, odd)
        assert isinstance(grade, Grade)
        assert (grade.score is None) == (grade.missing is not None)
        assert max(len(grade.extracted), len(grade.detail)) <= SHOWN
        assert grade.score != 1.0
    about = grader.about
    assert about == grader.about
    assert about.version >= 1
    assert about.at_once >= 1


def test_every_grader_has_a_case() -> None:
    to = "CASES in packages/router/tests/grading/test_contract.py"
    check_cases(GRADERS.own, CASES, to=to, guide="grading.md")


@pytest.mark.parametrize("name", CASES)
def test_every_grader_keeps_the_contract(name: str, tmp_path: Path) -> None:
    _, right, wrong = CASES[name]
    with open_grader(name, tmp_path) as grader:
        assert grader.about.name == name
        check(grader, make_task(name, tmp_path), right, wrong)
        bare = grader.grade(task(grader=name), right)
        assert (bare.score, bare.missing) == (None, "unfit_task")


@final
class Careless(Grader):
    """Grades unreadable answers as wrong or right at random."""

    @property
    def about(self) -> GraderTraits:
        return GraderTraits(name="careless", version=1)

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(score=float(text.strip() in (*task.answer, "")))

    def close(self) -> None:
        """Nothing was started."""


def test_the_contract_finds_a_grader_that_breaks_it() -> None:
    with pytest.raises(AssertionError):
        check(Careless(), task(answer="42"), "42", "43")


def test_there_is_no_other_grader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exact, normalised, mmlu_pro"):
        Graders(Settings(), tmp_path)["nonsense"]
