"""Trains, writes and evaluates the pool's models: examples, optimiser, loop, accuracy.

The optimiser is Muon for the matrices of the network, and AdamW for everything else. Muon
(K. Jordan and others, 2024) replaces each matrix's momentum by the nearest semi-orthogonal matrix,
computed by five Newton-Schulz steps. On these networks it needs about half as many examples as
AdamW alone. Matrices of the same shape are updated together, which makes it cheap here.

A model is written as a folder that `transformers` reads, with its training curves; one figure shows
the curves of all models. The written models are evaluated by their accuracy on held-out tasks, by
family and difficulty.
"""

import csv
import math
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, final

import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import clip_grad_norm_
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from prefill_router import files
from prefill_router.errors import ConfigError
from prefill_router.plotting import Figure
from prefill_router.progress import BarProgress, Progress
from prefill_router_minipool.tasks import FAMILIES, LEVELS, MiniTask, draw_task, make_tasks
from prefill_router_minipool.training.network import (
    ASSISTANT,
    END,
    PAD,
    PROFILES,
    USER,
    Profile,
    make_network,
    make_tokenizer,
)

_BATCHES_PER_DRAW = 32  # batches drawn together, so that each has examples of similar length


@final
@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Examples of similar length, padded on the right.

    Attributes:
        rows: The positions of their tasks.
        ids: Token ids of prompt and answer.
        answers: Whether a position's next token belongs to the answer, the end token included.
    """

    rows: list[int]
    ids: Int[Tensor, "example token"]
    answers: Bool[Tensor, "example token"]


def draw_batches(
    tokenizer: Any, skills: Mapping[str, Sequence[float]], *, size: int, random: Random
) -> Iterator[TrainingBatch]:
    """An endless iterator of batches, without held-out prompts."""
    while True:
        tasks = _draw_tasks(skills, size * _BATCHES_PER_DRAW, random)
        batches = list(make_batches(tokenizer, tasks, size=size))
        random.shuffle(batches)
        yield from batches


def make_batches(
    tokenizer: Any, tasks: Sequence[MiniTask], *, size: int
) -> Iterator[TrainingBatch]:
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
        yield TrainingBatch(rows, ids, torch.nn.functional.pad(in_answer[:, 1:], (0, 1)))


def _draw_tasks(
    skills: Mapping[str, Sequence[float]], count: int, random: Random
) -> list[MiniTask]:
    cells = [(family, level) for family in skills for level in LEVELS]
    weights = [skills[family][level - 1] for family, level in cells]
    choices = random.choices(cells, weights, k=count)
    return [draw_task(FAMILIES[name], random, level, held_out=False) for name, level in choices]


_TASKS_AT_ONCE = 200


@torch.no_grad()
def check_answers(
    network: LlamaForCausalLM, tokenizer: Any, tasks: Sequence[MiniTask]
) -> list[bool]:
    """Whether greedy generation would give each task's answer and then end.

    It would if every token of the answer is the most probable one after those before it, so one
    forward pass over prompt and answer is enough.
    """
    correct = [False] * len(tasks)
    for batch in make_batches(tokenizer, tasks, size=_TASKS_AT_ONCE):
        best = network(input_ids=batch.ids).logits.argmax(-1)
        is_right = (best[:, :-1] == batch.ids[:, 1:]) | ~batch.answers[:, :-1]
        for row, right in zip(batch.rows, is_right.all(1).tolist(), strict=True):
            correct[row] = right
    return correct


_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_MOMENTUM = 0.95


@final
class MuonAdamW:
    """The optimiser: Muon for matrices, AdamW for the other parameters."""

    def __init__(self, network: nn.Module, *, rate: float, muon_rate: float, decay: float) -> None:
        matrices, others = _group_parameters(network.named_parameters())
        self._matrices = matrices
        self._momenta = [torch.zeros_like(torch.stack([*group])) for group in matrices]
        self._rate, self._decay = muon_rate, decay
        self._adam_rate = rate
        self._adam = torch.optim.AdamW(
            others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )

    def step(self, share: float) -> None:
        """One step, at this fraction of the peak learning rates."""
        self._adam.param_groups[0]["lr"] = self._adam_rate * share
        self._adam.step()
        self._adam.zero_grad()
        for group, momentum in zip(self._matrices, self._momenta, strict=True):
            _step_muon(group, momentum, rate=self._rate * share, decay=self._decay)


def _group_parameters(
    parameters: Iterable[tuple[str, nn.Parameter]],
) -> tuple[list[list[nn.Parameter]], list[nn.Parameter]]:
    """The matrices grouped by shape, and the embeddings and vectors."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    others = []
    for name, parameter in parameters:
        if parameter.dim() == 2 and "embed" not in name:
            by_shape[parameter.shape].append(parameter)
        else:
            others.append(parameter)
    return list(by_shape.values()), others


@torch.no_grad()
def _step_muon(
    group: Sequence[nn.Parameter], momentum: Tensor, *, rate: float, decay: float
) -> None:
    gradient = torch.stack([p.grad for p in group if p.grad is not None])
    momentum.lerp_(gradient, 1 - _MOMENTUM)
    update = orthogonal(gradient.lerp_(momentum, _MOMENTUM))
    scale = max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
    for parameter, direction in zip(group, update, strict=True):
        parameter.mul_(1 - rate * decay).add_(direction, alpha=-rate * scale)
        parameter.grad = None


def orthogonal(stacked: Float[Tensor, "matrix row column"]) -> Float[Tensor, "matrix row column"]:
    """About the nearest semi-orthogonal matrix of each: singular values between 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    tall = stacked.shape[-2] > stacked.shape[-1]
    x = (stacked.mT if tall else stacked).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(stacked.dtype)


_RATE, _MUON_RATE, _DECAY = 3e-3, 0.02, 0.05
_WARM_UP = 0.02
_LAST_SHARE = 0.02
_LARGEST_NORM = 1.0
_POINTS = 12  # of the curves
_HELD_OUT_TASKS = 500
_HELD_OUT_SEED = 7


@final
@dataclass(frozen=True)
class TrainingPoint:
    """One point of the training curves.

    Attributes:
        step: The number of training steps so far.
        loss: Mean cross entropy since the previous point, in nats per token of the answers.
        accuracy: Accuracy on held-out tasks, by family.
    """

    step: int
    loss: float
    accuracy: Mapping[str, float]


@final
@dataclass(frozen=True)
class TrainedModel:
    """A trained model, with its training curve and time.

    Attributes:
        network: The trained network.
        curve: The points of the training curve.
        seconds: Wall-clock time.
        cpu_seconds: Processor time of all threads together.
    """

    network: LlamaForCausalLM
    curve: list[TrainingPoint] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def train(profile: Profile, tokenizer: Any, *, progress: Progress) -> TrainedModel:
    """Train a model; with one thread the weights are bitwise reproducible."""
    started, cpu_started = time.perf_counter(), time.process_time()
    network = make_network(profile, tokenizer)
    optimiser = MuonAdamW(network, rate=_RATE, muon_rate=_MUON_RATE, decay=_DECAY)
    random = Random(f"training {profile.name} {profile.seed}")
    batches = draw_batches(tokenizer, profile.skills, size=profile.batch, random=random)
    held_out = make_tasks(_HELD_OUT_TASKS, seed=_HELD_OUT_SEED)
    curve: list[TrainingPoint] = []
    losses: list[float] = []
    marks = {round(profile.steps * k / _POINTS) for k in range(1, _POINTS + 1)}
    with progress.task(profile.name, total=profile.steps) as advance:
        for step, batch in enumerate(islice(batches, profile.steps), 1):
            loss = _compute_loss(network, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(network.parameters(), _LARGEST_NORM)
            optimiser.step(_scale_rate((step - 1) / profile.steps))
            losses.append(loss.item())
            advance()
            if step in marks:
                right = check_answers(network, tokenizer, held_out)
                pairs = [(t.domain, ok) for t, ok in zip(held_out, right, strict=True)]
                accuracy = {name: fmean(ok for d, ok in pairs if d == name) for name in FAMILIES}
                curve.append(TrainingPoint(step, fmean(losses), accuracy))
                losses.clear()
    cpu_seconds = time.process_time() - cpu_started
    return TrainedModel(network, curve, time.perf_counter() - started, cpu_seconds)


def _compute_loss(network: LlamaForCausalLM, batch: TrainingBatch) -> Tensor:
    """The loss on the tokens of answers alone; logits of the prompts' tokens aren't computed.

    Padding is on the right and attention is causal, so no mask is needed.
    """
    states = network.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    logits = linear(states[batch.answers], network.lm_head.weight)
    return cross_entropy(logits, batch.ids.roll(-1, dims=1)[batch.answers])


def _scale_rate(progress: float) -> float:
    """The fraction of the peak learning rate: a short warm-up, then a cosine decay to 2 %."""
    falling = 0.5 * (1 + math.cos(math.pi * progress))
    return min(1.0, progress / _WARM_UP + 1e-3) * (_LAST_SHARE + (1 - _LAST_SHARE) * falling)


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
    transformers_logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    for name in names:
        files.check_place(out / name)
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
    network.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=_LONGEST_ANSWER,
        pad_token_id=network.config.pad_token_id,
        eos_token_id=network.config.eos_token_id,
    )
    with files.replacing_folder(folder) as temporary:
        network.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        files.write_text(temporary / "curves.csv", _format_curve(trained.curve))
        files.write_json(temporary / "training.json", _make_record(trained, profile, parameters))


def _format_curve(curve: list[TrainingPoint]) -> str:
    names = list(curve[0].accuracy) if curve else []
    rows = [["step", "loss", *names]]
    for point in curve:
        shares = [f"{point.accuracy[name]:.3f}" for name in names]
        rows.append([str(point.step), f"{point.loss:.4f}", *shares])
    return "".join(",".join(row) + "\n" for row in rows)


def _make_record(trained: TrainedModel, profile: Profile, parameters: int) -> dict[str, Any]:
    return {
        "command": f"python -m prefill_router_minipool.training --out DIR --only {profile.name}",
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
    return check_answers(network, tokenizer, tasks)


def write_skills(folder: Path, names: Sequence[str]) -> None:
    """Evaluate these models on the same tasks and write `skills.csv` beside their folders."""
    tasks = make_tasks(TASKS, seed=SEED)
    lines = ["model,family,difficulty,tasks,accuracy\n"]
    for name in names:
        cells: dict[tuple[str, int], list[bool]] = defaultdict(list)
        for task, right in zip(tasks, answers_of(folder / name, tasks), strict=True):
            cells[task.domain, task.difficulty].append(right)
        lines += [
            f"{name},{family},{level},{len(results)},{fmean(results):.3f}\n"
            for (family, level), results in sorted(cells.items())
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
