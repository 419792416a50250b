from typing import Any

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import (
    OF_CHOSEN,
    OF_TWO,
    plain_headline,
    random_system,
    resample,
)
from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Estimate, Trial, compare, evaluate, metrics
from prefill_router.evaluation.bootstrap import chunks, draw, ones
from prefill_router.evaluation.scores import Scorer
from prefill_router.policy import Predictions

pytestmark = pytest.mark.slow

NOISE_TAKEN_OFF = ("ece_mean", "brier_reliability", "brier_resolution")
"""Of these, resamples are without the noise of resampling, so a query that counts twice is one; see
test_reliability.py."""


@pytest.mark.parametrize(("missing", "ties"), [(0.0, False), (0.15, False), (0.1, True)])
def test_weights_give_what_drawing_the_rows_gives(missing: float, ties: bool) -> None:
    predictions, data = random_system(queries=14, targets=3, missing=missing, ties=ties, seed=3)
    scorer = Scorer(Trial.join(predictions, data))
    row_draws = list(draw(14, count=6, seed=1))
    weights = np.stack([np.bincount(rows, minlength=14) for rows in row_draws]).astype(np.float64)
    scores = scorer.score(weights)
    for i, rows in enumerate(row_draws):
        again = Scorer(Trial.join(*resample(predictions, data, rows.tolist())))
        there = again.score(ones(14))
        for key, table in scores.tables().items():
            if key[1] in NOISE_TAKEN_OFF:
                continue
            expected = there.tables()[key][0]
            np.testing.assert_allclose(table[i], expected, atol=1e-12, err_msg=str(key))
        plain = plain_headline(*resample(predictions, data, rows.tolist()))
        for name, value in plain.items():
            assert scores.headline[name][i] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_one_weight_each_gives_the_point_estimates() -> None:
    predictions, data = random_system(queries=80, missing=0.1)
    scorer = Scorer(Trial.join(predictions, data))
    point = evaluate(predictions, data, resamples=0).headline
    for name, values in scorer.score(np.ones((3, 80))).headline.items():
        assert values == pytest.approx(point[name].value, abs=1e-12, nan_ok=True)


def test_tables_are_made_once_for_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, data = random_system(queries=60, missing=0.1)
    calls: list[str] = []
    for name in ("route_by_argmax", "regimes", "binary"):
        original = getattr(metrics, name)

        def count_call(value: object, *, name: str = name, original: Any = original) -> object:
            calls.append(name)
            return original(value)

        monkeypatch.setattr(metrics, name, count_call)
    scorer = Scorer(Trial.join(predictions, data))
    for weights in chunks(60, count=24, seed=0, width=10**5):
        scores = scorer.score(weights)
        _ = scores.routing, scores.by_regime, scores.selection
    assert sorted(calls) == ["binary", "regimes", "route_by_argmax"]


def test_draws_are_the_same_whatever_the_chunks() -> None:
    wide, narrow = (
        np.concatenate(list(chunks(50, count=40, seed=7, width=width))) for width in (50, 10**9)
    )
    assert (wide == narrow).all()
    assert (wide.sum(axis=1) == 50).all()
    assert len(np.unique(wide, axis=0)) == 40


def test_a_chunk_is_never_larger_than_its_bound() -> None:
    sizes = [w.size for w in chunks(1000, count=500, seed=0, width=1000)]
    assert max(sizes) <= 200_000
    for width, least in ((10**5, 8), (10**6, 4), (10**7, 1)):
        rows = {len(w) for w in chunks(1000, count=8, seed=0, width=width)}
        assert rows == {least}
    assert sum(sizes) == 500_000


def test_same_seed_same_intervals_other_seed_others() -> None:
    system = random_system(queries=40)
    first, again, other = (evaluate(*system, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert first.to_dict() == again.to_dict()
    assert first.headline["auc_mean"].lower != other.headline["auc_mean"].lower


def test_interval_is_the_percentiles_of_the_resamples() -> None:
    predictions, data = random_system(queries=50)
    evaluation = evaluate(predictions, data, resamples=200, seed=5)
    choice = predictions.correctness.argmax(axis=1)
    right = data.correct[np.arange(50), choice]
    means = [right[rows].mean() for rows in draw(50, count=200, seed=5)]
    got = evaluation.headline["argmax_accuracy"]
    assert [got.lower, got.upper] == pytest.approx(np.percentile(means, [2.5, 97.5]))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    predictions, data = random_system(queries=60)
    truth = evaluate(predictions, data, resamples=0).headline["argmax_accuracy"].value
    covered = 0
    for seed, rows in enumerate(draw(60, count=40, seed=0)):
        got = evaluate(*resample(predictions, data, rows.tolist()), resamples=80, seed=seed)
        estimate = got.headline["argmax_accuracy"]
        covered += estimate.lower <= truth <= estimate.upper
    assert covered >= 33


def test_undefined_resamples_are_left_out_and_counted() -> None:
    values = np.array([1.0, np.nan, 3.0])
    assert Estimate.of(2.0, values).to_dict() == {
        "value": 2.0,
        "lower": pytest.approx(1.05),
        "upper": pytest.approx(2.95),
        "undefined_resamples": 1,
    }
    nothing = Estimate.of(float("nan"), values, reason="no cost")
    assert nothing.to_dict() == {"value": None, "lower": None, "upper": None, "reason": "no cost"}


def test_negative_resamples_are_refused() -> None:
    with pytest.raises(ConfigError, match="-1 resamples"):
        evaluate(*random_system(queries=4), resamples=-1)


def test_a_router_against_itself_differs_by_exactly_nothing() -> None:
    predictions, data = random_system(queries=70, missing=0.1)
    backwards = predictions.select(predictions.query_ids[::-1], targets=predictions.targets[::-1])
    for other in (predictions, backwards):
        comparison = compare(predictions, other, data, resamples=60)
        undefined = {*OF_TWO, *OF_CHOSEN, "oracle_held_out"}
        defined = {n: e for n, e in comparison.difference.items() if n not in undefined}
        for name, estimate in defined.items():
            assert (estimate.value, estimate.lower, estimate.upper) == (0, 0, 0), name
            assert not comparison.significant(name)


def test_paired_difference_is_tighter_than_two_intervals() -> None:
    predictions, data = random_system(queries=200)
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.05, predictions.correctness.shape)
    other = Predictions(
        query_ids=predictions.query_ids,
        targets=predictions.targets,
        correctness=np.clip(predictions.correctness + noise, 0, 1),
        estimated_cost=predictions.estimated_cost,
        scale=predictions.scale,
    )
    difference = compare(predictions, other, data, resamples=200).difference["auc_mean"]
    alone = evaluate(predictions, data, resamples=200).headline["auc_mean"]
    assert difference.upper - difference.lower < (alone.upper - alone.lower) / 2


def test_a_better_system_is_significantly_better_and_a_worse_one_worse() -> None:
    predictions, data = random_system(queries=300)
    truth = Predictions(
        query_ids=predictions.query_ids,
        targets=predictions.targets,
        correctness=data.correct,
        estimated_cost=predictions.estimated_cost,
        scale=predictions.scale,
    )
    better = compare(truth, predictions, data, resamples=100)
    worse = compare(predictions, truth, data, resamples=100)
    for name in ("auc_mean", "argmax_accuracy", "p_auccc"):
        assert better.significant(name)
        assert better.difference[name].lower > 0
        assert worse.difference[name].upper < 0
    assert better.to_dict()["auc_mean"]["significant"] is True


def test_systems_of_other_queries_are_not_compared() -> None:
    predictions, data = random_system(queries=20)
    some = predictions.select(predictions.query_ids[:10])
    for pair in ((some, predictions), (predictions, some)):
        with pytest.raises(DataError, match="lack 10 of 20 queries"):
            compare(*pair, data, resamples=1)


def test_on_the_exact_path_the_scale_of_costs_does_not_matter_and_on_a_grid_it_does() -> None:
    predictions, data = random_system(queries=30)
    wide = Predictions(
        query_ids=predictions.query_ids,
        targets=predictions.targets,
        correctness=predictions.correctness,
        estimated_cost=predictions.estimated_cost,
        scale=CostScale(0.0, 1.0),
    )
    exact = compare(predictions, wide, data, resamples=5).difference
    defined = {
        name: e for name, e in exact.items() if name not in {*OF_TWO, *OF_CHOSEN, "oracle_held_out"}
    }
    assert all(abs(e.value) < 1e-12 and abs(e.lower) < 1e-12 for e in defined.values())
    grid = compare(predictions, wide, data, resamples=5, step=0.1).difference
    assert grid["oracle_distance"].value != 0
