"""Prompts as others would write them: what changes, what doesn't, and that a seed repeats it."""

import re

import numpy as np
import pytest

from prefill_router.data import Message, Query
from prefill_router.errors import DataError
from prefill_router.robustness import pair_paraphrases, perturb, sample_queries
from prefill_router.robustness.perturbations import (
    _REWORDED,
    add_typos,
    move_options,
    reword,
)
from prefill_router.testing import make_routing_dataset

PROSE = " ".join(["Several different students measured enormous buildings in 1999"] * 30)
CHOICE = """Which of the following is it? A. is no line of its own.

A. alpha
B. beta,
   on two lines
C. gamma

Answer with a letter."""


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_typos_are_one_mistake_behind_the_first_letter_in_a_share_of_the_words() -> None:
    before = PROSE.split()
    after = add_typos(PROSE, random(), rate=0.1).split()
    changed = [(word, other) for word, other in zip(before, after, strict=True) if word != other]
    longer = sum(len(word) >= 4 and word.isalpha() for word in before)
    assert len(changed) == round(0.1 * longer)
    lengths = set()
    for word, other in changed:
        assert word[0] == other[0]
        same = max(k for k in range(len(word)) if word[:k] == other[:k])
        end = len(word) - same - 2
        assert end <= 0 or word[-end:] == other[-end:]
        lengths.add(len(other) - len(word))
    assert lengths == {-1, 0, 1}


def test_numbers_short_words_and_latex_have_no_typos() -> None:
    for text in ("is it so, or 12345 or x_word_1?", r"\frac{\alpha}{1}", ""):
        assert add_typos(text, random()) == text
    assert add_typos(r"\frac{1}{2} apples", random()).startswith(r"\frac{1}{2} a")
    assert add_typos("only", random(), rate=0.001) != "only"  # at least one


def test_every_typo_is_a_change() -> None:
    for seed in range(200):
        assert add_typos("oooo", random(seed)) != "oooo"
        assert add_typos("Überaus", random(seed)) != "Überaus"


def test_options_move_under_their_letters_and_all_else_stays() -> None:
    moved = move_options(CHOICE, random())
    assert moved != CHOICE
    head, tail = "Which of the following is it? A. is no line of its own.\n\nA. ", "\n\nAnswer"
    assert moved.startswith(head)
    assert moved.endswith(tail + " with a letter.")
    options = re.split(r"\n(?:[BC]\. )", moved[len(head) : moved.index(tail)])
    assert sorted(options) == ["alpha", "beta,\n   on two lines", "gamma"]


@pytest.mark.parametrize("form", ["{}. ", "({}) ", "{}) ", "[{}]: ", "  {}. "])
def test_options_are_known_by_any_usual_letter(form: str) -> None:
    text = "Why?\n" + "\n".join(form.format(x) + word for x, word in zip("AB", "yn", strict=True))
    expected = "Why?\n" + "\n".join(form.format(x) + w for x, w in zip("AB", "ny", strict=True))
    assert move_options(text, random()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "no options at all",
        "A. alone",
        "A. same\nB. same",
        "A. one\nC. three",
        "A. one\nB. two\nC. none of the above",
        "A. one\nB. two\nC. A and B",
        "A. one\nB. two\nC. Both of them",
    ],
)
def test_what_has_no_options_that_may_move_stays(text: str) -> None:
    for seed in range(5):
        assert move_options(text, random(seed)) == text


def test_wording_replaces_phrases_and_keeps_capitals() -> None:
    assert reword("What is it? Find which\nof the following do not.", random()) == (
        "What's it? Give which one of these don't."
    )
    assert reword("refind whatever", random()) == "refind whatever"
    for phrase, other in _REWORDED.items():
        assert phrase != other
        assert reword(f"x {phrase} y", random()) == f"x {other} y"


def test_a_prompt_is_changed_in_the_same_way_whatever_the_others_are() -> None:
    queries = [Query(f"q{i}", f"Question number {i}, {PROSE[:90]}") for i in range(6)]
    expected = perturb(queries, "typos", seed=1)
    assert perturb(queries[3:4], "typos", seed=1) == expected[3:4]
    assert perturb(queries, "typos", seed=2) != expected
    assert perturb(queries, "typos", seed=1, typos=1.0) != expected
    assert [query.id for query in expected] == [query.id for query in queries]
    assert perturb(queries, "options") == []


def test_in_a_chat_the_latest_message_of_the_user_is_changed() -> None:
    turns = [("system", "Kindly"), ("user", "older"), ("user", "What is it?"), ("assistant", "Hm")]
    [variant] = perturb([Query("q", tuple(Message(*turn) for turn in turns))], "wording")
    assert [turn.content for turn in variant.prompt] == ["Kindly", "older", "What's it?", "Hm"]
    [alone] = perturb([Query("q", (Message("system", "What is it?"),))], "wording")
    assert alone.prompt == (Message("system", "What's it?"),)


def test_paraphrases_are_matched_by_id() -> None:
    queries = [Query("a", "one", "b", "d"), Query("b", "two"), Query("c", "three")]
    strangers = [Query("b", "two"), Query("a", "uno"), Query("z", "x")]
    assert pair_paraphrases(queries, strangers) == [Query("a", "uno", "b", "d")]
    with pytest.raises(DataError, match="none of the 1 paraphrases"):
        pair_paraphrases(queries, [Query("b", "two")])


def test_a_sample_is_a_part_in_order() -> None:
    dataset = make_routing_dataset(queries=30)
    some = sample_queries(dataset, 10, seed=3)
    rows = [int(i[1:]) for i in some.query_ids]
    assert len(rows) == 10
    assert rows == sorted(rows)
    assert rows != list(range(10))
    assert sample_queries(dataset, 30) is dataset
    assert sample_queries(dataset, None) is dataset
