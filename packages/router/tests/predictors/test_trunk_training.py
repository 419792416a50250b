import dataclasses
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prefill_router.predictors import TrunkConfig, trunk_training
from prefill_router.predictors.training import Draws, Holdout, keep_probability
from prefill_router.predictors.trunk_training import (
    LayerStack,
    SeedRun,
    TrunkRows,
    first_layers,
    train,
)
from prefill_router.progress import Advance, Progress, SilentProgress

CONFIG = TrunkConfig(hidden=(32, 16), seeds=5, keep=3, max_epochs=12, patience=3, batch_size=64)


def examples(queries: int = 250, dtype: torch.dtype = torch.float32) -> tuple[TrunkRows, Holdout]:
    random = np.random.default_rng(0)
    features = random.normal(size=(queries, 10))
    labels = (features @ random.normal(size=(10, 3)) > 0).astype(float)
    present = (random.random(labels.shape) < 0.8).astype(float)
    rows = np.arange(queries)
    parts = Holdout(rows[queries // 5 :], rows[: queries // 5])
    return TrunkRows(*(torch.tensor(a, dtype=dtype) for a in (features, labels, present))), parts


def losses(
    data: TrunkRows, parts: Holdout, config: TrunkConfig, seeds: list[int]
) -> dict[int, SeedRun]:
    runs = train(data, parts, config, seeds=seeds, progress=SilentProgress())
    return {run.index: run for run in runs}


def test_gradients_equal_autograd() -> None:
    torch.manual_seed(0)
    sizes, networks, rows = [(5, 8), (8, 6), (6, 3)], 4, 9
    weights = [torch.randn(networks, *s, dtype=torch.float64) for s in sizes]
    biases = [torch.randn(networks, 1, s[1], dtype=torch.float64) for s in sizes]
    keep = (0.7, 0.8)
    stack = LayerStack(
        [w.clone() for w in weights], [b.clone() for b in biases], keep=keep, rows=12
    )
    x = torch.randn(networks, rows, 5, dtype=torch.float64)
    labels = torch.rand(networks, rows, 3, dtype=torch.float64)
    present = (torch.rand(networks, rows, 3) < 0.7).double()
    kept = [torch.rand(networks, rows, n) < p for n, p in zip((8, 6), keep, strict=True)]
    stack.input(rows).copy_(x)
    loss = stack.step(labels, present, [k.numpy() for k in kept])

    leaves = [p.requires_grad_() for p in (*weights, *biases)]
    hidden = x
    for i in range(2):
        hidden = torch.relu(hidden @ weights[i] + biases[i]) * kept[i] / keep[i]
    logits = hidden @ weights[2] + biases[2]
    each = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    expected = (each * present).sum((1, 2)) / present.sum((1, 2))
    torch.testing.assert_close(loss, expected)
    got = [*stack.weight_gradients, *stack.bias_gradients]
    for one, other in zip(got, torch.autograd.grad(expected.sum(), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        assert other.abs().max() > 1e-6


@pytest.mark.parametrize("cores", [1, 2])
def test_alone_equals_in_company(cores: int) -> None:
    data, parts = examples()
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        together = losses(data, parts, CONFIG, [0, 1, 2, 3, 4])
        assert torch.get_num_threads() == cores
        for seed in (0, 3):
            [alone] = losses(data, parts, CONFIG, [seed]).values()
            np.testing.assert_allclose(alone.validation, together[seed].validation, atol=1e-6)
            np.testing.assert_allclose(alone.weights[0], together[seed].weights[0], atol=1e-5)
        assert together[0].validation != together[1].validation
    finally:
        torch.set_num_threads(before)


class Drawn(nn.Module):
    """Dropout of the units that the draws say."""

    def __init__(self, draws: Draws, rate: float) -> None:
        super().__init__()
        self.draws, self.rate = draws, rate

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training:
            return hidden
        kept = np.empty(hidden.shape, np.bool_)
        self.draws.kept(kept, dropout=self.rate)
        return hidden * torch.from_numpy(kept) / keep_probability(self.rate)


def ordinary(data: TrunkRows, parts: Holdout, config: TrunkConfig, seed: int) -> list[float]:
    """The validation losses of an ordinary loop with the seed's draws."""
    draws = Draws(config.seed, seed)
    widths = (data.features.shape[1], *config.hidden, data.labels.shape[1])
    linear = [nn.Linear(widths[i], widths[i + 1], dtype=torch.float64) for i in range(3)]
    for layer, weight, bias in zip(linear, *first_layers(draws, widths), strict=True):
        layer.weight.data, layer.bias.data = (
            torch.from_numpy(a).double() for a in (weight.T, bias[0])
        )
    first, second = (Drawn(draws, rate) for rate in config.dropout)
    net = nn.Sequential(linear[0], nn.ReLU(), first, linear[1], nn.ReLU(), second, linear[2])
    adam = torch.optim.Adam(
        net.parameters(), config.learning_rate, weight_decay=config.weight_decay
    )
    fit, held = (data[torch.from_numpy(rows)] for rows in (parts.fit, parts.held))

    def loss_of(rows: TrunkRows) -> Tensor:
        loss = nn.BCEWithLogitsLoss(weight=rows.present, reduction="sum")
        return loss(net(rows.features), rows.labels) / rows.present.sum()

    result: list[float] = []
    for _ in range(config.max_epochs):
        net.train()
        for rows in torch.from_numpy(draws.order(len(parts.fit))).split(config.batch_size):
            adam.zero_grad()
            loss_of(fit[rows]).backward()
            adam.step()
        net.eval()
        result.append(loss_of(held).item())
        if len(result) - 1 - int(np.argmin(result)) >= config.patience:
            break
    return result


def test_equals_an_ordinary_loop() -> None:
    """In double precision, where rounding doesn't hide a difference."""
    data, parts = examples(dtype=torch.float64)
    config = dataclasses.replace(CONFIG, learning_rate=0.02, max_epochs=40)
    runs = losses(data, parts, config, [0, 1, 2])
    assert len({len(run.validation) for run in runs.values()}) > 1  # some left before others
    for seed, run in runs.items():
        np.testing.assert_allclose(run.validation, ordinary(data, parts, config, seed), atol=1e-7)


def test_placeholders_of_missing_labels_have_no_effect() -> None:
    data, parts = examples()
    one = losses(data, parts, CONFIG, [0])[0]
    filled = torch.where(data.present == 0, 123.0, data.labels)
    assert (
        losses(dataclasses.replace(data, labels=filled), parts, CONFIG, [0])[0].train == one.train
    )
    row, column = (int(i) for i in torch.nonzero(data.present)[-1])
    changed = data.labels.clone()
    changed[row, column] = 1 - changed[row, column]
    other = losses(dataclasses.replace(data, labels=changed), parts, CONFIG, [0])[0]
    assert other.train != one.train  # control: a label that is there has an effect


class Told(Progress):
    """Counts, and raises once when told so often."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.total, self.done, self.error = 0.0, 0.0, error

    @contextmanager
    def _count(self) -> Iterator[Advance]:
        def advance(amount: float = 1) -> None:
            self.done += amount
            if self.error:
                raise self.error

        yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        assert label
        self.total = total
        return self._count()


def test_progress_ends_full() -> None:
    data, parts = examples()
    told = Told()
    train(data, parts, CONFIG, seeds=[0, 1, 2], progress=told)
    assert told.done == told.total == 3 * CONFIG.max_epochs


def test_interrupt_passes_through_and_ends_the_threads() -> None:
    data, parts = examples()
    config = dataclasses.replace(CONFIG, max_epochs=1_000_000, patience=1_000_000)
    cores, threads = torch.get_num_threads(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train(data, parts, config, seeds=[0, 1, 2], progress=Told(KeyboardInterrupt))
    assert threading.active_count() == threads
    assert torch.get_num_threads() == cores


@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.3, 0.9])
def test_draws(dropout: float) -> None:
    kept = np.empty((501, 399), np.bool_)
    Draws(0, 0).kept(kept, dropout=dropout)
    assert abs(kept.mean() - (1 - dropout)) < 0.005
    assert abs(keep_probability(dropout) - (1 - dropout)) < 1e-5
    assert np.abs(kept.mean(axis=0) - kept.mean()).max() < 0.15
    again, other = np.empty_like(kept), np.empty_like(kept)
    Draws(0, 0).kept(again, dropout=dropout)
    Draws(0, 1).kept(other, dropout=dropout)
    assert np.array_equal(kept, again)
    assert dropout == 0 or not np.array_equal(kept, other)


def test_first_weights_are_uniform_within_their_bound() -> None:
    weights, biases = first_layers(Draws(0, 0), (100, 256, 128, 14))
    for weight, bias in zip(weights, biases, strict=True):
        bound = 1 / np.sqrt(len(weight))
        values: NDArray[np.float32] = np.concatenate([weight.ravel(), bias.ravel()])
        assert np.abs(values).max() <= bound
        assert abs(values.std() / bound - 1 / np.sqrt(3)) < 0.02


def test_held_out_rows_in_blocks_have_the_loss_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, parts = examples(dtype=torch.float64)
    whole = losses(data, parts, CONFIG, [0, 1])
    monkeypatch.setattr(trunk_training, "_HELD_ROWS", 7)
    for seed, run in losses(data, parts, CONFIG, [0, 1]).items():
        np.testing.assert_allclose(run.validation, whole[seed].validation, rtol=1e-9)
        assert run.best_epoch == whole[seed].best_epoch
