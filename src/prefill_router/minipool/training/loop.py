"""Trains one model: batches of newly drawn examples, the optimiser, the loop, the accuracy.

The optimiser is Muon for the matrices of the network, and AdamW for everything else. Muon
(K. Jordan and others, 2024) replaces each matrix's momentum by the nearest semi-orthogonal matrix,
computed by five Newton-Schulz steps. On these networks it needs about half as many examples as
AdamW alone. Matrices of the same shape are updated together, which makes it cheap here.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaForCausalLM

from prefill_router.minipool.tasks import FAMILIES, LEVELS, MiniTask, draw_task, make_tasks
from prefill_router.minipool.training.network import (
    ASSISTANT,
    END,
    PAD,
    USER,
    Profile,
    make_network,
)
from prefill_router.progress import Progress

_POOLED = 32  # batches drawn together, so that each has examples of similar length


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


def training_batches(
    tokenizer: Any, skills: Mapping[str, Sequence[float]], *, size: int, random: Random
) -> Iterator[TrainingBatch]:
    """An endless iterator of batches, without held-out prompts."""
    while True:
        tasks = _drawn(skills, size * _POOLED, random)
        batches = list(in_batches(tokenizer, tasks, size=size))
        random.shuffle(batches)
        yield from batches


def in_batches(tokenizer: Any, tasks: Sequence[MiniTask], *, size: int) -> Iterator[TrainingBatch]:
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


def _drawn(skills: Mapping[str, Sequence[float]], count: int, random: Random) -> list[MiniTask]:
    cells = [(family, level) for family in skills for level in LEVELS]
    weights = [skills[family][level - 1] for family, level in cells]
    drawn = random.choices(cells, weights, k=count)
    return [draw_task(FAMILIES[name], random, level, held_out=False) for name, level in drawn]


_AT_ONCE = 200


@torch.no_grad()
def answered_correctly(
    network: LlamaForCausalLM, tokenizer: Any, tasks: Sequence[MiniTask]
) -> list[bool]:
    """Whether greedy generation would give each task's answer and then end.

    It would if every token of the answer is the most probable one after those before it, so one
    forward pass over prompt and answer is enough.
    """
    correct = [False] * len(tasks)
    for batch in in_batches(tokenizer, tasks, size=_AT_ONCE):
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
        matrices, others = _parted(network.named_parameters())
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
            _muon_step(group, momentum, rate=self._rate * share, decay=self._decay)


def _parted(
    named: Iterable[tuple[str, nn.Parameter]],
) -> tuple[list[list[nn.Parameter]], list[nn.Parameter]]:
    """The matrices grouped by shape, and the embeddings and vectors."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    others = []
    for name, parameter in named:
        if parameter.dim() == 2 and "embed" not in name:
            by_shape[parameter.shape].append(parameter)
        else:
            others.append(parameter)
    return list(by_shape.values()), others


@torch.no_grad()
def _muon_step(
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
_JUDGED = 500
_JUDGING_SEED = 7


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
    batches = training_batches(tokenizer, profile.skills, size=profile.batch, random=random)
    held_out = make_tasks(_JUDGED, seed=_JUDGING_SEED)
    curve: list[TrainingPoint] = []
    losses: list[float] = []
    marks = {round(profile.steps * k / _POINTS) for k in range(1, _POINTS + 1)}
    with progress.task(profile.name, total=profile.steps) as advance:
        for step, batch in enumerate(islice(batches, profile.steps), 1):
            loss = _loss(network, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(network.parameters(), _LARGEST_NORM)
            optimiser.step(_share((step - 1) / profile.steps))
            losses.append(loss.item())
            advance()
            if step in marks:
                right = answered_correctly(network, tokenizer, held_out)
                pairs = [(t.domain, ok) for t, ok in zip(held_out, right, strict=True)]
                accuracy = {name: fmean(ok for d, ok in pairs if d == name) for name in FAMILIES}
                curve.append(TrainingPoint(step, fmean(losses), accuracy))
                losses.clear()
    cpu_seconds = time.process_time() - cpu_started
    return TrainedModel(network, curve, time.perf_counter() - started, cpu_seconds)


def _loss(network: LlamaForCausalLM, batch: TrainingBatch) -> Tensor:
    """The loss on the tokens of answers alone; logits of the prompts' tokens aren't computed.

    Padding is on the right and attention is causal, so no mask is needed.
    """
    states = network.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    logits = linear(states[batch.answers], network.lm_head.weight)
    return cross_entropy(logits, batch.ids.roll(-1, dims=1)[batch.answers])


def _share(done: float) -> float:
    """The fraction of the peak learning rate: a short warm-up, then a cosine decay to 2 %."""
    falling = 0.5 * (1 + math.cos(math.pi * done))
    return min(1.0, done / _WARM_UP + 1e-3) * (_LAST_SHARE + (1 - _LAST_SHARE) * falling)
