"""Routers from few labels against the best fixed mix, with shrinkage and without.

So many queries are drawn and learned from, again and again; the rest is judged, on the queries
where the labels and costs of all targets are known. At each lam the router's accuracy is compared
with that of the best fixed mix of targets at the router's own mean cost. The mix is found on the
same labelled queries; beside it stands the mix that hindsight finds on the judged ones. Costs are
the observed ones; beside them, those that Equation 1 estimates count, so that the difference is
what wrong costs do. The pools are MMLU-Pro, given the data and a finished store, and made ones:

no signal            nothing can be predicted of a query; targets differ in skill and price
equal targets        nothing can be predicted, and targets differ in price alone
difficulty alone     how hard a query is can be predicted, and nothing that parts the targets
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import Activations, ActivationStore
from prefill_router.calibration import Shrinkage
from prefill_router.cost import CostEstimator
from prefill_router.data import Query, RoutingDataset, read_dataset
from prefill_router.evaluation.auc import Ranking
from prefill_router.evaluation.metrics import auc_by_target
from prefill_router.evaluation.weighted import ones
from prefill_router.features import Reading
from prefill_router.features.combined import FeatureSet
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting.out_of_fold import out_of_fold
from prefill_router.policy import lambda_path
from prefill_router.predictors import Examples, TrunkConfig
from prefill_router.router.states import count_tokens
from prefill_router.studies.doctor.mixture import envelope
from prefill_router.targets import Pool, Target

RESULT = Path(__file__).parent / "results" / "shrinkage.json"
LAMS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
DRAWS = {100: 20, 200: 20, 500: 12, 1000: 8, 2000: 5, 8000: 4}
MADE_TESTED, MADE_TARGETS, MADE_FEATURES = 4000, 8, 60
LOSS = 0.2
"""The mean loss against the mix, in points, that is allowed."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Some queries: what happened, what is read of them, and how long they are."""

    data: RoutingDataset
    features: NDArray[np.float32]
    tokens: NDArray[np.int64]


Draw = Callable[[int, int], tuple[Part, Part]]
"""What is learned from and what is judged, of so many queries and the number of a draw."""


def made(kind: str, queries: int, draw: int) -> tuple[Part, Part]:
    """A pool whose interactions can't be predicted."""
    random = np.random.default_rng([queries, draw, len(kind)])
    count = queries + MADE_TESTED
    spread = 5 * np.geomspace(1, 0.1, MADE_FEATURES)
    features = random.normal(size=(count, MADE_FEATURES)) * spread
    hard = random.normal(size=count)
    if kind == "difficulty alone":
        hard = features @ random.normal(size=MADE_FEATURES)
        hard /= hard.std()
    ends = (0.55, 0.55) if kind == "equal targets" else (0.35, 0.75)
    level = logit(np.linspace(*ends, MADE_TARGETS))
    shape = (count, MADE_TARGETS)
    correct = (random.random(shape) < expit(level + 1.2 * hard[:, None])).astype(np.float64)
    tokens = (1 + random.lognormal(4.5, 0.6, count)).astype(np.int64)
    price = np.geomspace(0.1, 3, MADE_TARGETS).tolist()
    targets = [Target(name=f"t{k}", input_price=p, output_price=4 * p) for k, p in enumerate(price)]
    data = RoutingDataset.of(
        [Query(f"q{i}", f"prompt {i}") for i in range(count)],
        Pool(tuple(targets)),
        correct,
        input_tokens=np.repeat(tokens[:, None], MADE_TARGETS, axis=1).astype(np.float64),
        output_tokens=random.lognormal(5.5, 0.4, shape).round(),
    )
    ids, columns = data.query_ids, features.astype(np.float32)
    first, last = slice(None, queries), slice(queries, None)
    return (
        Part(data.select(ids[first]), columns[first], tokens[first]),
        Part(data.select(ids[last]), columns[last], tokens[last]),
    )


def real(data: RoutingDataset, states: Activations, queries: int, draw: int) -> tuple[Part, Part]:
    """So many of a dataset's queries, and the others."""
    order = np.random.default_rng([queries, draw]).permutation(len(data))
    ids = [data.query_ids[i] for i in order]
    train, rest = data.select(ids[:queries]), data.select(ids[queries:])
    features = FeatureSet((PrefillConfig().fit(train, [states]),))
    readings = [(part, Reading.of_dataset(part, [states])) for part in (train, rest)]
    first, last = (Part(p, features.read(r), count_tokens(features, r)) for p, r in readings)
    return first, last


def gains(
    correctness: Array, normalised: Array, correct: Array, cost: Array, corners: NDArray[np.int64]
) -> Array:
    """Points of accuracy above the mix of these corners at the same cost, at each lam."""
    path, rows = lambda_path(correctness, normalised), np.arange(len(correct))
    alone_cost, alone = cost[:, corners].mean(axis=0), correct[:, corners].mean(axis=0)
    order = np.argsort(alone_cost, kind="stable")
    found = []
    for choice in map(path.at, LAMS):
        mix = np.interp(cost[rows, choice].mean(), alone_cost[order], alone[order])
        found.append(100 * (correct[rows, choice].mean() - mix))
    return np.array(found)


def complete(data: RoutingDataset) -> NDArray[np.int64]:
    """The queries on which all labels and costs are known."""
    known = ~np.isnan(data.correct).any(axis=1) & ~np.isnan(data.observed_cost).any(axis=1)
    return np.flatnonzero(known)


def one(train: Part, test: Part) -> dict[str, Any]:
    """One draw: each system's gains at each lam, its AUC and Brier score; and the factors."""
    names, began = train.data.pool.names, time.process_time()
    groups = tuple(f"{q.benchmark} / {q.domain}" for q in train.data.queries)
    examples, config = Examples(train.features, train.data.correct, names, groups), TrunkConfig()
    predictor = config.fit(examples).predictor
    fitted = time.process_time()
    found = out_of_fold(config, examples, train.data, seed=0)
    shrinkage = Shrinkage.fit(found.correctness, examples.correct, found.folds, names)
    shrunk = time.process_time()
    rows, costs = complete(test.data), CostEstimator.fit(train.data, train.tokens)
    correct, observed = test.data.correct[rows], test.data.observed_cost[rows]
    inputs = test.data.input_tokens[rows]
    estimated = costs.estimate(test.tokens[rows], input_tokens=inputs)
    normalised = costs.scale.normalise(estimated)
    raw = predictor.correctness(test.features[rows])
    ids = train.data.query_ids
    learned = envelope(train.data.select([ids[i] for i in complete(train.data)]))
    judged = test.data.select([test.data.query_ids[i] for i in rows])
    systems = {
        "as predicted": raw,
        "shrunk": shrinkage.shrink(raw),
        "base rates": np.tile(shrinkage.base, (len(rows), 1)),
    }
    table: dict[str, Any] = {
        "choice": shrinkage.choice,
        "difficulty": shrinkage.difficulty,
        "share_of_time": (shrunk - fitted) / (fitted - began),
        "judged": len(rows),
    }
    for name, p in systems.items():
        judge = partial(gains, p, normalised, correct)
        aucs = auc_by_target(
            tuple(Ranking.of(*c) for c in zip(p.T, correct.T, strict=True)), ones(len(rows))
        )
        table[name] = {
            "gain": judge(observed, learned),
            "at_estimated_costs": judge(estimated, learned),
            "against_hindsight": judge(observed, envelope(judged)),
            "auc": float(np.nanmean(aucs)),
            "brier": float(np.mean((p - correct) ** 2)),
        }
    return table


def summary(pool: str, queries: int, draws: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over draws."""

    def mean(name: str) -> float:
        return round(float(np.mean([draw[name] for draw in draws])), 4)

    def system(name: str) -> dict[str, Any]:
        tables = {
            kind: np.array([draw[name][kind] for draw in draws])  # [draw, lam]
            for kind in ("gain", "at_estimated_costs", "against_hindsight")
        }
        over_lam = tables["gain"].mean(axis=1)
        return {
            **{kind: round(float(table.mean()), 3) for kind, table in tables.items()},
            "standard_error": round(float(over_lam.std(ddof=1) / np.sqrt(len(draws))), 3),
            "worst_draw": round(float(over_lam.min()), 3),
            "gain_by_lam": np.round(tables["gain"].mean(axis=0), 3).tolist(),
            "at_estimated_costs_by_lam": np.round(
                tables["at_estimated_costs"].mean(axis=0), 3
            ).tolist(),
            "auc": round(float(np.mean([draw[name]["auc"] for draw in draws])), 4),
            "brier": round(float(np.mean([draw[name]["brier"] for draw in draws])), 4),
        }

    return {
        "pool": pool,
        "queries": queries,
        "draws": len(draws),
        **{name: mean(name) for name in ("choice", "difficulty", "share_of_time", "judged")},
        **{name: system(name) for name in ("as predicted", "shrunk", "base rates")},
    }


def main() -> None:
    """Draw, learn, judge, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="a dataset; with a store of its states")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--most", type=int, default=max(DRAWS), help="queries, at most")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    kinds = ("no signal", "equal targets", "difficulty alone")
    pools: Mapping[str, Draw] = {kind: partial(made, kind) for kind in kinds}
    if options.data and options.store:
        data, states = read_dataset(options.data), ActivationStore.open(options.store)
        pools = {options.data.name: partial(real, data, states), **pools}
    rows = []
    for pool, draw in pools.items():
        for queries, draws in DRAWS.items():
            if queries <= options.most:
                found = [one(*draw(queries, number)) for number in range(draws)]
                rows.append(summary(pool, queries, found))
                print(json.dumps(rows[-1]), flush=True)
    result = {"what": "points above the best fixed mix", "lams": LAMS, "rows": rows}
    files.write_json(options.out, {**result, "machine": machine()})
    for row in rows:
        assert row["shrunk"]["gain"] > -LOSS, row
        lost = row["as predicted"]["auc"] - row["shrunk"]["auc"]
        assert row["queries"] < max(DRAWS) or lost < 0.002, row


if __name__ == "__main__":
    main()
