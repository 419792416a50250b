"""Waiting and rate limits are recorded, explained and replayed as the gateway decided."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.decide.deciders import AT, THREE_TARGETS, build_forecast, set_up_decider
from packages.gateway.tests.decide.test_latency import NAMES, receipt as build_speed_receipt
from packages.gateway.tests.receipts.example_receipts import example_receipt
from prefill_router.errors import DataError
from prefill_router.policy import Lambda
from prefill_router_gateway import Receipt
from prefill_router_gateway.decide import TargetSpeeds
from prefill_router_gateway.receipts import (
    AffinityRule,
    Recorded,
    affinity_rule_details,
    explain,
    replay,
    replay_sessions,
    scale_details,
)
from prefill_router_gateway.receipts.rows import from_row, to_row
from prefill_router_gateway.records import PredictedWaits
from prefill_router_gateway.settings import LatencySettings

SECONDS = {"small": 12.0, "middle": 5.0, "large": 9.0}
RULE = AffinityRule(
    seconds=3600.0,
    margin=0.0,
    ratio=dict.fromkeys(NAMES, 1.0),
    saved=dict.fromkeys(NAMES, 0.0),
    cache_seconds=dict.fromkeys(NAMES, 300.0),
)


def build_receipts(count: int = 60, **latency: Any) -> list[Receipt]:
    """Receipts of decisions whose lam, probabilities, lengths and limited targets are random."""
    random, limited = np.random.default_rng(0), set[str]()
    speeds = TargetSpeeds(clock=lambda: AT)
    for name, seconds in SECONDS.items():
        speeds.observe(build_speed_receipt(name, first=0.0, seconds=seconds, at=AT - seconds))
    setup = set_up_decider(
        speeds=speeds,
        limited=lambda name, _: name in limited,
        routing={"headroom": True, "latency": latency},
    )
    receipts = []
    for number in range(count):
        limited.clear()
        limited |= {name for name in NAMES if random.random() < 0.1}
        lam, most = float(random.uniform(0.0, 1)), int(random.integers(10, 200))
        forecast = build_forecast(*random.uniform(0.5, 1, 3).tolist())
        choice = setup.decide(forecast, lam_asked=lam, max_tokens=most)
        details = {
            **scale_details(THREE_TARGETS.costs.scale, Lambda()),
            **affinity_rule_details(RULE),
        }
        base = example_receipt(number, details=details)
        receipts.append(replace(base, choice=replace(choice, high_cost=None)))
    return receipts


ALL_SETTINGS = {"deadline_seconds": 6.0, "dollars_per_second": 1e-4, "keep": 0.8}


def count_slow(receipts: list[Receipt]) -> int:
    return sum(receipt.choice.reason == "latency" for receipt in receipts)


@pytest.mark.parametrize("setting", [ALL_SETTINGS, {**ALL_SETTINGS, "keep": 1.0}, {}], ids=str)
def test_each_request_is_decided_again_as_the_gateway_did(setting: dict[str, float]) -> None:
    receipts = build_receipts(**setting)
    assert bool(count_slow(receipts)) == bool(setting)
    assert any(receipt.choice.reason == "headroom" for receipt in receipts)
    recorded = Recorded.of(receipts)
    assert len(recorded) == len(receipts)
    targets = [recorded.targets[k] for k in recorded.at_own_lam()]
    assert targets == [receipt.choice.target for receipt in receipts]


def test_another_setting_decides_as_a_gateway_with_it_would_have() -> None:
    only_measured, with_it = build_receipts(), build_receipts(**ALL_SETTINGS)
    assert count_slow(only_measured) == 0
    result = replay(Recorded.of(only_measured), [0.5], latency=LatencySettings(**ALL_SETTINGS))
    last = result.settings[-1]
    assert last.name == "with this latency"
    pairs = zip(only_measured, with_it, strict=True)
    assert last.changed == sum(a.choice.target != b.choice.target for a, b in pairs) > 0


def test_conversations_are_replayed_with_waiting_too() -> None:
    receipts = build_receipts(**ALL_SETTINGS)
    for receipt in receipts:
        assert receipt.choice.session is None
    result = replay_sessions(receipts, [0.5], latency=LatencySettings())
    own, without = result.settings[1], result.settings[-1]
    assert own.changed == 0
    pairs = zip(receipts, build_receipts(), strict=True)
    assert without.changed == sum(a.choice.target != b.choice.target for a, b in pairs)


def test_a_conversation_leaves_a_slow_target_in_the_replay_as_it_did() -> None:
    waits = PredictedWaits(seconds={"large": 9.0}, deadline_seconds=5.0, keep=0.0)
    details = {**scale_details(THREE_TARGETS.costs.scale, Lambda()), **affinity_rule_details(RULE)}
    choice = {"lam": 1.0, "lam_asked": 1.0, "policy_target": "large", "session": "s"}
    first = example_receipt(1, choice=choice, details=details)
    order = ("middle", "small", "large")
    late = {**choice, "order": order, "reason": "latency", "waits": waits}
    second = example_receipt(3, choice=late, details=details)
    (_, own, _) = replay_sessions([first, second], [1.0]).settings
    assert own.changed == 0


def test_receipts_without_predictions_cant_be_replayed_with_waiting() -> None:
    recorded = Recorded.of([example_receipt(1)])
    with pytest.raises(DataError, match="set routing"):
        replay(recorded, [0.5], latency=LatencySettings(deadline_seconds=1.0))


def test_a_row_keeps_waits_and_limits_and_leaves_rows_without_them_as_they_were() -> None:
    for receipt in build_receipts(10, **ALL_SETTINGS):
        assert from_row(to_row(receipt)) == receipt
    plain = example_receipt(1)
    assert from_row(to_row(plain)) == plain
    assert not any("waits" in str(value) or "deployments" in str(value) for value in to_row(plain))


def test_an_explanation_tells_what_waiting_and_limits_changed() -> None:
    receipts = build_receipts(**ALL_SETTINGS)
    slow = next(r for r in receipts if r.choice.reason == "latency" and not r.choice.limited)
    explanation = explain(slow)
    words = "; ".join(explanation.sentences())
    assert f"the policy alone would have chosen {slow.choice.policy_target}" in words
    assert "predicted to be too slow" in words
    assert "a second of waiting cost $0.0001" in words
    assert slow.choice.waits is not None
    assert {line.target: line.seconds for line in explanation.targets} == slow.choice.waits.seconds
    assert explanation.to_dict()["choice"]["waits"]["deadline_seconds"] == 6.0
    limited = next(r for r in receipts if r.choice.reason == "headroom")
    sentences = "; ".join(explain(limited).sentences())
    assert (
        f"left alone, since their rate limits are used up: {', '.join(limited.choice.limited)}"
        in sentences
    )
