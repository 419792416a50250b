"""1,000 paired bootstrap resamples of every headline metric, against resampling loops.

- ours: `compare`, weights over what was sorted once;
- plain: draw the rows, score them from the beginning, with scikit-learn's AUC; one resample after
  another, on fewer resamples. Its numbers must be ours;
- scipy: `scipy.stats.bootstrap` of the difference of macro AUC alone, with scikit-learn's AUC.
"""

import argparse
import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap
from sklearn.metrics import roc_auc_score

from benchmarks._system import machine, make_trial_data
from prefill_router import files
from prefill_router.data import RoutingDataset
from prefill_router.evaluation import Trial, compare
from prefill_router.evaluation.bootstrap import draw, ones
from prefill_router.evaluation.scores import Scorer
from prefill_router.policy import Predictions

RESULT = Path(__file__).parent / "results" / "bootstrap.json"
NEEDED_SECONDS = 5.0


def macro_auc(trial: Trial, rows: NDArray[np.int64]) -> float:
    """Mean AUC of the targets on these rows, by scikit-learn."""
    aucs = []
    for scores, labels in zip(trial.correctness[rows].T, trial.correct[rows].T, strict=True):
        known = ~np.isnan(labels)
        aucs.append(roc_auc_score(labels[known], scores[known]))
    return float(np.mean(aucs))


def plain(trial: Trial, rows: NDArray[np.int64]) -> dict[str, float]:
    """Every headline metric on these rows, from the beginning."""
    sample = Trial(
        tuple(map(str, range(len(rows)))),
        trial.targets,
        trial.correctness[rows],
        trial.cost[rows],
        trial.correct[rows],
        trial.observed_cost[rows],
    )
    headline = Scorer(sample).score(ones(len(rows))).headline
    return {name: float(value[0]) for name, value in headline.items()} | {
        "auc_mean": macro_auc(trial, rows)
    }


def check(
    trials: list[Trial], draws: list[NDArray[np.int64]], loop: list[dict[str, float]]
) -> float:
    """The greatest difference of the loop's numbers from the weighted computation's."""
    weights = np.stack([np.bincount(rows, minlength=len(rows)) for rows in draws]).astype(float)
    first, second = (Scorer(trial).score(weights).headline for trial in trials)
    # APGR and CPT are of two targets, so undefined here; AIQ and ParetoDist are of each alone. Of
    # reliability, resamples are without the noise of resampling, which drawn rows have.
    return max(
        float(
            np.nan_to_num(np.abs([row[name] for row in loop] - (first[name] - second[name]))).max()
        )
        for name in first
        if name not in ("ece_mean", "brier_reliability", "brier_resolution")
    )


def scipy_seconds(trials: list[Trial], *, count: int) -> float:
    """Seconds per resample of the macro AUC's difference alone."""
    rows = np.arange(len(trials[0]))

    def statistic(sample: NDArray[np.int64]) -> float:
        return macro_auc(trials[0], sample) - macro_auc(trials[1], sample)

    start = time.perf_counter()
    bootstrap(
        (rows,), statistic, n_resamples=count, vectorized=False, method="percentile", random_state=0
    )
    return (time.perf_counter() - start) / count


def peak_memory(systems: tuple[Predictions, Predictions], data: RoutingDataset) -> float:
    """MiB at most held by the comparison."""
    tracemalloc.start()
    compare(*systems, data, resamples=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    """Run the three ways and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--loop", type=int, default=20, help="resamples of the slow ways")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    (first, data), (second, _) = make_trial_data(noise=0.1), make_trial_data(noise=0.2)
    start, busy = time.perf_counter(), time.process_time()
    comparison = compare(first, second, data, resamples=options.resamples)
    ours, busy = time.perf_counter() - start, time.process_time() - busy
    trials = [Trial.join(predictions, data) for predictions in (first, second)]
    draws = list(draw(len(first), count=options.loop, seed=0))
    start = time.perf_counter()
    both = [[plain(trial, rows) for trial in trials] for rows in draws]
    loop = (time.perf_counter() - start) / options.loop
    difference = check(trials, draws, [{n: a[n] - b[n] for n in a} for a, b in both])
    assert difference < 1e-9, difference
    by_scipy = scipy_seconds(trials, count=options.loop)
    result: dict[str, Any] = {
        "what": f"{options.resamples} paired resamples of {len(comparison.difference)} metrics",
        "queries": len(first),
        "targets": len(first.targets),
        "seconds": ours,
        "processor_seconds": busy,
        "needed_seconds": NEEDED_SECONDS,
        # It runs on one core: on a machine with other work the clock measures that work too.
        "met": min(ours, busy) < NEEDED_SECONDS,
        "load_average": os.getloadavg()[0],
        "seconds_per_resample": {
            "ours": ours / options.resamples,
            "plain_loop": loop,
            "scipy_macro_auc_alone": by_scipy,
        },
        "times_as_fast_as_plain": loop / (ours / options.resamples),
        "times_as_fast_as_scipy_on_macro_auc_alone": by_scipy / (ours / options.resamples),
        "greatest_difference_from_plain": difference,
        "peak_memory_mib": peak_memory((first, second), data),
        "machine": machine(),
    }
    print(json.dumps(result, indent=1))
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
