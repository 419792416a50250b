"""How many tasks a network answers correctly."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM

from prefill_router.minipool.tasks import MiniTask
from prefill_router.minipool.training.examples import in_batches

_AT_ONCE = 200


@torch.no_grad()
def answered_correctly(
    network: LlamaForCausalLM, tokenizer: Any, tasks: Sequence[MiniTask]
) -> list[bool]:
    """Whether greedy generation would give each task's answer and then end.

    It would where every token of the answer is the most probable one after those before it, so one
    pass over prompt and answer tells.
    """
    correct = [False] * len(tasks)
    for batch in in_batches(tokenizer, tasks, size=_AT_ONCE):
        best = network(input_ids=batch.ids).logits.argmax(-1)
        is_right = (best[:, :-1] == batch.ids[:, 1:]) | ~batch.answers[:, :-1]
        for row, right in zip(batch.rows, is_right.all(1).tolist(), strict=True):
            correct[row] = right
    return correct
