"""OpenRouter's routing fields: the trade-off, the allowed models, the fallbacks."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import ERROR, json_reply
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PRICES,
    LocalGateway,
    World,
    chat,
    make_world,
    user,
)
from prefill_router.router import read_light
from prefill_router_gateway.api import routed_calls
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import read_envelope
from prefill_router_gateway.receipts import explain

pytestmark = pytest.mark.slow

OTHER = "other"
ROWS = {
    CHEAP: {**PRICES[CHEAP], "model": "acme/small-1"},
    MIDDLE: {**PRICES[MIDDLE], "model": "acme/middle-1"},
    EXPENSIVE: {**PRICES[EXPENSIVE], "model": "lab/large?[1]"},
    OTHER: {"input_price": 1.0, "output_price": 1.0},
}
SETTINGS: dict[str, Any] = {
    "learning": {"share": 1, "keep_texts": True},
    "failures": {"retries": 0, "backoff_seconds": 0, "breaker_failures": 1000},
}
FAILURE = json_reply(ERROR, status=500)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("openrouter"), ROWS, settings=SETTINGS) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


def plugin(**fields: Any) -> dict[str, Any]:
    return {"id": "auto-router", **fields}


@pytest.mark.parametrize(("tradeoff", "lam"), [(0, "1"), (10, "0"), (2.5, "0.75"), (7, "0.3")])
@pytest.mark.parametrize("in_plugin", [True, False])
def test_the_dial_is_lam(
    world: World, gateway: LocalGateway, tradeoff: float, lam: str, in_plugin: bool
) -> None:
    fields = {"cost_quality_tradeoff": tradeoff}
    more = {"plugins": [plugin(**fields)]} if in_plugin else fields
    reply = gateway.ask(body=chat("openrouter/auto", **more))
    assert (reply.status, reply.own_header("lam")) == (200, lam)
    assert json.loads(reply.own_header("asked") or "") == fields
    receipt = gateway.receipts[-1]
    assert (receipt.choice.lam_asked, receipt.details["asked"]) == (float(lam), fields)
    assert f"asked for cost_quality_tradeoff: {tradeoff}" in explain(receipt).sentences()
    target = world[reply.own_header("target") or ""].request
    assert target.json == {
        "messages": [user("hi")],
        "model": ROWS[reply.own_header("target")]["model"],
    }


def test_a_lam_of_our_own_wins_over_openrouters_trade_off(
    world: World, gateway: LocalGateway
) -> None:
    body = chat("prefill-router:0.25", cost_quality_tradeoff=9)
    assert gateway.ask(body=body).own_header("lam") == "0.25"
    assert gateway.ask(body=body, lam="0.5").own_header("lam") == "0.5"
    world.forget()
    assert (
        gateway.ask(body=chat(EXPENSIVE, cost_quality_tradeoff=10)).own_header("target")
        == EXPENSIVE
    )
    assert world[EXPENSIVE].request.json.keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (["acme/*"], {CHEAP, MIDDLE}),
        (["*/middle*"], {MIDDLE}),
        ([EXPENSIVE, "*small-1"], {CHEAP, EXPENSIVE}),
        (["lab/large?[1]"], {EXPENSIVE}),
        (["*"], {CHEAP, MIDDLE, EXPENSIVE}),
    ],
)
def test_patterns_allow_names_and_model_ids(
    gateway: LocalGateway, patterns: list[str], allowed: set[str]
) -> None:
    reply = gateway.ask(
        body=chat("openrouter/auto-beta", plugins=[plugin(allowed_models=patterns)])
    )
    assert set(gateway.receipts[-1].choice.order) == allowed
    assert json.loads(reply.own_header("asked") or "") == {"allowed_models": patterns}


def test_the_header_narrows_what_is_allowed(gateway: LocalGateway) -> None:
    body = chat(allowed_models=["acme/*"])
    assert gateway.ask(body=body, allow=f"{MIDDLE},{EXPENSIVE}").own_header("target") == MIDDLE
    refused = gateway.ask(body=body, allow=EXPENSIVE)
    assert refused.status == 400
    assert "no target in common" in refused.error["message"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"cost_quality_tradeoff": 11}, "from 0 (quality) to 10 (cost)"),
        ({"cost_quality_tradeoff": -0.1}, "from 0 (quality) to 10 (cost)"),
        ({"cost_quality_tradeoff": True}, "from 0 (quality) to 10 (cost)"),
        ({"cost_quality_tradeoff": "7"}, "from 0 (quality) to 10 (cost)"),
        ({"cost_quality_tradeoff": 1, "plugins": [plugin(cost_quality_tradeoff=2)]}, "twice"),
        ({"plugins": [plugin(allowed_models=["a"]), plugin(allowed_models=["b"])]}, "twice"),
        ({"plugins": [plugin(enabled="no")]}, "true or false"),
        ({"allowed_models": []}, "a list of 1 to 100 names"),
        ({"allowed_models": "acme/*"}, "a list of 1 to 100 names"),
        ({"models": ["a" * 129]}, "a list of 1 to 100 names"),
        ({"models": [""]}, "a list of 1 to 100 names"),
        ({"models": ["a\x7f"]}, "a list of 1 to 100 names"),
        ({"models": [CHEAP, 5]}, "a list of 1 to 100 names"),
        ({"allowed_models": ["*"] * 101}, "a list of 1 to 100 names"),
        (
            {"allowed_models": ["nobody/*"]},
            f"the targets are {CHEAP}, {MIDDLE}, {EXPENSIVE}, {OTHER}",
        ),
        ({"models": [CHEAP, "nobody"]}, f"the targets are {CHEAP}, {MIDDLE}, {EXPENSIVE}, {OTHER}"),
    ],
)
def test_what_is_malformed_is_refused(
    world: World, gateway: LocalGateway, more: dict[str, Any], why: str
) -> None:
    reply = gateway.ask(body=chat(**more))
    assert reply.status == 400
    assert why in reply.error["message"]
    assert world.requested_targets() == []


def test_a_plugin_that_is_disabled_asks_for_nothing(world: World, gateway: LocalGateway) -> None:
    off = plugin(enabled=False, cost_quality_tradeoff=99, allowed_models=["nobody"])
    reply = gateway.ask(body=chat(plugins=[off, {"id": "web", "max_results": 3}]))
    own = read_light(world.files.router).lam
    assert (reply.status, reply.own_header("lam")) == (200, f"{own:g}")
    request = world[reply.own_header("target") or ""].request
    assert request.json["plugins"] == [{"id": "web", "max_results": 3}]


def test_other_values_keep_their_bytes() -> None:
    body = b'\xef\xbb\xbf{"a": 1e400000, "models":["x"],"plugins": [ {"id":"web"} ],"messages":[] }'
    envelope = read_envelope("chat", body.replace(b"1e400000", b"1e10"))
    spliced_body = envelope.body_for("m", ask_usage=False)
    assert spliced_body == b'{"a":1e10,"messages":[],"plugins":[ {"id":"web"} ],"model":"m"}'
    assert envelope.model == "x"
    whole_body = b'{"model":"a","plugins":[{"id":"web"}],"messages":[]}'
    assert read_envelope("chat", whole_body).body_for("a", ask_usage=False) == whole_body


def test_embeddings_have_no_fallbacks() -> None:
    body = b'{"model":"a","models":["b"],"input":"x"}'
    assert read_envelope("embeddings", body).body_for("a", ask_usage=False) == body
    with pytest.raises(RefusalError, match="no model"):
        read_envelope("chat", b'{"models":null,"messages":[]}')


@pytest.mark.parametrize("model", [{}, {"model": "acme/middle-1"}, {"model": MIDDLE}])
def test_models_are_called_in_their_order(
    world: World, gateway: LocalGateway, model: dict[str, str]
) -> None:
    world[MIDDLE].then(FAILURE)
    world[OTHER].then(FAILURE)
    body = {**model, "models": ["acme/middle-1", OTHER, "acme/small-1"], "messages": [user("hi")]}
    reply = gateway.ask(body=body)
    assert (reply.status, reply.own_header("target"), reply.own_header("reason")) == (
        200,
        CHEAP,
        "named",
    )
    assert world.requested_targets() == [
        CHEAP,
        MIDDLE,
        OTHER,
    ]  # in the world's order, not in time's
    assert [a.target for a in gateway.receipts[-1].outcome.attempts] == [MIDDLE, OTHER, CHEAP]


def test_only_the_models_follow_the_routed_target(world: World, gateway: LocalGateway) -> None:
    for target in (CHEAP, MIDDLE, EXPENSIVE):
        world[target].usual, usual = FAILURE, world[target].usual
    try:
        reply = gateway.ask(body=chat(models=[OTHER, EXPENSIVE, CHEAP], cost_quality_tradeoff=10))
        assert (reply.status, reply.own_header("target"), reply.own_header("lam")) == (
            200,
            OTHER,
            "0",
        )
    finally:
        for target in (CHEAP, MIDDLE, EXPENSIVE):
            world[target].usual = usual
    choice = gateway.receipts[-1].choice
    assert choice.order == (CHEAP, OTHER, EXPENSIVE)
    assert choice.excluded == {MIDDLE: "not one of the fallbacks"}


def test_fallbacks_keep_to_what_the_headers_allow(gateway: LocalGateway) -> None:
    body = chat(CHEAP, models=[OTHER, MIDDLE, EXPENSIVE])
    gateway.ask(body=body, exclude=f"{OTHER},{MIDDLE}")
    assert gateway.receipts[-1].choice.order == (CHEAP, EXPENSIVE)
    gateway.ask(body=body, max_cost="0.0005")
    assert gateway.receipts[-1].choice.order == (CHEAP, OTHER, MIDDLE)
    picture = {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}
    gateway.ask(body=chat(CHEAP, [picture], models=[OTHER, EXPENSIVE]))  # which accept no images
    assert gateway.receipts[-1].choice.order == (CHEAP,)


def test_a_dry_run_understands_them(gateway: LocalGateway) -> None:
    body = {"messages": [user("hi")], "models": [MIDDLE, CHEAP]}
    assert gateway.ask("/v1/route", body).json["order"] == [MIDDLE, CHEAP]


def test_what_excludes_targets_is_not_kept_to_learn_from(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_calls._DRAWS, "random", lambda: 0.0)
    before = gateway.gateway.writer
    samples: list[bytes | None] = []
    keep = before.keep

    def record_sample(row: Any, sample: Any = None) -> Any:
        samples.append(sample and sample.body)
        return keep(row, sample)

    monkeypatch.setattr(before, "keep", record_sample)
    gateway.ask(body=chat(allowed_models=["acme/*"]))
    gateway.ask(body=chat(cost_quality_tradeoff=5, allowed_models=["*"]))
    assert samples[0] is None
    assert json.loads(samples[1] or b"") == chat()
