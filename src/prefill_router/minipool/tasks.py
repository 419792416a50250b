"""Tasks for tiny language models: questions with one right answer, made by a seeded generator.

They are drawn for training or for evaluation, never the same prompt for both.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count as counted
from random import Random

from prefill_router.errors import ConfigError
from prefill_router.minipool.task_families import (
    ADDITION,
    BRACKETS,
    CIPHER,
    COMPARING,
    COUNTING,
    DATES,
    LEVELS,
    MODULO,
    NUMERALS,
    REVERSING,
    SORTING,
    MiniTask,
    TaskFamily,
)

FAMILIES: Mapping[str, TaskFamily] = {
    family.name: family
    for family in (
        ADDITION,
        MODULO,
        COMPARING,
        NUMERALS,
        DATES,
        SORTING,
        REVERSING,
        COUNTING,
        BRACKETS,
        CIPHER,
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
            return _mini_task(family, prompt, answer, level)


def make_tasks(count: int, *, seed: int, domains: Sequence[str] | None = None) -> list[MiniTask]:
    """Make tasks for evaluation: no model of the pool was trained on any of their prompts.

    The families take turns and the difficulty is drawn evenly, as long as a level has prompts left
    that weren't drawn yet. Fewer tasks of the same seed are the beginning of more.

    Args:
        count: How many; all prompts are distinct.
        seed: Another seed, other tasks.
        domains: The families, all by default.

    Raises:
        ConfigError: There is no such family, or there are fewer such prompts than that.
    """
    names = tuple(FAMILIES) if domains is None else tuple(domains)
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown or not names:
        raise ConfigError(f"the families are {list(FAMILIES)}; got {unknown or 'none'}")
    if count < 0:
        raise ConfigError(f"the count of tasks is {count}; it must not be negative")
    random = Random(f"tasks {seed}")
    left = {name: list(LEVELS) for name in dict.fromkeys(names)}
    seen: set[str] = set()
    tasks: list[MiniTask] = []
    for turn in counted():
        if len(tasks) == count:
            return tasks
        if not any(left.values()):
            break
        name = tuple(left)[turn % len(left)]
        task = _unseen(FAMILIES[name], random, left[name], seen)
        if task is not None:
            seen.add(task.prompt)
            tasks.append(task)
    raise ConfigError(
        f"{count} distinct tasks were asked for, and these families gave {len(tasks)}; ask for "
        "fewer, or of more families"
    )


def _unseen(
    family: TaskFamily, random: Random, levels: list[int], seen: set[str]
) -> MiniTask | None:
    """A new task held out from training; levels that have none left are taken from `levels`."""
    while levels:
        level = random.choice(levels)
        for _ in range(_TRIES):
            prompt, answer = family.draw(random, level)
            if prompt not in seen and is_held_out(prompt):
                return _mini_task(family, prompt, answer, level)
        levels.remove(level)
    return None


def _mini_task(family: TaskFamily, prompt: str, answer: str, level: int) -> MiniTask:
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return MiniTask(f"{family.name}-{digest[2:14]}", prompt, answer, family.name, level)
