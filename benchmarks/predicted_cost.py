"""A router with predicted costs against the same router with Equation 1's, beside the best mix.

One router is fitted on the train part of a dataset; its probabilities choose twice, at costs from
the median output and at costs from the output that is expected of each query. Both are judged on
the test questions of which all labels and costs are known: accuracy beyond the best fixed mix of
targets, found on train rows, at nine mean observed costs. Between two settings that cost less and
more than that, requests are split.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine
from benchmarks.shrinkage import LAMS, choose_targets, complete, gains
from prefill_router import files
from prefill_router.activations import ActivationStore
from prefill_router.cost import CostScale
from prefill_router.data import read_dataset, split
from prefill_router.evaluation.fixed_mix import FixedChoice
from prefill_router.features import Need
from prefill_router.fitting import FitConfig, gather, learn
from prefill_router.policy import Predictions, lambda_path
from prefill_router.progress import BarProgress

DATA = Path("../shared/data/mmlu_pro")
RESULT = Path(__file__).parent / "results" / "predicted_cost.json"
DOLLARS = (3e-5, 4e-5, 4.5e-5, 5e-5, 7e-5, 1e-4, 2e-4, 3e-4, 5e-4)
DENSE = 1 - np.geomspace(1, 1e-4, 400)
"""Values of lam at which the curve is read."""
CALLS = 5000
Array = NDArray[np.float64]


def at_dollars(
    correctness: Array,
    normalised: Array,
    correct: Array,
    cost: Array,
    corners: NDArray[np.int64],
) -> list[float | None]:
    """Points above the mix at each of `DOLLARS`; None for less than the cheapest setting costs."""
    path, rows = lambda_path(correctness, normalised), np.arange(len(correct))
    lams = np.concatenate([np.linspace(0, 0.3, 400), DENSE, [1.0]])
    choices = [path.at(float(lam)) for lam in np.unique(lams)]
    spent = np.array([cost[rows, k].mean() for k in choices])
    right = np.array([correct[rows, k].mean() for k in choices])
    order = np.argsort(spent, kind="stable")
    alone_cost, alone = cost[:, corners].mean(axis=0), correct[:, corners].mean(axis=0)
    ends = np.argsort(alone_cost, kind="stable")
    mix = np.interp(DOLLARS, alone_cost[ends], alone[ends])
    points = 100 * (np.interp(DOLLARS, spent[order], right[order]) - mix)
    return [
        None if dollars < spent.min() else round(float(point), 2)
        for dollars, point in zip(DOLLARS, points, strict=True)
    ]


def judge_costs(
    predictions: Predictions, correct: Array, observed: Array, corners: NDArray[np.int64]
) -> dict[str, Any]:
    """What choices by these costs gain, and how well the costs hold."""
    tables = predictions.correctness, predictions.normalised_cost, correct, observed, corners
    choices = choose_targets(*tables[:2])
    lam = gains(choices, *tables[2:])
    spent = [1e5 * observed[np.arange(len(observed)), choice].mean() for choice in choices]
    log_costs = np.log(observed), np.log(predictions.estimated_cost)
    variance = np.square(log_costs[0] - log_costs[0].mean(axis=0)).mean(axis=0)
    unexplained = np.square(log_costs[0] - log_costs[1])
    return {
        "at_dollars": at_dollars(*tables),
        "at_lam": np.round(lam, 2).tolist(),
        "cents_per_1000_at_lam": np.round(spent, 3).tolist(),
        "mean_over_lam": round(float(lam.mean()), 3),
        "observed_over_estimated": np.round(
            observed.mean(axis=0) / predictions.estimated_cost.mean(axis=0), 3
        ).tolist(),
        "log_cost_r2": round(float(1 - unexplained.mean() / np.log(observed).var()), 3),
        "log_cost_r2_by_target": np.round(1 - unexplained.mean(axis=0) / variance, 3).tolist(),
    }


def main() -> None:
    """Fit, judge, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA, help="a dataset")
    parser.add_argument("--store", type=Path, help="a finished store of its states, else minilm's")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    data = read_dataset(options.data)
    stores = [] if options.store is None else [ActivationStore.open(options.store)]
    [states] = stores or gather([Need("minilm")], data, [], progress=BarProgress())
    parts, began = split(data, seed=0), time.process_time()
    router = learn(data, [states], parts, config=FitConfig(resamples=0))
    seconds = time.process_time() - began
    head = router.output
    assert head is not None
    features, length = np.zeros((1, head.width), dtype=np.float32), np.array([100])
    began = time.process_time()
    for _ in range(CALLS):
        head.expect(features, length)
    microseconds = 1e6 * (time.process_time() - began) / CALLS
    train, test = data.select(parts["train"]), data.select(parts["test"])
    judged = test.select([test.query_ids[i] for i in complete(test)])
    corners = np.array(FixedChoice.mix(train).corners)
    correct, observed = judged.correct, judged.observed_cost
    rows = {}
    own = router.predict(train, stores=[states]).estimated_cost
    median = replace(router, output=None).predict(judged, stores=[states])
    predicted = router.predict(judged, stores=[states])
    stretched = replace(predicted, scale=CostScale(float(own.min()), float(own.max())))
    for name, predictions in (
        ("Equation 1", median),
        ("predicted", predicted),
        ("predicted, on their own range over the train rows", stretched),
    ):
        rows[name] = judge_costs(predictions, correct, observed, corners)
    result = {
        "what": "points of accuracy above the best fixed mix at equal observed cost",
        "queries": {"train": len(train), "judged": len(judged)},
        "dollars": DOLLARS,
        "lams": LAMS,
        "r2_out_of_fold": np.round(head.r2, 3).tolist(),
        "fit_seconds": round(seconds, 1),
        "microseconds_of_a_decision": round(microseconds, 1),
        "systems": rows,
        "machine": machine(),
    }
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
