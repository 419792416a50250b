"""The guaranteed operating point: kept over many draws, found where it can be."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from packages.router.tests.evaluation.trials import random_system
from packages.router.tests.guarantee.guarantees import (
    is_broken,
    naive_lam,
    population,
    sample_rows,
    true_share,
)
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Trial
from prefill_router.guarantee import LAMS, best_single, guarantee

pytestmark = pytest.mark.slow

LAMS_OF_TESTS = tuple(np.linspace(1, 0, 41).tolist())
DRAWS = 150


@pytest.fixture(scope="module")
def world() -> Trial:
    return Trial.join(*population())


def test_the_promise_is_broken_no_more_often_than_said_and_naively_far_more(world: Trial) -> None:
    random, broken, naive, promises = np.random.default_rng(0), 0, 0, 0
    for _ in range(DRAWS):
        sample = sample_rows(world, random.integers(0, len(world), 500))
        promise = guarantee(
            sample, best="t2", keep=0.97, confidence=0.9, lams=LAMS_OF_TESTS, resamples=0
        )
        broken += is_broken(promise, world)
        promises += promise.lam is not None
        naive += true_share(world, naive_lam(sample, "t2", 0.97, LAMS_OF_TESTS), "t2") < 0.97
    assert broken <= binom.ppf(1 - 1e-4, DRAWS, 0.1)
    assert promises > DRAWS / 2
    assert naive > binom.ppf(1 - 1e-9, DRAWS, 0.1)  # the check would see a wrong procedure


def test_enough_queries_find_nearly_all_that_can_be_saved(world: Trial) -> None:
    promise = guarantee(world, best="t2", keep=0.95, resamples=50)
    assert promise.lam is not None
    assert true_share(world, promise.lam, "t2") >= 0.95
    cheapest = naive_lam(world, "t2", 0.95, LAMS)
    paths = [world.path.at(lam) for lam in (promise.lam, cheapest)]
    costs = [float(world.of_choice(world.observed_cost, choice).mean()) for choice in paths]
    assert costs[1] <= costs[0] <= 1.25 * costs[1]
    assert promise.savings.lower <= promise.savings.value <= promise.savings.upper
    assert promise.savings.value == pytest.approx(1 - costs[0] / world.observed_cost[:, 2].mean())
    assert promise.kept_share.value == pytest.approx(true_share(world, promise.lam, "t2"))
    assert promise.queries == len(world)
    assert (promise.missing.queries, promise.advice, promise.needed) == (0, "", None)


def test_the_sequence_ends_at_the_first_hypothesis_that_stands(world: Trial) -> None:
    sample = sample_rows(world, np.arange(800))
    promise = guarantee(sample, best="t2", keep=0.95, resamples=0)
    *rejected, last = promise.sequence
    assert [t.lam for t in promise.sequence] == list(LAMS[: len(promise.sequence)])
    assert all(t.p_value <= 1 - promise.confidence for t in rejected)
    assert last.p_value > 1 - promise.confidence
    assert promise.lam == rejected[-1].lam


def test_more_confidence_or_a_greater_share_is_never_cheaper(world: Trial) -> None:
    sample = sample_rows(world, np.arange(3000))

    def lam(keep: float, confidence: float) -> float:
        promise = guarantee(sample, best="t2", keep=keep, confidence=confidence, resamples=0)
        return 2.0 if promise.lam is None else promise.lam

    assert lam(0.85, 0.9) <= lam(0.9, 0.9) <= lam(0.95, 0.9) <= lam(1.05, 0.9)
    assert lam(0.9, 0.5) <= lam(0.9, 0.9) <= lam(0.9, 0.999)


def test_too_few_queries_say_how_many_would_do(world: Trial) -> None:
    promise = guarantee(sample_rows(world, np.arange(60)), best="t2", keep=0.99, resamples=20)
    assert promise.lam is None
    assert promise.needed is not None
    assert promise.needed > 60
    assert f"{promise.needed:,}" in promise.advice
    more = guarantee(
        sample_rows(world, np.arange(20 * promise.needed)), best="t2", keep=0.99, resamples=0
    )
    assert more.lam is not None


def test_a_router_that_falls_short_is_told_that_more_queries_dont_help(world: Trial) -> None:
    promise = guarantee(world, best="t2", keep=1.3, resamples=0)
    assert (promise.lam, promise.needed, len(promise.sequence)) == (None, None, 1)
    assert "won't help" in promise.advice
    json.dumps(promise.to_dict(), allow_nan=False)


def test_rows_in_another_order_give_the_same(world: Trial) -> None:
    sample = sample_rows(world, np.arange(700))
    back = np.arange(700)[::-1]
    other = replace(sample_rows(sample, back), query_ids=tuple(sample.query_ids[i] for i in back))
    first, second = (guarantee(t, best="t2", keep=0.95, resamples=0) for t in (sample, other))
    assert first.lam == second.lam
    assert [t.p_value for t in first.sequence] == pytest.approx(
        [t.p_value for t in second.sequence], rel=1e-9
    )


def test_what_is_expected_is_of_the_queries_with_both_labels() -> None:
    trial = Trial.join(*random_system(queries=900, missing=0.2, seed=3))
    promise = guarantee(trial, best="t3", keep=0.9, resamples=10)
    choice = trial.path.at(1.0 if promise.lam is None else promise.lam)
    lost = np.isnan(trial.of_choice(trial.correct, choice)) | np.isnan(trial.correct[:, 3])
    assert promise.missing.queries == lost.sum() > 0
    assert promise.queries == 900
    assert promise.best_accuracy.value == pytest.approx(trial.correct[~lost, 3].mean())


def test_unknown_costs_leave_the_savings_out(world: Trial) -> None:
    sample = sample_rows(world, np.arange(500))
    free = replace(sample, observed_cost=np.full_like(sample.observed_cost, np.nan))
    promise = guarantee(free, best="t2", keep=0.9, resamples=5)
    assert np.isnan(promise.savings.value)
    assert "no cost is known" in promise.savings.reason
    assert promise.lam is not None


def test_the_best_single_target_is_that_of_the_train_rows() -> None:
    _, data = random_system(queries=50, missing=0.1)
    assert best_single(data) == data.pool.names[int(np.nanmean(data.correct, axis=0).argmax())]
    with pytest.raises(DataError, match="no train row has a label"):
        best_single(replace(data, correct=np.full_like(data.correct, np.nan)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"best": "nobody"}, "no target 'nobody'"),
        ({"keep": 0.0}, "keep is 0"),
        ({"keep": float("nan")}, "keep is nan"),
        ({"confidence": 1.0}, "confidence is 1"),
        ({"lams": (0.5, 0.6)}, r"\[0.5, 0.6\]; give .* in falling order"),
        ({"lams": ()}, "in falling order"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    world: Trial, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        guarantee(world, **{"best": "t2", **options})  # type: ignore[arg-type]


def test_no_common_label_is_refused(world: Trial) -> None:
    sample = sample_rows(world, np.arange(30))
    correct = sample.correct.copy()
    correct[:, 2] = np.nan
    with pytest.raises(DataError, match="score more answers"):
        guarantee(replace(sample, correct=correct), best="t2", resamples=0)
