"""Changes of targets and of traffic."""

import numpy as np
import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.learning import (
    AnchorExpectation,
    ChangeSettings,
    QualityWatch,
    mix_change,
    price_change,
)


def run_watch(
    *, fall: float, error: float = 0.0, overrated: float = 0.0, seed: int = 0
) -> QualityWatch:
    """A watch after 1,000 labels; in the second half the target is worse by `fall`."""
    rng, watch = np.random.default_rng(seed), QualityWatch("t")
    for label in range(1000):
        expected = rng.uniform(0.4, 0.95)
        right = rng.random() < expected - overrated - (fall if label >= 500 else 0)
        watch.add(float(right != (rng.random() < error)), expected, error=error)
        if watch.change is not None:
            break
    return watch


def test_a_worse_target_is_told_with_its_evidence_and_about_since_when() -> None:
    change = run_watch(fall=0.35).change
    assert change is not None
    assert (change.kind, change.target) == ("quality", "t")
    assert 450 < change.since <= change.alarm < 700
    assert change.evidence["observed"] < change.evidence["expected"] - 0.2
    assert change.evidence["labels"] == change.alarm - change.since + 1


@pytest.mark.parametrize("seed", range(5))
def test_neither_chance_nor_a_judge_that_errs_is_a_change(seed: int) -> None:
    assert run_watch(fall=0, seed=seed).change is None
    assert run_watch(fall=0, error=0.2, overrated=0.04, seed=seed).change is None
    assert run_watch(fall=0.4, error=0.1, overrated=0.04, seed=seed).change is not None


def test_predictions_that_were_always_too_high_are_not_a_change_but_a_fall_from_there_is() -> None:
    watch = QualityWatch("t")
    for label in range(1000):
        watch.add(float(label % 5 < 3), 0.8)
    assert watch.change is None
    for label in range(300):
        watch.add(float(label % 5 < 1), 0.8)
    assert watch.change is not None


def test_suspicion_rises_before_the_change_is_sure() -> None:
    watch = QualityWatch("t")
    suspicions = []
    while watch.change is None:
        watch.add(0.0, 0.8)
        suspicions.append(watch.suspicion)
    assert suspicions == sorted(suspicions)
    assert 0 < suspicions[len(suspicions) // 2] < 1 <= suspicions[-1]


def test_an_anchor_is_expected_to_be_as_it_was_as_far_as_others_repeat_themselves() -> None:
    steady, fickle = AnchorExpectation(), AnchorExpectation()
    assert (steady.after(1), steady.after(0)) == (0.9, 0.1)
    for _ in range(38):
        steady.add(1, 1)
        fickle.add(1, 0)
    for _ in range(19):
        steady.add(0, 0)
        fickle.add(0, 1)
    assert steady.after(1) == pytest.approx((38 + 9) / (38 + 10))
    assert steady.after(0) == pytest.approx(1 / (19 + 10))
    assert fickle.after(1) == pytest.approx(9 / (38 + 10))
    assert fickle.after(0) == pytest.approx((19 + 1) / (19 + 10))


def test_another_price_is_told_after_five_answers_and_discounts_in_between_are_not() -> None:
    list_costs = np.linspace(1e-4, 2e-4, 40)
    bills = list_costs.copy()
    bills[::3] *= 0.6
    assert price_change("t", bills, list_costs) is None
    bills[20:] = 2 * list_costs[20:]
    change = price_change("t", bills, list_costs)
    assert change is not None
    assert (change.since, change.alarm) == (20, 24)
    assert change.evidence["times the list"] == pytest.approx(2)


def test_answers_without_a_bill_tell_nothing_of_prices() -> None:
    list_costs, bills = np.full(20, 1e-4), np.full(20, np.nan)
    assert price_change("t", bills, list_costs) is None
    bills[::4] = 3e-4
    change = price_change("t", bills, list_costs)
    assert change is not None
    assert (change.since, change.alarm) == (0, 16)


@pytest.mark.slow
def test_another_mix_of_requests_is_told_and_the_same_mix_is_not() -> None:
    rng = np.random.default_rng(0)
    reference, scores = rng.beta(4, 2, (1000, 2)), rng.beta(4, 2, (3000, 2))
    assert mix_change(reference, scores, names=("a", "b")) is None
    scores[1500:, 1] = rng.beta(6, 2, 1500)
    change = mix_change(reference, scores, names=("a", "b"))
    assert change is not None
    assert (change.evidence["what"], change.evidence["direction"]) == ("b", "higher")
    assert 1400 < change.since <= change.alarm < 1900


@pytest.mark.parametrize(
    "changes", [{"false_alarms": 0}, {"tolerance": 0.5}, {"horizon": 0}, {"reference": -1}]
)
def test_settings_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ChangeSettings(**changes)  # type: ignore[arg-type]
