"""PCA from streamed moments and probes of all targets at once, against scikit-learn's."""

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from prefill_router import files
from prefill_router.geometry import Moments
from prefill_router.probes import Probes
from prefill_router.reduction import Reducer

RESULT = Path(__file__).parent / "results" / "geometry.json"
ROWS, TARGETS, DIM, ROUNDS = 8192, 14, 100, 3
Array = NDArray[Any]


def states(hidden: int) -> Array:
    """Correlated float32 states, far from the origin in a few dimensions."""
    random = np.random.default_rng(0)
    spread = random.normal(size=(ROWS, hidden)) / np.sqrt(1 + np.arange(hidden))
    mixed: Array = spread @ random.normal(size=(hidden, hidden)) / np.sqrt(hidden)
    mixed[:, :4] += 100
    narrow: Array = mixed.astype(np.float32)
    return narrow


def answers(features: Array) -> Array:
    """Labels that the features know a little."""
    random = np.random.default_rng(1)
    weights = random.normal(size=(features.shape[1], TARGETS)) / np.sqrt(features.shape[1])
    chance = 1 / (1 + np.exp(-features @ weights / features.std()))
    correct: Array = (random.random(chance.shape) < chance).astype(np.float64)
    return correct


def fit_oracle(features: Array, correct: Array) -> Array:
    """scikit-learn's coefficients, one target after another; [feature, target]."""
    probe = LogisticRegression(solver="newton-cholesky")
    return np.stack([probe.fit(features, labels).coef_[0] for labels in correct.T], axis=1)


def fit_pca(values: Array) -> Array:
    """scikit-learn's scaler and randomised PCA, in float32; ours is exact, in float64."""
    scaled = StandardScaler().fit_transform(values)
    components: Array = PCA(DIM, svd_solver="randomized", random_state=0).fit(scaled).components_
    return components


def compare(ours: Callable[[], Any], theirs: Callable[[], Any]) -> dict[str, float]:
    """The least seconds of each, taking turns, and how many times as fast ours is."""
    times: dict[str, list[float]] = {"ours": [], "scikit_learn": []}
    for _ in range(ROUNDS):
        for name, way in (("ours", ours), ("scikit_learn", theirs)):
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    best = {name: min(seconds) for name, seconds in times.items()}
    return {**best, "times_as_fast": best["scikit_learn"] / best["ours"]}


def main() -> None:
    """Time both parts and keep the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"rows": ROWS, "targets": TARGETS, "dim": DIM, "pca": {}, "probes": {}}
    for hidden in (384, 2048):
        values = states(hidden)
        row = compare(
            lambda v=values: Reducer.fit(Moments.of(v), DIM),  # type: ignore[misc]
            lambda v=values: fit_pca(v),  # type: ignore[misc]
        )
        result["pca"][f"hidden {hidden}"] = row
    features = Reducer.fit(Moments.of(values), 300).transform(values).astype(np.float64)
    for dim in (100, 300):
        columns = np.ascontiguousarray(features[:, :dim])
        correct = answers(columns)
        row = compare(
            lambda f=columns, y=correct: Probes.fit(f.astype(np.float32), y),  # type: ignore[misc]
            lambda f=columns, y=correct: fit_oracle(f, y),  # type: ignore[misc]
        )
        exact = Probes.fit(columns, correct).weights
        row["greatest_difference_in_float64"] = float(
            np.abs(exact - fit_oracle(columns, correct)).max()
        )
        result["probes"][f"dim {dim}"] = row
    result["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load_average": round(os.getloadavg()[0], 2),
        "numpy": np.__version__,
    }
    print(json.dumps(result, indent=1))
    files.write_json(RESULT, result)


if __name__ == "__main__":
    main()
