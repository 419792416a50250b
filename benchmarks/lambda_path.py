"""The accuracy-cost curve: the exact lambda path, against a grid of 100,001 steps of lam.

The plain way scores all targets at every step and takes the argmax. The curves must agree at every
step.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine, make_trial_data
from prefill_router import files
from prefill_router.evaluation import LambdaSweep, Trial
from prefill_router.evaluation.bootstrap import ones

RESULT = Path(__file__).parent / "results" / "lambda_path.json"
NEEDED = 100.0
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


def plain(trial: Trial, grid: NDArray[np.float64]) -> Curve:
    """Accuracy and mean cost at every step, by a loop over the queries with all labels known."""
    rows = np.flatnonzero(~np.isnan(trial.correct + trial.observed_cost).any(axis=1))
    accuracy, cost = np.empty(len(grid)), np.empty(len(grid))
    for i, lam in enumerate(grid):
        choice = (lam * trial.correctness[rows] - (1 - lam) * trial.cost[rows]).argmax(axis=1)
        accuracy[i] = trial.correct[rows, choice].mean()
        cost[i] = trial.observed_cost[rows, choice].mean()
    return accuracy, cost


def exact(trial: Trial) -> tuple[LambdaSweep, Curve]:
    """All operating points."""
    fresh = Trial(**{k: v for k, v in vars(trial).items() if k in trial.__dataclass_fields__})
    sweep = LambdaSweep.of(fresh)
    points = sweep.points(ones(len(fresh)))
    return sweep, (points.accuracy[0], points.cost[0])


def main() -> None:
    """Run both ways and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100_001)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    trial = Trial.join(*make_trial_data(noise=0.15))
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        sweep, curve = exact(trial)
        seconds.append(time.perf_counter() - start)
    grid = np.linspace(0, 1, options.steps)
    start = time.perf_counter()
    expected = plain(trial, grid)
    elapsed = time.perf_counter() - start
    at = sweep.place(grid)
    difference = max(
        float(np.abs(a[at] / b - 1).max()) for a, b in zip(curve, expected, strict=True)
    )
    assert difference < 1e-9, difference
    result: dict[str, Any] = {
        "what": "the whole accuracy-cost curve",
        "queries": len(trial),
        "targets": len(trial.targets),
        "steps": options.steps,
        "operating_points": len(sweep),
        "operating_points_met_by_the_grid": len(np.unique(at)),
        "seconds": {"plain": elapsed, "ours_median": float(np.median(seconds))},
        "times_as_fast_as_plain": elapsed / float(np.median(seconds)),
        "needed": NEEDED,
        "met": elapsed / float(np.median(seconds)) >= NEEDED,
        "greatest_relative_difference": difference,
        "machine": machine(),
    }
    print(json.dumps(result, indent=1))
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
