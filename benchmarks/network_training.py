"""Training of networks in NumPy, against torch's autograd, one network after another.

    python -m benchmarks.network_training [--rounds 5] [--only shared_trunk]

What `fit` trains by itself, the shared trunk and the unified network with a loss of pairs, on
made-up rows of the size of the real case and on few rows. The plain way is an ordinary `nn.Module`,
autograd and torch's optimiser in a loop over the seeds, with torch's own dropout, on one thread,
since torch's threads spin where other work has their cores. Both have the same number of epochs,
and take turns: each round gives one ratio, and the median of the rounds counts, since other work
on the machine meets both alike. The ratio of processor time leaves out that seeds train side by
side, and hardly depends on other work.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from prefill_router import files
from prefill_router.predictors import Examples, TrunkConfig
from prefill_router.predictors.networks import UnifiedConfig
from prefill_router.predictors.training import Holdout, hold_out

RESULT = Path(__file__).parent / "results" / "network_training.json"
Config = TrunkConfig | UnifiedConfig
SIZES = {"8,000 rows": (8000, 800, 14), "400 rows": (400, 60, 3)}
"""Rows, features and targets."""
EPOCHS = {"8,000 rows": 2, "400 rows": 30}
CONFIGS: Mapping[str, Config] = {
    "shared_trunk": TrunkConfig(),
    "unified_multitask": UnifiedConfig(pairs=0.5, seeds=8),
}


def make_examples(rows: int, columns: int, targets: int) -> Examples:
    """Features with the spectrum of PCA blocks, labels that follow from them, 1 % missing."""
    random = np.random.default_rng(0)
    spread = 8 / np.sqrt(1 + np.arange(columns) % 100)
    features = (random.normal(size=(rows, columns)) * spread).astype(np.float32)
    signal = features @ random.normal(size=(columns, 3)) / np.sqrt((spread**2).sum())
    logits = np.tanh(signal) @ random.uniform(0.2, 1, (3, targets)) + random.normal(0, 1, targets)
    correct = (random.logistic(size=logits.shape) < logits).astype(np.float64)
    correct[random.random(correct.shape) < 0.01] = np.nan
    names = tuple(f"t{i}" for i in range(targets))
    return Examples(features, correct, names, ("",) * rows)


class Plain(nn.Module):
    """Hidden layers, a head for the targets and one for the difficulty."""

    def __init__(self, columns: int, targets: int, config: Config) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if isinstance(config, UnifiedConfig):
            drops = [config.dropout] * len(config.hidden)
            layers.append(nn.Dropout(config.share_of(columns)))
        else:
            drops = list(config.dropout)
        width = columns
        for after, rate in zip(config.hidden, drops, strict=True):
            layers += [nn.Linear(width, after), nn.ReLU(), nn.Dropout(rate)]
            width = after
        self.hidden, self.head = nn.Sequential(*layers), nn.Linear(width, targets)
        self.difficulty = nn.Linear(width, 1)

    def losses(self, rows: tuple[Tensor, Tensor, Tensor], config: Config) -> tuple[Tensor, Tensor]:
        """What is validated, and what is trained on."""
        features, labels, present = rows
        units = self.hidden(features)
        logits = self.head(units)
        each = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = (each * present).sum() / present.sum()
        if isinstance(config, TrunkConfig):
            return loss, loss
        weights = (labels * present)[:, :, None] * ((1 - labels) * present)[:, None, :]
        gaps = logits[:, :, None] - logits[:, None, :]
        loss = loss + config.pairs * (softplus(-gaps) * weights).sum() / weights.sum()
        wrong = 1 - (labels * present).sum(1) / present.sum(1)
        hard = binary_cross_entropy_with_logits(self.difficulty(units)[:, 0], wrong)
        return loss, loss + config.difficulty_weight * hard


def plain_seed(
    rows: tuple[Tensor, Tensor, Tensor], parts: Holdout, config: Config, targets: int
) -> float:
    """Train one network; returns its last validation loss."""
    net = Plain(rows[0].shape[1], targets, config)
    kind = torch.optim.Adam if isinstance(config, TrunkConfig) else torch.optim.AdamW
    adam = kind(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    fit, validation_rows = (
        tuple(part[torch.from_numpy(n)] for part in rows) for n in (parts.fit, parts.validation)
    )
    validation = 0.0
    for _ in range(config.max_epochs):
        net.train()
        for chosen in torch.split(torch.randperm(len(fit[0])), config.batch_size):
            adam.zero_grad()
            _, loss = net.losses((fit[0][chosen], fit[1][chosen], fit[2][chosen]), config)
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        net.eval()
        with torch.no_grad():
            validation = float(
                net.losses((validation_rows[0], validation_rows[1], validation_rows[2]), config)[0]
            )
    return validation


def plain(examples: Examples, config: Config) -> float:
    """Train one network after another; returns the mean of their last validation losses."""
    features = examples.features
    if isinstance(config, UnifiedConfig):
        features = (features - features.mean(axis=0)) / features.std()
    parts = hold_out(features, share=config.validation, seed=0)
    labels, present = np.nan_to_num(examples.correct), ~np.isnan(examples.correct)
    tables = (torch.from_numpy(values.astype(np.float32)) for values in (features, labels, present))
    rows = tuple(tables)
    each = [
        plain_seed((rows[0], rows[1], rows[2]), parts, config, len(examples.targets))
        for _ in range(config.seeds)
    ]
    return float(np.mean(each))


def train_packaged(examples: Examples, config: Config) -> float:
    """Fit the predictor; returns the mean of the networks' last validation losses."""
    record = config.fit(examples).training["seeds"]
    return float(np.mean([seed["validation_loss"][-1] for seed in record]))


def compare(name: str, size: str, *, rounds: int) -> dict[str, Any]:
    """Time both ways for one kind and one size."""
    examples, epochs = make_examples(*SIZES[size]), EPOCHS[size]
    config: Config = replace(CONFIGS[name], max_epochs=epochs, patience=epochs)
    ways: dict[str, Callable[[Examples, Config], float]] = {"numpy": train_packaged, "plain": plain}
    for run in ways.values():
        run(examples, replace(config, max_epochs=1))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    losses: dict[str, float] = {}
    for _ in range(rounds):
        for way, run in ways.items():
            start = time.perf_counter(), time.process_time()
            losses[way] = run(examples, config)
            seconds[way].append(time.perf_counter() - start[0])
            processor[way].append(time.process_time() - start[1])
    per_epoch = {way: 1000 * median(each) / epochs / config.seeds for way, each in seconds.items()}
    result = {
        "milliseconds_per_epoch_of_a_network": per_epoch,
        "times_as_fast": _ratio(seconds),
        "times_as_fast_in_processor_time": _ratio(processor),
        "last_validation_loss": losses,
    }
    print(f"{name}, {size}: {result}", flush=True)
    return result


def _ratio(taken: Mapping[str, list[float]]) -> float:
    return median(p / n for p, n in zip(taken["plain"], taken["numpy"], strict=True))


def main() -> None:
    """Run the comparison and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(CONFIGS))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    machine = {
        "numpy": np.__version__,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2),
    }
    names = [options.only] if options.only else list(CONFIGS)
    results = {
        name: {size: compare(name, size, rounds=options.rounds) for size in SIZES} for name in names
    }
    files.write_json(options.out, {"machine": machine, "sizes": SIZES, "networks": results})


if __name__ == "__main__":
    main()
