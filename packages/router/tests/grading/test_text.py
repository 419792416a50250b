"""Graders that read the text alone: exact, normalised, letters, numbers."""

import re
from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.grading.graded_runs import task
from prefill_router.errors import ConfigError
from prefill_router.grading import Grade
from prefill_router.grading.base import SHOWN, shorten
from prefill_router.grading.text import (
    LetterGrader,
    NumberGrader,
    TextGrader,
    Unextracted,
    equal_numbers,
    extract_letter,
    extract_number,
    normalise_text,
    parse_number,
    strip_text,
)

pytestmark = pytest.mark.slow


def reference_letter(text: str) -> str | None:
    """The benchmark's patterns one after another, however slow they are."""
    for pattern, flags in (
        (r"answer is \(?([A-J])\)?", 0),
        (r".*[aA]nswer:\s*([A-J])", 0),
        (r"(\b[A-J]\b)(?!.*\b[A-J]\b)", re.DOTALL),
    ):
        match = re.search(pattern, text, flags)
        if match:
            return match[1]
    return None


PIECES = st.sampled_from(
    ["answer is ", "answer:", "Answer: ", "(", ")", "A", "B", "J", "K", "\n", " ", "x", ".", "Ab"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_the_ladder_finds_what_the_benchmarks_patterns_find(text: str) -> None:
    assert extract_letter(text) == reference_letter(text)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So the answer is (C).", "C"),
        ("the answer is C", "C"),
        ("The answer is (A). No, the answer is (B).", "A"),
        ("answer is not known\nAnswer: D", "D"),
        ("Answer: A or Answer: B\nAnswer: C", "B"),
        ("It must be **F**", "F"),
        ("A cat has E and then G!", "G"),
        ("ANSWER IS 42", None),
        ("", None),
    ],
)
def test_letters(text: str, letter: str | None) -> None:
    assert extract_letter(text) == letter


def test_a_long_answer_takes_no_time_that_grows_with_its_square() -> None:
    assert extract_letter("answer:" + "x " * 1_000_000) is None  # hours, by the patterns
    assert extract_letter("A" * 1_000_000 + " B ") == "B"


@pytest.mark.parametrize(("unextracted", "score"), [("wrong", 0.0), ("missing", None)])
def test_answers_without_a_letter(unextracted: Unextracted, score: float | None) -> None:
    grader = LetterGrader(unextracted=unextracted)
    assert grader.grade(task(answer="A"), "no idea").score == score


def test_a_drawn_letter_is_uniform_and_repeats() -> None:
    grader = LetterGrader(unextracted="random")
    question = task(answer="C", choices=["x", "y", "z", "w"])
    grades = [grader.grade(question, f"no idea {n}") for n in range(400)]
    assert 70 < sum(grade.score or 0 for grade in grades) < 130
    assert grades[7] == grader.grade(question, "no idea 7")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("A cat, an owl", "cat owl"),
        ("don't", "dont"),
        ("\ufb01ne \uff11\uff12", "fine 12"),
        ("«Oui»", "oui"),
        ("$5", "5"),
    ],
)
def test_normalised_texts_are_the_same(first: str, second: str) -> None:
    assert normalise_text(first) == normalise_text(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("theory", "ory"), ("banana", "bnn"), ("½", "1"), ("की", "का"), ("é", "e")],
)
def test_normalising_keeps_what_differs(first: str, second: str) -> None:
    assert normalise_text(first) != normalise_text(second)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing_more_than_articles(text: str) -> None:
    once = normalise_text(text)
    assert once == " ".join(once.split())
    assert normalise_text(text) == normalise_text(f"  {text}\n")


def test_exact_answers_may_only_differ_in_space_around_them() -> None:
    grader = TextGrader("exact", strip_text)
    question = task(answer=("4", "four"))
    assert [grader.grade(question, t).score for t in (" 4\n", "four", "Four", "4.")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 1,234.50.", "1234.5"),
        ("It costs -$3.50", "-3.5"),
        ("2.5e-3", "0.0025"),
        ("2 × 10^5", "200000"),  # noqa: RUF001
        (r"6.02 \times 10^{23}", "602000000000000000000000"),
        (r"\frac{3}{4}", "0.75"),
        ("3/4", "0.75"),
        ("1,2,3", "3"),
        ("- 5 apples", "5"),
        ("\u22125", "-5"),
        ("so 7 - 3", "3"),
        ("the answer is:\n\n**42**, since 6 times 7", "42"),
        ("answer is unclear. Answer: 8, not 9", "8"),
        ("answer: 3\nanswer: none", "3"),
        ("answer: 3 answer is none\n5", "3"),
        ("answer: 3 answer:\n5 or 6", "5"),
        (r"\boxed{12} and \boxed{} of 5", "12"),
        (r"\boxed{\frac{1}{2}} 9", "0.5"),
        (r"\boxed{1{,}000}", "1000"),
        (r"\boxed{x = 4", "4"),
        ("work\n#### 18\n", "18"),
        (".5", "0.5"),
    ],
)
def test_numbers_are_found(text: str, value: str) -> None:
    number = extract_number(text)
    assert number
    assert number.value == Decimal(value)


def test_answers_that_repeat_themselves_take_no_time_that_grows_with_its_square() -> None:
    assert extract_number("The answer is " * 200_000) is None  # half an hour, line by line
    number = extract_number("\\boxed{} " * 200_000 + "4")
    assert number
    assert number.value == 4


@pytest.mark.parametrize("text", ["", "no number", "v1.2.3", "1e5000", "9" * 500, "1/0", "abc12"])
def test_what_is_no_number(text: str) -> None:
    assert extract_number(text) is None


@pytest.mark.parametrize(
    ("text", "right", "equal"),
    [
        ("0.1", "0.10", True),
        ("1000000", "1,000,000", True),
        ("50%", "0.5", True),
        ("50", "50 %", True),
        ("50 percent", "50", True),
        ("0.5", "50", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("0.33333333333", "1/3", True),
        ("0.333", "1/3", False),
        ("0", "0.0", True),
    ],
)
def test_numbers_are_equal(text: str, right: str, *, equal: bool) -> None:
    number, right_number = parse_number(text), parse_number(right)
    assert number
    assert right_number
    assert equal_numbers(number, right_number, Decimal(0)) is equal


@pytest.mark.parametrize(
    ("tolerance", "score"), [(0, 0.0), (0.01, 1.0), (0.001, 0.0), ("x", None), (-1, None)]
)
def test_a_task_may_allow_a_tolerance(tolerance: object, score: float | None) -> None:
    grade = NumberGrader().grade(task(answer="3.14", tolerance=tolerance), "about 3.145")
    assert grade.score == score


@settings(max_examples=200, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20))
def test_every_number_is_read_as_it_is_written(value: Decimal) -> None:
    for written in (str(value), f"{value:f}", f"{value:,f}"):
        number = extract_number(f"It is {written}.")
        assert number, written
        assert number.value == value


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_graded(text: str) -> None:
    for grader, right in ((NumberGrader(), "1"), (LetterGrader(), "A")):
        assert grader.grade(task(answer=right), text).score in (0.0, 1.0)


def test_a_grade_has_a_score_or_a_reason() -> None:
    with pytest.raises(ConfigError, match="either"):
        Grade()
    with pytest.raises(ConfigError, match="either"):
        Grade(score=1.0, missing="timeout")
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        Grade(score=float("nan"))


def test_long_texts_are_shown_in_part() -> None:
    text = shorten("a" * 1000 + "b" * 1000)
    assert len(text) <= SHOWN
    assert text.startswith("aaa")
    assert text.endswith("bbb")
