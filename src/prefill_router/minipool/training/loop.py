"""Training one model."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any, final

from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaForCausalLM

from prefill_router.minipool.tasks import FAMILIES, make_tasks
from prefill_router.minipool.training.examples import Batch, training_batches
from prefill_router.minipool.training.judging import answered_correctly
from prefill_router.minipool.training.network import make_network
from prefill_router.minipool.training.optimiser import Optimiser
from prefill_router.minipool.training.profiles import Profile
from prefill_router.progress import Progress

_RATE, _MUON_RATE, _DECAY = 3e-3, 0.02, 0.05
_WARM_UP = 0.02
_LAST_SHARE = 0.02
_LARGEST_NORM = 1.0
_POINTS = 12  # of the curves
_JUDGED = 500
_JUDGING_SEED = 7


@final
@dataclass(frozen=True)
class Point:
    """One point of the training curves.

    Attributes:
        step: After so many steps.
        loss: Mean cross entropy, in nats per token of the answers, since the point before.
        accuracy: By family, on held-out tasks.
    """

    step: int
    loss: float
    accuracy: Mapping[str, float]


@final
@dataclass(frozen=True)
class Trained:
    """A trained model and how it went.

    Attributes:
        network: It.
        curve: Its points.
        seconds: By the clock on the wall.
        cpu_seconds: Of the processor, of all threads together.
    """

    network: LlamaForCausalLM
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def train(profile: Profile, tokenizer: Any, *, progress: Progress) -> Trained:
    """Train a model; with one thread the same profile gives the same weights, bit for bit."""
    started, cpu_started = time.perf_counter(), time.process_time()
    network = make_network(profile, tokenizer)
    optimiser = Optimiser(network, rate=_RATE, muon_rate=_MUON_RATE, decay=_DECAY)
    random = Random(f"training {profile.name} {profile.seed}")
    batches = training_batches(tokenizer, profile.skills, size=profile.batch, random=random)
    held_out = make_tasks(_JUDGED, seed=_JUDGING_SEED)
    curve: list[Point] = []
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
                curve.append(Point(step, fmean(losses), accuracy))
                losses.clear()
    cpu_seconds = time.process_time() - cpu_started
    return Trained(network, curve, time.perf_counter() - started, cpu_seconds)


def _loss(network: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Of the answers' tokens alone; the prompts' are given, and their logits never computed.

    Padding is on the right and attention looks back only, so no mask is needed.
    """
    states = network.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    logits = linear(states[batch.answers], network.lm_head.weight)
    return cross_entropy(logits, batch.ids.roll(-1, dims=1)[batch.answers])


def _share(done: float) -> float:
    """Of the highest learning rate: a short rise, then a cosine down to almost nothing."""
    falling = 0.5 * (1 + math.cos(math.pi * done))
    return min(1.0, done / _WARM_UP + 1e-3) * (_LAST_SHARE + (1 - _LAST_SHARE) * falling)
