"""Scores that are learned from votes between two targets."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from prefill_router.errors import FitError
from prefill_router.predictors import Examples, LogisticConfig, Votes, fit_strengths
from prefill_router.predictors.bradley_terry import fit_scores

NAN = np.nan
STRENGTHS = np.array([1.0, 0.0, -1.0])


def draw_votes(
    scores: NDArray[np.float64], *, ties: float = 0.0, seed: int = 0
) -> NDArray[np.float64]:
    """Labels of a vote on each row, by a Bradley-Terry model with these scores."""
    random = np.random.default_rng(seed)
    labels = np.full(scores.shape, NAN)
    for row, each in enumerate(scores):
        a, b = random.choice(scores.shape[1], 2, replace=False)
        outcome = float(random.random() < expit(each[a] - each[b]))
        labels[row, [a, b]] = (0.5, 0.5) if random.random() < ties else (outcome, 1 - outcome)
    return labels


def draw_features(rows: int, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Features, and scores of which the first target's is one of them."""
    features = np.random.default_rng(seed).normal(size=(rows, 6)).astype(np.float32)
    scores = np.tile(STRENGTHS, (rows, 1))
    scores[:, 0] += 3 * features[:, 0]
    return features, scores


def examples(features: NDArray[np.float32], labels: NDArray[np.float64]) -> Examples:
    return Examples(features, labels, ("a", "b", "c"), ("",) * len(features))


def test_votes_are_read_from_labels_and_rows_without_any_are_left_out() -> None:
    labels = np.array([[1, NAN, 0], [NAN, NAN, NAN], [NAN, 0.5, 0.5], [0.0, 1.0, NAN]])
    votes = Votes.of(labels)
    assert votes.row.tolist() == [0, 2, 3]
    assert (votes.first.tolist(), votes.second.tolist()) == ([0, 1, 0], [2, 2, 1])
    assert votes.outcome.tolist() == [1, 0.5, 0]
    assert votes.counts.tolist() == [2, 2, 2]
    scores = np.array([[2.0, 0, 1], [0, 3, 1], [1, 1, 0]])
    assert votes.label_of_pick(scores).tolist() == [1, 0.5, 0.5]
    assert votes.of_pick(scores, 10 * scores).tolist() == [20, 30, 10]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1.0, NAN, NAN], "has 1 labels"),
        ([1.0, 0.0, 0.0], "has 3 labels"),
        ([1.0, 1.0, NAN], "are 1 and 1"),
        ([0.5, 0.0, NAN], "are 0.5 and 0"),
    ],
)
def test_rows_that_are_no_votes_are_named(row: list[float], reason: str) -> None:
    with pytest.raises(FitError, match=reason):
        Votes.of(np.array([[1.0, 0.0, NAN], row]))


@pytest.mark.parametrize("ties", [0.0, 0.3])
def test_strengths_are_those_that_the_votes_were_drawn_from(ties: float) -> None:
    labels = draw_votes(np.tile(STRENGTHS, (4000, 1)), ties=ties)
    strengths = fit_strengths(Votes.of(labels))
    assert abs(strengths.mean()) < 1e-9
    # a tie tells that two targets are alike, so it pulls both together
    assert np.allclose(strengths, (1 - ties) * STRENGTHS, atol=0.12)


def test_a_target_that_wins_every_vote_has_a_finite_strength() -> None:
    strengths = fit_strengths(Votes.of(np.array([[1.0, 0.0, NAN]] * 50)))
    assert strengths[0] > 1
    assert strengths[2] == pytest.approx(0, abs=1e-4)
    assert np.isfinite(strengths).all()


def test_the_gradient_reaches_the_lowest_loss() -> None:
    features, scores = draw_features(300)
    votes = Votes.of(draw_votes(scores))
    inputs = features[votes.row].astype(np.float64)
    best = fit_scores(votes, inputs, c=0.1)

    def loss(weights: NDArray[np.float64], strengths: NDArray[np.float64]) -> float:
        ahead = votes.differences(inputs @ weights + strengths)
        each = np.logaddexp(0, ahead) - votes.outcome * ahead
        ties = np.logaddexp(0, strengths) - strengths / 2
        return float(each.sum() + ties.sum() + (weights**2).sum() / 0.2)

    lowest = loss(best.weights, best.strengths)
    random = np.random.default_rng(0)
    for _ in range(20):
        step = random.normal(0, 1e-3, best.weights.shape), random.normal(0, 1e-3, 3)
        assert loss(best.weights + step[0], best.strengths + step[1]) >= lowest - 1e-9


@pytest.mark.slow
def test_a_planted_signal_is_learned_and_probabilities_are_of_winning() -> None:
    features, scores = draw_features(1500)
    fit = LogisticConfig(votes=True).fit(examples(features, draw_votes(scores)))
    fresh, truth = draw_features(2000, seed=1)
    chance = fit.predictor.correctness(fresh)
    ahead = np.log(chance / (1 - chance))
    wins = expit(ahead[:, 0] - ahead[:, 1])
    assert np.abs(wins - expit(truth[:, 0] - truth[:, 1])).mean() < 0.05
    assert np.allclose(ahead.mean(axis=1), 0, atol=1e-4)  # against the average target
    assert fit.notes == ()


def test_shuffled_votes_give_the_strengths_alone() -> None:
    features, scores = draw_features(1000)
    random = np.random.default_rng(3)
    labels = draw_votes(scores)[random.permutation(1000)]
    fit = LogisticConfig(votes=True).fit(examples(features, labels))
    chance = fit.predictor.correctness(features)
    assert chance.std(axis=0).max() < 0.05


@pytest.mark.slow
def test_the_order_of_rows_and_rows_without_votes_do_not_matter() -> None:
    features, scores = draw_features(200)
    labels = draw_votes(scores)
    config = LogisticConfig(votes=True)
    expected = config.fit(examples(features, labels)).predictor.correctness(features)
    order = np.random.default_rng(1).permutation(200)
    other = config.fit(examples(features[order], labels[order])).predictor
    assert np.allclose(other.correctness(features), expected, atol=1e-4)
    more = np.concatenate([features, features[:5] + 1])
    empty = np.concatenate([labels, np.full((5, 3), NAN)])
    fit = config.fit(examples(more, empty))
    assert np.allclose(fit.predictor.correctness(features), expected, atol=1e-4)
    assert fit.notes == ("5 queries without a usable label were left out",)


def test_a_target_without_votes_is_named() -> None:
    labels = np.array([[1.0, 0.0, NAN], [0.0, 1.0, NAN]] * 20)
    features = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    fit = LogisticConfig(votes=True).fit(examples(features, labels))
    assert "c is in no vote; it counts as an average target" in fit.notes
    assert np.allclose(fit.predictor.correctness(features)[:, 2], 0.5, atol=0.01)
