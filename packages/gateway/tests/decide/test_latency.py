"""Predicted waiting and rate limits enter the choice, never against a budget or the accuracy."""

from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.decide.deciders import (
    AT,
    DeciderSetup,
    build_forecast,
    build_question,
    parts,
    set_up_decider,
    target,
)
from prefill_router.endpoints import Usage
from prefill_router.policy import Threshold
from prefill_router_gateway import Receipt
from prefill_router_gateway.decide import TargetSpeeds
from prefill_router_gateway.records import RequestOutcome, RoutingDecision, TargetAttempt
from prefill_router_gateway.settings import LatencySettings

NAMES = ("small", "middle", "large")
SLOW_LARGE = {"small": 1.0, "middle": 2.0, "large": 30.0}
SESSION = "5" * 32


def receipt(
    name: str,
    *,
    first: float = 0.5,
    seconds: float = 1.5,
    tokens: int | None = 100,
    stream: bool = True,
    before: float = 0.0,
    at: float = AT,
    kind: Any = "answered",
) -> Receipt:
    """A receipt of an answer that took `seconds`, after `before` seconds of other attempts."""
    last = TargetAttempt(target=name, end="answered", status=200, seconds=seconds)
    usage = Usage(input_tokens=10, output_tokens=tokens)
    return Receipt(
        choice=RoutingDecision(id="pr_1", order=(name,), reason="policy"),
        outcome=RequestOutcome(
            kind=kind,
            target=name,
            status=200,
            attempts=(last,),
            usage=usage,
            first_byte_seconds=before + first if stream else before + seconds,
            total_seconds=before + seconds,
        ),
        at=at,
        router="",
        policy="lambda",
        endpoint="chat",
        requested="auto",
        stream=stream,
        key=None,
        scored="last_user",
        cost=None,
        cost_is_estimated=False,
        decision_seconds=0.0,
        forecast_seconds=None,
    )


def predict_seconds(speeds: TargetSpeeds, tokens: float = 100, **settings: Any) -> dict[str, float]:
    prediction = speeds.predict(
        LatencySettings(**settings), ("a", "b"), np.array([tokens, tokens], dtype=np.float64)
    )
    return dict(prediction.seconds)


def test_the_time_to_the_first_token_and_per_token_are_learned_apart() -> None:
    speeds = TargetSpeeds(clock=lambda: AT + 10)
    for tokens, seconds in ((100, 1.5), (300, 3.5)):
        speeds.observe(receipt("a", tokens=tokens, seconds=seconds))
    assert predict_seconds(speeds, 1000) == {"a": pytest.approx(10.5)}
    assert predict_seconds(speeds, 1000, until="first_token") == {"a": pytest.approx(0.5)}


def test_attempts_before_the_answer_dont_count_for_the_target_that_gave_it() -> None:
    speeds = TargetSpeeds(clock=lambda: AT)
    speeds.observe(receipt("a", before=20.0))
    assert predict_seconds(speeds) == {"a": pytest.approx(1.5)}


def test_answers_in_one_piece_are_learned_too() -> None:
    speeds = TargetSpeeds(clock=lambda: AT)
    speeds.observe(receipt("a", stream=False, seconds=2.0))
    assert predict_seconds(speeds, 50) == {"a": pytest.approx(1.0)}
    assert predict_seconds(speeds, float("nan")) == {}


def test_later_answers_count_more() -> None:
    speeds = TargetSpeeds(clock=lambda: AT)
    for _ in range(50):
        speeds.observe(receipt("a", first=0.0, seconds=1.0))
    for _ in range(50):
        speeds.observe(receipt("a", first=0.0, seconds=3.0))
    assert predict_seconds(speeds) == {"a": pytest.approx(3.0, rel=0.01)}


@pytest.mark.parametrize("changes", [{"tokens": None}, {"tokens": 0}, {"kind": "cut"}])
def test_what_says_nothing_about_speed_is_ignored(changes: dict[str, Any]) -> None:
    speeds = TargetSpeeds(clock=lambda: AT)
    speeds.observe(receipt("a", **changes))
    assert predict_seconds(speeds) == {}


def test_an_old_estimate_is_left_out_for_one_request_that_tries_the_target() -> None:
    now = [AT]
    speeds = TargetSpeeds(clock=lambda: now[0])
    speeds.observe(receipt("a"))
    now[0] += 400
    assert predict_seconds(speeds) == {}
    speeds.note_choice("b")  # never measured
    assert predict_seconds(speeds) == {}
    speeds.note_choice("a")
    assert predict_seconds(speeds) == {"a": pytest.approx(1.5)}


def build_speeds(seconds: dict[str, float]) -> TargetSpeeds:
    """Speeds at which 100 tokens take so many seconds."""
    speeds = TargetSpeeds(clock=lambda: AT)
    for name, time in seconds.items():
        speeds.observe(receipt(name, first=0.0, seconds=time, at=AT - time))
    return speeds


def set_up_latency(
    seconds: dict[str, float] = SLOW_LARGE, *, keep: float = 0.0, **latency: Any
) -> DeciderSetup:
    routing = {"latency": {"keep": keep, **latency}, "lam": 1.0}
    return set_up_decider(speeds=build_speeds(seconds), routing=routing)


FORECAST = build_forecast(0.5, 0.8, 0.9)


def test_a_target_that_misses_the_deadline_isnt_chosen_and_comes_after_the_others() -> None:
    choice = set_up_latency(deadline_seconds=10).decide(FORECAST)
    assert choice.order == ("middle", "small", "large")
    assert (choice.reason, choice.policy_target) == ("latency", "large")
    assert choice.waits is not None
    assert choice.waits.seconds == pytest.approx(SLOW_LARGE)


def test_if_no_target_is_in_time_the_policy_chooses() -> None:
    choice = set_up_latency(deadline_seconds=0.5).decide(FORECAST)
    assert (choice.order[0], choice.reason) == ("large", "policy")


def test_a_target_that_was_never_measured_is_in_time() -> None:
    choice = set_up_latency({"small": 1.0, "middle": 20.0}, deadline_seconds=10).decide(FORECAST)
    assert (choice.order[0], choice.reason) == ("large", "policy")


def test_the_answers_expected_length_counts() -> None:
    setup = set_up_latency(deadline_seconds=10)
    assert setup.decide(FORECAST, max_tokens=20).target == "large"  # 6 seconds
    assert setup.decide(FORECAST, max_tokens=50).target == "middle"


def test_waiting_has_a_price() -> None:
    # the large target is worth its dollars, but not its 30 seconds
    for dollars, chosen in ((0.0, "large"), (1e-3, "middle")):
        routing = {"lam": 0.95, "latency": {"keep": 0.0, "dollars_per_second": dollars}}
        setup = set_up_decider(speeds=build_speeds(SLOW_LARGE), routing=routing)
        choice = setup.decide(FORECAST)
        assert choice.target == chosen
        # estimates and budgets are of dollars alone
        assert choice.estimated_cost == set_up_decider().decide(FORECAST).estimated_cost


def test_without_a_deadline_and_a_price_waiting_is_only_recorded() -> None:
    choice = set_up_latency().decide(FORECAST)
    plain = set_up_decider(routing={"lam": 1.0}).decide(FORECAST)
    assert (choice.order, choice.reason) == (plain.order, plain.reason)
    assert choice.waits is not None
    assert plain.waits is None


@pytest.mark.parametrize(
    ("keep", "chosen"), [(1.0, "large"), (0.9, "large"), (0.85, "middle"), (0.0, "middle")]
)
def test_a_quicker_target_keeps_the_accuracy_of_the_policys_choice(
    keep: float, chosen: str
) -> None:
    assert set_up_latency(keep=keep, deadline_seconds=10).decide(FORECAST).target == chosen


def test_by_default_no_quicker_target_is_less_likely_to_be_right() -> None:
    assert LatencySettings().keep == 1.0
    setup = set_up_latency({**SLOW_LARGE, "middle": 30.0}, keep=1.0, deadline_seconds=10)
    assert setup.decide(build_forecast(0.95, 0.9, 0.7), lam_asked=1.0).target == "small"
    assert setup.decide(build_forecast(0.8, 0.9, 0.7), lam_asked=1.0).target == "middle"


def test_a_spent_budget_takes_the_cheapest_however_slow_and_limited_it_is() -> None:
    setup = set_up_decider(
        speeds=build_speeds({**SLOW_LARGE, "small": 99.0}),
        limited=lambda name, _: name == "small",
        routing={
            "headroom": True,
            "latency": {"keep": 0.0, "deadline_seconds": 5, "dollars_per_second": 1.0},
        },
        budgets=[{"dollars": 1, "per": "day"}],
    )
    assert setup.decide(FORECAST).target == "middle"
    setup.budgets.spend(None, 2.0, AT)
    choice = setup.decide(FORECAST)
    assert (choice.target, choice.waits, choice.limited) == ("small", None, ())


def test_a_key_gets_none_of_the_targets_that_it_may_not_use() -> None:
    allowed = frozenset(("small", "large"))
    choice = set_up_latency(deadline_seconds=10).decide(FORECAST, key_targets=allowed)
    assert choice.order == ("small", "large")
    only = set_up_latency(deadline_seconds=10).decide(FORECAST, key_targets=frozenset(("large",)))
    assert only.order == ("large",)


def test_the_most_that_a_client_pays_holds() -> None:
    slow_cheap = set_up_latency({"small": 30.0, "middle": 1.0}, deadline_seconds=10)
    assert slow_cheap.decide(FORECAST, lam_asked=0.0).target == "middle"
    cheapest = slow_cheap.decide(FORECAST, lam_asked=0.0).estimated_cost["small"]
    assert slow_cheap.decide(FORECAST, lam_asked=0.0, max_cost=2 * cheapest).target == "small"


def test_a_conversation_leaves_a_target_that_has_become_too_slow() -> None:
    setup = set_up_latency(deadline_seconds=10)
    setup.sessions.record_answer(SESSION, target="large", tokens=500, at=AT)
    assert setup.decide(FORECAST, session=SESSION).target == "middle"
    setup.sessions.record_answer(SESSION, target="small", tokens=500, at=AT)
    stays = set_up_decider(
        speeds=build_speeds(SLOW_LARGE),
        routing={"lam": 1.0, "latency": {"keep": 0.0, "deadline_seconds": 10}},
        sessions={"margin": 1.0},
    )
    stays.sessions.record_answer(SESSION, target="small", tokens=500, at=AT)
    choice = stays.decide(FORECAST, session=SESSION)
    assert (choice.target, choice.reason) == ("small", "session")


def test_other_policies_are_asked_among_the_targets_in_time() -> None:
    policy = Threshold(strong="large", weak="small")
    setup = set_up_decider(
        parts(
            *(target(name, price=p) for name, p in zip(NAMES, (0.1, 1, 5), strict=True)),
            policy=policy,
        ),
        speeds=build_speeds(SLOW_LARGE),
        routing={"lam": 1.0, "latency": {"keep": 0.0, "deadline_seconds": 10}},
    )
    choice = setup.decide(FORECAST)
    assert choice.target == setup.decide(FORECAST, exclude=frozenset(("large",))).target
    assert (choice.policy_target, choice.reason) == ("large", "latency")


def test_without_a_forecast_waiting_does_not_count() -> None:
    choice = set_up_latency(deadline_seconds=10).decide("deadline")
    assert (choice.reason, choice.waits) == ("fallback", None)


def set_up_limited(*names: str, **settings: Any) -> DeciderSetup:
    return set_up_decider(
        limited=lambda name, _: name in names, routing={"headroom": True, **settings}
    )


def test_a_target_without_headroom_isnt_chosen_while_another_may_answer() -> None:
    choice = set_up_limited("large").decide(FORECAST, lam_asked=1.0)
    assert choice.order == ("middle", "small", "large")
    assert (choice.reason, choice.limited, choice.policy_target) == (
        "headroom",
        ("large",),
        "large",
    )
    assert set_up_limited(*NAMES).decide(FORECAST, lam_asked=1.0).order == (
        "large",
        "middle",
        "small",
    )
    assert set_up_limited("small").decide(FORECAST, lam_asked=1.0).reason == "policy"


def test_a_fallback_too_leaves_targets_without_headroom_alone() -> None:
    choice = set_up_limited("large", fallback="large").decide("deadline")
    assert (choice.order[-1], choice.reason) == ("large", "fallback")


def test_a_conversation_leaves_a_target_without_headroom() -> None:
    setup = set_up_limited("small")
    setup.sessions.record_answer(SESSION, target="small", tokens=500, at=AT)
    choice = setup.decide(build_forecast(0.9, 0.89, 0.1), session=SESSION)
    assert choice.target == "middle"


def test_requests_that_need_their_target_get_it_however_slow_it_is() -> None:
    setup = set_up_latency(deadline_seconds=10)
    assert setup.decide(named="large").target == "large"
    setup.sessions.keep("resp_1", target="large", key=None)
    assert setup.decide(previous_response_id="resp_1").target == "large"
    assert setup.decider.decide(build_question(named="large"), None).waits is None


def test_the_share_that_isnt_routed_goes_to_its_target() -> None:
    setup = set_up_decider(
        speeds=build_speeds(SLOW_LARGE),
        routing={"latency": {"keep": 0.0, "deadline_seconds": 10}},
        traffic={"share": 0.0, "otherwise": "large"},
    )
    assert setup.decide(FORECAST).target == "large"


def test_only_the_chosen_target_is_tried_when_all_estimates_are_old() -> None:
    now = [AT]
    speeds = TargetSpeeds(clock=lambda: now[0])
    for name in NAMES:
        speeds.observe(receipt(name, first=0.0, seconds=20.0))
    setup = set_up_decider(
        speeds=speeds, routing={"lam": 1.0, "latency": {"keep": 0.0, "deadline_seconds": 10}}
    )
    now[0] += 400
    first = setup.decide(FORECAST)
    assert first.waits is not None
    assert (first.target, dict(first.waits.seconds)) == ("large", {})
    second = setup.decide(FORECAST)
    assert (second.target, second.policy_target) == ("middle", "large")


def test_a_conversation_leaves_a_target_whose_waiting_costs_more_than_it_gains() -> None:
    for dollars, chosen in ((0.0, "large"), (1e-3, "middle")):
        routing = {"lam": 0.95, "latency": {"keep": 0.0, "dollars_per_second": dollars}}
        setup = set_up_decider(speeds=build_speeds(SLOW_LARGE), routing=routing)
        setup.sessions.record_answer(SESSION, target="large", tokens=500, at=AT)
        assert setup.decide(FORECAST, session=SESSION).target == chosen
