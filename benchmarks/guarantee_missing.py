"""How often a guarantee is broken where labels are missing, and not at random.

From populations whose labels are all known, labels are taken away by rules that no test can undo;
queries are drawn again and again, and the true share at the lam that was found is looked up with
all labels. Beside ours, which counts a missing label as the worst that it could be, is the test
that leaves such queries out.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from benchmarks._system import machine
from benchmarks.guarantee import (
    GRID,
    Array,
    Population,
    betting,
    last_rejected,
    part,
    real,
    synthetic,
)
from prefill_router import files
from prefill_router.evaluation import Trial
from prefill_router.guarantee import guarantee
from prefill_router.guarantee.losses import Losses, order_ids

RESULT = Path(__file__).parent / "results" / "guarantee_missing.json"
Cells = NDArray[np.bool_]
CONFIDENCE = 0.95


def favourite(population: Population) -> int:
    """The target that the router chooses most at lam = 1, the best single target apart."""
    trial = population.trial
    counts = np.bincount(trial.path.at(1.0), minlength=len(trial.targets))
    counts[trial.targets.index(population.best)] = -1
    return int(counts.argmax())


def hardest(population: Population, chance: Array) -> Cells:
    """Four in five labels of the favourite, in the fifth of the queries that fewest get right."""
    cells = np.zeros(chance.shape, dtype=np.bool_)
    share = population.trial.correct.mean(axis=1)
    column = favourite(population)
    cells[:, column] = (share <= np.quantile(share, 0.2)) & (chance[:, column] < 0.8)
    return cells


def wrong(population: Population, chance: Array) -> Cells:
    """One in ten wrong answers of all targets but the best."""
    cells: Cells = (population.trial.correct == 0) & (chance < 0.1)
    cells[:, population.trial.targets.index(population.best)] = False
    return cells


def right(population: Population, chance: Array) -> Cells:
    """One in twenty right answers of the best single target."""
    cells: Cells = (population.trial.correct == 1) & (chance < 0.05)
    cells[:, np.array(population.trial.targets) != population.best] = False
    return cells


WAYS: dict[str, Callable[[Population, Array], Cells]] = {
    "the favourite's, on the hardest queries": hardest,
    "wrong answers": wrong,
    "right answers of the best target": right,
}


def leaving_out(trial: Trial, best: int, keep: float) -> int:
    """The place in GRID that a test finds which leaves queries with missing labels out."""
    order = order_ids(trial.query_ids)

    def measured_losses(place: int) -> Array:
        losses = Losses.of(trial, trial.path.at(GRID[place]), best, keep)
        scaled: Array = losses.scaled[order][losses.measured[order]]
        return scaled

    return last_rejected(measured_losses, 1 / (1 + keep), betting, 0, 1 - CONFIDENCE)


def simulate(
    population: Population, way: str, *, queries: int, keep: float, draws: int
) -> dict[str, Any]:
    """Draw again and again; how often each procedure breaks its word, and what it saves."""
    random = np.random.default_rng(0)
    trial = population.trial
    cells = WAYS[way](population, random.random(trial.correct.shape))
    masked = part(trial, np.arange(len(trial)))
    masked.correct[cells] = np.nan
    best = trial.targets.index(population.best)
    truth = population.router.mean(axis=1) / population.alone.mean()
    saved = 1 - population.cost.mean(axis=1) / population.alone_cost.mean()
    places_of: dict[str, list[int]] = {"at their worst (ours)": [], "left out": []}
    for _ in range(draws):
        sample = part(masked, random.integers(0, len(trial), queries))
        ours = guarantee(
            sample, best=population.best, keep=keep, confidence=CONFIDENCE, lams=GRID, resamples=0
        )
        places_of["at their worst (ours)"].append(-1 if ours.lam is None else GRID.index(ours.lam))
        places_of["left out"].append(leaving_out(sample, best, keep))
    lost = Losses.of(masked, masked.path.at(1.0), best, keep).measured
    return {
        "population": population.name,
        "missing": way,
        "queries_that_lack_a_label": float(1 - lost.mean()),
        "queries": queries,
        "keep": keep,
        "draws": draws,
        "most_broken_by_chance": float(binom.ppf(0.999, draws, 1 - CONFIDENCE) / draws),
        "procedures": {
            name: {
                "broken": float(np.mean([p >= 0 and truth[p] < keep for p in places])),
                "found": float(np.mean([p >= 0 for p in places])),
                "saved": float(np.mean([saved[p] if p >= 0 else 0.0 for p in places])),
            }
            for name, places in places_of.items()
        },
    }


def main() -> None:
    """Simulate, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--data", type=Path, help="a dataset; with a store of its states")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    populations = [synthetic(0.05)]
    if options.data and options.store:
        populations.append(real(options.data, options.store))
    rows = [
        simulate(population, way, queries=1450, keep=keep, draws=options.draws)
        for population in populations
        for way in WAYS
        for keep in (0.9, 0.95)
    ]
    for row in rows:
        word = row["procedures"]["at their worst (ours)"]["broken"]
        assert word <= row["most_broken_by_chance"], row
    result = {"what": "share of draws whose promise is broken", "rows": rows, "machine": machine()}
    print(json.dumps(result, indent=1))
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
