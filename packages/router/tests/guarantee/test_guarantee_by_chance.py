"""The guarantee on labels that chance selected, or that err."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.evaluation.logs import draw_observed
from packages.router.tests.guarantee.guarantees import population, true_share
from prefill_router.errors import OverlapError
from prefill_router.evaluation import ChanceLabels, Trial
from prefill_router.guarantee import best_single, guarantee
from prefill_router.guarantee.losses import Losses

PREDICTIONS, WHOLE = population(6000)
TRUTH = Trial.join(PREDICTIONS, WHOLE)
LAMS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def log(queries: int, *, label_share: float, error: float, seed: int) -> Trial:
    random = np.random.default_rng(seed)
    ids = [WHOLE.query_ids[i] for i in random.choice(6000, queries, replace=False)]
    part = WHOLE.select(ids)
    answered = random.integers(0, 3, queries)[:, None] == np.arange(3)
    chance = np.where(answered, 1.0, label_share)
    return Trial.join(PREDICTIONS.select(ids), draw_observed(part, chance, random, error=error))


@pytest.mark.slow
@pytest.mark.parametrize(("label_share", "error"), [(0.3, 0.0), (0.3, 0.1)])
def test_the_promise_is_kept_and_often_made(label_share: float, error: float) -> None:
    broken, promises = 0, 0
    for seed in range(15):
        trial = log(2500, label_share=label_share, error=error, seed=seed)
        promise = guarantee(
            trial, best="t2", keep=0.9, confidence=0.9, lams=LAMS, queries=(), resamples=0
        )
        promises += promise.lam is not None
        broken += promise.lam is not None and true_share(TRUTH, promise.lam, "t2") < 0.9
    assert broken <= 4  # of 15, at most one in ten on average
    assert promises >= 9


@pytest.mark.parametrize("keep", [0.9, 1.1])
def test_every_loss_is_within_the_span_that_is_known_before_the_draw(keep: float) -> None:
    for seed in range(3):
        trial = log(300, label_share=0.1, error=0.2, seed=seed)
        losses = Losses.of(trial, trial.path.at(0.7), 2, keep)
        low, high = losses.span
        assert low <= losses.largest.min() <= losses.largest.max() <= high
        assert (losses.scaled - losses.threshold) * (high - low) == pytest.approx(losses.largest)


def test_labels_that_had_no_chance_count_at_their_worst() -> None:
    trial = log(2000, label_share=0.4, error=0.0, seed=0)
    assert trial.chance is not None
    assert trial.chance.propensity is not None
    chance = trial.chance.propensity.copy()
    chance[:, 2] = np.where(chance[:, 2] < 1, 0, 1)
    blind = WHOLE.select(trial.query_ids)
    sure = draw_observed(blind, chance, np.random.default_rng(0))
    promise = guarantee(
        Trial.join(PREDICTIONS.select(trial.query_ids), sure), best="t2", keep=0.9, resamples=0
    )
    assert promise.lam is None
    assert promise.missing.queries > 1000
    assert "label these queries" in promise.advice or "fit a router" in promise.advice


def test_wrong_propensities_are_refused_by_name() -> None:
    trial = log(2000, label_share=0.4, error=0.0, seed=0)
    assert trial.chance is not None
    assert trial.chance.propensity is not None
    label = trial.chance.observed.copy()
    label[::2, 2] = np.nan
    chance = np.where(np.isnan(label), 0.4, trial.chance.propensity)
    lost = ChanceLabels(label, trial.chance.error, chance, trial.correctness)
    with pytest.raises(OverlapError, match=r"t2: far fewer labels .* NaN"):
        guarantee(replace(trial, correct=lost.label, chance=lost), best="t2", resamples=0)


def test_the_best_target_is_found_by_inverse_propensity() -> None:
    """The worst target, labelled mostly where it is right, isn't the best."""
    random = np.random.default_rng(0)
    chance = np.full(WHOLE.correct.shape, 0.5)
    easy = PREDICTIONS.correctness[:, 0] > 0.6
    chance[:, 0] = np.where(easy, 0.9, 0.05)
    data = draw_observed(WHOLE, chance, random)
    assert np.nanmean(data.correct, axis=0).argmax() == 0
    assert best_single(data) == "t2"
