"""Small systems to evaluate, and a plain evaluation of them that shares no formula with ours."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.data import Query, RoutingDataset
from prefill_router.policy import Predictions, choose
from prefill_router.targets import Pool, Target

Array = NDArray[np.float64]
OF_TWO = ("apgr", "cpt_20", "cpt_50", "cpt_80")
"""The metrics of a strong and a weak target."""
OF_CHOSEN = (
    *("chosen_accuracy", "chosen_cost", "chosen_gain", "chosen_headroom"),
    *("savings", "savings_gain"),
)
"""The metrics at settings that were chosen on train rows."""


def system(
    correctness: Array, estimated_cost: Array, correct: Array, cost: Array
) -> tuple[Predictions, RoutingDataset]:
    queries, targets = correct.shape
    pool = Pool(tuple(Target(name=f"t{k}") for k in range(targets)))
    rows = [Query(f"q{i}", f"prompt {i}") for i in range(queries)]
    data = RoutingDataset.of(rows, pool, correct, recorded_cost=cost)
    scale = CostScale(float(estimated_cost.min()), float(estimated_cost.max()))
    predictions = Predictions(
        query_ids=data.query_ids,
        targets=pool.names,
        correctness=correctness,
        estimated_cost=estimated_cost,
        scale=scale,
    )
    return predictions, data


def random_system(
    *, queries: int = 60, targets: int = 4, missing: float = 0.0, ties: bool = False, seed: int = 0
) -> tuple[Predictions, RoutingDataset]:
    """Targets of rising skill and price; probabilities that know something of the labels."""
    random = np.random.default_rng(seed)
    shape = (queries, targets)
    skill = np.linspace(0.35, 0.75, targets)
    chance = np.clip(skill + random.normal(0, 0.25, (queries, 1)), 0.02, 0.98)
    correct = (random.random(shape) < chance).astype(np.float64)
    correctness = np.clip(chance + random.normal(0, 0.15, shape), 0, 1)
    if ties:
        correctness = np.round(correctness, 1)
    estimated = 0.001 * 3.0 ** np.arange(targets) * random.uniform(0.8, 1.2, (queries, 1))
    cost = estimated * random.lognormal(0, 0.5, shape)
    lost = random.random(shape) < missing
    correct[lost], cost[lost] = np.nan, np.nan
    return system(correctness, estimated, correct, cost)


def resample(
    predictions: Predictions, data: RoutingDataset, rows: Sequence[int]
) -> tuple[Predictions, RoutingDataset]:
    """The system with these rows; repeated rows are separate queries."""
    picked = list(rows)
    ids = [f"r{i}" for i in range(len(picked))]
    queries = [Query(i, data.queries[row].prompt) for i, row in zip(ids, picked, strict=True)]
    new = Predictions(
        query_ids=tuple(ids),
        targets=predictions.targets,
        correctness=predictions.correctness[picked],
        estimated_cost=predictions.estimated_cost[picked],
        scale=predictions.scale,
    )
    return new, RoutingDataset.of(
        queries, data.pool, data.correct[picked], recorded_cost=data.observed_cost[picked]
    )


def complete(predictions: Predictions, data: RoutingDataset) -> tuple[Predictions, RoutingDataset]:
    """The queries on which the label and the cost of every target are known."""
    is_known = ~np.isnan(data.correct + data.observed_cost).any(axis=1)
    ids = [name for name, is_kept in zip(data.query_ids, is_known, strict=True) if is_kept]
    return predictions.select(ids), data.select(ids)


def plain_auc(scores: Array, labels: Array) -> float:
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, x in zip(scores, labels, strict=True)
        for b, y in zip(scores, labels, strict=True)
        if x >= 0.5 and y < 0.5
    ]
    return float(np.mean(wins)) if wins else float("nan")


def mean(values: Array) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def plain_points(predictions: Predictions, data: RoutingDataset) -> list[tuple[float, float]]:
    """Accuracy and cost at lam between any two crossings of any two targets, repeats left out."""
    p, c = predictions.correctness, predictions.normalised_cost
    crossings = {0.0, 1.0}
    for j, k in combinations(range(p.shape[1]), 2):
        rise, gain = c[:, j] - c[:, k], p[:, j] - p[:, k]
        with np.errstate(divide="ignore", invalid="ignore"):
            lam = rise / (rise + gain)
        crossings |= {float(x) for x in lam if 0 < x < 1}
    edges = sorted(crossings)
    rows = np.arange(len(p))
    points: list[tuple[float, float]] = []
    last: list[Array] = []
    for low, high in pairwise(edges):
        choice = choose(p, c, (low + high) / 2)
        outcome = [np.nan_to_num(t[rows, choice], nan=-1) for t in (data.correct, cost_of(data))]
        if not last or any((a != b).any() for a, b in zip(outcome, last, strict=True)):
            points.append((mean(data.correct[rows, choice]), mean(cost_of(data)[rows, choice])))
        last = outcome
    return points


def cost_of(data: RoutingDataset) -> Array:
    return data.observed_cost


def plain_area(points: Sequence[tuple[float, float]]) -> float:
    """P-AUCCC of normalised points, by the definition."""
    rising = sorted(points)
    xs, ys = [x for x, _ in rising], [y for _, y in rising]
    if xs[0] > 0:
        xs, ys = [0.0, *xs], [ys[0], *ys]
    return float(np.trapezoid(ys, xs))


def plain_headline(predictions: Predictions, data: RoutingDataset) -> dict[str, float]:
    """The headline numbers, by loops; comparisons on the queries with all labels and costs."""
    ranked, labelled = predictions.correctness, data.correct
    predictions, data = complete(predictions, data)
    targets = range(len(predictions.targets))
    accuracy = [mean(data.correct[:, k]) for k in targets]
    cost = [mean(cost_of(data)[:, k]) for k in targets]
    oracle = mean(np.array([np.nanmax(r) for r in data.correct if not np.isnan(r).all()]))
    low, high, floor = min(cost), max(cost), min(accuracy)

    def place(a: float, c: float) -> tuple[float, float]:
        return (1 / c - 1 / high) / (1 / low - 1 / high), (a - floor) / (oracle - floor)

    points = plain_points(predictions, data)
    plane = [place(*point) for point in points]
    singles = list(zip(accuracy, cost, strict=True))
    pareto = [
        place(a, c)
        for a, c in singles
        if not any((d <= c and b >= a) and (d, b) != (c, a) for b, d in singles)
    ]
    best = max(a for a, _ in points)
    cheapest = min(c for a, c in points if a >= best - 1e-12)
    argmax = choose(predictions.correctness, predictions.normalised_cost, 1.0)
    rows = np.arange(len(argmax))
    away = [float(np.hypot(1 - x, 1 - y)) for x, y in plane]
    single_away = [float(np.hypot(1 - x, 1 - y)) for x, y in pareto]
    room = oracle - max(accuracy)
    return {
        "auc_mean": mean(np.array([plain_auc(ranked[:, k], labelled[:, k]) for k in targets])),
        "brier_mean": mean(np.array([mean((ranked[:, k] - labelled[:, k]) ** 2) for k in targets])),
        "argmax_accuracy": mean(data.correct[rows, argmax]),
        "argmax_cost": mean(cost_of(data)[rows, argmax]),
        "max_lam_accuracy": best,
        "max_lam_cost": cheapest,
        "best_single_accuracy": max(accuracy),
        "oracle_accuracy": oracle,
        "accuracy_gain": best - max(accuracy),
        "headroom_captured": (best - max(accuracy)) / room if room > 0 else float("nan"),
        "cost_savings": 1 - cheapest / high,
        "p_auccc": plain_area(plane),
        "mdp_auccc": plain_area(plane) - plain_area(pareto),
        "model_only_p_auccc": plain_area(pareto),
        "oracle_distance": float(np.mean(away)),
        "oracle_distance_reduction": float(np.mean(single_away) - np.mean(away)),
        "model_only_oracle_distance": float(np.mean(single_away)),
    }
