"""The loss of pairs: who wins is learned from pairs of a right and a wrong target."""

import numpy as np
import pytest
from scipy.special import expit, logit

from packages.router.tests.predictors.network_cases import QUICK, Array, compute_slope, contest
from prefill_router.predictors.networks import UnifiedConfig
from prefill_router.predictors.networks.losses import pair_losses

pytestmark = pytest.mark.slow


def test_a_network_with_the_loss_of_pairs_sees_the_edge_beside_the_level() -> None:
    train = contest(level=3)
    edge = train.features[:, 0].astype(np.float64) - train.features[:, 1]
    few = QUICK | {"max_epochs": 40, "hidden": (8,)}
    with_pairs, without = (
        compute_slope(np.subtract(*logit(network.correctness(train.features)).T[:2]), edge)
        for network in (UnifiedConfig(**few, pairs=p).fit(train).predictor for p in (10.0, 0.0))
    )
    assert with_pairs == pytest.approx(1.5, abs=0.3)
    assert without < 1


def loss(scores: Array, labels: Array, weights: Array) -> float:
    cells = (values[None].astype(np.float32) for values in (scores, labels, weights))
    return float(pair_losses(*cells)[0][0])


def test_loss_of_pairs() -> None:
    """Both labels must be measured; soft labels are chances; a shift of a query is nothing."""
    random = np.random.default_rng(1)
    labels, scores = random.random((6, 4)), random.normal(size=(6, 4))
    labels[:3] = labels[:3].round()
    weights = np.where(random.random((6, 4)) < 0.3, 0, random.random((6, 1)) + 0.5)
    total = weight = 0.0
    for q in range(6):
        for i in range(4):
            for j in range(4):
                if i != j and weights[q, i] and weights[q, j]:
                    w = weights[q, i] * labels[q, i] * (1 - labels[q, j])
                    total -= w * np.log(expit(scores[q, i] - scores[q, j]))
                    weight += w
    measured = np.where(weights > 0, labels, 0)
    pair_loss = loss(scores, measured, weights)
    assert pair_loss == pytest.approx(total / weight, rel=1e-5)
    moved = scores + 100 * random.normal(size=(6, 1))
    assert loss(moved, measured, weights) == pytest.approx(pair_loss, rel=1e-4)
    assert loss(moved, np.ones((6, 4)), weights) == 0
    assert loss(scores[:, :1], measured[:, :1], weights[:, :1]) == 0  # a target alone has no pair
