"""A file of prompts under a budget: time and memory of a million, and how good the assignment is.

    python -m benchmarks.assign [--folder FOLDER] [--prompts 1000000]

The command is run on JSON Lines of prompts whose states are in a store, with a router that was
fitted on other prompts of the same made-up world, 14 targets. What it finds is compared on small
tables with the exact optimum by integer programming, and with the plain way, the largest lam of a
grid at which Equation 2 keeps to the budget.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, kron, vstack

from benchmarks._large_world import TARGETS, write_world
from benchmarks._system import machine
from benchmarks.large import WIDE, measure
from prefill_router import files
from prefill_router.assignment import assign
from prefill_router.cost import CostScale
from prefill_router.policy import Predictions, choose

RESULT = Path(__file__).parent / "results" / "assign.json"
FITTED, SMALL, GRID = 20_000, 500, 1_001
SHARES = (0.02, 0.1, 0.3, 0.6)
"""Budgets between the cost of the cheapest assignment and that of the most expensive one."""
SECONDS = 60.0
"""What the exact optimum may take; a bound that it proved by then is kept, too."""


def tables(prompts: int, seed: int) -> Predictions:
    """Made-up predictions: an ability that prompts and targets share, and noise of each cell."""
    random = np.random.default_rng(seed)
    level = np.linspace(-1, 1.5, TARGETS)
    logits = random.normal(0, 1, (prompts, 1)) + level + random.normal(0, 0.5, (prompts, TARGETS))
    length = np.exp(random.normal(0, 0.5, (prompts, 1)))
    cost = 1e-5 * 1.4 ** np.arange(TARGETS) * length * random.uniform(0.7, 1.3, (prompts, TARGETS))
    return Predictions(
        query_ids=tuple(f"q{i}" for i in range(prompts)),
        targets=tuple(f"target-{k}" for k in range(TARGETS)),
        correctness=1 / (1 + np.exp(-logits)),
        estimated_cost=cost,
        scale=CostScale(float(cost.min()), float(cost.max())),
    )


def budget_at(predictions: Predictions, share: float) -> float:
    """A budget between the cost of the cheapest and of the most expensive targets."""
    low, high = (f(predictions.estimated_cost, axis=1).sum() for f in (np.min, np.max))
    return float(low + share * (high - low))


def by_grid(predictions: Predictions, budget: float) -> float:
    """The expected right answers at the largest lam of a grid that keeps to the budget."""
    rows, best = np.arange(len(predictions)), 0.0
    for lam in np.linspace(0, 1, GRID):
        choice = choose(predictions.correctness, predictions.normalised_cost, float(lam))
        if predictions.estimated_cost[rows, choice].sum() > budget:
            break
        best = float(predictions.correctness[rows, choice].sum())
    return best


def by_programming(
    predictions: Predictions, budget: float, limits: NDArray[np.int64]
) -> dict[str, float]:
    """The exact optimum by HiGHS, or what it has found and proved in the time it is given."""
    count, targets = predictions.correctness.shape
    cost = csr_array(predictions.estimated_cost.reshape(1, -1) / budget)
    ones, each = np.ones((1, targets)), np.ones((1, count))
    choice = LinearConstraint(kron(csr_array(np.eye(count)), ones), 1, 1)
    most = LinearConstraint(
        vstack([cost, kron(each, np.eye(targets))]), -np.inf, np.concatenate([[1.0], limits])
    )
    solution = milp(
        -predictions.correctness.ravel(),
        constraints=[choice, most],
        integrality=np.ones(count * targets),
        bounds=Bounds(0, 1),
        options={"time_limit": SECONDS, "mip_rel_gap": 1e-7},
    )
    return {"right": -float(solution.fun), "proved_bound": -float(solution.mip_dual_bound)}


def compare(seed: int) -> list[dict[str, Any]]:
    """Each budget with and without limits, by each way."""
    predictions = tables(SMALL, seed)
    rows = []
    for share in SHARES:
        for limits in ({}, {"target-5": SMALL // 50, "target-8": SMALL // 20}):
            budget = budget_at(predictions, share)
            begin = time.perf_counter()
            assignment = assign(predictions, budget=budget, limits=limits)
            spent = time.perf_counter() - begin
            most = np.array([limits.get(name, SMALL) for name in predictions.targets])
            begin = time.perf_counter()
            exact = by_programming(predictions, budget, most)
            row = {
                "share": share,
                "limits": dict(limits),
                "right": assignment.expected_right,
                "bound": assignment.bound,
                "gap": assignment.gap,
                "seconds": round(spent, 3),
                "exact": exact,
                "exact_seconds": round(time.perf_counter() - begin, 2),
                "grid": None if limits else by_grid(predictions, budget),
            }
            rows.append(row)
            print(row, flush=True)
    return rows


def in_memory(prompts: int) -> dict[str, Any]:
    """The assignment alone, of predictions in memory, and the plain way."""
    predictions = tables(prompts, 0)
    budget = budget_at(predictions, 0.1)
    limits = {"target-5": prompts // 50, "target-8": prompts // 20}
    figures: dict[str, Any] = {}
    for name, limited in (("free", {}), ("limited", limits)):
        begin = time.perf_counter()
        assignment = assign(predictions, budget=budget, limits=limited)
        seconds = round(time.perf_counter() - begin, 2)
        figures[name] = {
            "seconds": seconds,
            "right": assignment.expected_right,
            "gap": assignment.gap,
        }
    begin = time.perf_counter()
    for lam in np.linspace(0, 1, 11):
        choose(predictions.correctness, predictions.normalised_cost, float(lam))
    figures["seconds_of_one_lam"] = round((time.perf_counter() - begin) / 11, 2)
    return figures


def run_command(folder: Path, prompts: int) -> dict[str, Any]:
    """Time and memory of the command, from JSON Lines to batches, and what it says."""
    shutil.rmtree(folder, ignore_errors=True)
    large = (sys.executable, "-m", "benchmarks.large")
    write_world(folder / "fitted" / "data", FITTED)
    measure((*large, "--encode", folder / "fitted", "--width", str(WIDE)))
    measure((*large, "--fit", folder / "fitted"))
    write_world(folder / "new" / "data", prompts, seed=1, answers=False)
    encoding = measure((*large, "--encode", folder / "new", "--width", str(WIDE)))
    queries = pl.read_parquet(folder / "new" / "data" / "queries.parquet")
    queries.select(id="query_id", prompt="prompt").write_ndjson(folder / "prompts.jsonl")
    figures: dict[str, Any] = {"encode": encoding}
    for name, more in (("free", ()), ("limited", ("--at-most", "target-6=5%"))):
        budget = f"{prompts * 2.5e-4:g}"
        words = ("assign", folder / "fitted" / "router", folder / "prompts.jsonl", *more)
        options = ("--budget", budget, "--out", folder / name, "--format", "openai")
        program = Path(sys.executable).with_name("prefill-router")
        figures[name] = measure((program, *words, *options, "--store", folder / "new" / "states"))
        figures[name] |= _read_summary(folder / name)
        print(name, figures[name], flush=True)
    shutil.rmtree(folder)
    return figures


def _read_summary(folder: Path) -> Mapping[str, Any]:
    summary = json.loads((folder / "assignment.json").read_text())
    names = ("prompts", "budget", "expected_cost", "expected_right", "bound", "gap", "lam")
    counts = {name: figures["prompts"] for name, figures in summary["targets"].items()}
    return {**{name: summary[name] for name in names}, "counts": counts}


def main() -> None:
    """Measure everything and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/assign"))
    parser.add_argument("--prompts", type=int, default=1_000_000)
    options = parser.parse_args()
    command = run_command(options.folder, options.prompts)  # while this process is small
    result = {
        "small": {"prompts": SMALL, "targets": TARGETS, "grid": GRID, "rows": compare(0)},
        "in_memory": {"prompts": options.prompts, **in_memory(options.prompts)},
        "command": command,
        "machine": machine(),
    }
    files.write_json(RESULT, result)


if __name__ == "__main__":
    main()
