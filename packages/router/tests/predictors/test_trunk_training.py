"""Training of the seeds of a trunk equals an ordinary loop, and none depends on the others."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from prefill_router.predictors import TrunkConfig
from prefill_router.predictors.networks import training
from prefill_router.predictors.networks.training import NetworkRows, NetworkRun
from prefill_router.predictors.training import Draws, Holdout, keep_probability
from prefill_router.predictors.trunk_training import train, trunk_rows
from prefill_router.progress import SilentProgress

Array = NDArray[Any]
CONFIG = TrunkConfig(hidden=(32, 16), seeds=5, keep=3, max_epochs=12, patience=3, batch_size=64)


def examples(queries: int = 250, dtype: type = np.float32) -> tuple[NetworkRows, Holdout]:
    random = np.random.default_rng(0)
    features = random.normal(size=(queries, 10))
    labels = (features @ random.normal(size=(10, 3)) > 0).astype(dtype)
    present = (random.random(labels.shape) < 0.8).astype(dtype)
    rows = np.arange(queries)
    parts = Holdout(rows[queries // 5 :], rows[: queries // 5])
    return trunk_rows(features.astype(dtype), labels, present), parts


def losses(
    data: NetworkRows, parts: Holdout, config: TrunkConfig, seeds: list[int]
) -> dict[int, NetworkRun]:
    runs = train(data, parts, config, seeds=seeds, progress=SilentProgress())
    return dict(zip(seeds, runs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_alone_equals_in_company(cores: int) -> None:
    data, parts = examples()
    with threadpool_limits(cores, user_api="blas"):
        together = losses(data, parts, CONFIG, [0, 1, 2, 3, 4])
        for seed in (0, 3):
            [alone] = losses(data, parts, CONFIG, [seed]).values()
            assert alone.validation == together[seed].validation
            for name, array in alone.parameters.items():
                assert np.array_equal(array, together[seed].parameters[name])
    assert together[0].validation != together[1].validation


def ordinary(data: NetworkRows, parts: Holdout, config: TrunkConfig, seed: int) -> list[float]:
    """The validation losses of an ordinary loop in torch, with the seed's draws."""
    import torch
    from torch import Tensor, nn

    class DrawnDropout(nn.Module):
        """Dropout of the units that `draws` chooses."""

        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate

        def forward(self, hidden: Tensor) -> Tensor:
            if not self.training:
                return hidden
            mask = np.empty(hidden.shape, np.bool_)
            draws.draw_mask(mask, dropout=self.rate)
            return hidden * torch.from_numpy(mask) / keep_probability(self.rate)

    draws, linear = Draws(config.seed, seed), list[nn.Linear]()
    targets = data.labels.correct.shape[2]
    for before, after in pairwise((data.features.shape[1], *config.hidden, targets)):
        layer = nn.Linear(before, after, dtype=torch.float64)
        weight, bias = (
            draws.uniform(shape, bound=before**-0.5) for shape in ((before, after), (after,))
        )
        layer.weight.data = torch.from_numpy(weight.T).double()
        layer.bias.data = torch.from_numpy(bias).double()
        linear.append(layer)
    first, second = map(DrawnDropout, config.dropout)
    net = nn.Sequential(linear[0], nn.ReLU(), first, linear[1], nn.ReLU(), second, linear[2])
    adam = torch.optim.Adam(
        net.parameters(), config.learning_rate, weight_decay=config.weight_decay
    )
    features, labels, present = (
        torch.from_numpy(a) for a in (data.features, data.labels.correct[0], data.labels.weights[0])
    )

    def loss_of(rows: Array) -> Tensor:
        loss = nn.BCEWithLogitsLoss(weight=present[rows], reduction="sum")
        return loss(net(features[rows]), labels[rows]) / present[rows].sum()

    result: list[float] = []
    for _ in range(config.max_epochs):
        net.train()
        order = parts.fit[draws.order(len(parts.fit))]
        for start in range(0, len(order), config.batch_size):
            adam.zero_grad()
            loss_of(order[start : start + config.batch_size]).backward()
            adam.step()
        net.eval()
        result.append(loss_of(parts.validation).item())
        if len(result) - 1 - int(np.argmin(result)) >= config.patience:
            break
    return result


@pytest.mark.slow
def test_equals_an_ordinary_loop() -> None:
    """In double precision, where rounding doesn't hide a difference."""
    pytest.importorskip("torch")
    data, parts = examples(dtype=np.float64)
    config = dataclasses.replace(CONFIG, learning_rate=0.02, max_epochs=40)
    runs = losses(data, parts, config, [0, 1, 2])
    assert len({len(run.validation) for run in runs.values()}) > 1  # some stopped before others
    for seed, run in runs.items():
        np.testing.assert_allclose(run.validation, ordinary(data, parts, config, seed), atol=1e-7)


def test_placeholders_of_missing_labels_have_no_effect() -> None:
    data, parts = examples()
    labels, weights = data.labels.correct[0], data.labels.weights[0]
    run = losses(data, parts, CONFIG, [0])[0]
    filled = trunk_rows(data.features, np.where(weights == 0, 123, labels), weights)
    assert losses(filled, parts, CONFIG, [0])[0].train == run.train
    row, column = np.argwhere(weights)[-1]
    changed = labels.copy()
    changed[row, column] = 1 - changed[row, column]
    other = losses(trunk_rows(data.features, changed, weights), parts, CONFIG, [0])[0]
    assert other.train != run.train  # control: a label that is there has an effect


@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.3, 0.9])
def test_draws(dropout: float) -> None:
    mask = np.empty((501, 399), np.bool_)
    Draws(0, 0).draw_mask(mask, dropout=dropout)
    assert abs(mask.mean() - (1 - dropout)) < 0.005
    assert abs(keep_probability(dropout) - (1 - dropout)) < 1e-5
    assert np.abs(mask.mean(axis=0) - mask.mean()).max() < 0.15
    again, other = np.empty_like(mask), np.empty_like(mask)
    Draws(0, 0).draw_mask(again, dropout=dropout)
    Draws(0, 1).draw_mask(other, dropout=dropout)
    assert np.array_equal(mask, again)
    assert dropout == 0 or not np.array_equal(mask, other)


def test_held_out_rows_in_blocks_have_the_loss_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, parts = examples(dtype=np.float64)
    runs = losses(data, parts, CONFIG, [0, 1])
    monkeypatch.setattr(training, "_VALIDATION_ROWS", 7)
    for seed, run in losses(data, parts, CONFIG, [0, 1]).items():
        np.testing.assert_allclose(run.validation, runs[seed].validation, rtol=1e-9)
        assert run.best_epoch == runs[seed].best_epoch
