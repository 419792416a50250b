"""Ten seeds trained together, against one after another.

Four ways to the same ensemble, on features of the size of the real case:

- together: `train` with all seeds, as `fit_trunk` calls it;
- alone: `train` with one seed at a time;
- plain: nn.Sequential, autograd and torch.optim.Adam, one seed after another, in an ordinary loop;
- plain, same draws: that loop with our orders and dropped units, so that its losses must be ours;
  it also profits from our draws, which are faster than torch's.

The plain way stops at other epochs, so ways are compared by the time of an epoch of a seed. They
take turns, and each counts with its best turn, since other work on the machine only adds time.

In single precision the losses of the plain way and ours part by rounding while the networks
overfit; the least loss, which decides, is compared, and in double precision those of all epochs.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from prefill_router import files
from prefill_router.predictors import TrunkConfig
from prefill_router.predictors.training import Draws, Holdout, hold_out, keep_probability
from prefill_router.predictors.trunk_training import TrunkRows, first_layers, train
from prefill_router.progress import SilentProgress

RESULT = Path(__file__).parent / "results" / "trunk.json"
QUERIES, TARGETS = 8238, 14
Way = Literal["together", "alone", "plain_same_draws", "plain"]
Epochs = dict[int, list[float]]  # by seed, of losses


def made_up(features: int) -> TrunkRows:
    """Features with the spectrum of PCA blocks, labels that follow from them, 1 % missing."""
    random = np.random.default_rng(0)
    spread = 8 / np.sqrt(1 + np.arange(features) % 100)
    rows = (random.normal(size=(QUERIES, features)) * spread).astype(np.float32)
    signal = rows @ random.normal(size=(features, 3)) / np.sqrt((spread**2).sum())
    logits = np.tanh(signal) @ random.uniform(0.2, 1, (3, TARGETS)) + random.normal(0, 1, TARGETS)
    labels = (random.logistic(size=logits.shape) < logits).astype(np.float32)
    present = (random.random(labels.shape) > 0.01).astype(np.float32)
    return TrunkRows(*map(torch.from_numpy, (rows, labels * present, present)))


def together(examples: TrunkRows, parts: Holdout, config: TrunkConfig) -> Epochs:
    """All seeds at once."""
    seeds = list(range(config.seeds))
    runs = train(examples, parts, config, seeds=seeds, progress=SilentProgress())
    return {run.index: run.validation for run in runs}


def alone(examples: TrunkRows, parts: Holdout, config: TrunkConfig) -> Epochs:
    """The same code, one seed after another."""
    losses: Epochs = {}
    for seed in range(config.seeds):
        [run] = train(examples, parts, config, seeds=[seed], progress=SilentProgress())
        losses[seed] = run.validation
    return losses


@final
class DrawnDropout(nn.Module):
    """Dropout of the units that a seed's `Draws` say."""

    def __init__(self, draws: Draws, rate: float) -> None:
        super().__init__()
        self._draws, self._rate = draws, rate

    def forward(self, hidden: Tensor) -> Tensor:
        """Drop units in training."""
        if not self.training:
            return hidden
        kept = torch.empty(hidden.shape, dtype=torch.bool)
        self._draws.kept(kept.numpy(), dropout=self._rate)
        return hidden * (kept.float() / keep_probability(self._rate))  # as torch's own does


def network(draws: Draws, examples: TrunkRows, config: TrunkConfig, *, drawn: bool) -> nn.Module:
    """One network, as torch builds it, with the seed's first weights."""
    widths = (examples.features.shape[1], *config.hidden, examples.labels.shape[1])
    drops = [DrawnDropout(draws, r) if drawn else nn.Dropout(r) for r in config.dropout]
    linear = [nn.Linear(widths[i], widths[i + 1]) for i in range(3)]
    for layer, weight, bias in zip(linear, *first_layers(draws, widths), strict=True):
        layer.weight.data = torch.from_numpy(weight.T.copy())
        layer.bias.data = torch.from_numpy(bias[0])
    return nn.Sequential(linear[0], nn.ReLU(), drops[0], linear[1], nn.ReLU(), drops[1], linear[2])


def loss_of(net: nn.Module, rows: TrunkRows) -> Tensor:
    """The masked cross-entropy."""
    each = nn.functional.binary_cross_entropy_with_logits(
        net(rows.features), rows.labels, reduction="none"
    )
    return (each * rows.present).sum() / rows.present.sum()


def plain_seed(
    examples: TrunkRows, parts: Holdout, config: TrunkConfig, seed: int, *, drawn: bool
) -> list[float]:
    """The validation losses of one seed in an ordinary loop."""
    draws = Draws(config.seed, seed)
    net = network(draws, examples, config, drawn=drawn).to(examples.features.dtype)
    adam = torch.optim.Adam(
        net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    fit, held = (examples[torch.from_numpy(rows)] for rows in (parts.fit, parts.held))
    losses: list[float] = []
    while len(losses) < config.max_epochs:
        count = len(fit.features)
        order = torch.from_numpy(draws.order(count)) if drawn else torch.randperm(count)
        net.train()
        for first in range(0, count, config.batch_size):
            adam.zero_grad()
            loss = loss_of(net, fit[order[first : first + config.batch_size]])
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        net.eval()
        with torch.no_grad():
            losses.append(float(loss_of(net, held)))
        if len(losses) - 1 - int(np.argmin(losses)) >= config.patience:
            break
    return losses


def plain(examples: TrunkRows, parts: Holdout, config: TrunkConfig, *, drawn: bool) -> Epochs:
    """One seed after another in an ordinary loop."""
    torch.manual_seed(0)  # the global state is what an ordinary loop draws from
    seeds = range(config.seeds)
    return {seed: plain_seed(examples, parts, config, seed, drawn=drawn) for seed in seeds}


def difference(one: Epochs, other: Epochs, *, least: bool = False) -> float:
    """The greatest between two ways, over seeds and epochs, or over the seeds' least losses."""
    if least:
        return max(abs(min(one[seed]) - min(other[seed])) for seed in one)
    if [len(losses) for losses in one.values()] != [len(losses) for losses in other.values()]:
        return float("inf")
    return max(float(np.abs(np.subtract(one[seed], other[seed])).max()) for seed in one)


def agreement(examples: TrunkRows, parts: Holdout, losses: dict[Way, Epochs]) -> dict[str, float]:
    """How far the losses of the ways are apart; checked."""
    double = TrunkRows(*(part.double() for part in vars(examples).values()))
    few = TrunkConfig(seeds=2, keep=1)
    result = {
        "alone": difference(losses["together"], losses["alone"]),
        "plain_least_loss": difference(losses["together"], losses["plain_same_draws"], least=True),
        "plain_all_epochs": difference(losses["together"], losses["plain_same_draws"]),
        "plain_all_epochs_double_precision": difference(
            together(double, parts, few), plain(double, parts, few, drawn=True)
        ),
    }
    assert result["alone"] < 1e-5, result
    assert result["plain_least_loss"] < 1e-4, result
    assert result["plain_all_epochs_double_precision"] < 1e-6, result
    return result


def compare(features: int, *, turns: int) -> dict[str, Any]:
    """Time the four ways for one width of features, and check that they agree."""
    examples, config = made_up(features), TrunkConfig()
    parts = hold_out(examples.features.numpy(), share=config.validation, seed=config.seed)
    ways: dict[Way, Callable[[], Epochs]] = {
        "together": lambda: together(examples, parts, config),
        "plain_same_draws": lambda: plain(examples, parts, config, drawn=True),
        "alone": lambda: alone(examples, parts, config),
        "plain": lambda: plain(examples, parts, config, drawn=False),
    }
    losses: dict[Way, Epochs] = {}
    seconds: dict[Way, float] = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for way, run in ways.items():
            start = time.perf_counter()
            losses[way] = run()
            seconds[way] = min(seconds[way], time.perf_counter() - start)
    each = {way: seconds[way] / sum(map(len, losses[way].values())) for way in ways}
    result = {
        "features": features,
        "seconds": seconds,
        "milliseconds_per_epoch_of_a_seed": {way: 1000 * each[way] for way in ways},
        "times_faster_than": {way: each[way] / each["together"] for way in ways},
        "greatest_difference_of_validation_losses": agreement(examples, parts, losses),
    }
    print(json.dumps(result, indent=1), flush=True)
    return result


def main() -> None:
    """Run the comparison and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--features", type=int, nargs="+", default=[200, 300, 400])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(2)
    machine = {"torch": torch.__version__, "cores": os.cpu_count(), "system": platform.platform()}
    results = [compare(width, turns=options.turns) for width in options.features]
    files.write_json(
        options.out, {"machine": machine, "queries": QUERIES, "targets": TARGETS, "widths": results}
    )


if __name__ == "__main__":
    main()
