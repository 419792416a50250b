"""Training of all seeds of a shared trunk together, with the same results as one by one.

The layers of several networks are stacked. Gradients are written out instead of recorded by
autograd: a step is a dozen batched operations in preallocated memory, which makes it faster than
training one network after another.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.adam import adam

from prefill_router.predictors.training import Draws, Holdout, keep_probability
from prefill_router.predictors.trunk import TrunkConfig
from prefill_router.progress import Progress
from prefill_router.training import Trainer, TrainingRun, train_together

Rows = Float[Tensor, "network row feature"]
Logits = Float[Tensor, "network row target"]
Kept = Bool[NDArray[np.bool_], "network row _"]
Broadcast = Float[Tensor, "*shared row target"]  # the same for all networks, or for each
Cells = Float[Tensor, "network row target"]


@final
class LayerStack:
    """The stacked layers of several networks.

    Args:
        weights: The weights of each layer, [network, in, out].
        biases: The biases of each layer, [network, 1, out].
        keep: The probability with which units of each hidden layer are kept by dropout.
        rows: The most rows per step.
    """

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], *, keep: Sequence[float], rows: int
    ) -> None:
        self.weights, self.biases = weights, biases
        self.weight_gradients = [torch.empty_like(w) for w in weights]
        self.bias_gradients = [torch.empty_like(b) for b in biases]
        self._scale = [1 / probability for probability in keep]
        sizes = [w.shape[0] * rows * w.shape[1] for w in weights]
        self._into = [weights[0].new_empty(size) for size in sizes]
        self._back = [weights[0].new_empty(size) for size in sizes]

    def __len__(self) -> int:
        return len(self.weights[0])

    def input(self, rows: int) -> Rows:
        """The buffer for the features of a step, to be filled before `step`."""
        return self._view(self._into[0], rows, 0)

    def _view(self, memory: Tensor, rows: int, layer: int) -> Tensor:
        shape = (len(self), rows, self.weights[layer].shape[1])
        return memory[: math.prod(shape)].view(shape)

    def logits(self, features: Float[Tensor, "row feature"]) -> Logits:
        """The logits of the same rows under every network, without dropout."""
        hidden = features.expand(len(self), *features.shape)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight is not self.weights[0]:
                hidden.clamp_min_(0)
            hidden = _linear(
                hidden, weight, bias, hidden.new_empty(*hidden.shape[:2], bias.shape[2])
            )
        return hidden

    def step(
        self, labels: Cells, present: Cells, kept: Sequence[Kept]
    ) -> Float[Tensor, " network"]:
        """Losses of one step on `input`; leaves their gradients in `weight_` and `bias_gradients`.

        Args:
            labels: In [0, 1]; where `present` is 0 they have no effect.
            present: The weight of each label, 0 or more.
            kept: The units of each hidden layer that dropout keeps.
        """
        rows = labels.shape[1]
        into = [self._view(memory, rows, i) for i, memory in enumerate(self._into)]
        logits = self._forward(into, kept)
        share = present / present.sum((1, 2), keepdim=True).clamp_min_(1)
        wrong = torch.stack([torch.sigmoid(each) for each in logits]).sub_(labels)
        self._backward(into, wrong.mul_(share))
        return cross_entropy(logits, labels, present)

    def _forward(self, into: list[Tensor], kept: Sequence[Kept]) -> Tensor:
        layers = list(zip(self.weights, self.biases, strict=True))
        for i, (weight, bias) in enumerate(layers[:-1]):
            hidden = _linear(into[i], weight, bias, into[i + 1]).clamp_min_(0)
            # NumPy multiplies by a mask three times as fast as torch, which converts it first.
            with np.errstate(invalid="ignore"):  # an overflow is found in the loss
                np.multiply(hidden.numpy(), kept[i], out=hidden.numpy())
            hidden.mul_(self._scale[i])
        weight, bias = layers[-1]
        logits = into[-1].new_empty(*into[-1].shape[:2], bias.shape[2])
        return _linear(into[-1], weight, bias, logits)

    def _backward(self, into: list[Tensor], gradient: Tensor) -> None:
        for i in reversed(range(len(into))):
            _products(into[i].mT, gradient, self.weight_gradients[i])
            for part, total in zip(gradient, self.bias_gradients[i], strict=True):
                torch.sum(part, 0, keepdim=True, out=total)
            if i:
                back = self._view(self._back[i], gradient.shape[1], i)
                _products(gradient, self.weights[i].mT, back).mul_(self._scale[i - 1])
                # A unit that is 0 was below 0 or dropped; its gradient is 0 in both cases.
                torch.ops.aten.threshold_backward.grad_input(back, into[i], 0, grad_input=back)
                gradient = back

    def keep(self, networks: list[int]) -> None:
        """Drop all but these networks."""
        for parts in (self.weights, self.biases, self.weight_gradients, self.bias_gradients):
            parts[:] = [part[networks] for part in parts]


def cross_entropy(
    logits: Logits, labels: Broadcast, present: Broadcast
) -> Float[Tensor, " network"]:
    """Binary cross-entropy of each network, in nats: the weighted mean over the present cells."""
    total, count = _sums(logits, labels, present)
    return total / count.clamp_min(1)


def _sums(
    logits: Logits, labels: Broadcast, present: Broadcast
) -> tuple[Float[Tensor, " network"], Float[Tensor, " network"]]:
    """The weighted sum of the cross-entropy over the cells, and the sum of the weights."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, labels.expand_as(logits), reduction="none"
    )
    present = present.expand_as(logits)
    return (each * present).sum((1, 2)), present.sum((1, 2))


# One product, sum or sigmoid per network instead of a batched one: the libraries round a batch of
# one differently from a batch of several, so a seed's losses would depend on the other seeds.


def _products(one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    for a, b, c in zip(one, other, out, strict=True):
        torch.mm(a, b, out=c)
    return out


def _linear(rows: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    for a, b, c, d in zip(rows, weight, bias, out, strict=True):
        torch.addmm(c, a, b, out=d)
    return out


_HELD_ROWS = 1 << 14  # held-out rows that go through the networks at once
_LANES = 16
"""The numbers in a vector instruction; a remainder is rounded differently. With whole vectors for
each network, a network's results don't depend on its position among others."""


@final
@dataclass(frozen=True, eq=False)
class TrunkRows:
    """The training data.

    Attributes:
        features: Finite; their precision, single or double, is that of the computation.
        labels: In [0, 1]; any finite number where `present` is 0.
        present: The weight of each label, 1 on average; 0 where there is none.
    """

    features: Float[Tensor, "query feature"]
    labels: Float[Tensor, "query target"]
    present: Float[Tensor, "query target"]

    def __getitem__(self, rows: Tensor) -> "TrunkRows":
        return TrunkRows(self.features[rows], self.labels[rows], self.present[rows])

    def padded(self) -> "TrunkRows":
        """The rows padded with columns of missing labels to a multiple of `_LANES`."""
        extra = (0, -self.labels.shape[1] % _LANES)
        return TrunkRows(self.features, *(pad(part, extra) for part in (self.labels, self.present)))


@final
class SeedRun(TrainingRun):
    """One seed: its random numbers, its losses so far, and its best weights."""

    def __init__(self, seed: int, index: int) -> None:
        super().__init__()
        self.index = index
        self.draws = Draws(seed, index)
        self.weights: list[NDArray[Any]] = []
        self.biases: list[NDArray[Any]] = []

    def cut(self, targets: int) -> None:
        """Remove the outputs of the padding."""
        if self.weights:
            self.weights[-1] = self.weights[-1][:, :targets]
            self.biases[-1] = self.biases[-1][:targets]


def train(
    examples: TrunkRows,
    parts: Holdout,
    config: TrunkConfig,
    *,
    seeds: list[int],
    progress: Progress,
) -> list[SeedRun]:
    """Train the networks of these seeds until each has stopped.

    They are distributed over the threads that torch is set to use, each of which trains its share
    as one batch on one core; that is faster than splitting every operation over the cores.

    Args:
        examples: All rows.
        parts: Which rows are fitted on and which are held out.
        config: The options.
        seeds: Indices of the config's seeds, from 0.
        progress: Shows the number of epochs done.
    """
    runs = [SeedRun(config.seed, index) for index in seeds]
    targets, padded = examples.labels.shape[1], examples.padded()
    crews = min(torch.get_num_threads(), len(runs))
    trainers = [
        _TrunkTrainer(padded, parts, targets, runs[start::crews], config) for start in range(crews)
    ]
    train_together(trainers, max_epochs=config.max_epochs, progress=progress)
    for run in runs:
        run.cut(targets)
    return runs


@final
class _TrunkTrainer(Trainer):
    """The networks that are still training."""

    def __init__(
        self,
        examples: TrunkRows,
        parts: Holdout,
        targets: int,
        runs: list[SeedRun],
        config: TrunkConfig,
    ) -> None:
        self._examples, self._config, self._runs = examples, config, runs
        self._fit, self._held = torch.from_numpy(parts.fit), torch.from_numpy(parts.held)
        widths = (examples.features.shape[1], *config.hidden, targets)
        first = [first_layers(run.draws, widths) for run in runs]
        dtype = examples.features.dtype
        weights, biases = (
            [torch.tensor(np.stack(layer), dtype=dtype) for layer in zip(*parts, strict=True)]
            for parts in zip(*first, strict=True)
        )
        extra = (0, examples.labels.shape[1] - targets)
        weights[-1], biases[-1] = pad(weights[-1], extra), pad(biases[-1], extra)
        rows = min(config.batch_size, len(self._fit))
        keep = [keep_probability(rate) for rate in config.dropout]
        self._stack = LayerStack(weights, biases, keep=keep, rows=rows)
        self._kept = [np.empty(len(runs) * rows * width, np.bool_) for width in config.hidden]
        self._adam = _Adam([*weights, *biases], config)

    @property
    def active(self) -> int:
        """The number of networks that haven't stopped."""
        return len(self._runs)

    @torch.no_grad()
    def epoch(self) -> None:
        """Train on the fitting rows once, then validate; networks that stop are removed."""
        losses = torch.stack([self._step(rows) for rows in self._batches()]).mean(0)
        validation = self._validation()
        for place, run in enumerate(self._runs):
            if run.record(float(losses[place]), float(validation[place])):
                run.weights = [w[place].numpy().copy() for w in self._stack.weights]
                run.biases = [b[place, 0].numpy().copy() for b in self._stack.biases]
        going = [i for i, run in enumerate(self._runs) if run.waited < self._config.patience]
        if len(going) < len(self._runs):
            self._keep(going)

    def _validation(self) -> Float[Tensor, " network"]:
        """The loss of each network on the held-out rows, some of them at a time."""
        parts = (self._examples[rows] for rows in torch.split(self._held, _HELD_ROWS))
        sums = [_sums(self._stack.logits(p.features), p.labels, p.present) for p in parts]
        total, count = (torch.stack(column).sum(0) for column in zip(*sums, strict=True))
        return total / count.clamp_min(1)

    def _batches(self) -> Iterator[Tensor]:
        """The rows of each step, [network, row], in each network's own order."""
        count = len(self._fit)
        order = np.stack([run.draws.order(count) for run in self._runs])
        for start in range(0, count, self._config.batch_size):
            yield torch.from_numpy(order[:, start : start + self._config.batch_size])

    def _step(self, rows: Tensor) -> Tensor:
        stack, examples, shape = self._stack, self._examples, (*rows.shape, -1)
        flat = self._fit[rows.reshape(-1)]
        into = stack.input(rows.shape[1])
        torch.index_select(examples.features, 0, flat, out=into.view(-1, into.shape[2]))
        loss = stack.step(
            examples.labels.index_select(0, flat).view(shape),
            examples.present.index_select(0, flat).view(shape),
            self._draw_kept(rows.shape[1]),
        )
        self._adam.step(
            [*stack.weights, *stack.biases], [*stack.weight_gradients, *stack.bias_gradients]
        )
        return loss

    def _draw_kept(self, rows: int) -> list[Kept]:
        kept = []
        for memory, width, dropout in zip(
            self._kept, self._config.hidden, self._config.dropout, strict=True
        ):
            shape = (len(self._runs), rows, width)
            kept.append(memory[: math.prod(shape)].reshape(shape))
            for run, part in zip(self._runs, kept[-1], strict=True):
                run.draws.kept(part, dropout=dropout)
        return kept

    def _keep(self, places: list[int]) -> None:
        self._runs = [self._runs[place] for place in places]
        self._stack.keep(places)
        self._adam.keep(places)


class _Adam:
    """Adam's steps, with what it remembers of each parameter, [network, ...].

    The steps are torch's. Its class for them loads torch's compiler first, which takes longer than
    a small router's whole training.
    """

    def __init__(self, parameters: Sequence[Tensor], config: TrunkConfig) -> None:
        self._config = config
        self._means, self._squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self._steps = [torch.zeros(()) for _ in parameters]

    def step(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Change the parameters in place."""
        adam(
            *(parameters, gradients, self._means, self._squares, [], self._steps),
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._config.learning_rate,
            weight_decay=self._config.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def keep(self, places: list[int]) -> None:
        """Forget all networks but these."""
        self._means = [value[places] for value in self._means]
        self._squares = [value[places] for value in self._squares]


def first_layers(
    draws: Draws, widths: tuple[int, ...]
) -> tuple[list[Float32[NDArray[np.float32], "_ _"]], list[Float32[NDArray[np.float32], "1 _"]]]:
    """Weights and biases initialised like torch's Linear: uniform within 1 / sqrt(inputs)."""
    weights, biases = [], []
    for before, after in pairwise(widths):
        bound = 1 / math.sqrt(before)
        weights.append(draws.uniform((before, after), bound=bound))
        biases.append(draws.uniform((1, after), bound=bound))
    return weights, biases
