"""A whole gateway before a target with several endpoints: who answers, and where it is shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from packages.gateway.tests.scripted_target import ERROR, json_reply
from packages.gateway.tests.world import (
    EXPENSIVE,
    PRICES,
    LocalGateway,
    World,
    chat,
    make_world,
    serve_world,
)
from packages.router.tests.commands import run_ok
from prefill_router_gateway.receipts import explain, read_receipts
from prefill_router_gateway.receipts.reader import sessions_since

pytestmark = pytest.mark.slow

WEST = "west"
"""The name of the second endpoint's target; the first endpoint's has the target's name."""
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 7, "output_tokens": 100},
}
FAILURE = json_reply(ERROR, status=500)
SETTINGS: dict[str, Any] = {
    "failures": {"backoff_seconds": 0.0},
    "routing": {"lam": 1.0, "latency": {}, "headroom": True},
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with make_world(tmp_path, {**PRICES, WEST: {}}, settings=SETTINGS) as world:
        west = {"model": "west-model", "api_key_env": "LAB_KEY", "priority": 1}
        endpoints = [
            {"name": "east", "base_url": world[EXPENSIVE].url},
            {"name": "west", "base_url": world[WEST].url, **west, **prices(1000)},
        ]
        rows = [{"name": name, "base_url": world[name].url, **PRICES[name]} for name in PRICES]
        del rows[-1]["base_url"]
        rows[-1]["endpoints"] = endpoints
        world.files.pool.write_text(yaml.safe_dump({"targets": rows}))
        yield world


def prices(dollars: float) -> dict[str, float]:
    return {"input_price": dollars, "output_price": dollars}


def metric(gateway: LocalGateway, name: str, **labels: str) -> float:
    """The value of a metric; 0 where it has none."""
    selector = ",".join(f'{key}="{value}"' for key, value in labels.items())
    lines = gateway.ask("/metrics").body.decode().splitlines()
    matching = [line for line in lines if line.startswith(f"prefill_router_{name}{{{selector}}}")]
    return float(matching[0].split()[-1]) if matching else 0.0


def test_another_endpoint_answers_and_receipts_and_metrics_say_which(world: World) -> None:
    world[EXPENSIVE].then(FAILURE)
    with serve_world(world) as gateway:
        reply = gateway.ask(body=chat(EXPENSIVE))
        assert (reply.status, reply.own_header("target"), reply.own_header("retries")) == (
            200,
            EXPENSIVE,
            "1",
        )
        west = {"deployment": f"{EXPENSIVE}@west"}
        assert metric(gateway, "deployment_attempts_total", **west, end="answered") == 1
        assert metric(gateway, "failovers_total", target=EXPENSIVE) == 1
        assert f"{EXPENSIVE}@east" in gateway.ask("/metrics").body.decode()
    request = world[WEST].request
    assert (request.json["model"], request.headers["authorization"]) == (
        "west-model",
        "Bearer sk-lab",
    )
    (receipt,) = read_receipts(world.files.url)
    assert [a.deployment for a in receipt.outcome.attempts] == [
        f"{EXPENSIVE}@east",
        f"{EXPENSIVE}@west",
    ]
    assert (receipt.outcome.target, receipt.outcome.deployment) == (EXPENSIVE, f"{EXPENSIVE}@west")
    assert receipt.cost == pytest.approx(10 * 1000 / 1e6)  # at the endpoint's own prices
    output = run_ok("explain", "last", "--receipts", world.files.url)
    assert f"answered by {EXPENSIVE}@west" in output
    assert f"asked {EXPENSIVE}@east: server error" in output
    assert world[WEST].url not in json.dumps(explain(receipt).to_dict())


def test_a_stored_response_stays_at_its_endpoint_also_after_a_restart(world: World) -> None:
    world[EXPENSIVE].then(FAILURE)
    world[WEST].usual = json_reply(RESPONSE)
    with serve_world(world) as gateway:
        assert gateway.ask("/v1/responses", {"model": EXPENSIVE, "input": "hi"}).status == 200
    (turn,) = sessions_since(world.files.url, 0.0)
    assert (turn.target, turn.deployment) == (EXPENSIVE, f"{EXPENSIVE}@west")
    world.forget()
    with serve_world(world) as gateway:
        assert gateway.ask("/v1/responses/resp_1").status == 200
        continued = {"model": "auto", "input": "more", "previous_response_id": "resp_1"}
        reply = gateway.ask("/v1/responses", continued)
        assert (reply.status, reply.own_header("reason")) == (200, "stored")
    assert [(got.method, got.path) for got in world[WEST].requests] == [
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses"),
    ]
    assert world[EXPENSIVE].requests == []


def test_a_target_without_headroom_is_left_out_and_waits_are_replayed(world: World) -> None:
    world[EXPENSIVE].usual = world[WEST].usual = json_reply(
        ERROR, status=429, headers="retry-after: 99\r\n"
    )
    with serve_world(world) as gateway:
        assert gateway.ask(body=chat(EXPENSIVE)).status == 429
        world.forget()
        for _ in range(2):
            assert gateway.ask(body=chat(text="why is the sky blue?")).status == 200
        assert EXPENSIVE not in world.requested_targets()
        assert WEST not in world.requested_targets()
    *_, first, second = read_receipts(world.files.url)
    assert first.choice.limited == second.choice.limited == (EXPENSIVE,)
    assert first.choice.waits is not None
    assert first.choice.waits.seconds == {}
    assert second.choice.waits is not None
    assert set(second.choice.waits.seconds) == {second.choice.target}
    output = run_ok("explain", "last", "--receipts", world.files.url)
    assert f"left alone, since their rate limits are used up: {EXPENSIVE}" in output
    assert "seconds" in output
    replay = ("replay", world.files.url, "--deadline-seconds", "0.00001", "--keep", "0")
    latency = json.loads(run_ok(*replay, "--json"))["settings"][-1]
    assert (latency["name"], latency["requests"], latency["changed"]) == ("with this latency", 2, 1)


def test_a_forgotten_response_is_looked_for_at_each_endpoint(world: World) -> None:
    rows = yaml.safe_load(world.files.pool.read_text())["targets"]
    rows = [{**row, **({} if "endpoints" in row else {"serves": ["chat"]})} for row in rows]
    world.files.pool.write_text(yaml.safe_dump({"targets": rows}))
    world[EXPENSIVE].then(json_reply(ERROR, status=404))
    world[WEST].usual = json_reply(RESPONSE)
    with serve_world(world) as gateway:
        assert gateway.ask("/v1/responses/resp_9").json["id"] == "resp_1"
    assert world.requested_targets() == [EXPENSIVE, WEST]
