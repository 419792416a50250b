"""The cost of an effort is predicted from the states: hard questions take more tokens."""

import numpy as np

from packages.router.tests.router.fixtures import with_encoder
from prefill_router.activations import Site
from prefill_router.data import RoutingDataset
from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict
from prefill_router.targets import pool_from_dict
from prefill_router.testing import FakeEncoder, make_routing_dataset

PRICE = 8.0
"""US dollars per million output tokens, thinking included."""
GROWTH = {"none": 0.0, "low": 1.0, "high": 3.0}
"""How much longer, as a logarithm, each effort's answer to the hardest question is."""
RECIPE = {"features": {"kind": "prefill", "select": "mean.3", "dim": 8}, "predictor": "constant"}


def make_answers(queries: int) -> tuple[RoutingDataset, np.ndarray]:
    """Answers of one model at three efforts, and the difficulty of each question."""
    plain = make_routing_dataset(queries=queries, targets=3, seed=4)
    prompts = [str(query.prompt) for query in plain.queries]
    difficulty = np.array([float(p.partition("difficulty ")[2].partition(":")[0]) for p in prompts])
    row = {"name": "large", "input_price": 0.0, "output_price": PRICE, "efforts": list(GROWTH)}
    noise = np.random.default_rng(0).lognormal(0, 0.1, (queries, len(GROWTH)))
    tokens = 100 * np.exp(np.outer(difficulty, list(GROWTH.values()))) * noise
    pool = pool_from_dict({"targets": [row]}, source="pool")
    answers = RoutingDataset.of(plain.queries, pool, plain.correct, output_tokens=tokens.round())
    return answers, difficulty


def test_the_cost_of_each_effort_follows_from_the_states_of_a_question() -> None:
    encoder = FakeEncoder()
    answers, difficulty = make_answers(300)
    states = encoder.encode(answers.queries, [Site(3, "mean")])
    config = FitConfig(recipe=recipe_from_dict(RECIPE), resamples=0)
    fit = fit_router(answers.select(answers.query_ids[:240]), [states], config=config)
    router = with_encoder(fit.router, encoder)
    decisions = router.route_many([query.prompt for query in answers.queries[240:]])
    hardness = difficulty[240:]
    for effort, growth in GROWTH.items():
        costs = np.array([d.estimated_cost[f"large:{effort}"] for d in decisions], dtype=float)
        expected = 100 * np.exp(growth * hardness) * PRICE / 1e6
        np.testing.assert_allclose(costs, expected, rtol=0.35)
        if growth:  # one question costs more than another at the same effort
            assert np.corrcoef(np.log(costs), hardness)[0, 1] > 0.95
