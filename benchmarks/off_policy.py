"""How often intervals from labels that chance selected contain the truth.

From a population whose labels are all known, logs are drawn again and again: queries with
replacement, and for each which labels are observed. The router's target is always labelled, the
others with known probabilities. From each log, the accuracy of another setting of the router, that
of each target alone and the verdict's gain over the best fixed mix are estimated, with 95 %
intervals, and compared with the population's own.

random      every other target with the same probability
chosen      more probably where the predictions of the target and the router's choice are close,
            with a floor
noisy       as random, and one label in ten is wrong
no overlap  one target that the judged setting needs is never asked
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine, make_trial_data
from prefill_router import files
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import OverlapError
from prefill_router.evaluation import (
    Estimate,
    FixedChoice,
    JudgedPart,
    PolicyValues,
    References,
    ReferenceTable,
    Trial,
    judge,
)
from prefill_router.policy import Predictions

RESULT = Path(__file__).parent / "results" / "off_policy.json"
CASES = ("random", "chosen", "noisy", "no overlap")
JUDGED = (0.0, 0.3, 0.6, 0.9, 1.0)
"""The settings whose accuracies are estimated; the last but one is the verdict's."""
RUNNING = 0.5
"""The setting of the router whose traffic is drawn."""
SHARE, FLOOR, ERROR = 0.15, 0.05, 0.1
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Queries with all labels, predictions of them, and what the references were chosen on."""

    predictions: Predictions
    data: RoutingDataset
    train: RoutingDataset

    @property
    def trial(self) -> Trial:
        """The router on all of it."""
        return Trial.join(self.predictions, self.data)

    def truth(self) -> dict[str, float]:
        """What is to be estimated, by name."""
        trial = self.trial
        accuracies = {
            f"lam {lam:g}": float(trial.of_choice(trial.correct, trial.path.at(lam)).mean())
            for lam in JUDGED
        }
        alone = zip(trial.targets, trial.correct.mean(axis=0).tolist(), strict=True)
        choice = trial.path.at(JUDGED[-2])
        cost = float(trial.of_choice(trial.paid, choice).mean())
        table = ReferenceTable.of(FixedChoice.mix(self.train), trial)
        mix = table.spend(np.arange(len(trial)), cost).label.mean()
        gain = accuracies[f"lam {JUDGED[-2]:g}"] - float(mix)
        return (
            accuracies | {f"target {name}": accuracy for name, accuracy in alone} | {"gain": gain}
        )

    def log(self, case: str, queries: int, random: np.random.Generator) -> Trial:
        """One log, as it is judged."""
        rows = random.integers(0, len(self.data), queries)
        ids = tuple(map(str, range(queries)))
        source = self.predictions
        predictions = replace(
            source,
            query_ids=ids,
            correctness=source.correctness[rows],
            estimated_cost=source.estimated_cost[rows],
        )
        chance = self.propensity(case, rows)
        observed = random.random(chance.shape) < chance
        correct = self.data.correct[rows]
        error = ERROR if case == "noisy" else 0.0
        correct = np.where(random.random(chance.shape) < error, 1 - correct, correct)
        log = RoutingDataset.of(
            [Query(name, "?") for name in ids],
            self.data.pool,
            np.where(observed, correct, np.nan),
            recorded_cost=np.where(observed, self.data.observed_cost[rows], np.nan),
            label_error=np.where(observed, error, np.nan) if error else None,
            propensity=chance,
        )
        return Trial.join(predictions, log)

    def propensity(self, case: str, rows: NDArray[np.int64]) -> Array:
        """The probability with which each label is observed."""
        trial = self.trial
        running = trial.path.at(RUNNING)[rows, None] == np.arange(len(trial.targets))
        chance = np.full(running.shape, SHARE)
        if case == "chosen":
            predicted = trial.correctness[rows]
            gap = np.abs(predicted - predicted[running][:, None])
            chance = FLOOR + 0.4 * np.maximum(0, 1 - gap / 0.2)
        if case == "no overlap":
            chance[:, np.bincount(trial.path.at(1.0)).argmax()] = 0
        return np.where(running, 1.0, chance)


def estimates(
    log: Trial, train: RoutingDataset, resamples: int
) -> Iterator[tuple[str, str, Estimate]]:
    """What is estimated from a log: its name, how, and the estimate.

    Raises:
        OverlapError: Overlap is lacking.
    """
    values = PolicyValues.of(log)
    for lam in JUDGED:
        value = values.at(lam)
        yield f"lam {lam:g}", "doubly robust", value.accuracy
        yield f"lam {lam:g}", "inverse propensity", value.inverse
    for name, value in values.targets.items():
        yield f"target {name}", "doubly robust", value.accuracy
        yield f"target {name}", "inverse propensity", value.inverse
    references = References.fit(train, np.zeros(train.correct.shape))
    part = JudgedPart(log, references, lam=JUDGED[-2])
    gain = judge([part], resamples=resamples).setting.mix.gain
    if gain.reason:
        raise OverlapError(gain.reason)
    yield "gain", "doubly robust", gain


def simulate(
    population: Population, case: str, *, logs: int, queries: int, resamples: int, seed: int = 0
) -> dict[str, Any]:
    """How often the intervals of many logs contain the truth, and how wide they are."""
    random = np.random.default_rng([seed, CASES.index(case)])
    truth, refused = population.truth(), 0
    rows: dict[tuple[str, str], list[tuple[bool, float, float]]] = {}
    for _ in range(logs):
        log = population.log(case, queries, random)
        try:
            for name, how, estimate in estimates(log, population.train, resamples):
                covered = estimate.lower <= truth[name] <= estimate.upper
                errors = covered, estimate.upper - estimate.lower, estimate.value - truth[name]
                rows.setdefault((name.split()[0], how), []).append(errors)
                if not name.startswith("target"):
                    rows.setdefault((name, how), []).append(errors)
        except OverlapError:
            refused += 1
    table = [
        {
            "of": name,
            "by": how,
            "covered": round(float(np.mean([row[0] for row in errors])), 4),
            "width": round(float(np.mean([row[1] for row in errors])), 4),
            "bias": round(float(np.mean([row[2] for row in errors])), 5),
        }
        for (name, how), errors in rows.items()
    ]
    facts = {"case": case, "logs": logs, "queries": queries, "refused": refused}
    return {**facts, "intervals": table}


def real(data: Path, store: Path) -> Population:
    """A router fitted on 30 % of the queries, on those of the others with all labels and costs."""
    from prefill_router.activations import ActivationStore
    from prefill_router.data import read_dataset, split
    from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict

    dataset, states = read_dataset(data), ActivationStore.open(store)
    parts = split(dataset, fractions={"train": 0.3, "test": 0.7})
    recipe = recipe_from_dict({"predictor": {"kind": "shared_trunk", "seeds": 2, "keep": 2}})
    config = FitConfig(recipe=recipe, resamples=0)
    router = fit_router(dataset, [states], config=config, split=parts).router
    test = dataset.select(parts["test"])
    known = ~np.isnan(test.correct + test.observed_cost).any(axis=1)
    test = test.select(np.array(test.query_ids, dtype=object)[known].tolist())
    return Population(router.predict(test, stores=[states]), test, dataset.select(parts["train"]))


def synthetic() -> Population:
    """Made-up answers of 14 targets, and probabilities that know something."""
    predictions, data = make_trial_data(noise=0.05)
    known = ~np.isnan(data.correct).any(axis=1)
    ids = np.array(data.query_ids, dtype=object)[known].tolist()
    return Population(predictions.select(ids[300:]), data.select(ids[300:]), data.select(ids[:300]))


def main() -> None:
    """Simulate, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=int, default=500)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--data", type=Path, help="a dataset; made up without one")
    parser.add_argument("--store", type=Path, help="a store of its states")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    real_data = options.data and options.store
    population = real(options.data, options.store) if real_data else synthetic()
    rows = []
    for case in CASES:
        rows.append(
            simulate(
                population,
                case,
                logs=options.logs,
                queries=options.queries,
                resamples=options.resamples,
            )
        )
        print(json.dumps(rows[-1], indent=1), flush=True)
    result = {
        "what": "share of simulated logs whose 95 % interval contains the truth",
        "population": options.data.name if real_data else "made up",
        "population_queries": len(population.data),
        "targets": len(population.data.pool),
        "rows": rows,
        "machine": machine(),
    }
    files.write_json(options.out, result)


if __name__ == "__main__":
    main()
