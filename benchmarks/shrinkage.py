"""Routers from few labels against the best fixed mix, with shrinkage and without.

Queries are drawn at random and learned from, again and again; the rest is judged, on the queries
where the labels and costs of all targets are known. At each lam the router's accuracy is compared
with that of the best fixed mix of targets at the router's own mean cost. The mix is found on the
same labelled queries; beside it stands the mix that hindsight finds on the judged ones. Costs are
the observed ones; beside them, those that Equation 1 estimates count, so that the difference is
what wrong costs do. The router chooses by Equation 1's costs, and once more by predicted ones. The
pools are MMLU-Pro, given the data and a finished store, and made ones:

no signal            nothing can be predicted of a query; targets differ in skill and price
equal targets        nothing can be predicted, and targets differ in price alone
difficulty alone     how hard a query is can be predicted, and nothing that parts the targets
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import Activations, ActivationStore
from prefill_router.calibration import Shrinkage
from prefill_router.cost import CostEstimator, fit_output
from prefill_router.data import Query, RoutingDataset, read_dataset
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.fixed_mix import FixedChoice
from prefill_router.evaluation.metrics import Ranking, auc_by_target
from prefill_router.features import PromptStates
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import folds_of
from prefill_router.policy import lambda_path
from prefill_router.predictors import Examples, TrunkConfig, out_of_fold
from prefill_router.targets import Pool, Target

RESULT = Path(__file__).parent / "results" / "shrinkage.json"
LAMS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
DRAWS = {100: 12, 200: 12, 500: 10, 1000: 8, 2000: 6, 8000: 4}
POOL_TESTED, POOL_TARGETS, POOL_FEATURES = 4000, 8, 60
LOSS = 0.2
"""The mean loss against the mix, in points, that is allowed."""
Array = NDArray[np.float64]


Columns = NDArray[np.float32]
KINDS = ("no signal", "difficulty alone", "equal targets")


@dataclass(frozen=True)
class Draw:
    """What is learned from and what is judged, how long each query is, and what is read of both."""

    train: RoutingDataset
    test: RoutingDataset
    tokens: tuple[NDArray[np.int64], NDArray[np.int64]]
    features: Callable[[], tuple[Columns, Columns]]


def make_pool(kind: str, queries: int, draw: int) -> Draw:
    """A pool whose interactions can't be predicted."""
    random = np.random.default_rng([7, queries, draw, KINDS.index(kind)])
    count, targets = queries + POOL_TESTED, POOL_TARGETS
    spread = np.geomspace(1, 0.1, POOL_FEATURES) * 5
    columns = random.normal(size=(count, POOL_FEATURES)) * spread
    unseen = random.normal(size=count)
    seen = columns @ random.normal(size=POOL_FEATURES)
    hard = seen / seen.std() if kind == "difficulty alone" else unseen
    ends = (0.55, 0.55) if kind == "equal targets" else (0.35, 0.75)
    right = expit(logit(np.linspace(*ends, targets)) + 1.2 * hard[:, None])
    correct = (random.random((count, targets)) < right).astype(np.float64)
    tokens = random.lognormal(4.5, 0.6, count).round() + 1
    prices = np.geomspace(0.1, 3, targets).tolist()
    pool = [Target(name=f"t{k}", input_price=p, output_price=4 * p) for k, p in enumerate(prices)]
    data = RoutingDataset.of(
        [Query(f"q{i}", f"prompt {i}") for i in range(count)],
        Pool(tuple(pool)),
        correct,
        input_tokens=np.repeat(tokens[:, None], targets, axis=1),
        output_tokens=random.lognormal(5.5, 0.4, (count, targets)).round(),
    )
    ids, read, counts = data.query_ids, columns.astype(np.float32), tokens.astype(np.int64)
    return Draw(
        data.select(ids[:queries]),
        data.select(ids[queries:]),
        (counts[:queries], counts[queries:]),
        lambda: (read[:queries], read[queries:]),
    )


def real(data: RoutingDataset, states: Activations, queries: int, draw: int) -> Draw:
    """A dataset's queries, `queries` of them to learn from and the others to judge."""
    order = np.random.default_rng([queries, draw]).permutation(len(data))
    ids = [data.query_ids[i] for i in order]
    train, test = data.select(ids[:queries]), data.select(ids[queries:])

    def features() -> tuple[Columns, Columns]:
        family = PrefillConfig().fit(train, [states])
        first, last = (
            family.read(PromptStates.of_dataset(part, [states])) for part in (train, test)
        )
        return first, last

    tokens = states.tokens(train.prompt_keys), states.tokens(test.prompt_keys)
    return Draw(train, test, tokens, features)


def predictions(draw: Draw, place: Path | None) -> Mapping[str, Array]:
    """What is predicted of the judged queries, and of the others out of fold; kept in a file.

    `seconds` is the processor time of the fit and of the fits out of fold.
    """
    if place is not None and place.is_file():
        return dict(np.load(place))
    first, last = draw.features()
    train, config = draw.train, TrunkConfig()
    examples = Examples(first, train.correct, train.pool.names, ("",) * len(train))
    times = [time.process_time()]
    predictor = config.fit(examples).predictor
    times.append(time.process_time())
    folds = folds_of(train, seed=0)
    unseen = out_of_fold(config, replace(examples, folds=folds), seed=0)
    times.append(time.process_time())
    arrays: dict[str, Array] = {
        "judged": predictor.correctness(last),
        "out_of_fold": unseen,
        "folds": folds.astype(np.float64),
        "seconds": np.diff(times),
    }
    if place is not None:
        with files.replacing_file(place) as temporary, temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
    return arrays


def choose_targets(correctness: Array, normalised: Array) -> list[NDArray[np.int64]]:
    """The target of each query, at each lam."""
    path = lambda_path(correctness, normalised)
    return [path.at(lam) for lam in LAMS]


def gains(
    choices: Sequence[NDArray[np.int64]], correct: Array, cost: Array, corners: NDArray[np.int64]
) -> Array:
    """Points of accuracy above the mix of these corners at the same cost, for each choice."""
    rows = np.arange(len(correct))
    alone_cost, alone = cost[:, corners].mean(axis=0), correct[:, corners].mean(axis=0)
    order = np.argsort(alone_cost, kind="stable")
    points = []
    for choice in choices:
        mix = np.interp(cost[rows, choice].mean(), alone_cost[order], alone[order])
        points.append(100 * (correct[rows, choice].mean() - mix))
    return np.array(points)


def complete(data: RoutingDataset) -> NDArray[np.int64]:
    """The queries on which all labels and costs are known."""
    known = ~np.isnan(data.correct).any(axis=1) & ~np.isnan(data.observed_cost).any(axis=1)
    return np.flatnonzero(known)


def judge_draw(draw: Draw, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """One draw: each system's gains at each lam, its AUC and Brier score; and the factors."""
    train, test = draw.train, draw.test
    shrinkage = Shrinkage.fit(
        arrays["out_of_fold"], train.correct, arrays["folds"].astype(np.int64), train.pool.names
    )
    rows = complete(test)
    judged = test.select([test.query_ids[i] for i in rows])
    correct, observed = judged.correct, judged.observed_cost
    costs = CostEstimator.fit(train, draw.tokens[0])
    estimated = costs.estimate(draw.tokens[1][rows], input_tokens=judged.input_tokens)
    normalised, raw = costs.scale.normalise(estimated), arrays["judged"][rows]
    first, last = draw.features()
    folds = folds_of(train, seed=0)
    head = fit_output(first, train, draw.tokens[0], folds, costs).head
    predicted = costs.estimate(
        draw.tokens[1][rows],
        input_tokens=judged.input_tokens,
        expected=head.expect(last[rows], draw.tokens[1][rows]).mean,
    )
    learned = np.array(FixedChoice.mix(train).corners)
    systems = {
        "as predicted": raw,
        "shrunk": shrinkage.shrink(raw),
        "base rates": np.tile(shrinkage.base, (len(rows), 1)),
    }
    seconds = arrays["seconds"]
    table: dict[str, Any] = {
        "choice": shrinkage.choice,
        "difficulty": shrinkage.difficulty,
        "share_of_time": seconds[1] / seconds[0],
        "judged": len(rows),
    }
    for name, p in systems.items():
        judge = partial(gains, choose_targets(p, normalised), correct)
        by_predicted = choose_targets(p, costs.scale.normalise(predicted))
        ranked = tuple(Ranking.of(*columns) for columns in zip(p.T, correct.T, strict=True))
        table[name] = {
            "gain": judge(observed, learned),
            "predicted_costs": gains(by_predicted, correct, observed, learned),
            "at_estimated_costs": judge(estimated, learned),
            "against_hindsight": judge(observed, np.array(FixedChoice.mix(judged).corners)),
            "auc": float(np.nanmean(auc_by_target(ranked, ones(len(rows))))),
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
            for kind in ("gain", "predicted_costs", "at_estimated_costs", "against_hindsight")
        }
        over_lam = tables["gain"].mean(axis=1)
        return {
            **{kind: round(float(table.mean()), 3) for kind, table in tables.items()},
            "standard_error": round(float(over_lam.std(ddof=1) / np.sqrt(len(draws))), 3),
            "worst_draw": round(float(over_lam.min()), 3),
            "predicted_costs_by_lam": np.round(tables["predicted_costs"].mean(axis=0), 3).tolist(),
            "predicted_costs_error_by_lam": np.round(
                tables["predicted_costs"].std(axis=0, ddof=1) / np.sqrt(len(draws)), 3
            ).tolist(),
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


def draw_gains(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The gain of the shrunk router by lam, a panel for each number of labels of the first pool."""
    pool_rows = [row for row in rows if row["pool"] == rows[0]["pool"]]
    figure, axes = plt.subplots(
        2, -(-len(pool_rows) // 2), sharex=True, sharey=True, figsize=(11, 6), layout="constrained"
    )
    kinds = {"gain_by_lam": "Equation 1", "predicted_costs_by_lam": "predicted costs"}
    for row, panel in zip(pool_rows, axes.flat, strict=False):
        for kind, label in kinds.items():
            panel.plot(range(len(LAMS)), row["shrunk"][kind], marker="o", markersize=4, label=label)
        panel.axhline(0, color="black", linewidth=1, label="the best fixed mix")
        panel.axhline(-LOSS, color="grey", linestyle="--", label=f"{LOSS} points below it")
        panel.set_title(f"{row['queries']:,} labelled queries, {row['draws']} draws")
        panel.set_xticks(range(len(LAMS)), [f"{lam:g}" for lam in LAMS], rotation=90)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.supxlabel("lam")
    figure.supylabel("points above the best fixed mix")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw, learn, judge, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="a dataset; with a store of its states")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder of predictions, to go on from there")
    parser.add_argument("--most", type=int, default=max(DRAWS), help="queries, at most")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    pools: Mapping[str, Callable[[int, int], Draw]] = {k: partial(make_pool, k) for k in KINDS}
    if options.data and options.store:
        data, states = read_dataset(options.data), ActivationStore.open(options.store)
        pools = {options.data.name: partial(real, data, states), **pools}
    rows: list[dict[str, Any]] = []
    result = {"what": "points above the best fixed mix", "lams": LAMS, "rows": rows}
    for queries in (count for count in DRAWS if count <= options.most):
        for pool, of in pools.items():
            tables = []
            for number in range(DRAWS[queries]):
                draw, name = of(queries, number), f"{pool} {queries} {number}.npz"
                place = options.keep / name.replace(" ", "_") if options.keep else None
                tables.append(judge_draw(draw, predictions(draw, place)))
            rows.append(summary(pool, queries, tables))
            print(json.dumps(rows[-1]), flush=True)
            files.write_json(options.out, {**result, "machine": machine()})
    draw_gains(rows, options.out.with_suffix(".png"))
    for row in rows:
        assert row["shrunk"]["gain"] > -LOSS, row
        assert row["shrunk"]["predicted_costs"] > -LOSS, row
        lost = row["as predicted"]["auc"] - row["shrunk"]["auc"]
        assert row["queries"] < max(DRAWS) or lost < 0.002, row


if __name__ == "__main__":
    main()
