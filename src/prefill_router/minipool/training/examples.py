"""Batches of freshly drawn examples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from prefill_router.minipool.tasks import FAMILIES, LEVELS, MiniTask, draw_task
from prefill_router.minipool.training.vocabulary import ASSISTANT, END, PAD, USER

_POOLED = 32  # batches drawn at once, so that each holds examples of about one length


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of about one length, padded on the right.

    Attributes:
        rows: Which of the tasks they are.
        ids: Tokens of prompt and answer.
        answers: Whether a position's next token belongs to the answer, its end included.
    """

    rows: list[int]
    ids: Int[Tensor, "example token"]
    answers: Bool[Tensor, "example token"]


def training_batches(
    tokenizer: Any, skills: Mapping[str, Sequence[float]], *, size: int, random: Random
) -> Iterator[Batch]:
    """Batches without end, none of whose prompts is held out."""
    while True:
        tasks = _drawn(skills, size * _POOLED, random)
        batches = list(in_batches(tokenizer, tasks, size=size))
        random.shuffle(batches)
        yield from batches


def in_batches(tokenizer: Any, tasks: Sequence[MiniTask], *, size: int) -> Iterator[Batch]:
    """These tasks in batches, the shortest first."""
    texts = [f"{USER}{task.prompt}{ASSISTANT}{task.answer}{END}" for task in tasks]
    tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assistant, pad = tokenizer.convert_tokens_to_ids([ASSISTANT, PAD])
    order = sorted(range(len(tasks)), key=lambda row: len(tokens[row]))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        width = len(tokens[rows[-1]])
        ids = torch.tensor([tokens[row] + [pad] * (width - len(tokens[row])) for row in rows])
        in_answer = (ids == assistant).cumsum(1).bool() & (ids != assistant) & (ids != pad)
        yield Batch(rows, ids, torch.nn.functional.pad(in_answer[:, 1:], (0, 1)))


def _drawn(skills: Mapping[str, Sequence[float]], count: int, random: Random) -> list[MiniTask]:
    cells = [(family, level) for family in skills for level in LEVELS]
    weights = [skills[family][level - 1] for family, level in cells]
    drawn = random.choices(cells, weights, k=count)
    return [draw_task(FAMILIES[name], random, level, held_out=False) for name, level in drawn]
