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

from packages.gateway.tests.api.bodies import CHAT_EVENTS, COUNTS, PICTURE
from packages.gateway.tests.scripted_target import ANSWER, DONE, chunked_reply, json_reply
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PATIENCE,
    PRICES,
    FakeTarget,
    LocalGateway,
    World,
    chat,
    make_world,
    serve_world,
    user,
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
DOWN = json_reply({"error": {"message": "down"}}, status=503)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("failures")) as world:
        yield world


@pytest.fixture(scope="module")
def module_gateway(world: World) -> Iterator[LocalGateway]:
    with serve_world(world) as gateway:
        yield gateway


@pytest.fixture
def gateway(world: World, module_gateway: LocalGateway) -> LocalGateway:
    """The gateway of all tests of this module, without what the last test left."""
    for name, target in world.targets.items():
        target.usual = json_reply(ANSWER)
        module_gateway.gateway.breakers.record_success(name)
    world.forget()
    world.write_pool(PRICES)
    apply_settings(world, module_gateway)
    return module_gateway


def apply_settings(world: World, gateway: LocalGateway, **parts: Any) -> None:
    """Reload with these settings and the usual settings."""
    routing = {"lam": 0, "deadline_seconds": PATIENCE, **parts.pop("routing", {})}
    world.files.configure({"failures": AT_ONCE, "routing": routing, **parts})
    assert gateway.ask("/admin/reload", {}).status == 200


def test_the_next_target_answers_where_the_first_fails(world: World, gateway: LocalGateway) -> None:
    world[CHEAP].then(DOWN, DOWN)
    reply = gateway.ask(body=chat())
    assert reply.json == ANSWER
    assert reply.own_header("target") == MIDDLE
    assert reply.own_header("retries") == "2"
    assert world.requested_targets() == [CHEAP, CHEAP, MIDDLE]
    world[CHEAP].then(DOWN)
    assert gateway.ask(body=chat()).own_header("retries") == "1"
    receipt = gateway.receipts[-2]
    assert receipt.choice.order == (CHEAP, MIDDLE, EXPENSIVE)
    ends = [(attempt.target, attempt.end, attempt.status) for attempt in receipt.outcome.attempts]
    assert ends == [
        (CHEAP, "overloaded", 503),
        (CHEAP, "overloaded", 503),
        (MIDDLE, "answered", 200),
    ]
    assert receipt.cost == 7.6e-06  # 7 tokens in and 3 out, at its prices


@pytest.mark.parametrize("old", ["max_tokens", "max_completion_tokens"])
def test_a_limit_gets_the_name_that_the_target_takes(
    world: World, gateway: LocalGateway, old: str
) -> None:
    new = {"max_tokens": "max_completion_tokens"}.get(old, "max_tokens")
    problem = (
        f"Unsupported parameter: '{old}' is not supported with this model. Use '{new}' instead."
    )
    error = {"message": problem, "param": old, "code": "unsupported_parameter"}
    world[CHEAP].then(json_reply({"error": error}, status=400))
    body = chat(CHEAP, **{old: 9, "seed": 1})
    for retries in ("1", "0"):  # it is remembered
        reply = gateway.ask(body=body)
        assert (reply.status, reply.own_header("retries")) == (200, retries)
        body_sent = world[CHEAP].requests[-1].json
        assert (body_sent[new], body_sent["seed"], body_sent["messages"]) == (
            9,
            1,
            body["messages"],
        )
        assert old not in body_sent
    ends = [attempt.end for attempt in gateway.receipts[-2].outcome.attempts]
    assert ends == ["unsupported", "answered"]


def test_a_name_is_remembered_only_where_it_helped(world: World, gateway: LocalGateway) -> None:
    problem = "Unrecognized request argument supplied: max_tokens"
    refusal = json_reply({"error": {"message": problem}}, status=400)
    world[CHEAP].then(refusal, refusal)
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 400
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 200
    assert [sorted({"max_tokens", "max_completion_tokens"} & set(got.json))
            for got in world[CHEAP].requests] == [
        ["max_tokens"], ["max_completion_tokens"], ["max_tokens"]
    ]  # fmt: skip
    world.forget()
    odd = "Unrecognized request argument supplied: max_tokens_max_completion_tokens"
    world[CHEAP].then(json_reply({"error": {"message": odd}}, status=400))
    assert gateway.ask(body=chat(CHEAP, max_tokens=9)).status == 400
    assert len(world[CHEAP].requests) == 1


def test_an_answer_that_begins_with_thinking_has_more_time(
    world: World, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = TimeLimits(first=0.2, silence=60, whole=60)
    monkeypatch.setattr(deployments, "_LIMITS", short)
    apply_settings(world, gateway)
    world[CHEAP].then([None])
    assert gateway.ask(body=chat(CHEAP, stream=True)).status == 504
    thought = threading.Event()
    world[CHEAP].then([thought, *chunked_reply([*CHAT_EVENTS, DONE])])
    threading.Timer(1.0, thought.set).start()
    body = chat(CHEAP, stream=True, reasoning_effort="high")
    assert gateway.ask(body=body).body == b"".join([*CHAT_EVENTS, DONE])


def test_a_target_that_cannot_be_reached(world: World, gateway: LocalGateway) -> None:
    nobody = FakeTarget()
    nobody.close()
    world.write_pool({**PRICES, CHEAP: {**PRICES[CHEAP], "base_url": nobody.url}})
    apply_settings(world, gateway)
    assert gateway.ask(body=chat()).own_header("target") == MIDDLE
    named_reply = gateway.ask(body=chat(CHEAP))
    assert named_reply.status == 502
    assert f"{CHEAP} can't be reached" in named_reply.error["message"]
    assert nobody.url not in named_reply.body.decode()


def test_who_fails_too_often_is_left_alone_for_a_while(world: World, gateway: LocalGateway) -> None:
    world[CHEAP].usual = DOWN
    for _ in range(2):  # of two attempts each
        assert gateway.ask(body=chat()).own_header("target") == MIDDLE
    world.forget()
    reply = gateway.ask(body=chat())
    assert (reply.own_header("target"), reply.own_header("retries")) == (MIDDLE, "0")
    assert world.requested_targets() == [MIDDLE]
    assert gateway.receipts[-1].choice.excluded == {CHEAP: "breaker open"}
    assert gateway.ask("/ready").json["state"] == "degraded"
    assert "1 of 3 targets" in gateway.ask("/ready").json["checks"]["targets"]["note"]
    metrics = gateway.ask("/metrics").body.decode()
    assert f'breaker_state{{target="{CHEAP}"}}' in metrics
    world[CHEAP].usual = json_reply(ANSWER)
    apply_settings(world, gateway, failures={**AT_ONCE, "breaker_seconds": 1e-6})
    assert gateway.ask(body=chat()).own_header("target") == CHEAP
    assert gateway.ask("/ready").json["state"] == "ready"


def test_ready_tells_what_the_router_is_worth(world: World, gateway: LocalGateway) -> None:
    verdict = gateway.ask("/ready").json["router"]["verdict"]
    assert verdict == read_light(world.files.router).verdict


def test_all_targets_have_failed(world: World, gateway: LocalGateway) -> None:
    for target in world.targets.values():
        target.usual = DOWN
    for _ in range(2):
        assert gateway.ask(body=chat()).status == 502
    ready = gateway.ask("/ready")
    assert (ready.status, ready.json["state"]) == (503, "not_ready")
    assert gateway.ask("/health").status == 200
    assert gateway.ask(body=chat()).status == 502  # somebody is asked all the same


def test_a_tool_loop_is_not_handed_to_another_target(world: World, gateway: LocalGateway) -> None:
    world.write_pool({name: {**row, "accepts": ["tools"]} for name, row in PRICES.items()})
    apply_settings(world, gateway)
    loop: list[Any] = [user("Weather?"), {"role": "tool", "tool_call_id": "c", "content": "sunny"}]
    assert gateway.ask(body=chat(), **{"x-session-id": "s"}).own_header("target") == CHEAP
    world[CHEAP].usual = DOWN
    reply = gateway.ask(body=chat(messages=loop), **{"x-session-id": "s"})
    assert reply.status == 502
    assert reply.own_header("reason") == "tool_loop"
    assert set(world.requested_targets()) == {CHEAP}


# The encoder.


def test_past_the_deadline_the_fallback_decides(world: World, gateway: LocalGateway) -> None:
    apply_settings(world, gateway, routing={"deadline_seconds": 1e-9, "fallback": "best"})
    world[EXPENSIVE].then(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
    reply = gateway.ask(body=chat(text="Nobody has read this yet.", stream=True))
    assert (reply.own_header("fallback"), reply.own_header("reason")) == ("deadline", "fallback")
    assert reply.own_header("target") == EXPENSIVE
    assert reply.own_header("probability") is None
    receipt = gateway.receipts[-1]
    assert receipt.choice.fallback == "deadline"
    assert receipt.choice.correctness == {}


def test_many_fallbacks_are_told_in_ready_and_metrics(
    world: World, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.gateway, "fallbacks", FallbackWatch())
    apply_settings(world, gateway, routing={"deadline_seconds": 1e-9})
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
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
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


def test_without_text_the_fallback_decides(world: World, gateway: LocalGateway) -> None:
    world.write_pool({name: {**row, "accepts": ["images"]} for name, row in PRICES.items()})
    picture = user([{"type": "image_url", "image_url": {"url": PICTURE}}])
    apply_settings(world, gateway, routing={"fallback": "cheapest"})
    reply = gateway.ask(body=chat(messages=[picture]))
    assert (reply.own_header("fallback"), reply.own_header("target")) == ("no_text", CHEAP)


def test_an_encoder_that_is_killed_is_replaced(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start = asyncio.Event()
    open_link = forecaster_module.start_encoder

    async def start_when_allowed(*args: Any, **options: Any) -> Any:
        await may_start.wait()
        return await open_link(*args, **options)

    monkeypatch.setattr(forecaster_module, "start_encoder", start_when_allowed)
    forecaster = gateway.gateway.live.forecaster
    before = forecaster.pid
    os.kill(before, signal.SIGKILL)
    gateway.wait_until(lambda: forecaster.state != "ready")
    reply = gateway.ask(body=chat(text="A question that nobody asked before."))
    assert (reply.own_header("fallback"), reply.own_header("target")) == ("encoder_down", CHEAP)
    ready = gateway.ask("/ready")
    assert (ready.status, ready.json["state"]) == (200, "degraded")
    assert "'prior' decides" in ready.json["checks"]["encoder"]["note"]
    gateway.call_in_gateway(may_start.set)
    gateway.wait_until(lambda: forecaster.state == "ready")
    again = gateway.ask(body=chat(text="Another question that nobody asked."))
    assert (again.own_header("fallback"), again.own_header("reason")) == (None, "policy")
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
    with (
        make_world(tmp_path, settings={"budgets": [budget]}) as world,
        serve_world(world) as gateway,
    ):
        for target in world.targets.values():
            target.usual = json_reply({**ANSWER, "usage": usage})
        lams: list[float] = []
        while (reply := gateway.ask(body=chat(text="A hard one: " * 20), lam="1")).status == 200:
            lams.append(float(reply.own_header("lam") or "nan"))
            assert len(lams) < 1000
        receipts = gateway.receipts
        metrics = gateway.ask("/metrics").body.decode()
    assert (reply.status, reply.error["code"]) == (429, "budget_spent")
    assert int(reply.headers["retry-after"]) > 1
    assert lams[0] == 1
    assert lams == sorted(lams, reverse=True)
    assert 0 < lams[-1] < 0.5
    assert {receipt.choice.lam_asked for receipt in receipts} == {1.0}
    assert receipts[0].choice.target != receipts[-1].choice.target
    assert sum(receipt.cost or 0 for receipt in receipts) >= 1e-3
    assert "lam is lowered to" in caplog.text
    assert "budget" in metrics


def test_a_budget_that_does_not_stop_leaves_the_cheapest(
    world: World, gateway: LocalGateway
) -> None:
    first = gateway.ask(body=chat(), lam="1")
    apply_settings(world, gateway, budgets=[{"dollars": 1e-6, "per": "hour"}])
    second = gateway.ask(body=chat(), lam="1")
    assert first.own_header("target") == EXPENSIVE
    assert (second.own_header("target"), second.own_header("lam")) == (CHEAP, "0")
