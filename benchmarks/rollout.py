"""Promotions and withdrawals of candidates on simulated traffic, by the test of `rollout`.

A candidate sends two fifths of the requests to another target than the current router does. It is
better and cheaper, or worse, or cheaper and worse by exactly the margin. Of each request, the
answer that was sent is graded, and others with a probability of 0.3; a grade is wrong with a
probability of 0.1. Decisions are taken after every 250 requests, as a learner would.

    python -m benchmarks.rollout
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._system import machine
from prefill_router import files
from prefill_router_gateway.learning import RolloutData, RolloutSettings, decide_rollout

RESULT = Path(__file__).parent / "results" / "rollout.json"
REQUESTS, LOOK = 30_000, 250
DIFFER, SIDE, ERROR = 0.4, 0.3, 0.1
SETTINGS = RolloutSettings(most_dollars=0.01, floor=SIDE, most_error=ERROR)
CASES = {
    "better and cheaper": (0.04, 20),
    "worse": (-0.04, 20),
    "worse by the margin": (-0.01, 200),
}


def traffic(gain: float, seed: int) -> RolloutData:
    """Requests for which the candidate's mean quality differs from the current one by `gain`."""
    rng = np.random.default_rng(seed)
    truth = np.tile(rng.uniform(0.25, 0.8, (REQUESTS, 1)), 2)
    truth[:, 1] += gain / DIFFER
    current = np.zeros(REQUESTS, dtype=np.int64)
    candidate = (rng.random(REQUESTS) < DIFFER).astype(np.int64)
    live = rng.random(REQUESTS) < SETTINGS.share
    propensity = np.full((REQUESTS, 2), SIDE)
    propensity[np.arange(REQUESTS), np.where(live, candidate, current)] = 1.0
    right = rng.random((REQUESTS, 2)) < truth
    graded = right ^ (rng.random((REQUESTS, 2)) < ERROR)
    is_used = rng.random((REQUESTS, 2)) < propensity
    dollars = np.array([0.002, 0.001]) * rng.lognormal(0, 0.5, (REQUESTS, 2))
    return RolloutData(
        current=current,
        candidate=candidate,
        predicted=np.clip(truth + rng.normal(0, 0.1, truth.shape), 0, 1),
        label=np.where(is_used, graded, np.nan),
        label_error=np.full((REQUESTS, 2), ERROR),
        propensity=propensity,
        expected_dollars=np.tile([0.0022, 0.0012], (REQUESTS, 1)),
        dollars=np.where(is_used, dollars, np.nan),
        live=live,
    )


def run_rollout(gain: float, seed: int) -> tuple[str, int, int]:
    """The first promotion or withdrawal, or `wait`; after how many requests and labels."""
    data = traffic(gain, seed)
    proven = decide_rollout(data, SETTINGS).proven
    never = REQUESTS + 1
    by_quality = max(proven.get("no worse", never), proven.get("cheaper", never))
    by_gain = max(proven.get("better", never), proven.get("not more expensive", never))
    promoted = max(min(by_quality, by_gain), proven.get("not far worse", never))
    withdrawn = proven.get("worse", never)
    first = min(promoted, withdrawn)
    if first == never:
        return "wait", REQUESTS, int((~np.isnan(data.label)).sum())
    requests = LOOK * -(-first // LOOK)
    action = "withdraw" if withdrawn <= requests else "promote"
    return action, requests, int((~np.isnan(data.label[:requests])).sum())


def measure(gain: float, seeds: int) -> dict[str, Any]:
    """What became of the candidates, and after how many labels."""
    ends = [run_rollout(gain, seed) for seed in range(seeds)]
    settled = [row for row in ends if row[0] != "wait"]
    labels = np.array([row[2] for row in settled])
    return {
        "gain": gain,
        "seeds": seeds,
        "ends": dict(Counter(row[0] for row in ends)),
        "requests_median": float(np.median([row[1] for row in settled])) if settled else None,
        "labels_median": float(np.median(labels)) if settled else None,
        "labels_most": int(labels.max()) if settled else None,
    }


def main() -> None:
    """Measure all cases."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    result = {
        "machine": machine(),
        "margin": SETTINGS.margin,
        "level": SETTINGS.level,
        "requests": REQUESTS,
        "cases": {name: measure(*case) for name, case in CASES.items()},
    }
    files.write_json(RESULT, result)
    print(files.as_json(result))


if __name__ == "__main__":
    main()
