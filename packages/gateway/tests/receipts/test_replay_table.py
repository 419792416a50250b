"""Recorded requests decided again agree with the policy that decided them."""

import math
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.receipts.example_receipts import (
    SCALE,
    TARGETS,
    example_receipt,
    receipt_id,
)
from prefill_router.cost import CostScale
from prefill_router.errors import DataError
from prefill_router.policy import Cascade, Lambda, Policy, Threshold, Tolerance
from prefill_router.targets import Pool, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import (
    Recorded,
    at_prices,
    decide_again,
    explain,
    replay,
    scale_details,
)


def random_receipts(count: int, *, policy: Policy, seed: int = 0) -> list[Receipt]:
    """Receipts with random targets that may answer, scales and costs."""
    random = np.random.default_rng(seed)
    receipts = []
    for number in range(count):
        targets = [str(n) for n in random.permutation(TARGETS)[: random.integers(1, 4)]]
        low = float(random.uniform(0, 0.001))
        choice = {
            "order": tuple(targets),
            "policy_target": targets[0],
            "correctness": dict(zip(TARGETS, random.random(3).tolist(), strict=True)),
            "estimated_cost": dict(zip(TARGETS, random.uniform(0, 0.01, 3).tolist(), strict=True)),
            "lam": float(random.choice([0.0, 0.3, 0.5, 1.0, random.random()])),
        }
        details = scale_details(CostScale(low, low + 0.01), policy)
        receipts.append(
            example_receipt(number, choice=choice, details=details, policy=str(policy.kind))
        )
    return receipts


@pytest.mark.parametrize("policy", [Lambda(), Tolerance()], ids=lambda p: p.kind)
def test_every_request_is_decided_as_its_policy_would(policy: Policy) -> None:
    receipts = random_receipts(60, policy=policy)
    recorded = Recorded.of(receipts)
    assert len(recorded) == 60
    own = recorded.at_own_lam()
    for row, receipt in enumerate(receipts):
        decision = decide_again(receipt)
        assert decision is not None
        assert recorded.targets[own[row]] == decision.target
        for lam in (0.0, 0.25, 0.7, 1.0):
            segment = [s for s in decision.path if s.lam_from < lam or s.lam_from == 0]
            last = decision.path[-1] if lam == 1 else segment[-1]
            assert recorded.targets[recorded.at(lam)[row]] == last.target


def test_the_curve_agrees_with_every_lam() -> None:
    recorded = Recorded.of(random_receipts(80, policy=Lambda()))
    curve = recorded.curve()
    assert curve.lam[0] == 0
    assert (np.diff(curve.lam) > 0).all()
    for lam in np.linspace(0, 1, 41):
        step = max(int(np.searchsorted(curve.lam, lam, side="left")) - 1, 0)
        point = recorded.point(recorded.at(float(lam)))
        assert curve.accuracy[step if lam < 1 else -1] == pytest.approx(point.accuracy)
        assert curve.cost[step if lam < 1 else -1] == pytest.approx(point.cost)
    thin = curve.thin(5)
    assert len(thin.lam) == 5
    assert (thin.lam[0], thin.lam[-1]) == (curve.lam[0], curve.lam[-1])
    assert len(curve.thin(10_000).lam) == len(curve.lam)


def test_accuracy_and_cost_never_fall_as_lam_rises() -> None:
    curve = Recorded.of(random_receipts(80, policy=Lambda(), seed=3)).curve()
    assert (np.diff(curve.accuracy) >= -1e-12).all()
    assert (np.diff(curve.cost) >= -1e-12).all()


def test_what_a_lam_changes_by_hand() -> None:
    # At 0.9 easy prompts go to the small target and hard ones to the large; at 0 all to the small.
    result = replay(Recorded.of([example_receipt(n) for n in range(10)]), [0.0, 1.0])
    record, own, at_zero, at_one = result.settings
    assert (record.name, record.changed, record.observed) == ("as it was", 0, 10)
    assert record.accuracy == pytest.approx(0.9)
    assert record.estimated_cost == pytest.approx(5 * 0.0001 + 5 * 0.01)
    assert record.observed_cost == pytest.approx(2 * record.estimated_cost)
    assert own == type(own)(**{**vars(record), "name": "at its own lam"})
    assert (at_zero.changed, at_zero.moves) == (5, [("large", "small", 5)])
    assert at_zero.accuracy == pytest.approx((0.9 + 0.3) / 2)
    assert at_zero.estimated_cost == pytest.approx(10 * 0.0001)
    assert (at_zero.observed, at_zero.observed_cost) == (5, pytest.approx(5 * 0.0002))
    assert at_one.moves == [("small", "large", 5)]  # 0.95 beats 0.9 at any price
    assert result.recorded.singles()["middle"].accuracy == pytest.approx((0.8 + 0.5) / 2)
    assert result.recorded.singles()["middle"].cost == pytest.approx(0.001)


LEFT_OUT: dict[str, dict[str, Any]] = {
    "the client named the target": {"choice": {"reason": "named", "lam": None}},
    "was in a tool loop": {"choice": {"reason": "tool_loop"}},
    "continued a stored response": {"choice": {"reason": "stored"}},
    "had no forecast": {"choice": {"reason": "fallback", "fallback": "novel"}},
    "lacks the policy or the cost scale": {"details": {}},
    "lacks a target's probability or cost": {"choice": {"correctness": {"small": 1}}},
}


@pytest.mark.parametrize("why", LEFT_OUT)
def test_what_cant_be_decided_again_is_counted(why: str) -> None:
    recorded = Recorded.of([example_receipt(1), example_receipt(2, **LEFT_OUT[why])])
    assert recorded.ids == (receipt_id(1),)
    assert recorded.left_out == {why: 1}
    with pytest.raises(DataError, match=f"no request can be decided again: 1 {why}"):
        replay(Recorded.of([example_receipt(2, **LEFT_OUT[why])]), [0.5])


def test_policies_that_cant_decide_here_are_counted() -> None:
    threshold = Threshold(strong="large", weak="small")
    one_target = example_receipt(
        2, choice={"order": ("small",)}, details=scale_details(SCALE, threshold), policy="threshold"
    )
    two_targets = example_receipt(1, details=scale_details(SCALE, threshold), policy="threshold")
    recorded = Recorded.of([one_target, two_targets])
    assert recorded.ids == (receipt_id(1),)
    assert recorded.left_out == {"the policy can't decide among the targets that could answer": 1}
    assert decide_again(one_target) is None
    cascade = example_receipt(1, details=scale_details(SCALE, Cascade()), policy="cascade")
    assert len(Recorded.of([cascade])) == 0


def test_sessions_and_shadow_traffic_are_decided_again() -> None:
    session = example_receipt(
        1, choice={"reason": "session", "order": ("small", "large", "middle")}
    )
    share = example_receipt(3, choice={"reason": "share", "order": ("middle", "large", "small")})
    recorded = Recorded.of([session, share])
    names = recorded.targets
    assert [names[k] for k in recorded.chosen] == ["small", "middle"]
    assert [names[k] for k in recorded.alone] == ["large", "large"]
    assert [names[k] for k in recorded.at_own_lam()] == ["large", "large"]


def test_without_prices_costs_are_unknown_and_lam_changes_nothing() -> None:
    recorded = Recorded.of([example_receipt(n, choice={"estimated_cost": {}}) for n in range(4)])
    assert np.isnan(recorded.point(recorded.at(0.5)).cost)
    assert np.isnan([point.cost for point in recorded.singles().values()]).all()
    assert recorded.point(recorded.at(0.5)).accuracy == pytest.approx((0.95 + 0.9) / 2)


def test_other_prices() -> None:
    receipts = [example_receipt(n, cost=1.0) for n in range(10)]
    middle_receipts = [
        example_receipt(20, outcome={"target": "middle"})
    ]  # shows how much it writes
    pool = Pool(
        tuple(
            Target(name=n, input_price=p, output_price=0)
            for n, p in zip(TARGETS, (3, 2, 1), strict=True)
        )
    )
    recorded = at_prices(Recorded.of(receipts), receipts + middle_receipts, pool)
    # 100 + n input tokens, as they were estimated.
    assert recorded.singles()["small"].cost == pytest.approx(3 * 104.5 / 1e6)
    assert [recorded.targets[k] for k in recorded.at(0.0)] == ["large"] * 10

    output_prices = Pool(tuple(Target(name=n, input_price=0, output_price=1) for n in TARGETS))
    recorded = at_prices(Recorded.of(receipts), receipts + middle_receipts, output_prices)
    assert recorded.singles()["middle"].cost == pytest.approx(20 / 1e6)
    with pytest.raises(DataError, match="has output tokens of target 'middle'"):
        at_prices(Recorded.of(receipts), receipts, output_prices)
    no_prices = Pool(tuple(Target(name=n) for n in TARGETS))
    with pytest.raises(DataError, match="has no prices"):
        at_prices(Recorded.of(receipts), receipts, no_prices)


def test_explained_by_hand() -> None:
    receipt = example_receipt(
        1, choice={"lam": 0.9, "lam_asked": 0.95, "excluded": {"tiny": "it can't see images"}}
    )
    explanation = explain(receipt)
    assert [line.target for line in explanation.targets] == ["large", "middle", "small", "tiny"]
    assert [line.place for line in explanation.targets] == [1, 2, 3, None]
    assert explanation.targets[0].score == pytest.approx(0.9 * 0.9 - 0.1 * 1.0)
    assert explanation.targets[3].excluded == "it can't see images"
    assert explanation.decision is not None
    below = explanation.decision.changes_below
    assert below is not None
    # Between the large and the middle target: lam * 0.4 = (1 - lam) * 0.9.
    assert below.lam_to == pytest.approx(0.9 / 1.3)
    text = "\n".join(explanation.sentences())
    assert "large was chosen: the policy chose it" in text
    assert "lam = 0.9, lowered from 0.95 by a budget" in text
    assert "at lam = 0.6923 and below: middle" in text
    assert "answered by large, status 200" in text


def test_the_explanation_holds_no_prompt() -> None:
    receipt = example_receipt(1, prompt="a secret of somebody's")
    value = explain(receipt).to_dict()
    assert "secret" not in str(value)
    assert value["prompt_kept"]


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_has_no_forecast_is_explained_too(what: str) -> None:
    explanation = explain(example_receipt(2, **LEFT_OUT[what]))
    assert len(explanation.sentences()) >= 3
    assert len(explanation.targets) == 3


def test_an_empty_record() -> None:
    recorded = Recorded.of([])
    assert len(recorded.curve().lam) == 0
    assert math.isnan(recorded.point(recorded.at(0.5)).accuracy)
    assert recorded.moves(recorded.chosen, recorded.chosen) == []
