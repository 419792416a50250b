"""Tasks for tiny language models: questions with one right answer, from a seeded generator.

A prompt is used either for training or for evaluation. There are ten families: sums of two numbers;
remainders; the largest or smallest of several numbers; Roman numerals, written and read; dates some
days later or earlier, in a year of 365 days; sorting the letters of a word; reversing a word;
counting a letter in a word; closing open brackets; and shifting the letters of a word along the
alphabet.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import final

from prefill_router.errors import ConfigError

LEVELS = (1, 2, 3, 4, 5)
"""The difficulties of every family, from the easiest."""

Draw = Callable[[Random, int], tuple[str, str]]
"""Draws a prompt and its answer at a level of difficulty."""


@final
@dataclass(frozen=True)
class MiniTask:
    """A question that a tiny language model can be asked.

    Attributes:
        id: The id, which depends on the prompt alone.
        prompt: The question, in plain English.
        answer: The one right answer, without surrounding space; graded by exact match.
        domain: The family of the task.
        difficulty: The level, from 1 to 5.
    """

    id: str
    prompt: str
    answer: str
    domain: str
    difficulty: int


@final
@dataclass(frozen=True)
class TaskFamily:
    """Tasks of one kind.

    Attributes:
        name: Its name.
        wordings: The templates of its prompts.
        draw: Draws one task.
        words: Words of its data that should be single tokens, such as months.
    """

    name: str
    wordings: tuple[str, ...]
    draw: Draw
    words: tuple[str, ...] = ()


def letters(random: Random, length: int, *, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    """A made-up word."""
    return "".join(random.choices(alphabet, k=length))


_ADDITION_WORDINGS = (
    "What is {a}+{b}?",
    "Add {a} and {b}.",
    "How much is {a}+{b}?",
    "Give the sum {a}+{b}.",
)
_ADDITION_RANGES = {
    1: ((1, 99), (1, 9)),
    2: ((10, 99), (10, 99)),
    3: ((100, 999), (10, 99)),
    4: ((100, 999), (100, 999)),
    5: ((1000, 9999), (1000, 9999)),
}


def _draw_addition(random: Random, level: int) -> tuple[str, str]:
    pair = [random.randint(low, high) for low, high in _ADDITION_RANGES[level]]
    random.shuffle(pair)
    wording = random.choice(_ADDITION_WORDINGS)
    return wording.format(a=pair[0], b=pair[1]), str(sum(pair))


_MODULO_WORDINGS = (
    "What is {a} mod {m}?",
    "Give the remainder of {a}/{m}.",
    "What is left after {a}/{m}?",
)
_MODULO_RANGES = {1: (10, 59), 2: (60, 199), 3: (200, 999), 4: (1000, 4999), 5: (5000, 99999)}


def _draw_modulo(random: Random, level: int) -> tuple[str, str]:
    number, modulus = random.randint(*_MODULO_RANGES[level]), random.randint(2, 10)
    wording = random.choice(_MODULO_WORDINGS)
    return wording.format(a=number, m=modulus), str(number % modulus)


_LARGEST = (
    "Which is the largest: {numbers}?",
    "Find the largest of {numbers}.",
    "Give the maximum of {numbers}.",
)
_SMALLEST = (
    "Which is the smallest: {numbers}?",
    "Find the smallest of {numbers}.",
    "Give the minimum of {numbers}.",
)
_COMPARISON_SHAPES = {1: (2, 2), 2: (3, 2), 3: (3, 3), 4: (4, 3), 5: (4, 4)}
"""The count of numbers, and their digits."""


def _draw_comparison(random: Random, level: int) -> tuple[str, str]:
    count, digits = _COMPARISON_SHAPES[level]
    shared = random.randrange(digits)  # leading digits in common: the more, the harder
    step = 10 ** (digits - shared)
    base = random.randrange(10 ** (digits - 1), 10**digits) // step * step
    numbers = random.sample(range(max(base, 10 ** (digits - 1)), base + step), count)
    if random.random() < 0.5:
        wording, best = random.choice(_LARGEST), max(numbers)
    else:
        wording, best = random.choice(_SMALLEST), min(numbers)
    return wording.format(numbers=" ".join(map(str, numbers))), str(best)


_TO_ROMAN = (
    "Write {number} in Roman numerals.",
    "What is {number} as a Roman numeral?",
    "Give {number} as the Romans did.",
)
_FROM_ROMAN = (
    "Which number is {roman}?",
    "Write {roman} in digits.",
    "Give the value of {roman}.",
)
_NUMERALS_RANGES = {1: (1, 49), 2: (50, 99), 3: (100, 399), 4: (400, 999), 5: (1000, 3999)}
_ROMAN_SIGNS = tuple(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    )
)


def _draw_numerals(random: Random, level: int) -> tuple[str, str]:
    number = random.randint(*_NUMERALS_RANGES[level])
    if random.random() < 0.5:
        return random.choice(_TO_ROMAN).format(number=number), _write_roman(number)
    return random.choice(_FROM_ROMAN).format(roman=_write_roman(number)), str(number)


def _write_roman(number: int) -> str:
    text = ""
    for value, sign in _ROMAN_SIGNS:
        count, number = divmod(number, value)
        text += sign * count
    return text


_LATER_DATES = (
    "What is {n} days after {date}?",
    "Which date is {n} days after {date}?",
    "Give the date {n} days after {date}.",
)
_EARLIER_DATES = (
    "What is {n} days before {date}?",
    "Which date is {n} days before {date}?",
    "Give the date {n} days before {date}.",
)
_DATE_DAYS = {1: (1, 5), 2: (6, 20), 3: (1, 5), 4: (6, 20), 5: (21, 60)}
_SAME_MONTH_LEVELS = (1, 2)
"""Levels whose answer is in the same month; in the other levels it is in another month."""
_YEAR = 2027  # any year of 365 days
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def _draw_dates(random: Random, level: int) -> tuple[str, str]:
    while True:
        start = date(_YEAR, 1, 1) + timedelta(random.randrange(365))
        days = random.randint(*_DATE_DAYS[level])
        later = random.random() < 0.5
        end = _add_days(start, days if later else -days)
        if (end.month == start.month) == (level in _SAME_MONTH_LEVELS):
            break
    wording = random.choice(_LATER_DATES if later else _EARLIER_DATES)
    return wording.format(n=days, date=_write_date(start)), _write_date(end)


def _add_days(start: date, days: int) -> date:
    """The date some days later, modulo a year of 365 days."""
    ordinal = (start - date(_YEAR, 1, 1)).days + days
    return date(_YEAR, 1, 1) + timedelta(ordinal % 365)


def _write_date(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.day}"


_SORTING_WORDINGS = (
    "Sort the letters {word}.",
    "Put {word} in order.",
    "Write {word} from a to z.",
)
_SORTING_LENGTHS = {1: (3, 3), 2: (4, 4), 3: (5, 5), 4: (6, 7), 5: (8, 10)}


def _draw_sorting(random: Random, level: int) -> tuple[str, str]:
    word = letters(random, random.randint(*_SORTING_LENGTHS[level]))
    return random.choice(_SORTING_WORDINGS).format(word=word), "".join(sorted(word))


_REVERSING_WORDINGS = (
    "Reverse {word}.",
    "Write {word} backwards.",
    "Spell {word} from its end.",
)
_REVERSING_LENGTHS = {1: (3, 3), 2: (4, 4), 3: (5, 6), 4: (7, 8), 5: (9, 11)}


def _draw_reversing(random: Random, level: int) -> tuple[str, str]:
    word = letters(random, random.randint(*_REVERSING_LENGTHS[level]))
    return random.choice(_REVERSING_WORDINGS).format(word=word), word[::-1]


_COUNTING_WORDINGS = (
    "How many {letter} are in {word}?",
    "Count the {letter} in {word}.",
    "How often is {letter} in {word}?",
)
_COUNTING_LENGTHS = {1: (2, 3), 2: (4, 5), 3: (6, 7), 4: (8, 10), 5: (11, 14)}
_COUNTING_KINDS = 3  # distinct letters of a word; with fewer, the length would predict the answer


def _draw_counting(random: Random, level: int) -> tuple[str, str]:
    alphabet = "".join(random.sample("abcdefghijklmnopqrstuvwxyz", _COUNTING_KINDS))
    word = letters(random, random.randint(*_COUNTING_LENGTHS[level]), alphabet=alphabet)
    letter = random.choice(alphabet)
    wording = random.choice(_COUNTING_WORDINGS)
    return wording.format(letter=letter, word=word), str(word.count(letter))


_BRACKETS_WORDINGS = (
    "Close the brackets {text}",
    "Which brackets close {text}",
    "Complete {text}",
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_BRACKETS_SHAPES = {
    1: (2, 4, 0, 1),
    2: (3, 4, 1, 2),
    3: (4, 5, 2, 3),
    4: (5, 6, 3, 4),
    5: (7, 8, 4, 6),
}
"""Fewest and most open brackets, and fewest and most pairs that are closed already."""


def _draw_brackets(random: Random, level: int) -> tuple[str, str]:
    least, most, fewest_pairs, most_pairs = _BRACKETS_SHAPES[level]
    text = open_brackets = "".join(random.choices("([{", k=random.randint(least, most)))
    for _ in range(random.randint(fewest_pairs, most_pairs)):
        place, kind = random.randint(0, len(text)), random.choice("([{")
        text = text[:place] + kind + _CLOSING[kind] + text[place:]
    missing = "".join(_CLOSING[kind] for kind in reversed(open_brackets))
    return random.choice(_BRACKETS_WORDINGS).format(text=text), missing


_CIPHER_WORDINGS = (
    "Shift {word} by {key}.",
    "Encode {word} with key {key}.",
    "Move the letters {word} by {key}.",
)
_CIPHER_SHAPES = {1: (2, 2), 2: (3, 3), 3: (4, 4), 4: (5, 6), 5: (6, 9)}
"""The length of the word, and the largest key."""


def _draw_cipher(random: Random, level: int) -> tuple[str, str]:
    length, largest = _CIPHER_SHAPES[level]
    word, key = letters(random, length), random.randint(1, largest)
    shifted = "".join(chr((ord(c) - ord("a") + key) % 26 + ord("a")) for c in word)
    return random.choice(_CIPHER_WORDINGS).format(word=word, key=key), shifted


FAMILIES: Mapping[str, TaskFamily] = {
    family.name: family
    for family in (
        TaskFamily("addition", _ADDITION_WORDINGS, _draw_addition),
        TaskFamily("modulo", _MODULO_WORDINGS, _draw_modulo),
        TaskFamily("comparing", _LARGEST + _SMALLEST, _draw_comparison),
        TaskFamily("numerals", _TO_ROMAN + _FROM_ROMAN, _draw_numerals),
        TaskFamily("dates", _LATER_DATES + _EARLIER_DATES, _draw_dates, _MONTHS),
        TaskFamily("sorting", _SORTING_WORDINGS, _draw_sorting),
        TaskFamily("reversing", _REVERSING_WORDINGS, _draw_reversing),
        TaskFamily("counting", _COUNTING_WORDINGS, _draw_counting),
        TaskFamily("brackets", _BRACKETS_WORDINGS, _draw_brackets),
        TaskFamily("cipher", _CIPHER_WORDINGS, _draw_cipher),
    )
}


_HELD_OUT = 32  # of 256 values of a prompt's first byte of SHA-256
_TRIES = 400  # draws without a new prompt, after which a level counts as exhausted


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is for evaluation; all others, seven of eight, are for training."""
    return hashlib.sha256(prompt.encode()).digest()[0] < _HELD_OUT


def draw_task(family: TaskFamily, random: Random, level: int, *, held_out: bool) -> MiniTask:
    """One task of a family, for evaluation (held out) or for training."""
    while True:
        prompt, answer = family.draw(random, level)
        if is_held_out(prompt) == held_out:
            return _make_task(family, prompt, answer, level)


def make_tasks(count: int, *, seed: int, domains: Sequence[str] | None = None) -> list[MiniTask]:
    """Make tasks for evaluation: no model of the pool was trained on any of their prompts.

    The families take turns, and the difficulty is drawn uniformly among the levels that have new
    prompts left. With the same seed, fewer tasks are the beginning of more tasks.

    Args:
        count: The number of tasks; all prompts are distinct.
        seed: The seed of the tasks.
        domains: The families, all by default.

    Raises:
        ConfigError: There is no such family, or the families have fewer prompts.
    """
    names = tuple(FAMILIES) if domains is None else tuple(domains)
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown or not names:
        raise ConfigError(f"the families are {list(FAMILIES)}; got {unknown or 'none'}")
    if count < 0:
        raise ConfigError(f"the count of tasks is {count}; it must not be negative")
    random = Random(f"tasks {seed}")
    levels_by_family = {name: list(LEVELS) for name in dict.fromkeys(names)}
    prompts: set[str] = set()
    tasks: list[MiniTask] = []
    for turn in itertools.count():
        if len(tasks) == count:
            return tasks
        if not any(levels_by_family.values()):
            break
        name = tuple(levels_by_family)[turn % len(levels_by_family)]
        task = _draw_new(FAMILIES[name], random, levels_by_family[name], prompts)
        if task is not None:
            prompts.add(task.prompt)
            tasks.append(task)
    raise ConfigError(
        f"{count} distinct tasks were asked for, and these families gave {len(tasks)}; ask for "
        "fewer, or of more families"
    )


def _draw_new(
    family: TaskFamily, random: Random, levels: list[int], prompts: set[str]
) -> MiniTask | None:
    """A new task held out from training; levels without new prompts are removed from `levels`."""
    while levels:
        level = random.choice(levels)
        for _ in range(_TRIES):
            prompt, answer = family.draw(random, level)
            if prompt not in prompts and is_held_out(prompt):
                return _make_task(family, prompt, answer, level)
        levels.remove(level)
    return None


def _make_task(family: TaskFamily, prompt: str, answer: str, level: int) -> MiniTask:
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return MiniTask(f"{family.name}-{digest[2:14]}", prompt, answer, family.name, level)
