"""Routers of known worth for the tests of the doctor."""

from dataclasses import replace

import numpy as np

from packages.router.tests.evaluation.trials import Array, system
from prefill_router.data import Query, RoutingDataset
from prefill_router.doctor import Subject
from prefill_router.evaluation import JudgedPart, References, Trial

PRICES = np.array([0.001, 0.004, 0.02])
AVERAGE = np.array([0.5, 0.58, 0.66])


def patient(
    kind: str, *, queries: int = 900, trained: int = 900, seed: int = 0, lam: float = 0.85
) -> Subject:
    """A router that `knows` the queries, guesses at `random`, is `constant`, or is `surer`."""
    random = np.random.default_rng(seed)
    size = (queries + trained, 3)
    chance = np.clip(
        AVERAGE - random.normal(0, 0.2, (size[0], 1)) + random.normal(0, 0.15, size), 0.02, 0.98
    )
    correct = (random.random(size) < chance).astype(np.float64)
    cost = np.broadcast_to(PRICES, size).copy()
    predictions, data = system(_predict(kind, chance, random), cost, correct, cost)
    rows = [
        Query(q.id, q.prompt, benchmark="b", domain=f"d{i % 4}") for i, q in enumerate(data.queries)
    ]
    data_with_domains = RoutingDataset.of(rows, data.pool, correct, recorded_cost=cost)
    ids = data_with_domains.query_ids
    judged_data = data_with_domains.select(ids[:queries])
    trial = Trial.join(predictions.select(judged_data.query_ids), judged_data)
    return with_parts(
        Subject(trial, judged_data.queries, data_with_domains.select(ids[queries:]), lam, ())
    )


def with_parts(subject: Subject) -> Subject:
    """The subject with the references of its verdict, learned from its train part."""
    train, scale = subject.train, PRICES.max() - PRICES.min()
    cost = np.broadcast_to((PRICES - PRICES.min()) / scale, train.correct.shape)
    references = References.fit(train, cost[:, : len(subject.trial.targets)])
    return replace(subject, parts=(JudgedPart(subject.trial, references, lam=subject.lam),))


def _predict(kind: str, chance: Array, random: np.random.Generator) -> Array:
    skilled = np.clip(chance + random.normal(0, 0.05, chance.shape), 0, 1)
    if kind == "random":
        return random.permutation(skilled)
    if kind == "constant":
        return np.broadcast_to(AVERAGE, chance.shape).copy()
    return skilled if kind == "knows" else np.clip(skilled + 0.2, 0, 1)
