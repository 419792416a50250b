"""Trains, writes and evaluates every model of the pool.

A model is a folder as `transformers` reads it, with its training curves; one figure shows the
curves of all models. The written models are evaluated by their accuracy on held-out tasks, by
family and difficulty.
"""

import csv
import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from prefill_router import files
from prefill_router.errors import ConfigError
from prefill_router.files import check_place
from prefill_router.minipool.tasks import MiniTask, make_tasks
from prefill_router.minipool.training.loop import (
    TrainedModel,
    TrainingPoint,
    answered_correctly,
    train,
)
from prefill_router.minipool.training.network import PROFILES, Profile, make_tokenizer
from prefill_router.plotting import Figure
from prefill_router.progress import BarProgress, Progress


def train_models(
    out: Path,
    names: Sequence[str],
    *,
    threads: int = 1,
    steps: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Train these models and write each to a folder of its name.

    Args:
        out: The parent of these folders; existing ones are replaced.
        names: The models.
        threads: Threads of torch; with one, the weights are bitwise reproducible.
        steps: Training steps, instead of the models' own.
        progress: Shows the progress.

    Raises:
        ConfigError: There is no such model, the folder can't be made, or a number is below 1.
    """
    unknown = sorted(set(names) - set(PROFILES))
    if unknown:
        raise ConfigError(f"there are no models {unknown}; the pool has {list(PROFILES)}")
    if threads < 1 or (steps is not None and steps < 1):
        raise ConfigError(f"threads are {threads} and steps {steps}; both must be at least one")
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = make_tokenizer()
    for name in names:
        check_place(out / name)
        profile = PROFILES[name]
        if steps is not None:
            profile = replace(profile, steps=steps)
        trained = train(profile, tokenizer, progress=progress or BarProgress())
        save_model(trained, tokenizer, profile, out / name)


def summarise(out: Path) -> None:
    """Draw the training curves of the models in the folder, and write a table of their accuracy."""
    names = [name for name in PROFILES if (out / name / "config.json").is_file()]
    draw_curves(out, names)
    write_skills(out, names)


_LONGEST_ANSWER = 32


def save_model(trained: TrainedModel, tokenizer: Any, profile: Profile, folder: Path) -> None:
    """Write weights (bfloat16), tokenizer, curves and a record of the training, all or nothing."""
    network: Any = trained.network
    parameters = sum(p.numel() for p in network.parameters())
    network.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=_LONGEST_ANSWER,
        pad_token_id=network.config.pad_token_id,
        eos_token_id=network.config.eos_token_id,
    )
    with files.replacing_folder(folder) as temporary:
        network.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        files.write_text(temporary / "curves.csv", _table(trained.curve))
        files.write_json(temporary / "training.json", _record(trained, profile, parameters))


def _table(curve: list[TrainingPoint]) -> str:
    names = list(curve[0].accuracy) if curve else []
    rows = [["step", "loss", *names]]
    for point in curve:
        shares = [f"{point.accuracy[name]:.3f}" for name in names]
        rows.append([str(point.step), f"{point.loss:.4f}", *shares])
    return "".join(",".join(row) + "\n" for row in rows)


def _record(trained: TrainedModel, profile: Profile, parameters: int) -> dict[str, Any]:
    return {
        "command": f"python -m prefill_router.minipool.training --out DIR --only {profile.name}",
        "seed": profile.seed,
        "profile": {**vars(profile), "skills": {k: list(v) for k, v in profile.skills.items()}},
        "parameters": parameters,
        "seconds": round(trained.seconds, 1),
        "cpu_seconds": round(trained.cpu_seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": platform.machine(),
    }


TASKS, SEED = 2000, 1


def answers_of(folder: Path, tasks: Sequence[MiniTask]) -> list[bool]:
    """Whether the model in this folder, in float32, answers each task correctly."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return answered_correctly(network, tokenizer, tasks)


def write_skills(folder: Path, names: Sequence[str]) -> None:
    """Evaluate these models on the same tasks and write `skills.csv` beside their folders."""
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


_COLUMNS = 3
_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00")  # Okabe and Ito's
_FIRST = 2  # the columns before the families'


def draw_curves(folder: Path, names: Sequence[str]) -> None:
    """Draw each model's `curves.csv` into `curves.png` beside the models' folders."""
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for panel in panels:
        panel.set_axis_off()
    for panel, name in zip(figure.axes, names, strict=False):
        with (folder / name / "curves.csv").open(encoding="utf-8", newline="") as file:
            header, *values = csv.reader(file)
        steps = [int(row[0]) for row in values]
        panel.set_axis_on()
        panel.set(title=name, xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
        for place, family in enumerate(header[_FIRST:]):
            panel.plot(
                steps,
                [float(row[place + _FIRST]) for row in values],
                color=_COLOURS[place % len(_COLOURS)],
                linestyle="-" if place < len(_COLOURS) else "--",
                label=family,
            )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    with files.replacing_file(folder / "curves.png") as temporary:
        figure.savefig(temporary, format="png", dpi=90)
