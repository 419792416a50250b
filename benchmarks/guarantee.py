"""How often a guarantee is broken: draws from populations whose truth is known.

From each population, queries are drawn again and again; on each draw a lam is chosen that should
keep a share of the best single target's accuracy, with several tests, and its true share is looked
up in the whole population. A procedure that holds its word fails it in no more than 1 - confidence
of the draws. The populations are made up, and, given the data and a finished store, real: the
predictions of a router fitted on 30 % of the queries for the other 70 %.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from benchmarks._system import machine, make_trial_data
from prefill_router import files
from prefill_router.evaluation import Trial
from prefill_router.guarantee import LAMS, best_single, guarantee
from prefill_router.guarantee.losses import order_ids
from prefill_router.statistics import p_value

RESULT = Path(__file__).parent / "results" / "guarantee.json"
GRID = (*LAMS[:-1:8], LAMS[-1])
"""Every eighth lam, so that many draws can be looked at."""
Array = NDArray[np.float64]
Test = Callable[[Array, float, float], float]


@dataclass(frozen=True)
class Population:
    """The labels and costs of the router at every lam, and of the best single target."""

    name: str
    trial: Trial
    best: str
    router: Array
    cost: Array
    alone: Array
    alone_cost: Array

    @classmethod
    def of(cls, name: str, trial: Trial, best: str) -> "Population":
        """Look all of it up, on the queries whose labels and costs are all known."""
        rows = ~np.isnan(trial.correct).any(axis=1) & ~np.isnan(trial.observed_cost).any(axis=1)
        sample = part(trial, np.flatnonzero(rows))
        choices = [sample.path.at(lam) for lam in GRID]
        column = sample.targets.index(best)
        tables = (sample.correct, sample.observed_cost)
        router, cost = (np.stack([sample.of_choice(t, c) for c in choices]) for t in tables)
        return cls(name, sample, best, router, cost, *(t[:, column] for t in tables))


def part(trial: Trial, rows: NDArray[np.int64]) -> Trial:
    """Some of the queries, each a query of its own."""
    return replace(
        trial,
        query_ids=tuple(map(str, range(len(rows)))),
        correctness=trial.correctness[rows],
        cost=trial.cost[rows],
        correct=trial.correct[rows],
        observed_cost=trial.observed_cost[rows],
    )


def hoeffding_bentkus(observed: Array, threshold: float, _level: float) -> float:
    """The test of Angelopoulos et al. 2021, blind to how little paired losses vary."""
    mean, count = float(observed.mean()), len(observed)
    if mean >= threshold:
        return 1.0
    terms = [(mean, threshold), (1 - mean, 1 - threshold)]
    entropy = sum(a * math.log(a / b) for a, b in terms if a > 0)
    bentkus = math.e * float(binom.cdf(math.ceil(count * mean), count, threshold))
    return min(1.0, math.exp(-count * entropy), bentkus)


def normal(observed: Array, threshold: float, _level: float) -> float:
    """The normal approximation, which holds only for many queries."""
    spread = float(observed.std(ddof=1)) / math.sqrt(len(observed))
    return float(norm.cdf((observed.mean() - threshold) / max(spread, 1e-12)))


def betting(observed: Array, threshold: float, level: float) -> float:
    """Ours."""
    return p_value(observed, threshold, level=level)


def last_rejected(
    losses: Callable[[int], Array], threshold: float, test: Test, first: int, level: float
) -> int:
    """The last place of an unbroken sequence of rejections; -1 without any."""
    best_place = -1
    for place in range(first, len(GRID)):
        if test(losses(place), threshold, level) > level:
            break
        best_place = place
    return best_place


def choose_places(
    population: Population, rows: NDArray[np.int64], keep: float, level: float
) -> dict[str, int]:
    """The place in GRID that each procedure chooses; -1 for none."""
    alone = population.alone[rows]
    router = population.router[:, rows]

    def losses(place: int) -> Array:
        scaled: Array = (keep * alone - router[place] + 1) / (1 + keep)
        return scaled

    zero, starts = 1 / (1 + keep), (0, 13, 26, 39)
    several = [last_rejected(losses, zero, betting, s, level / len(starts)) for s in starts]
    fine = np.flatnonzero(router.mean(axis=1) >= keep * alone.mean())
    return {
        "betting (ours)": last_rejected(losses, zero, betting, 0, level),
        "betting, four starts": max(several),
        "Hoeffding-Bentkus": last_rejected(losses, zero, hoeffding_bentkus, 0, level),
        "normal approximation": last_rejected(losses, zero, normal, 0, level),
        "cheapest that looks fine": int(fine[-1]) if len(fine) else -1,
    }


def simulate(
    population: Population, *, queries: int, keep: float, confidence: float, draws: int, seed: int
) -> dict[str, Any]:
    """Draw again and again; how often each procedure breaks its word, and what it saves."""
    random, level = np.random.default_rng(seed), 1 - confidence
    order = order_ids(tuple(map(str, range(queries))))
    truth = population.router.mean(axis=1) / population.alone.mean()
    saved = 1 - population.cost.mean(axis=1) / population.alone_cost.mean()
    places_of: dict[str, list[int]] = {}
    for draw in range(draws):
        rows = random.integers(0, len(population.alone), queries)
        places = choose_places(population, rows[order], keep, level)
        if draw < 3:
            ours = guarantee(
                part(population.trial, rows),
                best=population.best,
                keep=keep,
                confidence=confidence,
                lams=GRID,
                resamples=0,
            )
            place = places["betting (ours)"]
            assert ours.lam == (None if place < 0 else GRID[place])
        for name, place in places.items():
            places_of.setdefault(name, []).append(place)
    fine = np.flatnonzero(truth >= keep)
    table = {
        name: {
            "broken": float(np.mean([p >= 0 and truth[p] < keep for p in places])),
            "found": float(np.mean([p >= 0 for p in places])),
            "saved": float(np.mean([saved[p] if p >= 0 else 0.0 for p in places])),
        }
        for name, places in places_of.items()
    }
    return {
        "population": population.name,
        "queries": queries,
        "keep": keep,
        "confidence": confidence,
        "draws": draws,
        "saved_by_the_truth": float(saved[fine[-1]]) if len(fine) else 0.0,
        "most_broken_by_chance": float(binom.ppf(0.999, draws, level) / draws),
        "procedures": table,
    }


def real(data: Path, store: Path) -> Population:
    """A router fitted on 30 % of the queries, on the other 70 %."""
    from prefill_router.activations import ActivationStore
    from prefill_router.data import read_dataset, split
    from prefill_router.fitting import FitConfig, fit_router

    dataset, states = read_dataset(data), ActivationStore.open(store)
    parts = split(dataset, fractions={"train": 0.3, "test": 0.7})
    fitted = fit_router(dataset, [states], config=FitConfig(test=0.15, resamples=20), split=parts)
    test = dataset.select(parts["test"])
    trial = Trial.join(fitted.router.predict(test, stores=[states]), test)
    return Population.of(f"{data.name}, 70 %", trial, best_single(dataset.select(parts["train"])))


def synthetic(noise: float) -> Population:
    """Made-up answers to 14 targets, and probabilities that know something."""
    trial = Trial.join(*make_trial_data(noise=noise))
    accuracy = np.nanmean(trial.correct, axis=0)
    return Population.of(f"made up, noise {noise}", trial, trial.targets[int(accuracy.argmax())])


def main() -> None:
    """Simulate, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--data", type=Path, help="a dataset; with a store of its states")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    populations = [synthetic(0.05), synthetic(0.1)]
    if options.data and options.store:
        populations.append(real(options.data, options.store))
    rows = [
        simulate(
            population, queries=queries, keep=keep, confidence=0.95, draws=options.draws, seed=0
        )
        for population in populations
        for queries in (300, 1450)
        for keep in (0.95, 0.98)
    ]
    for row in rows:
        word = row["procedures"]["betting (ours)"]["broken"]
        assert word <= row["most_broken_by_chance"], row
    result = {"what": "share of draws whose promise is broken", "rows": rows, "machine": machine()}
    print(json.dumps(result, indent=1))
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
