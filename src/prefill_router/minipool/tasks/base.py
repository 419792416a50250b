"""What a task is, and what a family of tasks is."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import final

LEVELS = (1, 2, 3, 4, 5)
"""The difficulties of every family, from the easiest."""

Draw = Callable[[Random, int], tuple[str, str]]
"""A prompt and its answer, drawn at a level."""


@final
@dataclass(frozen=True)
class MiniTask:
    """A question that a tiny language model can be asked.

    Attributes:
        id: Follows from the prompt alone.
        prompt: The question, in plain English.
        answer: The one right answer, without surrounding space; graded by exact match.
        domain: The family that it belongs to.
        difficulty: From 1 to 5.
    """

    id: str
    prompt: str
    answer: str
    domain: str
    difficulty: int


@final
@dataclass(frozen=True)
class Family:
    """Tasks of one kind.

    Attributes:
        name: Its name.
        wordings: The templates of its prompts.
        draw: Draws one task.
        words: Words of its data that the tokenizer should know whole, such as months.
    """

    name: str
    wordings: tuple[str, ...]
    draw: Draw
    words: tuple[str, ...] = ()


def letters(random: Random, length: int, *, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    """A made-up word."""
    return "".join(random.choices(alphabet, k=length))
