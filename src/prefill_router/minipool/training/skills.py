"""What the written models can do: accuracy by family and difficulty, on held-out tasks."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from prefill_router import files
from prefill_router.minipool.tasks import MiniTask, make_tasks
from prefill_router.minipool.training.judging import answered_correctly

TASKS, SEED = 2000, 1


def answers_of(folder: Path, tasks: Sequence[MiniTask]) -> list[bool]:
    """Whether the model of this folder, in float32, answers each task correctly."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return answered_correctly(network, tokenizer, tasks)


def write_skills(folder: Path, names: Sequence[str]) -> None:
    """Judge these models on the same tasks and write `skills.csv` beside their folders."""
    tasks = make_tasks(TASKS, seed=SEED)
    lines = ["model,family,difficulty,tasks,accuracy\n"]
    for name in names:
        cells: dict[tuple[str, int], list[bool]] = defaultdict(list)
        for task, right in zip(tasks, answers_of(folder / name, tasks), strict=True):
            cells[task.domain, task.difficulty].append(right)
        lines += [
            f"{name},{family},{level},{len(found)},{fmean(found):.3f}\n"
            for (family, level), found in sorted(cells.items())
        ]
    files.write_text(folder / "skills.csv", "".join(lines))
