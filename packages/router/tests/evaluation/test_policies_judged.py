"""Evaluation under other policies than the paper's, and of many systems at once."""

import json

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system, system
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import (
    RecordedCheck,
    SimulatedCheck,
    Trial,
    compare,
    evaluate,
    paired,
)
from prefill_router.policy import Argmax, Cascade, Lambda, Threshold, Tiered, Tolerance

pytestmark = pytest.mark.slow

POLICIES = {
    "lambda": Lambda(),
    "argmax": Argmax(),
    "tolerance": Tolerance(),
    "tiers": Tiered(count=2),
    "threshold": Threshold(strong="t3", weak="t0"),
    "cascade": Cascade(),
}
P = np.array([[0.6, 0.7], [0.2, 0.9]])
COST = np.tile([1.0, 10.0], (2, 1))


@pytest.mark.parametrize("name", POLICIES)
def test_headline_is_of_the_policy(name: str) -> None:
    predictions, data = random_system(missing=0.1)
    policy = POLICIES[name]
    evaluation = evaluate(predictions, data, resamples=5, policy=policy)
    chosen = policy.choose(
        predictions.correctness, predictions.normalised_cost, 1.0, targets=predictions.targets
    )
    right = data.correct[np.arange(len(chosen)), chosen]
    compared = ~np.isnan(data.correct).any(axis=1)
    assert evaluation.headline["argmax_accuracy"].value == pytest.approx(right[compared].mean())
    assert evaluation.definitions["policy"].startswith(f"kind: {policy.kind}")
    json.dumps(evaluation.to_dict(), allow_nan=False)


def test_a_constant_policy_has_one_operating_point() -> None:
    evaluation = evaluate(*random_system(), resamples=0, policy=Argmax())
    assert len(evaluation.curve) == 1


def test_a_cascade_with_a_perfect_check_pays_for_what_it_asks() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 1.0]])
    check = SimulatedCheck(sensitivity=1.0, specificity=1.0)
    evaluation = evaluate(
        *system(P, COST, correct, COST), resamples=0, policy=Cascade(), check=check
    )
    assert evaluation.headline["max_lam_accuracy"].value == 1
    assert evaluation.headline["max_lam_cost"].value == pytest.approx((1 + 11) / 2)
    assert evaluation.headline["argmax_cost"].value == pytest.approx(11)
    assert evaluation.per_target["t1"]["mean_cost"].value == pytest.approx(10)
    assert "SIMULATED" in evaluation.definitions["policy"]


def test_an_unmeasured_answer_ends_a_cascade_and_is_not_wrong() -> None:
    correct = np.array([[1.0, 1.0], [np.nan, 1.0]])
    check = SimulatedCheck(sensitivity=1.0, specificity=1.0)
    trial = Trial.join(*system(P, COST, correct, COST), policy=Cascade(), check=check)
    assert trial.path.at(0.9).tolist()[1] == 0
    evaluation = evaluate(
        *system(P, COST, correct, COST), resamples=0, policy=Cascade(), check=check
    )
    assert (evaluation.curve.accuracy == 1).all()


def test_recorded_scores_are_joined_by_name() -> None:
    predictions, data = random_system(queries=20, targets=3)
    table = np.random.default_rng(0).random((20, 3))
    check = RecordedCheck(query_ids=data.query_ids, targets=data.pool.names, table=table)
    back = RecordedCheck(
        query_ids=data.query_ids[::-1], targets=data.pool.names[::-1], table=table[::-1, ::-1]
    )
    first, second = (
        evaluate(predictions, data, resamples=3, policy=Cascade(), check=direction).to_dict()
        for direction in (check, back)
    )
    assert first == second
    less = RecordedCheck(query_ids=data.query_ids[:5], targets=data.pool.names, table=table[:5])
    with pytest.raises(DataError, match="quality check lacks 15"):
        evaluate(predictions, data, resamples=0, policy=Cascade(), check=less)


def test_a_simulated_check_errs_as_it_says() -> None:
    random = np.random.default_rng(0)
    correct = (random.random((1500, 4)) < 0.5).astype(np.float64)
    ids, names = tuple(map(str, range(1500))), ("a", "b", "c", "d")
    check = SimulatedCheck(sensitivity=0.9, specificity=0.7, seed=1)
    scores = check.scores(ids, names, correct)
    assert (scores[correct == 1] >= 0.5).mean() == pytest.approx(0.9, abs=0.02)
    assert (scores[correct == 0] < 0.5).mean() == pytest.approx(0.7, abs=0.03)
    assert ((scores >= 0) & (scores <= 1)).all()
    turned = check.scores(ids[::-1], names[::-1], correct[::-1, ::-1])
    np.testing.assert_array_equal(turned[::-1, ::-1], scores)
    other = SimulatedCheck(sensitivity=0.9, specificity=0.7, seed=2).scores(ids, names, correct)
    assert (other != scores).any()


def test_checks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sensitivity is 1\.5"):
        SimulatedCheck(sensitivity=1.5, specificity=0.5)
    with pytest.raises(DataError, match="need"):
        RecordedCheck(query_ids=("a",), targets=("t",), table=np.zeros((2, 1)))
    with pytest.raises(DataError, match=r"in \[0, 1\]"):
        RecordedCheck(query_ids=("a",), targets=("t",), table=np.full((1, 1), 2.0))


def test_many_systems_are_what_each_is_alone() -> None:
    predictions, data = random_system(queries=50, missing=0.1)
    together = paired(
        {name: (predictions, policy) for name, policy in POLICIES.items()}, data, resamples=20
    )
    assert together.reference == "lambda"
    assert set(together.difference) == set(POLICIES) - {"lambda"}
    shared = {"aiq", "pareto_dist"}
    for name, policy in POLICIES.items():
        alone = evaluate(predictions, data, resamples=20, policy=policy).headline
        for number, estimate in together.headline[name].items():
            if number not in shared:
                assert estimate.to_dict() == alone[number].to_dict(), (name, number)
    json.dumps(together.to_dict(), allow_nan=False)


def test_differences_are_those_of_a_comparison() -> None:
    predictions, data = random_system(queries=50)
    systems = {"one": (predictions, Tolerance()), "other": (predictions, Lambda())}
    comparison = paired(systems, data, reference="other", resamples=30)
    same = compare(predictions, predictions, data, policies=(Tolerance(), Lambda()), resamples=30)
    for number, estimate in comparison.difference["one"].items():
        assert estimate.to_dict() == same.difference[number].to_dict()
        assert comparison.significant("one", number) == same.significant(number)
    assert comparison.difference["one"]["oracle_accuracy"].value == 0
    assert comparison.difference["one"]["p_auccc"].value != 0


def test_aiq_of_compared_systems_ends_at_the_same_cost() -> None:
    predictions, data = random_system(queries=50)
    cheap = (predictions, Threshold(strong="t1", weak="t0"))
    own = evaluate(predictions, data, resamples=0, policy=cheap[1]).headline["aiq"].value
    comparison = paired({"cheap": cheap, "all": (predictions, Lambda())}, data, resamples=0)
    assert comparison.headline["cheap"]["aiq"].value > own


def test_systems_that_cannot_be_compared_are_refused() -> None:
    predictions, data = random_system(queries=10)
    system = (predictions, Lambda())
    check = SimulatedCheck(sensitivity=1.0, specificity=1.0)
    with pytest.raises(ConfigError, match="no system"):
        paired({}, data)
    with pytest.raises(ConfigError, match=r"\['b'\]"):
        paired({"a": system}, data, reference="b")
    with pytest.raises(ConfigError, match=r"\['c'\]"):
        paired({"a": system}, data, checks={"c": check})
    with pytest.raises(DataError, match="lack"):
        paired({"a": system, "b": (predictions.select(predictions.query_ids[:5]), Lambda())}, data)
    with pytest.raises(ConfigError, match="names the target"):
        paired({"a": (predictions, Threshold(strong="gpt", weak="t0"))}, data)


def test_the_best_mix_is_in_the_evaluation() -> None:
    correct = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    cost = np.tile([1.0, 3.5, 4.0], (4, 1))
    mix = evaluate(*system(correct, cost, correct, cost), resamples=0).mix
    assert [(point.target, point.mean_cost, point.accuracy) for point in mix] == [
        ("t0", 1.0, 0.25),
        ("t2", 4.0, 1.0),
    ]
