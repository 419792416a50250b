"""Mathematics is compared in processes that can be killed."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from packages.router.tests.grading.graded_runs import task
from prefill_router.errors import MissingExtraError
from prefill_router.grading.mathematics import (
    MathGrader,
    MathWorkerGoneError,
    MathWorkerPool,
)

pytestmark = pytest.mark.slow

pytest.importorskip("math_verify", reason="the package math-verify isn't installed")
WORKER = "prefill_router.grading.equality_worker"
ENDLESS = "$9^{9^{9^{9}}}$"


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    grader = MathGrader(seconds=20.0)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("right", "text", "score"),
    [
        (r"\frac{1}{2}", "Therefore $x = 0.5$.", 1.0),
        ("x^2 + 2x + 1", r"\boxed{(x+1)^2}", 1.0),
        (r"\sqrt{8}", r"$2\sqrt{2}$", 1.0),
        (r"$\{1, 2\}$", r"\boxed{\{2, 1\}}", 1.0),
        ("12", "The answer is 12.", 1.0),
        ("12", "First 12, then the answer is 13.", 0.0),
        ("x + 1", "$x + 2$", 0.0),
        ("3", "I do not know.", 0.0),
        ("3", "", 0.0),
        ("x^2", "x^2\n", 1.0),  # without a mark of mathematics
        (r"\text{red}", r"\text{red}", 1.0),
    ],
)
def test_results_are_compared_as_mathematics(
    grader: MathGrader, right: str, text: str, score: float
) -> None:
    assert grader.grade(task(grader="math", answer=right), text).score == score


def test_one_of_several_answers_will_do(grader: MathGrader) -> None:
    assert grader.grade(task(answer=("1", "2")), r"\boxed{2}").score == 1.0


@pytest.mark.parametrize(
    "right",
    ["", r"\frac{", r"3 \frac{", "1}{", "(1,2", "x=", r"\boxed{\frac{}", ("1", r"\sqrt{")],
)
@pytest.mark.parametrize("text", ["1", "", r"\frac{"])
def test_a_task_without_a_readable_answer_is_unfit(
    grader: MathGrader, right: str | tuple[str, ...], text: str
) -> None:
    assert grader.grade(task(answer=right), text).missing == "unfit_task"


def test_a_task_without_an_answer_is_unfit(grader: MathGrader) -> None:
    assert grader.grade(task(), "1").missing == "unfit_task"


@pytest.mark.parametrize(
    "right", [r"\{1, 2\}", r"[1, 2)", r"\text{red}", "12 \\%", "x < 2", "1,000"]
)
def test_what_is_well_formed_can_be_read(grader: MathGrader, right: str) -> None:
    assert grader.grade(task(answer=right), f"It is ${right}$.").score == 1.0
    assert grader.grade(task(answer=right), "It is $77$.").score == 0.0


def test_what_takes_too_long_is_stopped_and_missing() -> None:
    grader = MathGrader(seconds=0.5)
    try:
        began = time.monotonic()
        assert grader.grade(task(answer="7"), ENDLESS).missing == "timeout"
        assert time.monotonic() - began < 60  # it would take for ever
        assert grader.grade(task(answer="7"), r"\boxed{7}").missing != "undecided"
    finally:
        grader.close()


def test_a_process_that_ends_by_itself_is_replaced() -> None:
    pool = MathWorkerPool(WORKER, count=1, seconds=20.0)
    question = {"right": ["1"], "answer": "$1$"}
    try:
        assert pool.ask(question)["equal"] is True
        worker = pool._all[0]
        assert worker
        os.kill(worker._process.pid, 9)
        with pytest.raises(MathWorkerGoneError) as error:
            pool.ask(question)
        assert not error.value.overrun
        assert pool.ask(question)["equal"] is True
    finally:
        pool.close()


def test_closing_ends_what_is_being_asked() -> None:
    pool = MathWorkerPool(WORKER, count=2, seconds=100.0)
    errors: list[MathWorkerGoneError] = []

    def ask() -> None:
        with pytest.raises(MathWorkerGoneError) as error:
            pool.ask({"right": ["7"], "answer": ENDLESS})
        errors.append(error.value)

    asking = threading.Thread(target=ask)
    asking.start()
    while not any(pool._all):
        time.sleep(0.01)
    pool.close()
    asking.join()
    assert [error.overrun for error in errors] == [False]
    with pytest.raises(MathWorkerGoneError):
        pool.ask({"right": ["7"], "answer": "$7$"})


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[grading\]"):
        MathGrader()
