"""Public fakes: small, deterministic stand-ins for tests of code that uses this package."""

import numpy as np

from prefill_router.data import Query, RoutingDataset
from prefill_router.targets import Pool, Target


def make_routing_dataset(
    *,
    queries: int = 200,
    targets: int = 3,
    missing: float = 0.0,
    benchmarks: int = 2,
    seed: int = 0,
) -> RoutingDataset:
    """A made-up dataset whose labels follow from the prompts.

    Each prompt states its own difficulty, target k is better and dearer than target k - 1, and its
    answer is correct where its skill, with some noise, exceeds the difficulty.

    Args:
        queries: How many queries.
        targets: How many targets.
        missing: The share of outcomes that weren't measured.
        benchmarks: How many benchmarks they come from, in turn.
        seed: Another seed, another dataset.
    """
    random = np.random.default_rng(seed)
    difficulty = random.random(queries)
    skill = np.linspace(0.3, 0.8, targets)
    shape = (queries, targets)
    correct = (skill + random.normal(0, 0.15, shape) > difficulty[:, None]).astype(np.float64)
    correct[random.random(shape) < missing] = np.nan
    pool = Pool(
        tuple(
            Target(name=f"target-{k}", input_price=0.1 * 4.0**k, output_price=0.4 * 4.0**k)
            for k in range(targets)
        ),
        prices_date="2026-01-01",
    )
    rows = tuple(
        Query(
            f"q{i}",
            f"Question {i} of difficulty {hard:.2f}: {'why ' * int(1 + 20 * hard)}?",
            benchmark=f"benchmark-{i % benchmarks}",
            domain=f"domain-{i % 3}",
        )
        for i, hard in enumerate(difficulty.tolist())
    )
    inputs = np.repeat(random.integers(10, 200, (queries, 1)), targets, axis=1)
    outputs = random.integers(20, 400, shape)
    unknown = np.where(np.isnan(correct), np.nan, 1.0)
    return RoutingDataset.of(
        rows,
        pool,
        correct,
        input_tokens=inputs.astype(np.float64) * unknown,
        output_tokens=outputs.astype(np.float64) * unknown,
    )
