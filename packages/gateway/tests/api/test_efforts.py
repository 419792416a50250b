"""A model with efforts behind the gateway: one deployment, whose effort the router chooses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import message, response
from packages.gateway.tests.scripted_target import ERROR, json_reply
from packages.gateway.tests.server_process import complexity_router
from packages.gateway.tests.world import LocalGateway, World, chat, make_world, serve_world, user
from prefill_router.endpoints import read_effort
from prefill_router.targets import pool_from_dict
from prefill_router_gateway.api.requested_targets import allowed_targets
from prefill_router_gateway.guard import ClientKey
from prefill_router_gateway.protocol import EffortRule, effort_splicer

pytestmark = pytest.mark.slow

SMALL = {"input_price": 0.1, "output_price": 0.4}
LARGE = {"input_price": 1.0, "output_price": 4.0, "efforts": ["low", "high"]}
CLAUDE = {**LARGE, "input_price": 2.0, "output_price": 9.0, "efforts": ["none", "max"]}
ROWS = {"small": SMALL, "large": LARGE, "claude": CLAUDE}
FAST = {"failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 2}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("efforts")
    rows = [{"name": name, **row} for name, row in ROWS.items()]
    pool = pool_from_dict({"targets": rows}, source="pool")
    complexity_router(200, pool).save(folder / "router")
    dialects = {"claude": "anthropic"}
    with make_world(
        folder, ROWS, settings=FAST, dialects=dialects, router=folder / "router"
    ) as world:
        yield world


@pytest.fixture
def gateway(world: World) -> Iterator[LocalGateway]:
    world.forget()
    with serve_world(world) as gateway:
        yield gateway


def sent_effort(world: World) -> Any:
    return world["large"].requests[-1].json.get("reasoning_effort")


def test_a_routed_request_gets_the_effort_of_its_target(
    world: World, gateway: LocalGateway
) -> None:
    """The router's effort replaces the client's; all other fields keep their bytes."""
    body = chat(reasoning_effort="medium", top_p=0.10, seed=7)
    reply = gateway.ask(body=body, allow="large:high")
    assert reply.own_header("target") == "large:high"
    request = world["large"].request
    assert request.json == {**body, "model": "large", "reasoning_effort": "high"}
    assert b'"top_p": 0.1' in request.body or b'"top_p":0.1' in request.body
    assert gateway.receipts[-1].outcome.target == "large:high"


def test_who_names_a_pair_gets_its_effort(world: World, gateway: LocalGateway) -> None:
    """An agent that always sends an effort of its own can be set to another."""
    for fields in ({}, {"reasoning_effort": "high"}, {"reasoning_effort": None}):
        gateway.ask(body=chat("large:low", **fields))
        assert sent_effort(world) == "low"


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"enable_thinking": False}, "none"),
        ({"chat_template_kwargs": {"thinking": False}}, "none"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 512}}, "512"),
        ({"thinking_token_budget": 512}, "512"),
        ({"reasoning": {"max_tokens": 512}}, "512"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"max_tokens": 512}, None),
        ({"reasoning_effort": None, "reasoning": "x", "enable_thinking": True}, None),
    ],
)
def test_the_effort_that_a_chat_asks_for(fields: dict[str, Any], effort: str | None) -> None:
    assert read_effort("chat", fields) == effort


def test_a_ban_of_all_efforts_is_kept(gateway: LocalGateway) -> None:
    reply = gateway.ask(body=chat("large"), allow="small")
    assert reply.status == 400
    assert "have no target in common" in reply.error["message"]


def test_openrouters_list_knows_the_model(world: World, gateway: LocalGateway) -> None:
    body = chat("large", models=["large", "small"], reasoning_effort="high")
    assert gateway.ask(body=body).own_header("target") == "large:high"
    assert sent_effort(world) == "high"


def test_a_model_is_named_without_its_effort(world: World, gateway: LocalGateway) -> None:
    reply = gateway.ask(body=chat("large", reasoning_effort="low"))
    assert (reply.own_header("target"), reply.own_header("reason")) == ("large:low", "named")
    routed = gateway.ask(body=chat("large"), lam="1")
    assert routed.own_header("target") in ("large:low", "large:high")
    assert sent_effort(world) == str(routed.own_header("target")).partition(":")[2]
    other = gateway.ask(body=chat("large", reasoning_effort="xhigh"))  # which isn't in the pool
    assert str(other.own_header("target")).startswith("large:")
    listed = [row["id"] for row in gateway.ask("/v1/models").json["data"]]
    assert {"large", "large:low", "large:high", "claude", "small"} <= set(listed)


def test_a_key_may_name_the_model() -> None:
    rows = [{"name": name, **row} for name, row in ROWS.items()]
    pool = pool_from_dict({"targets": rows}, source="pool")
    key = ClientKey(name="ann", sha256="0" * 64, targets=("small", "large"))
    assert allowed_targets(key, pool) == {"small", "large:low", "large:high"}
    assert allowed_targets(None, pool) is None


def test_headers_may_name_the_model(gateway: LocalGateway) -> None:
    assert gateway.ask(body=chat(), exclude="large,claude").own_header("target") == "small"
    assert str(gateway.ask(body=chat(), allow="large").own_header("target")).startswith("large:")


def test_a_response_says_it_in_its_own_field(world: World, gateway: LocalGateway) -> None:
    world["large"].then(json_reply(response("resp_1")))
    body = {"model": "auto", "input": "hi", "reasoning": {"effort": "medium", "summary": "auto"}}
    gateway.ask("/v1/responses", body, allow="large:high")
    got = world["large"].request.json
    assert got["reasoning"] == {"summary": "auto", "effort": "high"}


def test_a_message_says_it_in_its_own_fields(world: World, gateway: LocalGateway) -> None:
    body = {
        "model": "auto",
        "max_tokens": 4000,
        "temperature": 0.2,
        "messages": [user("hi")],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "medium", "format": {"type": "text"}},
    }
    for name, thinking, config in (
        ("max", {"type": "adaptive"}, {"format": {"type": "text"}, "effort": "max"}),
        ("none", {"type": "disabled"}, {"format": {"type": "text"}}),
    ):
        world["claude"].then(json_reply(message({"type": "text", "text": "42"})))
        gateway.ask("/v1/messages", body, allow=f"claude:{name}")
        got = world["claude"].requests[-1].json
        assert (got["thinking"], got["output_config"]) == (thinking, config)
        assert ("temperature" in got) == (name == "none")  # Claude refuses it while it thinks


@pytest.mark.parametrize(("most", "budget"), [(10_000, 8000), (200_000, 25_600), (1200, None)])
def test_a_budget_fits_the_clients_limit(most: int, budget: int | None) -> None:
    rule = EffortRule(
        fields={"messages": {"thinking": {"type": "enabled", "budget_tokens": 25_600}}}
    )
    body = json.dumps({"model": "m", "max_tokens": most, "messages": [user("hi")]}).encode()
    sent = json.loads(effort_splicer("messages", body, rule).body)["thinking"]
    assert sent.get("budget_tokens") == budget
    assert sent["type"] == ("disabled" if budget is None else "enabled")


def test_a_message_for_a_chat_target_is_translated(world: World, gateway: LocalGateway) -> None:
    body = {
        "model": "auto",
        "max_tokens": 400,
        "messages": [user("hi")],
        "thinking": {"type": "adaptive"},
    }
    reply = gateway.ask("/v1/messages", body, allow="large:low")
    assert reply.status == 200
    assert sent_effort(world) == "low"
    assert "thinking" not in world["large"].request.json


def test_efforts_share_a_breaker_and_fail_together(world: World, gateway: LocalGateway) -> None:
    """A model that is down is called once, not once for each of its efforts."""
    world["large"].usual, usual = json_reply(ERROR, status=500), world["large"].usual
    try:
        for _ in range(2):
            reply = gateway.ask(body=chat(), exclude="claude", lam="1")
            assert reply.own_header("target") == "small"
    finally:
        world["large"].usual = usual
    assert len(world["large"].requests) == 2
    states = {n: gateway.gateway.breakers.state(n) for n in ("large:low", "large:high", "small")}
    assert states == {"large:low": "open", "large:high": "open", "small": "closed"}
