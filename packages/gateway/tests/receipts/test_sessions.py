"""Replayed conversations: at its own lam, each request is decided as the gateway did."""

from random import Random
from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import (
    AT,
    DeciderSetup,
    Parts,
    build_forecast,
    build_question,
    estimator,
    outcome,
    set_up_decider,
    target,
)
from packages.gateway.tests.receipts.example_receipts import example_receipt, write_receipts
from packages.router.tests.commands import check_malformed, run_ok
from prefill_router.errors import DataError
from prefill_router.policy import Lambda, Policy, Tolerance
from prefill_router.targets import Pool
from prefill_router_gateway import Receipt
from prefill_router_gateway.decide import RequestCosts
from prefill_router_gateway.receipts import (
    AffinityRule,
    Recorded,
    affinity_rule_details,
    replay,
    scale_details,
)
from prefill_router_gateway.receipts.receipt_replay import replay_sessions
from prefill_router_gateway.receipts.rows import from_row, to_row

NAMES = ("small", "middle", "large")
SESSIONS = {"seconds": 400.0, "cache_seconds": 60.0, "margin": 0.02}


def build_router(policy: Policy) -> Parts:
    prices = {"small": 0.5, "middle": 1.0, "large": 2.0}
    caches = {name: {"cached_input_price": price / 10} for name, price in prices.items()}
    write_prices = {"serves": ("chat", "messages"), "cache_write_price": 2.5}
    caches["large"] |= {**write_prices, "cache_write_hour_price": 4.0}
    pool = Pool(tuple(target(name, price=prices[name], **own) for name, own in caches.items()))
    return Parts(estimator(pool, ratio=1.25), policy)


def record_request(
    setup: DeciderSetup, parts: Parts, question: Any, forecast: Any, ending: Any
) -> Receipt:
    """Decide a request, and return the receipt that the gateway would write."""
    choice = setup.decider.decide(question, forecast)
    answer = outcome(choice.target, **ending)
    setup.decider.record_outcome(choice, answer, cost=None, at=question.at + answer.total_seconds)
    costs = RequestCosts(parts.costs, cache_seconds=SESSIONS["cache_seconds"])
    cache = costs.cache(question)
    rule = AffinityRule(
        seconds=SESSIONS["seconds"],
        margin=SESSIONS["margin"],
        ratio=dict(zip(NAMES, costs.ratio.tolist(), strict=True)),
        saved=dict(zip(NAMES, cache.saved.tolist(), strict=True)),
        cache_seconds=dict(zip(NAMES, cache.seconds.tolist(), strict=True)),
    )
    details = scale_details(parts.costs.scale, parts.policy) | affinity_rule_details(rule)
    return from_row(to_row(_build_receipt(choice, answer, question.at, details)))


def _build_receipt(choice: Any, answer: Any, at: float, details: dict[str, Any]) -> Receipt:
    return Receipt(
        choice=choice,
        outcome=answer,
        at=at,
        router="f" * 16,
        policy="lambda",
        endpoint="chat",
        requested="auto",
        stream=False,
        key=None,
        scored="last_user",
        cost=None,
        cost_is_estimated=False,
        decision_seconds=0.0,
        forecast_seconds=None,
        details=details,
    )


def build_traffic(policy: Policy, count: int = 100) -> list[Receipt]:
    """Random conversations: they grow, pause, call tools; some start alike or lack forecasts."""
    random, parts = Random(7), build_router(policy)
    setup, at, rows = set_up_decider(parts, sessions=SESSIONS), AT, []
    for number in range(count):
        at += random.choice([2.0, 5.0, 20.0, 120.0])
        size = random.randrange(50, 2000)
        tool = random.random() < 0.1
        question = build_question(
            at=at,
            text_bytes=4 * size,
            session=random.choice([None, *(f"{k:032x}" for k in range(6))]),
            opening=not tool and random.random() < 0.1,
            in_tool_loop=tool,
            cache_mark=(None, "minutes", "hour")[number % 3],
            lam_asked=random.choice([0.2, 0.5, 0.8]),
            exclude=frozenset(random.sample(NAMES, random.randrange(2))),
        )
        forecast = build_forecast(*(random.random() for _ in NAMES), tokens=size)
        is_missing = random.random() < 0.1
        ending = {
            "kind": random.choice(["answered", "answered", "disconnected", "cut"]),
            "tokens": (size, random.randrange(1, 300)) if number % 7 else (0, 0),
            "total_seconds": random.random(),
        }
        rows.append(
            record_request(setup, parts, question, "deadline" if is_missing else forecast, ending)
        )
    return rows


@pytest.mark.parametrize("policy", [Lambda(), Tolerance()], ids=lambda p: p.kind)
def test_at_its_own_lam_everything_is_as_it_was(policy: Policy) -> None:
    rows = build_traffic(policy)
    reasons = {row.choice.reason for row in rows}
    assert {"session", "policy", "tool_loop", "fallback"} <= reasons
    assert any(row.choice.cached for row in rows)
    result = replay_sessions(rows, [0.5, 1.0])
    was, own, half, full = result.settings
    assert result.sessions
    assert (own.changed, own.moves) == (0, [])
    assert own.estimated_cost == pytest.approx(was.estimated_cost)
    assert own.accuracy == was.accuracy
    _, own_alone, half_alone = replay(Recorded.of(rows), [0.5]).settings
    assert own_alone.changed > 0  # some conversations keep their target
    assert half.accuracy < half_alone.accuracy
    assert full.accuracy > was.accuracy


def test_what_is_not_routed_costs_what_it_did() -> None:
    parts = build_router(Lambda())
    setup = set_up_decider(parts, sessions=SESSIONS, traffic={"share": 0.5, "otherwise": "large"})
    forecast = build_forecast(0.5, 0.51, 0.5, tokens=1000)
    questions = [
        build_question(at=AT + n, text_bytes=4000, session=f"{n:x}" * 32) for n in range(16)
    ]
    rows = [
        record_request(setup, parts, question, forecast, {"tokens": (1000, 100)})
        for question in questions
    ]
    assert {row.choice.reason for row in rows} == {"share", "policy"}
    was, own = replay_sessions(rows, []).settings
    assert own.changed == 0
    assert own.estimated_cost == pytest.approx(was.estimated_cost)


def test_a_conversation_that_began_elsewhere_stays_there() -> None:
    parts = build_router(Lambda())
    setup = set_up_decider(parts, sessions=SESSIONS)
    chances = [(0.5, 0.5, 0.6), (0.5, 0.51, 0.5)]
    rows = [
        record_request(
            setup,
            parts,
            build_question(at=AT + 10 * n, text_bytes=4000, session="a" * 32, lam_asked=0.1),
            build_forecast(*p, tokens=1000),
            {"tokens": (1000, 100), "total_seconds": 1.0},
        )
        for n, p in enumerate(chances)
    ]
    assert [row.choice.target for row in rows] == ["small", "small"]
    # At lam 1 the first goes to the large target; the second gains too little by a switch.
    (*_, best) = replay_sessions(rows, [1.0]).settings
    assert best.moves == [("small", "large", 2)]
    assert best.accuracy == pytest.approx((0.6 + 0.5) / 2)


def test_a_request_that_named_its_target_moves_no_conversation() -> None:
    rows = build_traffic(Lambda(), 20)
    named_receipt = example_receipt(
        500,
        choice={"session": rows[0].choice.session or "a" * 32, "reason": "named", "lam": None},
        details={},
        at=rows[0].at - 1,
    )
    result = replay_sessions([named_receipt, *rows], [0.5])
    plain = replay_sessions(rows, [0.5])
    assert result.notes == plain.notes
    assert [setting.changed for setting in result.settings] == [
        setting.changed for setting in plain.settings
    ]


def test_receipts_that_do_not_tell_are_refused_or_counted(tmp_path: Any) -> None:
    plain = [example_receipt(n) for n in range(4)]
    with pytest.raises(DataError, match="no receipt has the settings for keeping a conversation"):
        replay_sessions(plain, [0.5])
    single_requests = [example_receipt(n, choice={"session": None}) for n in range(4)]
    result = replay_sessions(single_requests, [0.0])
    assert result.settings[-1].changed == 2
    file = write_receipts(tmp_path / "receipts.sqlite", single_requests)
    assert "4 requests decided again, in their conversations" in run_ok(
        "replay", file, "--sessions", "--lam", "0"
    )
    assert "4 requests decided again, each by itself" in run_ok("replay", file, "--lam", "0")
    check_malformed(
        "leave out --router and --pool", "replay", file, "--sessions", "--router", "other"
    )
