"""A whole gateway when something fails: targets, the encoder, the deadline, the budget."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import COUNTS, PICTURE, SAID
from packages.gateway.tests.scripted_target import ANSWER, DONE, chunked, whole
from packages.gateway.tests.world import (
    CHEAP,
    DEAR,
    MIDDLE,
    PATIENCE,
    PRICES,
    FakeTarget,
    Served,
    World,
    chat,
    served,
    user,
    world,
)
from prefill_router.router.light import read_light
from prefill_router_gateway.forecast import (
    DriftWatch,
    FallbackWatch,
    forecaster as forecaster_module,
)
from prefill_router_gateway.proxy import deployments
from prefill_router_gateway.proxy.response_stream import TimeLimits

pytestmark = pytest.mark.slow

AT_ONCE = {"retries": 1, "backoff_seconds": 0, "breaker_failures": 4, "breaker_seconds": 3600}
DOWN = whole({"error": {"message": "down"}}, status=503)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("failures")) as made:
        yield made


@pytest.fixture(scope="module")
def started(made: World) -> Iterator[Served]:
    with served(made) as gateway:
        yield gateway


@pytest.fixture
def gateway(made: World, started: Served) -> Served:
    """The same for every test, with nothing of the last one's."""
    for name, target in made.targets.items():
        target.usual = whole(ANSWER)
        started.gateway.breakers.record_success(name)
    made.forget()
    made.write_pool(PRICES)
    settle(made, started)
    return started


def settle(made: World, gateway: Served, **parts: Any) -> None:
    """Go on with these settings, and the usual ones."""
    routing = {"lam": 0, "deadline_seconds": PATIENCE, **parts.pop("routing", {})}
    made.made.configure({"failures": AT_ONCE, "routing": routing, **parts})
    assert gateway.ask("/admin/reload", {}).status == 200


def test_the_next_target_answers_where_the_first_fails(made: World, gateway: Served) -> None:
    made[CHEAP].then(DOWN, DOWN)
    reply = gateway.ask(body=chat())
    assert reply.json == ANSWER
    assert reply.own("target") == MIDDLE
    assert reply.own("retries") == "2"
    assert made.asked() == [CHEAP, CHEAP, MIDDLE]
    made[CHEAP].then(DOWN)
    assert gateway.ask(body=chat()).own("retries") == "1"
    receipt = gateway.receipts[-2]
    assert receipt.choice.order == (CHEAP, MIDDLE, DEAR)
    ends = [(attempt.target, attempt.end, attempt.status) for attempt in receipt.outcome.attempts]
    assert ends == [
        (CHEAP, "overloaded", 503),
        (CHEAP, "overloaded", 503),
        (MIDDLE, "answered", 200),
    ]
    assert receipt.cost == 7.6e-06  # 7 tokens in and 3 out, at its prices


@pytest.mark.parametrize("old", ["max_tokens", "max_completion_tokens"])
def test_a_limit_gets_the_name_that_the_target_takes(
    made: World, gateway: Served, old: str
) -> None:
    new = {"max_tokens": "max_completion_tokens"}.get(old, "max_tokens")
    told = f"Unsupported parameter: '{old}' is not supported with this model. Use '{new}' instead."
    error = {"message": told, "param": old, "code": "unsupported_parameter"}
    made[CHEAP].then(whole({"error": error}, status=400))
    body = chat(CHEAP, **{old: 9, "seed": 1})
    for retries in ("1", "0"):  # it is remembered
        reply = gateway.ask(body=body)
        assert (reply.status, reply.own("retries")) == (200, retries)
        sent = made[CHEAP].requests[-1].json
        assert (sent[new], sent["seed"], sent["messages"]) == (9, 1, body["messages"])
        assert old not in sent
    ends = [attempt.end for attempt in gateway.receipts[-2].outcome.attempts]
    assert ends == ["unsupported", "answered"]


def test_a_name_is_remembered_only_where_it_helped(made: World, gateway: Served) -> None:
    told = "Unrecognized request argument supplied: max_tokens"
    refusal = whole({"error": {"message": told}}, status=400)
    made[CHEAP].then(refusal, refusal)
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 400
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 200
    assert [sorted({"max_tokens", "max_completion_tokens"} & set(got.json))
            for got in made[CHEAP].requests] == [
        ["max_tokens"], ["max_completion_tokens"], ["max_tokens"]
    ]  # fmt: skip
    made.forget()
    odd = "Unrecognized request argument supplied: max_tokens_max_completion_tokens"
    made[CHEAP].then(whole({"error": {"message": odd}}, status=400))
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 400
    assert len(made[CHEAP].requests) == 1


def test_an_answer_that_begins_with_thinking_has_more_time(
    made: World, gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = TimeLimits(first=0.2, silence=60, whole=60)
    monkeypatch.setattr(deployments, "_LIMITS", short)
    settle(made, gateway)
    made[CHEAP].then([None])
    assert gateway.ask(body=chat(CHEAP, stream=True)).status == 504
    thought = threading.Event()
    made[CHEAP].then([thought, *chunked([*SAID, DONE])])
    threading.Timer(1.0, thought.set).start()
    body = chat(CHEAP, stream=True, reasoning_effort="high")
    assert gateway.ask(body=body).body == b"".join([*SAID, DONE])


def test_a_target_that_cannot_be_reached(made: World, gateway: Served) -> None:
    nobody = FakeTarget()
    nobody.close()
    made.write_pool({**PRICES, CHEAP: {**PRICES[CHEAP], "base_url": nobody.url}})
    settle(made, gateway)
    assert gateway.ask(body=chat()).own("target") == MIDDLE
    named = gateway.ask(body=chat(CHEAP))
    assert named.status == 502
    assert f"{CHEAP}: connect" in named.error["message"]
    assert nobody.url not in named.body.decode()


def test_who_fails_too_often_is_left_alone_for_a_while(made: World, gateway: Served) -> None:
    made[CHEAP].usual = DOWN
    for _ in range(2):  # of two attempts each
        assert gateway.ask(body=chat()).own("target") == MIDDLE
    made.forget()
    reply = gateway.ask(body=chat())
    assert (reply.own("target"), reply.own("retries")) == (MIDDLE, "0")
    assert made.asked() == [MIDDLE]
    assert gateway.receipts[-1].choice.excluded == {CHEAP: "breaker open"}
    assert gateway.ask("/ready").json["state"] == "degraded"
    assert "1 of 3 targets" in gateway.ask("/ready").json["checks"]["targets"]["note"]
    metrics = gateway.ask("/metrics").body.decode()
    assert f'breaker_state{{target="{CHEAP}"}}' in metrics
    made[CHEAP].usual = whole(ANSWER)
    settle(made, gateway, failures={**AT_ONCE, "breaker_seconds": 1e-6})
    assert gateway.ask(body=chat()).own("target") == CHEAP
    assert gateway.ask("/ready").json["state"] == "ready"


def test_ready_tells_what_the_router_is_worth(made: World, gateway: Served) -> None:
    verdict = gateway.ask("/ready").json["router"]["verdict"]
    assert verdict == read_light(made.made.router).verdict


def test_all_targets_have_failed(made: World, gateway: Served) -> None:
    for target in made.targets.values():
        target.usual = DOWN
    for _ in range(2):
        assert gateway.ask(body=chat()).status == 502
    ready = gateway.ask("/ready")
    assert (ready.status, ready.json["state"]) == (503, "not_ready")
    assert gateway.ask("/health").status == 200
    assert gateway.ask(body=chat()).status == 502  # somebody is asked all the same


def test_a_tool_loop_is_not_handed_to_another_target(made: World, gateway: Served) -> None:
    made.write_pool({name: {**row, "accepts": ["tools"]} for name, row in PRICES.items()})
    settle(made, gateway)
    loop: list[Any] = [user("Weather?"), {"role": "tool", "tool_call_id": "c", "content": "sunny"}]
    assert gateway.ask(body=chat(), **{"x-session-id": "s"}).own("target") == CHEAP
    made[CHEAP].usual = DOWN
    reply = gateway.ask(body=chat(messages=loop), **{"x-session-id": "s"})
    assert reply.status == 502
    assert reply.own("reason") == "tool_loop"
    assert set(made.asked()) == {CHEAP}


# The encoder.


def test_past_the_deadline_the_fallback_decides(made: World, gateway: Served) -> None:
    settle(made, gateway, routing={"deadline_seconds": 1e-9, "fallback": "best"})
    made[DEAR].then(chunked([*SAID, COUNTS, DONE]))
    reply = gateway.ask(body=chat(text="Nobody has read this yet.", stream=True))
    assert (reply.own("fallback"), reply.own("reason")) == ("deadline", "fallback")
    assert reply.own("target") == DEAR
    assert reply.own("probability") is None
    receipt = gateway.receipts[-1]
    assert receipt.choice.fallback == "deadline"
    assert receipt.choice.correctness == {}


def test_many_fallbacks_are_told_in_ready_and_metrics(
    made: World, gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.gateway, "fallbacks", FallbackWatch())
    settle(made, gateway, routing={"deadline_seconds": 1e-9})
    for number in range(25):
        gateway.ask("/v1/route", body=chat(text=f"Nobody has read number {number}."))
    check = gateway.ask("/ready").json["checks"]["forecasts"]
    assert check["state"] == "degraded"
    assert "decisions had no forecast" in check["note"]
    shares = re.findall(
        r"^prefill_router_fallback_share (\S+)", gateway.ask("/metrics").body.decode(), re.MULTILINE
    )
    assert float(shares[0]) > 0.05


def test_the_page_is_not_ready_where_requests_have_drifted(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gateway.ask("/page/api/overview").json
    assert not any("drifted" in problem for problem in before["problems"])
    watch = DriftWatch(["one", "two"], least=20)
    for number in range(40):
        watch.add([3, number % 10])
    monkeypatch.setattr(gateway.gateway, "drift", watch)
    after = gateway.ask("/page/api/overview").json
    assert after["state"] == "degraded"
    assert any("1 of 2 features have a drift above" in problem for problem in after["problems"])


def test_without_text_the_fallback_decides(made: World, gateway: Served) -> None:
    made.write_pool({name: {**row, "accepts": ["images"]} for name, row in PRICES.items()})
    picture = user([{"type": "image_url", "image_url": {"url": PICTURE}}])
    settle(made, gateway, routing={"fallback": "cheapest"})
    reply = gateway.ask(body=chat(messages=[picture]))
    assert (reply.own("fallback"), reply.own("target")) == ("no_text", CHEAP)


def test_an_encoder_that_is_killed_is_replaced(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start = asyncio.Event()
    open_link = forecaster_module.start_encoder

    async def later(*args: Any, **options: Any) -> Any:
        await may_start.wait()
        return await open_link(*args, **options)

    monkeypatch.setattr(forecaster_module, "start_encoder", later)
    forecaster = gateway.gateway.live.forecaster
    before = forecaster.pid
    os.kill(before, signal.SIGKILL)
    gateway.until(lambda: forecaster.state != "ready")
    reply = gateway.ask(body=chat(text="A question that nobody asked before."))
    assert (reply.own("fallback"), reply.own("target")) == ("encoder_down", CHEAP)
    ready = gateway.ask("/ready")
    assert (ready.status, ready.json["state"]) == (200, "degraded")
    assert "'prior' decides" in ready.json["checks"]["encoder"]["note"]
    gateway.gateway_soon(may_start.set)
    gateway.until(lambda: forecaster.state == "ready")
    again = gateway.ask(body=chat(text="Another question that nobody asked."))
    assert (again.own("fallback"), again.own("reason")) == (None, "policy")
    assert gateway.ask("/ready").json["state"] == "ready"
    assert forecaster.pid != before
    metrics = gateway.ask("/metrics").body.decode()
    assert "encoder_down" in metrics


# Budgets.


def test_as_a_budget_runs_down_so_does_lam(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget = {"dollars": 1e-3, "per": "day", "soften_from": 0.2, "stop": True}
    usage = {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}
    with world(tmp_path, settings={"budgets": [budget]}) as made, served(made) as gateway:
        for target in made.targets.values():
            target.usual = whole({**ANSWER, "usage": usage})
        lams: list[float] = []
        while (reply := gateway.ask(body=chat(text="A hard one: " * 20), lam="1")).status == 200:
            lams.append(float(reply.own("lam") or "nan"))
            assert len(lams) < 1000
        receipts = gateway.receipts
        left = gateway.ask("/metrics").body.decode()
    assert (reply.status, reply.error["code"]) == (429, "budget_spent")
    assert int(reply.headers["retry-after"]) > 1
    assert lams[0] == 1
    assert lams == sorted(lams, reverse=True)
    assert 0 < lams[-1] < 0.5
    assert {receipt.choice.lam_asked for receipt in receipts} == {1.0}
    assert receipts[0].choice.target != receipts[-1].choice.target
    assert sum(receipt.cost or 0 for receipt in receipts) >= 1e-3
    assert "lam is lowered to" in caplog.text
    assert "budget" in left


def test_a_budget_that_does_not_stop_leaves_the_cheapest(made: World, gateway: Served) -> None:
    first = gateway.ask(body=chat(), lam="1")
    settle(made, gateway, budgets=[{"dollars": 1e-6, "per": "hour"}])
    second = gateway.ask(body=chat(), lam="1")
    assert first.own("target") == DEAR
    assert (second.own("target"), second.own("lam")) == (CHEAP, "0")
