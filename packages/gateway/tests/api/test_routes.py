"""Which target a request reaches in a whole gateway: names, wishes, abilities, sessions, keys."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import ModelInfo

from packages.gateway.tests.api.bodies import PICTURE, TOOL, completion, tool_completion
from packages.gateway.tests.scripted_target import json_reply
from packages.gateway.tests.sdk_clients import RequestRecorder, anthropic_client
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PATIENCE,
    PRICES,
    LocalGateway,
    Reply,
    World,
    chat,
    make_world,
    serve_world,
    user,
)
from prefill_router_gateway.receipts import RecentRequests, affinity_rule_of, latest_feedback
from prefill_router_gateway.receipts.receipt_replay import replay_sessions

pytestmark = pytest.mark.slow

EMBEDDER, HELPER = "embedder", "helper"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
ROWS = {
    CHEAP: {**PRICES[CHEAP], "context_tokens": 1000},
    MIDDLE: {**PRICES[MIDDLE], "accepts": ["tools"]},
    EXPENSIVE: {
        **PRICES[EXPENSIVE],
        "accepts": ["tools", "images", "json_schema", "files", "audio"],
    },
    EMBEDDER: {"serves": ["embeddings"], "input_price": 1000.0, "output_price": 0.0},
    HELPER: {"input_price": 1.0, "output_price": 1.0},
}
SETTINGS = {"routing": {"names": {"thrifty": 0.0, "best": 1.0}, "lam": 0.25}}
KEYS = [
    {"name": "ann", "sha256": sha256(b"pr-ann").hexdigest(), "admin": True},
    {"name": "bob", "sha256": sha256(b"pr-bob").hexdigest(), "targets": [CHEAP, HELPER]},
    {"name": "cleo", "sha256": sha256(b"pr-cleo").hexdigest(), "dollars_per_day": 0.05},
    {"name": "dan", "sha256": sha256(b"pr-dan").hexdigest(), "requests_per_minute": 1},
]
EMBEDDING = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 60, "total_tokens": 60},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("routes")
    with make_world(folder, ROWS, settings=SETTINGS, keys=KEYS) as world:
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.forget()


def ask(gateway: LocalGateway, body: Any, who: str = "ann", **headers: str) -> Reply:
    return gateway.ask(body=body, authorization=f"Bearer pr-{who}", **headers)


# Names.


@pytest.mark.parametrize(
    ("name", "lam"),
    [
        ("auto", "0.25"),
        ("prefill-router", "0.25"),
        ("prefill-router:0.7", "0.7"),
        ("router-mf-0.3", "0.7"),
        ("thrifty", "0"),
        ("best", "1"),
    ],
)
def test_names_that_route(gateway: LocalGateway, world: World, name: str, lam: str) -> None:
    reply = ask(gateway, chat(name))
    assert reply.status == 200
    assert reply.own_header("lam") == lam
    assert reply.own_header("reason") == "policy"
    assert [reply.own_header("target")] == world.requested_targets()


def test_names_of_targets(gateway: LocalGateway, world: World) -> None:
    for name in (*PRICES, HELPER):
        reply = ask(gateway, chat(name), lam="0")
        assert (reply.own_header("target"), reply.own_header("reason")) == (name, "named")
        assert reply.own_header("lam") is None
    assert world.requested_targets() == [*PRICES, HELPER]


def test_a_header_comes_before_the_name(gateway: LocalGateway) -> None:
    assert ask(gateway, chat("best"), lam="0.125").own_header("lam") == "0.125"


# Wishes.


def test_only_allowed_targets_answer(gateway: LocalGateway, world: World) -> None:
    assert (
        ask(gateway, chat(), lam="0", allow=f"{MIDDLE}, {EXPENSIVE}").own_header("target") == MIDDLE
    )
    assert (
        ask(gateway, chat(), lam="0", exclude=f"{CHEAP},{MIDDLE}").own_header("target") == EXPENSIVE
    )
    refused = ask(gateway, chat(), allow=CHEAP, exclude=CHEAP)
    assert refused.status == 400
    assert refused.error["code"] == "no_eligible_target"
    assert world.requested_targets() == [MIDDLE, EXPENSIVE]


def test_what_is_too_dear_is_not_asked(gateway: LocalGateway, world: World) -> None:
    cost = float(ask(gateway, chat(), lam="1").own_header("estimated-cost") or "nan")
    reply = ask(gateway, chat(), lam="1", max_cost=f"{cost / 2:.12f}")
    assert reply.own_header("target") != EXPENSIVE
    refused = ask(gateway, chat(), max_cost="0")
    assert refused.error["code"] == "no_eligible_target"
    assert "raise the maximum cost" in refused.error["message"]
    assert len(world.requested_targets()) == 2


# What targets can do.


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"tools": [TOOL]}, MIDDLE),
        ({"response_format": SCHEMA}, EXPENSIVE),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": PICTURE}}])]}, EXPENSIVE),
        ({"messages": [user([{"type": "input_audio", "input_audio": {}}])]}, EXPENSIVE),
        ({"messages": [user([{"type": "file", "file": {"file_id": "f"}}])]}, EXPENSIVE),
        ({"messages": [user("long " * 1000)]}, MIDDLE),
        ({"max_tokens": 1001}, MIDDLE),
        ({"max_tokens": 10}, CHEAP),
    ],
)
def test_who_cannot_is_not_asked(
    gateway: LocalGateway, world: World, body: dict[str, Any], target: str
) -> None:
    reply = ask(gateway, {**chat(), **body}, lam="0")
    assert reply.own_header("target") == target
    assert world.requested_targets() == [target]


def test_nobody_can(gateway: LocalGateway, world: World) -> None:
    picture = user([{"type": "image_url", "image_url": {"url": PICTURE}}])
    reply = ask(gateway, chat(messages=[picture]), exclude=EXPENSIVE)
    assert reply.status == 400
    assert "accepts: [images]" in reply.error["message"]
    assert world.requested_targets() == []


# Conversations.


def test_a_session_stays_with_its_target_while_that_pays(gateway: LocalGateway) -> None:
    first = ask(gateway, chat(text="And a first thing?"), lam="1", **{"x-session-id": "s1"})
    present = first.own_header("target")
    again = ask(gateway, chat(text="Hm."), lam="1", **{"x-session-id": "s1"})
    assert again.own_header("target") == present
    assert again.own_header("reason") in ("policy", "session")
    away = ask(gateway, chat(text="Hm."), lam="0", **{"x-session-id": "s1"})
    assert away.own_header("target") == CHEAP  # the cheapest, whatever the other has cached
    assert away.own_header("reason") == "policy"
    assert gateway.receipts[-1].choice.session == gateway.receipts[-2].choice.session


@pytest.mark.parametrize("first", [HELPER, CHEAP, EXPENSIVE])  # the first two say nothing of tools
def test_a_tool_loop_never_changes_its_target(
    gateway: LocalGateway, world: World, first: str
) -> None:
    call = f"call_of_{first}"
    world[first].then(json_reply(tool_completion(call)), json_reply(completion()))
    ask(gateway, chat(first, tools=[TOOL]))
    loop: list[Any] = [
        user("Weather?"),
        tool_completion(call)["choices"][0]["message"],
        {"role": "tool", "tool_call_id": call, "content": "sunny"},
    ]
    reply = ask(gateway, chat(messages=loop, tools=[TOOL]), lam="0")
    assert (reply.own_header("target"), reply.own_header("reason")) == (first, "tool_loop")
    assert world.requested_targets() == [first, first]


def test_receipts_tell_how_conversations_keep_their_target(gateway: LocalGateway) -> None:
    for lam in ("0", "1"):
        ask(gateway, chat(), lam=lam, **{"x-session-id": "kept"})
    rows = [receipt for receipt in gateway.receipts[-2:] if affinity_rule_of(receipt) is not None]
    assert [row.choice.opening for row in rows] == [False, False]
    rule = affinity_rule_of(rows[0])
    assert rule is not None
    assert (rule.seconds, set(rule.cache_seconds.values()), rule.margin) == (3600, {300}, 0)
    _, own = replay_sessions(rows, []).settings
    assert own.changed == 0
    ask(gateway, chat())
    assert gateway.receipts[-1].choice.opening  # known by its first turn alone


def test_conversations_of_two_keys_are_two(gateway: LocalGateway) -> None:
    for who in ("ann", "cleo"):
        ask(gateway, chat(), who, **{"x-session-id": "shared"})
    first, second = gateway.receipts[-2:]
    assert first.choice.session != second.choice.session


# Keys, and targets that the router doesn't know.


def test_without_a_key_nobody_is_answered(gateway: LocalGateway, world: World) -> None:
    for headers in ({}, {"authorization": "Bearer pr-zoe"}):
        reply = gateway.ask(body=chat(HELPER), **headers)
        assert reply.status == 401
        assert "pr-zoe" not in reply.body.decode()
    assert world.requested_targets() == []


def test_a_key_reaches_its_own_targets_alone(gateway: LocalGateway, world: World) -> None:
    assert ask(gateway, chat("best"), "bob").own_header("target") == CHEAP
    assert ask(gateway, chat(HELPER), "bob").own_header("target") == HELPER
    decision = gateway.ask("/v1/route", chat("best"), authorization="Bearer pr-bob")
    assert decision.json["target"] == CHEAP
    assert EXPENSIVE.encode() not in decision.body
    refused = ask(gateway, chat(EXPENSIVE), "bob")
    assert refused.status == 404
    assert EXPENSIVE not in refused.error["message"].partition("the models are")[2]
    listed = gateway.ask("/v1/models", authorization="Bearer pr-bob").json["data"]
    assert [row["id"] for row in listed if row["owned_by"] != "prefill-router"] == [CHEAP, HELPER]
    assert world.requested_targets() == [CHEAP, HELPER]


def test_a_name_that_routes_has_the_smallest_window_of_its_choices(gateway: LocalGateway) -> None:
    rows = gateway.ask("/v1/models", authorization="Bearer pr-ann").json["data"]
    listed = {row["id"]: row for row in rows}
    assert listed["auto"]["context_length"] == listed[CHEAP]["context_length"] == 1000
    assert listed[EXPENSIVE]["context_length"] is None


def test_clients_of_anthropics_protocol_get_its_list(gateway: LocalGateway) -> None:
    with anthropic_client(gateway.url, RequestRecorder(), api_key="pr-bob") as client:
        page = client.models.list()
        models = {model.id: model for model in page}
        auto = client.models.retrieve("auto")
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve(EXPENSIVE)
    names = list(models)
    assert [page.first_id, page.last_id] == [names[0], names[-1]]
    assert {CHEAP, HELPER, "auto", "thrifty"} < set(models)
    assert auto == models["auto"]
    assert auto == ModelInfo.model_validate(auto.to_dict())  # every field that it must have
    assert auto.max_input_tokens == 1000


def test_a_key_pays_for_what_it_names(gateway: LocalGateway, world: World) -> None:
    world[EMBEDDER].usual = json_reply(EMBEDDING)
    body = {"model": EMBEDDER, "input": "a" * 100}
    bearer = {"authorization": "Bearer pr-cleo"}
    first = gateway.ask("/v1/embeddings", body, **bearer)
    assert first.json == EMBEDDING
    receipt = gateway.receipts[-1]
    assert (receipt.key, receipt.cost) == ("cleo", 0.06)
    refusal = gateway.ask("/v1/embeddings", body, **bearer)
    assert refusal.status == 429
    assert refusal.error["code"] == "budget_spent"
    assert int(refusal.headers["retry-after"]) >= 1
    assert world.requested_targets() == [EMBEDDER]


def test_a_key_may_ask_so_often(gateway: LocalGateway, world: World) -> None:
    assert ask(gateway, chat(HELPER), "dan").status == 200
    often = ask(gateway, chat(HELPER), "dan")
    assert often.status == 429
    assert often.error["code"] == "rate_limit_exceeded"
    assert world.requested_targets() == [HELPER]


def test_a_key_scores_its_own_decisions_and_an_admin_all(
    gateway: LocalGateway, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(who: str, decision_id: str | None) -> Reply:
        body = {"id": decision_id, "score": 1, "source": who}
        return gateway.ask("/v1/feedback", body, authorization=f"Bearer pr-{who}")

    bobs_decision = ask(gateway, chat(HELPER), "bob").own_header("decision-id")
    anns_decision = ask(gateway, chat(HELPER), "ann").own_header("decision-id")
    unknown_reply = score("bob", "pr_" + "0" * 32)
    for remembered in (True, False):
        if not remembered:  # then it is looked up
            monkeypatch.setattr(gateway.gateway, "recent", RecentRequests())
        assert [score(who, bobs_decision).status for who in ("bob", "ann", "cleo")] == [
            200,
            200,
            404,
        ]
        assert score("ann", anns_decision).status == 200
        others = score("bob", anns_decision)
        assert (
            (others.status, others.body)
            == (unknown_reply.status, unknown_reply.body)
            == (404, unknown_reply.body)
        )
    database = world.files.database
    moved_file = database.rename(database.with_name("away.sqlite"))
    assert [
        score("bob", decision).status for decision in (bobs_decision, anns_decision, "pr_none")
    ] == [
        503,
        503,
        503,
    ]
    moved_file.rename(database)
    scores = latest_feedback(world.files.url, [str(bobs_decision), str(anns_decision)])
    assert sorted(score.source for score in scores[str(bobs_decision)]) == ["ann", "bob"]
    assert [score.source for score in scores[str(anns_decision)]] == ["ann"]


def test_receipts_tell_of_targets_that_were_named(gateway: LocalGateway) -> None:
    reply = ask(gateway, chat(HELPER, text="x" * 400), "bob")
    receipt = gateway.receipts[-1]
    assert receipt.choice.id == reply.own_header("decision-id")
    assert receipt.choice.input_tokens == 100
    assert receipt.key == "bob"
    assert (receipt.cost, receipt.cost_is_estimated) == (1e-05, False)
    assert receipt.choice.estimated_cost == {HELPER: (100 + 256) / 1e6}


# Shares of the traffic.


def test_a_share_of_conversations_is_routed(tmp_path: Path) -> None:
    shares = 0.0, 0.5
    with make_world(tmp_path) as world, serve_world(world) as gateway:
        for share in shares:
            traffic = {"share": share, "otherwise": EXPENSIVE}
            routing = {"lam": 0, "deadline_seconds": PATIENCE}
            world.files.configure({"traffic": traffic, "routing": routing})
            assert gateway.ask("/admin/reload", {}).status == 200
            for number in range(24):
                gateway.ask(body=chat(), **{"x-session-id": f"s{number % 12}"})
        receipts = gateway.receipts
    assert len(receipts) == 48
    reasons = [receipt.choice.reason for receipt in receipts]
    assert {r.choice.policy_target for r in receipts} == {CHEAP}  # what it would have been
    assert reasons[:24] == ["share"] * 24
    whose = {(r.choice.session, r.choice.reason == "share") for r in receipts[24:]}
    assert len(whose) == 12  # whole conversations
    assert {rest for _, rest in whose} == {True, False}
    assert reasons.count("share") == len(world[EXPENSIVE].requests)
