"""Populations with a known truth for the tests of the guarantee."""

from dataclasses import replace

import numpy as np

from packages.router.tests.evaluation.trials import Array, system
from prefill_router.data import Query, RoutingDataset
from prefill_router.evaluation import Trial
from prefill_router.guarantee import Guarantee
from prefill_router.guarantee.losses import Losses
from prefill_router.policy import Predictions
from prefill_router.statistics import p_value

PRICES = np.array([0.001, 0.004, 0.02])


def population(queries: int = 20_000, *, seed: int = 0) -> tuple[Predictions, RoutingDataset]:
    """Three targets; the probabilities know something, the dearest is the best alone."""
    random = np.random.default_rng(seed)
    hard = random.normal(0, 0.2, (queries, 1))
    own = random.normal(0, 0.12, (queries, 3))
    chance = np.clip(np.array([0.5, 0.58, 0.66]) - hard + own, 0.02, 0.98)
    correct = (random.random(chance.shape) < chance).astype(np.float64)
    correctness = np.clip(chance + random.normal(0, 0.06, chance.shape), 0, 1)
    cost = np.broadcast_to(PRICES, chance.shape).copy()
    return system(correctness, cost, correct, cost)


def sample_rows(trial: Trial, rows: Array) -> Trial:
    """A sample of the population, as a trial of its own."""
    return replace(
        trial,
        query_ids=tuple(map(str, range(len(rows)))),
        correctness=trial.correctness[rows],
        cost=trial.cost[rows],
        correct=trial.correct[rows],
        observed_cost=trial.observed_cost[rows],
    )


def true_share(trial: Trial, lam: float, best: str) -> float:
    """The true share at one lam, from the whole population."""
    right = trial.of_choice(trial.correct, trial.path.at(lam)).mean()
    return float(right / trial.correct[:, trial.targets.index(best)].mean())


def is_broken(promise: Guarantee, trial: Trial) -> bool:
    """Whether the promise is broken in the population."""
    return promise.lam is not None and true_share(trial, promise.lam, promise.best) < promise.keep


def naive_lam(trial: Trial, best: str, keep: float, lams: tuple[float, ...]) -> float:
    """The cheapest lam that looks fine on these rows, without a guarantee."""
    fine = [lam for lam in lams if true_share(trial, lam, best) >= keep]
    return min(fine, default=1.0)


def subjects(queries: int = 20_000, *, seed: int = 0) -> tuple[Trial, tuple[Query, ...]]:
    """Queries of which a fifth is of a domain that the router sends to t1, which is bad at it.

    Elsewhere the router is a little better than t2, the best alone.
    """
    random = np.random.default_rng(seed)
    lab = random.random(queries) < 0.2
    strong = random.random(queries) < 0.5
    right = np.array([0.4, 0.62, 0.7])
    chance = np.where(lab[:, None], np.array([0.1, 0.135, 0.6]), right)
    chance[~lab & strong, 1] = 0.8
    correct = (random.random(chance.shape) < chance).astype(np.float64)
    correctness = np.broadcast_to(np.array([0.3, 0.5, 0.7]), chance.shape).copy()
    correctness[lab | strong, 1] = 0.8
    cost = np.broadcast_to(PRICES, chance.shape).copy()
    trial = Trial.join(*system(correctness, cost, correct, cost))
    domains = np.where(lab, "lab", "field")
    rows = zip(trial.query_ids, domains.tolist(), strict=True)
    return trial, tuple(Query(name, "?", "exam", domain) for name, domain in rows)


def hide_labels(trial: Trial, cells: Array) -> Trial:
    """The same without some labels."""
    return replace(trial, correct=np.where(cells, np.nan, trial.correct))


def naive_p_value(trial: Trial, best: str, keep: float, *, level: float) -> float:
    """The p-value at lam = 1 of a test that leaves queries with missing labels out."""
    losses = Losses.of(trial, trial.path.at(1.0), trial.targets.index(best), keep)
    return p_value(losses.scaled[losses.measured], losses.threshold, level=level)
