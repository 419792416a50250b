"""Fits and evaluations of a million queries on a GPU, against NumPy in the same run.

    python -m benchmarks.gpu_fit [--rows 1000000] [--features 400]

Three parts run there: the ten seeds of the trunk, the exact search for neighbours, and the AUCs of
an evaluation's resamples. NumPy gets a share of the rows, queries or resamples, and its time is
scaled, since all of them would take hours. The results of both are compared, and the time that it
takes to read the features from the disk stands beside them. It takes about three minutes on a card.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import SKIPPED
from benchmarks._system import machine
from benchmarks.network_training import make_examples
from prefill_router import files
from prefill_router.accelerator import compute_on, torch_device
from prefill_router.evaluation import PairRankings
from prefill_router.neighbours import NeighbourIndex
from prefill_router.predictors import TrunkConfig

RESULT = Path(__file__).parent / "results" / "gpu_fit.json"
EPOCHS, NEIGHBOURS, TARGETS = 3, 100, 14
SHARE = 50
"""NumPy gets one of so many rows, queries or resamples."""


def measure(work: Callable[[], Any], device: torch.device | str) -> tuple[float, Any]:
    """The seconds of some work on a device, and its result."""
    with compute_on(device):
        begin = time.perf_counter()
        result = work()
        return time.perf_counter() - begin, result


def compare_trunk(rows: int, features: int, device: torch.device) -> dict[str, float]:
    """An epoch of ten seeds."""
    examples = make_examples(rows, features, TARGETS)
    part = replace(
        examples,
        features=examples.features[::SHARE],
        correct=examples.correct[::SHARE],
        groups=examples.groups[::SHARE],
    )
    config = TrunkConfig(max_epochs=EPOCHS)
    config.fit(part)  # starts the threads
    measure(lambda: config.fit(part), device)  # starts the device
    ours, _ = measure(lambda: config.fit(examples), device)
    plain, _ = measure(lambda: config.fit(part), "cpu")
    return {"device": ours / EPOCHS, "numpy, scaled": plain * SHARE / EPOCHS}


def compare_search(rows: int, features: int, device: torch.device) -> dict[str, float]:
    """The search for the neighbours of a fiftieth of the rows."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(rows, features)).astype(np.float32)
    index, queries = NeighbourIndex.of(vectors), vectors[: max(SHARE, rows // SHARE)]
    few = queries[:: min(SHARE, len(queries))]
    measure(lambda: index.search(few, NEIGHBOURS), device)
    ours, (_, on_device) = measure(lambda: index.search(queries, NEIGHBOURS), device)
    plain, (_, in_numpy) = measure(lambda: index.search(few, NEIGHBOURS), "cpu")
    if not np.array_equal(on_device[:: min(SHARE, len(queries))], in_numpy):
        raise SystemExit("the neighbours differ")
    return {"device": ours, "numpy, scaled": plain * len(queries) / len(few)}


def compare_aucs(rows: int, device: torch.device) -> dict[str, float]:
    """The AUCs of all pairs of targets in a hundred resamples of 15 % of the rows."""
    random = np.random.default_rng(0)
    judged = max(100, int(0.15 * rows))
    chances = random.random((judged, TARGETS))
    labels = (random.random(chances.shape) < chances).astype(np.float64)
    pairs = PairRankings.of(chances, labels)
    draws = random.integers(0, judged, (100, judged))
    weights = np.stack([np.bincount(draw, minlength=judged) for draw in draws]).astype(np.float64)
    few = weights[: len(weights) // 10]
    measure(lambda: pairs.scores(few), device)
    ours, on_device = measure(lambda: pairs.scores(weights), device)
    plain, in_numpy = measure(lambda: pairs.scores(few), "cpu")
    for name, values in in_numpy.items():
        np.testing.assert_allclose(on_device[name][: len(few)], values, rtol=1e-9)
    return {"device": ours, "numpy, scaled": plain * 10}


def time_reading(rows: int, features: int) -> float:
    """The seconds in which the features are read from the disk, or from the system's cache."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npy"
        np.save(file, np.zeros((rows, features), dtype=np.float32))
        begin = time.perf_counter()
        np.load(file)
        return time.perf_counter() - begin


def main() -> None:
    """Measure, print, and write benchmarks/results/gpu_fit.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=400)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a GPU with CUDA")
        sys.exit(SKIPPED)
    rows, features, device = options.rows, options.features, torch_device("cuda")
    seconds = {
        "an epoch of the trunk's ten seeds": compare_trunk(rows, features, device),
        "neighbours of a fiftieth of the rows": compare_search(rows, features, device),
        "choice AUC of 100 resamples": compare_aucs(rows, device),
    }
    for name, pair in seconds.items():
        pair["times as fast"] = pair["numpy, scaled"] / pair["device"]
        print(name, {key: round(value, 3) for key, value in pair.items()}, flush=True)
    result = {
        "rows": rows,
        "features": features,
        "seconds": seconds,
        "reading the features": time_reading(rows, features),
        "card": torch.cuda.get_device_name(device),
        "machine": machine(),
    }
    print(f"reading the features: {result['reading the features']:.3f} s")
    files.write_json(RESULT, result)


if __name__ == "__main__":
    main()
