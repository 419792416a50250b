"""A whole gateway before a target with several endpoints: who answers, and where it is shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from packages.gateway.tests.scripted_target import ERROR, whole
from packages.gateway.tests.world import DEAR, PRICES, Served, World, chat, served, world
from packages.router.tests.commands import succeeded
from prefill_router_gateway.receipts import explain, read_receipts
from prefill_router_gateway.receipts.reader import sessions_since

pytestmark = pytest.mark.slow

WEST = "west"
"""The second endpoint's scripted target; that of the first has the target's name."""
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 7, "output_tokens": 100},
}
FAILED = whole(ERROR, status=500)
SETTINGS: dict[str, Any] = {
    "failures": {"backoff_seconds": 0.0},
    "routing": {"lam": 1.0, "latency": {}, "headroom": True},
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, {**PRICES, WEST: {}}, settings=SETTINGS) as made:
        west = {"model": "west-model", "api_key_env": "LAB_KEY", "priority": 1}
        endpoints = [
            {"name": "east", "base_url": made[DEAR].url},
            {"name": "west", "base_url": made[WEST].url, **west, **prices(1000)},
        ]
        rows = [{"name": name, "base_url": made[name].url, **PRICES[name]} for name in PRICES]
        del rows[-1]["base_url"]
        rows[-1]["endpoints"] = endpoints
        made.made.pool.write_text(yaml.safe_dump({"targets": rows}))
        yield made


def prices(dollars: float) -> dict[str, float]:
    return {"input_price": dollars, "output_price": dollars}


def metric(gateway: Served, name: str, **labels: str) -> float:
    """The value of a metric; 0 where it has none."""
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    lines = gateway.ask("/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith(f"prefill_router_{name}{{{told}}}")]
    return float(found[0].split()[-1]) if found else 0.0


def test_another_endpoint_answers_and_receipts_and_metrics_say_which(made: World) -> None:
    made[DEAR].then(FAILED)
    with served(made) as gateway:
        reply = gateway.ask(body=chat(DEAR))
        assert (reply.status, reply.own("target"), reply.own("retries")) == (200, DEAR, "1")
        west = {"deployment": f"{DEAR}@west"}
        assert metric(gateway, "deployment_attempts_total", **west, end="answered") == 1
        assert metric(gateway, "failovers_total", target=DEAR) == 1
        assert f"{DEAR}@east" in gateway.ask("/metrics").body.decode()
    got = made[WEST].got
    assert (got.json["model"], got.headers["authorization"]) == ("west-model", "Bearer sk-lab")
    (receipt,) = read_receipts(made.made.url)
    assert [a.deployment for a in receipt.outcome.attempts] == [f"{DEAR}@east", f"{DEAR}@west"]
    assert (receipt.outcome.target, receipt.outcome.deployment) == (DEAR, f"{DEAR}@west")
    assert receipt.cost == pytest.approx(10 * 1000 / 1e6)  # at the endpoint's own prices
    told = succeeded("explain", "last", "--receipts", made.made.url)
    assert f"answered by {DEAR}@west" in told
    assert f"asked {DEAR}@east: server error" in told
    assert made[WEST].url not in json.dumps(explain(receipt).to_dict())


def test_a_stored_response_stays_at_its_endpoint_also_after_a_restart(made: World) -> None:
    made[DEAR].then(FAILED)
    made[WEST].usual = whole(RESPONSE)
    with served(made) as gateway:
        assert gateway.ask("/v1/responses", {"model": DEAR, "input": "hi"}).status == 200
    (turn,) = sessions_since(made.made.url, 0.0)
    assert (turn.target, turn.deployment) == (DEAR, f"{DEAR}@west")
    made.forget()
    with served(made) as gateway:
        assert gateway.ask("/v1/responses/resp_1").status == 200
        continued = {"model": "auto", "input": "more", "previous_response_id": "resp_1"}
        reply = gateway.ask("/v1/responses", continued)
        assert (reply.status, reply.own("reason")) == (200, "stored")
    assert [(got.method, got.path) for got in made[WEST].requests] == [
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses"),
    ]
    assert made[DEAR].requests == []


def test_a_target_without_headroom_is_left_out_and_waits_are_replayed(made: World) -> None:
    made[DEAR].usual = made[WEST].usual = whole(ERROR, status=429, headers="retry-after: 99\r\n")
    with served(made) as gateway:
        assert gateway.ask(body=chat(DEAR)).status == 429
        made.forget()
        for _ in range(2):
            assert gateway.ask(body=chat(text="why is the sky blue?")).status == 200
        assert DEAR not in made.asked()
        assert WEST not in made.asked()
    *_, first, second = read_receipts(made.made.url)
    assert first.choice.limited == second.choice.limited == (DEAR,)
    assert first.choice.waits is not None
    assert first.choice.waits.seconds == {}
    assert second.choice.waits is not None
    assert set(second.choice.waits.seconds) == {second.choice.target}
    told = succeeded("explain", "last", "--receipts", made.made.url)
    assert f"without headroom in their rate limits: {DEAR}" in told
    assert "seconds" in told
    replay = ("replay", made.made.url, "--deadline-seconds", "0.00001", "--keep", "0")
    latency = json.loads(succeeded(*replay, "--json"))["settings"][-1]
    assert (latency["name"], latency["requests"], latency["changed"]) == ("with this latency", 2, 1)


def test_a_forgotten_response_is_looked_for_at_each_endpoint(made: World) -> None:
    rows = yaml.safe_load(made.made.pool.read_text())["targets"]
    rows = [{**row, **({} if "endpoints" in row else {"serves": ["chat"]})} for row in rows]
    made.made.pool.write_text(yaml.safe_dump({"targets": rows}))
    made[DEAR].then(whole(ERROR, status=404))
    made[WEST].usual = whole(RESPONSE)
    with served(made) as gateway:
        assert gateway.ask("/v1/responses/resp_9").json["id"] == "resp_1"
    assert made.asked() == [DEAR, WEST]
