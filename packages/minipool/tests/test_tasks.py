"""The tiny pool's tasks: right answers, the same for the same seed, never a prompt of training."""

import hashlib
import re
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise
from random import Random

import pytest

from prefill_router.errors import ConfigError
from prefill_router_minipool import MiniTask, make_tasks
from prefill_router_minipool.tasks import FAMILIES, LEVELS, draw_task, is_held_out

pytestmark = pytest.mark.slow

ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
TASKS = make_tasks(1500, seed=3)


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def word_of(prompt: str, known: str) -> str:
    """The one word of a prompt that isn't among these."""
    (word,) = set(re.findall(r"[A-Za-z]+", prompt)) - set(known.split())
    return str(word)


def from_roman(text: str) -> int:
    values = [ROMAN[sign] for sign in text]
    following = [*values[1:], 0]
    return sum(-v if v < after else v for v, after in zip(values, following, strict=True))


def check_addition(task: MiniTask) -> bool:
    return numbers(task.answer) == [sum(numbers(task.prompt))]


def check_modulo(task: MiniTask) -> bool:
    number, modulus = numbers(task.prompt)
    left = int(task.answer)
    return 0 <= left < modulus and (number - left) // modulus * modulus + left == number


def check_comparing(task: MiniTask) -> bool:
    ordered = sorted(numbers(task.prompt))
    wants_largest = bool(re.search("largest|maximum", task.prompt))
    assert wants_largest != bool(re.search("smallest|minimum", task.prompt))
    assert len(set(ordered)) == len(ordered)
    return int(task.answer) == ordered[-1 if wants_largest else 0]


def check_numerals(task: MiniTask) -> bool:
    if numbers(task.prompt):
        (number,) = numbers(task.prompt)
        repeated = re.search(r"IIII|XXXX|CCCC|VV|LL|DD|VX|IL|IC", task.answer)
        return from_roman(task.answer) == number and not repeated
    (roman,) = re.findall(r"\b[IVXLCDM]+\b", task.prompt)
    return from_roman(roman) == int(task.answer)


def check_dates(task: MiniTask) -> bool:
    months = {date(2001, k, 1).strftime("%B"): k for k in range(1, 13)}
    match = re.search(r"(\d+) days (after|before) (\w+) (\d+)", task.prompt)
    assert match
    start = date(2001, months[match[3]], int(match[4]))
    days = int(match[1]) if match[2] == "after" else -int(match[1])
    end = start + timedelta(days)  # 2000 was a leap year, so a year on is taken from 2001
    if end.year == 2000:
        end = start.replace(year=2003) + timedelta(days)
    return task.answer == f"{end.strftime('%B')} {end.day}"


def check_sorting(task: MiniTask) -> bool:
    word = word_of(re.sub("a to z", "", task.prompt), "Sort the letters Put in order Write from")
    return Counter(word) == Counter(task.answer) and all(a <= b for a, b in pairwise(task.answer))


def check_reversing(task: MiniTask) -> bool:
    word = word_of(task.prompt, "Reverse Write backwards Spell from its end")
    return len(word) == len(task.answer) and all(
        word[i] == task.answer[-1 - i] for i in range(len(word))
    )


def check_counting(task: MiniTask) -> bool:
    found = re.search(r"(?:many|the|is) (\w) (?:are )?in (\w+)", task.prompt)
    assert found
    return int(task.answer) == len(re.findall(found[1], found[2]))


def check_brackets(task: MiniTask) -> bool:
    text = re.sub(r"[A-Za-z ]", "", task.prompt) + task.answer
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
        text = shorter
    return text == "" and not re.search(r"[(\[{]", task.answer)


def check_cipher(task: MiniTask) -> bool:
    (key,) = numbers(task.prompt)
    word = word_of(task.prompt, "Shift by Encode with key Move the letters")
    alphabet = "abcdefghijklmnopqrstuvwxyz" * 2
    return task.answer == "".join(alphabet[alphabet.index(c) + key] for c in word)


CHECKS = {
    "addition": check_addition,
    "modulo": check_modulo,
    "comparing": check_comparing,
    "numerals": check_numerals,
    "dates": check_dates,
    "sorting": check_sorting,
    "reversing": check_reversing,
    "counting": check_counting,
    "brackets": check_brackets,
    "cipher": check_cipher,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_right(family: str) -> None:
    tasks = make_tasks(400, seed=11, domains=[family])
    wrong = [task for task in tasks if not CHECKS[family](task)]
    assert wrong == []


def test_a_wrong_answer_would_be_seen() -> None:
    """Every check, with the answer of another task of the same family."""
    for family, check in CHECKS.items():
        tasks = [task for task in TASKS if task.domain == family][:40]
        swapped = [
            MiniTask(a.id, a.prompt, b.answer, a.domain, a.difficulty)
            for a, b in pairwise(tasks)
            if a.answer != b.answer and a.answer.isdigit() == b.answer.isdigit()
        ]
        assert swapped
        assert not any(check(task) for task in swapped), family


def test_every_family_has_every_difficulty_about_equally_often() -> None:
    counts = Counter((task.domain, task.difficulty) for task in TASKS)
    assert set(counts) == {(family, level) for family in FAMILIES for level in LEVELS}
    by_family = Counter(task.domain for task in TASKS)
    assert set(by_family.values()) == {150}


def test_difficult_prompts_are_longer() -> None:
    for family in FAMILIES:
        lengths = [
            [len(t.prompt) for t in TASKS if (t.domain, t.difficulty) == (family, level)]
            for level in (1, 5)
        ]
        easy, hard = (sum(values) / len(values) for values in lengths)
        assert hard >= easy - 0.2, family


def test_prompts_and_ids_are_distinct_and_plain() -> None:
    assert len({task.prompt for task in TASKS}) == len({task.id for task in TASKS}) == len(TASKS)
    for task in TASKS:
        assert task.answer == task.answer.strip()
        assert task.answer
        assert task.prompt == task.prompt.strip()
        assert re.fullmatch(r"[\x20-\x7e]+", task.prompt)
        assert "{" not in task.prompt or task.domain == "brackets"  # no field left open


def test_the_same_seed_gives_the_same_tasks() -> None:
    assert make_tasks(500, seed=3) == TASKS[:500]
    assert make_tasks(500, seed=4) != TASKS[:500]
    digest = hashlib.sha256(repr(make_tasks(100, seed=0)).encode()).hexdigest()
    assert digest == hashlib.sha256(repr(make_tasks(1000, seed=0)[:100]).encode()).hexdigest()


def test_one_prompt_has_one_id_and_one_answer() -> None:
    by_prompt: dict[str, MiniTask] = {}
    for seed in range(4):
        for task in make_tasks(500, seed=seed):
            before = by_prompt.setdefault(task.prompt, task)
            assert (before.id, before.answer) == (task.id, task.answer)


def test_evaluation_and_training_share_no_prompt() -> None:
    assert all(is_held_out(task.prompt) for task in TASKS)
    random = Random(0)
    trained = [
        draw_task(f, random, 3, held_out=False) for f in FAMILIES.values() for _ in range(50)
    ]
    assert not any(is_held_out(task.prompt) for task in trained)


def test_one_prompt_of_eight_is_held_out() -> None:
    random = Random(0)
    drawn = [family.draw(random, 1 + n % 5)[0] for n in range(300) for family in FAMILIES.values()]
    assert 0.09 < sum(map(is_held_out, drawn)) / len(drawn) < 0.16


def test_domains_can_be_chosen() -> None:
    tasks = make_tasks(40, seed=0, domains=["sorting", "dates"])
    assert [task.domain for task in tasks] == ["sorting", "dates"] * 20


def test_many_tasks_can_be_made() -> None:
    tasks = make_tasks(5000, seed=0)  # some levels have fewer than they should give
    assert len({task.prompt for task in tasks}) == 5000


@pytest.mark.parametrize(
    ("count", "domains", "reason"),
    [
        (5, ["sorting", "baking"], "baking"),
        (5, [], "none"),
        (-1, None, "negative"),
        (5000, ["numerals"], "fewer"),
    ],
)
def test_what_cannot_be_made_is_refused(count: int, domains: list[str] | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_tasks(count, seed=0, domains=domains)
