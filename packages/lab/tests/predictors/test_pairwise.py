"""What makes the pairwise factorisation RouteLLM's: it learns who wins, from pairs alone."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from packages.router.tests.predictors.network_cases import QUICK, compute_slope, contest
from prefill_router.errors import ConfigError
from prefill_router.predictors import Examples
from prefill_router_lab.predictors.latent import (
    FactorisationConfig,
    PairwiseConfig,
    PairwiseFactorisation,
)
from prefill_router_lab.predictors.latent_architectures import combine

pytestmark = pytest.mark.slow

CONFIG = PairwiseConfig(**QUICK | {"max_epochs": 40}, dimensions=4)


def fit_network(train: Examples, config: PairwiseConfig = CONFIG) -> PairwiseFactorisation:
    predictor = config.fit(train).predictor
    assert isinstance(predictor, PairwiseFactorisation)
    return predictor


def test_pairs_see_the_edge_where_cells_see_the_level() -> None:
    """What a query has for all targets alike hides half of the edge from cells, none from pairs."""
    train = contest(level=3)
    edge = train.features[:, 0].astype(np.float64) - train.features[:, 1]
    pairs = compute_slope(logit(fit_network(train).win_rate(train.features, "a", "b")), edge)
    cells = FactorisationConfig(**QUICK | {"max_epochs": 40}, dimensions=4).fit(train).predictor
    logits = logit(cells.correctness(train.features))
    assert pairs == pytest.approx(1.5, abs=0.25)
    assert compute_slope(logits[:, 0] - logits[:, 1], edge) < 1


def test_what_all_targets_share_on_a_query_changes_nothing() -> None:
    """Queries that all answer alike hold no pair: right or wrong, the same is learned of wins."""
    config = replace(CONFIG, max_epochs=1)
    train = contest(300, level=3)
    alike = train.correct.min(axis=1) == train.correct.max(axis=1)
    turned = np.where(alike[:, None], 1 - train.correct, train.correct)
    assert 50 < alike.sum() < 250
    first, second = fit_network(train, config), fit_network(replace(train, correct=turned), config)
    wins = [p.win_rate(train.features, "c", "a") for p in (first, second)]
    assert np.array_equal(*wins)
    assert np.abs(wins[0] - 0.5).max() > 0.05
    assert (
        np.abs(first.correctness(train.features) - second.correctness(train.features)).max() > 0.05
    )


def test_two_targets_that_were_never_measured_together_hold_no_pair() -> None:
    train = contest(400, level=1)
    correct = train.correct.copy()
    correct[::2, 0], correct[1::2, 1] = np.nan, np.nan
    correct[:, 2] = np.nan
    predictor = fit_network(replace(train, correct=correct))
    assert np.abs(predictor.win_rate(train.features, "a", "b") - 0.5).max() < 0.5
    with pytest.raises(ConfigError, match=r"learned nothing about \['c'\]"):
        predictor.win_rate(train.features, "a", "c")
    rate = np.nanmean(correct[:, :2], axis=0)
    found = predictor.correctness(train.features)[:, :2].mean(axis=0)
    np.testing.assert_allclose(found, rate, atol=0.08)


def test_win_rates_are_those_of_routellm() -> None:
    train = contest(200, level=1)
    predictor = fit_network(train)
    arrays = {name: value[0, 0].astype(np.float64) for name, value in predictor.arrays.items()}
    unit = arrays["target"] / np.linalg.norm(arrays["target"], axis=1, keepdims=True)
    query = train.features @ arrays["weight.query"] + arrays["bias.query"]
    expected = expit((query * (unit[0] - unit[2])) @ arrays["combine"][0])
    rates = predictor.win_rate(train.features, "a", "c")
    np.testing.assert_allclose(rates, expected, rtol=1e-9)
    np.testing.assert_allclose(1 - rates, predictor.win_rate(train.features, "c", "a"), rtol=1e-9)


def test_probabilities_hold_whatever_the_level() -> None:
    """The edge is that of one query; over queries of any level it counts for less."""
    for level in (0.0, 3.0):
        train, unseen = contest(level=level), contest(level=level, seed=1)
        predictor = fit_network(train)
        assert worst_gap(predictor, unseen) < 0.08
    flat = {"slope": np.ones((1, 1, 1, 1), np.float32)}
    raw = replace(predictor, arrays=dict(predictor.arrays) | flat)
    assert worst_gap(raw, unseen) > 0.1  # control


def worst_gap(predictor: PairwiseFactorisation, unseen: Examples) -> float:
    """Between predicted and actual rates, over low, middle and high probabilities."""
    probability = predictor.correctness(unseen.features)
    gaps = []
    for low, high in ((0, 0.4), (0.4, 0.6), (0.6, 1)):
        among = (probability >= low) & (probability < high)
        assert among.sum() > 500
        gaps.append(abs(probability[among].mean() - unseen.correct[among].mean()))
    return float(max(gaps))


def test_few_labels_leave_scales_and_offsets_as_they_were() -> None:
    nothing = np.zeros((1, 2))
    found = combine(nothing[:, :1], nothing, nothing, nothing)
    np.testing.assert_allclose(found, [1, 1, 0, 0], atol=1e-6)
    turned = np.array([[2.0, -2.0]] * 200)
    slopes = combine(np.zeros((200, 1)), turned, (turned < 0) * 1.0, np.ones((200, 2)))
    assert slopes[1] == 0  # who wins is never turned round
