"""The metrics of other benchmarks, by hand."""

from math import log2

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system, system
from prefill_router.errors import ConfigError
from prefill_router.evaluation import Anchors, Trial, evaluate
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.curve import ComparedSystems, CurveReading, Points
from prefill_router.evaluation.external_metrics import (
    aiq,
    blueprint_area,
    mix_gain,
    pareto_distance,
    router_arena,
)
from prefill_router.evaluation.fixed_mix import area, envelope
from prefill_router.evaluation.scores import Scorer
from prefill_router.policy import Threshold

NAN = float("nan")


def points(*places: tuple[float, float]) -> Points:
    cost, accuracy = (np.array([column], dtype=float) for column in zip(*places, strict=True))
    return Points(accuracy, cost, np.ones(cost.shape, dtype=np.bool_))


SINGLES = points((1, 0.4), (2, 0.5), (4, 0.8))
CURVE = points((1, 0.4), (3, 0.8))


def anchors(singles: Points, oracle: float = 0.9) -> Anchors:
    return Anchors.of(singles.cost, singles.accuracy, np.array([oracle]))


def test_envelope_leaves_out_what_a_mix_beats() -> None:
    cost, accuracy = envelope(SINGLES.cost, SINGLES.accuracy)
    assert cost.tolist() == [[1, 4]]
    assert accuracy.tolist() == [[0.4, 0.8]]


@pytest.mark.parametrize("seed", range(5))
def test_envelope_is_the_best_mix_of_any_two_points(seed: int) -> None:
    random = np.random.default_rng(seed)
    cost, accuracy = random.random((3, 25)), random.random((3, 25))
    if seed % 2:
        cost, accuracy = np.round(cost, 1), np.round(accuracy, 1)
    cost[0, :5], accuracy[1, 3:6] = NAN, NAN
    corners = envelope(cost, accuracy)
    for row in range(3):
        points = [
            (c, a) for c, a in zip(cost[row], accuracy[row], strict=True) if not np.isnan(c + a)
        ]
        for at in random.uniform(min(c for c, _ in points), 1.2, 20):
            best = max(
                a + (b - a) * (at - c) / (d - c) if d > at else b
                for c, a in points
                for d, b in points
                if c <= at and d >= c and (d > c or b == a)
            )
            height = np.interp(at, corners[0][row], corners[1][row])
            assert height == pytest.approx(best, abs=1e-12)


def test_envelope_of_nothing_is_unknown() -> None:
    cost, accuracy = envelope(np.full((1, 3), NAN), np.ones((1, 3)))
    assert np.isnan(cost).all()
    assert np.isnan(accuracy).all()


def test_area_between_two_costs() -> None:
    low, high = np.array([2.0]), np.array([3.5])
    assert area(np.array([[1.0, 3.0, 4.0]]), np.array([[0.0, 1.0, 1.0]]), low, high) == (
        pytest.approx(0.75 + 0.5)
    )


def test_mix_gain() -> None:
    # From 1 to 3 the curve's mean is 0.6, and the mix's (0.4 + 2/3) / 2.
    assert mix_gain(CURVE, SINGLES)[0] == pytest.approx(0.6 - (0.4 + 2 / 3) / 2)
    assert mix_gain(points((1, 0.4), (4, 0.8)), SINGLES)[0] == pytest.approx(0)
    assert np.isnan(mix_gain(points((5, 0.8), (6, 0.9)), SINGLES)[0])


def test_mix_is_level_beyond_the_best_target() -> None:
    singles = points((1, 0.4), (2, 0.8), (4, 0.5))
    assert mix_gain(points((2, 0.8), (4, 0.8)), singles)[0] == pytest.approx(0)


def test_the_curve_of_mixes_gains_nothing() -> None:
    _, data = random_system(queries=80)
    blind = np.tile(np.nanmean(data.correct, axis=0), (80, 1))
    same = np.tile(data.observed_cost.mean(axis=0), (80, 1))
    trial = system(blind, same, data.correct, data.observed_cost)
    gain = evaluate(*trial, resamples=0).headline["mix_gain"].value
    assert gain == pytest.approx(0, abs=1e-12)


def test_aiq_depends_on_the_largest_cost() -> None:
    assert aiq(CURVE, np.array([3.0]))[0] == pytest.approx(1.2 / 3)
    assert aiq(CURVE, np.array([4.0]))[0] == pytest.approx((1.2 + 0.8) / 4)
    falling = points((1, 0.4), (3, 0.8), (3.5, 0.6))
    assert aiq(falling, np.array([3.5]))[0] == pytest.approx((1.2 + 0.4) / 3.5)
    assert np.isnan(aiq(points((NAN, 0.4)), np.array([NAN]))[0])


def test_blueprint_area() -> None:
    got = blueprint_area(CURVE, anchors(SINGLES))
    assert got[0] == pytest.approx(0.4 / 3 + 0.2 * 2 / 3)


def test_router_arena() -> None:
    cheapness = log2(200) / (log2(200) - log2(0.0044))
    score = 1.1 * 0.8 * cheapness / (0.1 * 0.8 + cheapness)
    got = router_arena(np.array([0.8, 0.8, 0.8, 0.0]), np.array([0.001, 0.0, 1.0, 1.0]))
    assert got == pytest.approx([score, 1.1 * 0.8 / 1.08, 0, 0])


def test_pareto_distance() -> None:
    singles = points((1, 0.5), (4, 0.8))
    own = CurveReading.of(points((2, 0.5)))
    got = pareto_distance(own, ComparedSystems.of(singles, [own]), anchors(singles))
    assert got[0] == pytest.approx(1 / 3)
    best = CurveReading.of(points((1, 0.5), (4, 0.8)))
    alone = pareto_distance(best, ComparedSystems.of(singles, [best]), anchors(singles))
    assert alone[0] == pytest.approx(0)
    # Beside a system that is as good for less, the same curve is away from the frontier.
    other = CurveReading.of(points((0.5, 0.8)))
    beside = pareto_distance(best, ComparedSystems.of(singles, [best, other]), anchors(singles))
    assert beside[0] > 0.5


def test_a_strong_and_a_weak_target() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    p = np.array([[0.1, 0.5], [0.1, 0.9], [0.1, 0.8], [0.1, 0.15]])
    cost = np.tile([1.0, 2.0], (4, 1))
    trial = Trial.join(*system(p, cost, correct, cost), policy=Threshold(strong="t1", weak="t0"))
    got = Scorer(trial).score(ones(4)).headline
    # Shares 0, 1/4, ..., 1 answer 1, 2, 3, 3, 3 of 4 correctly.
    assert got["apgr"][0] == pytest.approx((0.625 - 0.25) / 0.5)
    assert got["cpt_20"][0] == pytest.approx(0.1)
    assert got["cpt_50"][0] == pytest.approx(0.25)
    assert got["cpt_80"][0] == pytest.approx(0.4)


def test_equal_targets_have_no_gap_to_close() -> None:
    correct = np.array([[1.0, 0.0], [0.0, 1.0]])
    got = evaluate(*system(correct, np.ones((2, 2)), correct, np.ones((2, 2))), resamples=0)
    assert "more accurate" in got.headline["apgr"].reason


def test_relative_gains() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    cost = np.tile([1.0, 4.0], (4, 1))
    got = evaluate(*system(correct * 0.8 + 0.1, cost, correct, cost), resamples=0).headline
    value = {name: estimate.value for name, estimate in got.items()}
    assert value["random_accuracy"] == pytest.approx(0.625)
    assert value["random_cost"] == pytest.approx(2.5)
    assert value["gain_random"] == pytest.approx(0.6)
    assert value["gain_best"] == pytest.approx(1 / 3)
    assert value["perf_gain"] == pytest.approx(1 / 3)
    assert value["gap_oracle"] == pytest.approx(0)
    # Two of the four must go to the expensive target: (1 + 4 + 4 + 1) / 4 instead of 4.
    assert value["cost_save"] == pytest.approx(1 - 2.5 / 4)


def test_a_router_that_never_keeps_the_best_targets_accuracy_saves_nothing() -> None:
    correct = np.tile([0.0, 1.0], (4, 1))
    cost = np.tile([1.0, 4.0], (4, 1))
    got = evaluate(*system(1 - correct, cost, correct, cost), resamples=0).headline
    assert got["cost_save"].value == 0
    assert got["gain_best"].value == -1


def test_max_cost_can_be_given() -> None:
    predictions, data = random_system()
    own, wide = (
        evaluate(predictions, data, resamples=0, max_cost=cost).headline["aiq"].value
        for cost in (None, 10.0)
    )
    assert own < wide
    with pytest.raises(ConfigError, match="max_cost is 0"):
        evaluate(predictions, data, resamples=0, max_cost=0.0)
