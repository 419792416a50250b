"""What others report of decisions that they carried out, in a whole gateway."""

import json
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import completion
from packages.gateway.tests.scripted_target import json_reply
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PRICES,
    LocalGateway,
    Reply,
    World,
    chat,
    make_world,
    serve_world,
)
from prefill_router_gateway.receipts import (
    RecentRequests,
    explain,
    export,
    read_receipts,
    scored_receipts,
)

pytestmark = pytest.mark.slow

SETTINGS = {"receipts": {"prompts": True}, "routing": {"lam": 0.0, "latency": {"keep": 1.0}}}
KEYS = [
    {"name": "ann", "sha256": sha256(b"pr-ann").hexdigest(), "admin": True},
    {"name": "bob", "sha256": sha256(b"pr-bob").hexdigest()},
    {"name": "cleo", "sha256": sha256(b"pr-cleo").hexdigest(), "dollars_per_day": 0.05},
    {"name": "dan", "sha256": sha256(b"pr-dan").hexdigest(), "targets": [CHEAP]},
]
TOKENS = {"input_tokens": 1000, "cached_tokens": 10, "output_tokens": 200}
NEVER = "pr_" + "0" * 32


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(
        tmp_path_factory.mktemp("outcomes"), PRICES, settings=SETTINGS, keys=KEYS
    ) as world:
        yield world


def bearer(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer pr-{who}"}


def route(gateway: LocalGateway, who: str = "bob", text: str = "hi", **headers: str) -> str:
    """Ask for a decision alone; its id."""
    reply = gateway.ask("/v1/route", chat(text=text), **bearer(who), **headers)
    return str(reply.json["id"])


def report(gateway: LocalGateway, decision: str, who: str = "bob", **more: Any) -> Reply:
    body = {"id": decision, "target": CHEAP, "seconds": 0.5, **more}
    return gateway.ask("/v1/outcome", body, **bearer(who))


def stored_receipt(world: World, decision: str) -> Any:
    (receipt,) = read_receipts(world.files.url, ids=[decision])
    return receipt


def test_the_receipt_has_what_is_reported(gateway: LocalGateway, world: World) -> None:
    decision = route(gateway, text="Who was it?")
    before = stored_receipt(world, decision)
    assert before.outcome.kind == "routed"
    reply = report(gateway, decision, target=MIDDLE, first_token_seconds=0.25, **TOKENS)
    cost = (1000 * 0.4 + 200 * 1.6) / 1e6
    assert reply.json == {"id": decision, "kept": True, "cost": pytest.approx(cost)}
    after = stored_receipt(world, decision)
    outcome, usage = after.outcome, after.outcome.usage
    assert (outcome.kind, outcome.target, outcome.status) == ("answered", MIDDLE, 200)
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (1000, 10, 200)
    assert (after.cost, after.cost_is_estimated, after.stream) == (pytest.approx(cost), False, True)
    decided = before.outcome.total_seconds
    assert outcome.first_byte_seconds == pytest.approx(decided + 0.25)
    assert outcome.total_seconds == pytest.approx(decided + 0.5)
    assert [(a.target, a.end, a.seconds) for a in outcome.attempts] == [(MIDDLE, "answered", 0.5)]
    assert (after.choice, after.prompt) == (before.choice, before.prompt)
    assert f"answered by {MIDDLE}, status 200, as was reported" in (explain(after).sentences())
    assert gateway.receipts[-1] == after
    assert gateway.gateway.speeds._speeds[MIDDLE].first == pytest.approx(0.25)


def test_a_reported_cost_takes_precedence(gateway: LocalGateway, world: World) -> None:
    decision = route(gateway)
    assert report(gateway, decision, cost=0.002, **TOKENS).json["cost"] == 0.002
    assert stored_receipt(world, decision).cost == 0.002
    unknown = route(gateway)
    assert report(gateway, unknown).json["cost"] is None
    assert stored_receipt(world, unknown).outcome.usage is None


@pytest.mark.parametrize(
    ("status", "kind", "end"),
    [
        (400, "refused", "refused"),
        (429, "failed", "rate_limited"),
        (500, "failed", "server_error"),
    ],
)
def test_failures_are_known_as_such(
    gateway: LocalGateway, world: World, status: int, kind: str, end: str
) -> None:
    decision = route(gateway)
    assert report(gateway, decision, status=status, cost=1.0, **TOKENS).json["cost"] is None
    outcome = stored_receipt(world, decision).outcome
    assert (outcome.kind, outcome.attempts[0].end) == (kind, end)
    assert outcome.target == (CHEAP if kind == "refused" else None)


def test_the_first_report_holds(gateway: LocalGateway, world: World) -> None:
    decision = route(gateway)
    assert report(gateway, decision, cost=0.001).status == 200
    first = stored_receipt(world, decision)
    for again in (report(gateway, decision, cost=0.003), report(gateway, decision, status=500)):
        assert (again.status, again.error["code"]) == (409, "outcome_known")
    assert stored_receipt(world, decision) == first
    world[CHEAP].then(json_reply(completion()))
    decision_id = gateway.ask(body=chat(), **bearer("bob")).own_header("decision-id")
    own = report(gateway, str(decision_id))
    assert (own.status, own.error["code"]) == (409, "outcome_known")


def test_a_key_reports_on_its_own_decisions_and_an_admin_on_all(gateway: LocalGateway) -> None:
    bobs_decision, anns = route(gateway, "bob"), route(gateway, "ann")
    never, others = report(gateway, NEVER), report(gateway, anns)
    assert (never.status, never.error["code"]) == (404, "unknown_decision")
    assert (others.status, others.body) == (404, never.body)
    assert gateway.ask("/v1/outcome", {"id": bobs_decision}).status == 401
    assert report(gateway, bobs_decision, "ann").status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "nobody"},
        {"cost": -1},
        {"status": 42},
        {"seconds": None},
        {"output_tokens": 1.5},
        {"id": "pr_\0"},
        {"prompt": "hi"},
    ],
)
def test_what_cannot_be_is_refused(gateway: LocalGateway, world: World, wrong: Any) -> None:
    decision = route(gateway)
    body = {"id": decision, "target": CHEAP, "seconds": 0.5, **wrong}
    reply = gateway.ask("/v1/outcome", body, **bearer("bob"))
    assert reply.status == 400
    assert stored_receipt(world, decision).outcome.kind == "routed"


def test_a_key_reports_of_its_own_targets_alone(gateway: LocalGateway) -> None:
    decision = route(gateway, "dan")
    others, nobodys = (report(gateway, decision, "dan", target=t) for t in (EXPENSIVE, "nobody"))
    assert (others.status, others.body) == (400, nobodys.body)
    assert report(gateway, decision, "dan").status == 200


def test_what_is_reported_is_spent(gateway: LocalGateway, world: World) -> None:
    assert report(gateway, route(gateway, "cleo"), "cleo", cost=0.06).status == 200
    spent = gateway.ask("/v1/route", chat(), **bearer("cleo"))
    assert (spent.status, spent.error["code"]) == (429, "budget_spent")
    with serve_world(world) as again:
        assert again.ask("/v1/route", chat(), **bearer("cleo")).status == 429


def test_a_conversation_keeps_the_target_that_answered(gateway: LocalGateway, world: World) -> None:
    named = {"x-session-id": "a long talk"}
    decision = route(gateway, **named)
    assert stored_receipt(world, decision).choice.target == CHEAP
    report(gateway, decision, target=EXPENSIVE, **TOKENS)
    state = gateway.gateway.sessions.state(
        stored_receipt(world, decision).choice.session, time.time()
    )
    assert state is not None
    assert (state.target, state.tokens) == (EXPENSIVE, 1200)


def test_while_receipts_are_away_reports_are_refused(gateway: LocalGateway, world: World) -> None:
    decision = route(gateway)
    database = world.files.database
    moved_file = database.rename(database.with_name("away.sqlite"))
    database.mkdir()
    reply = report(gateway, decision)
    assert (reply.status, reply.error["code"]) == (503, "unavailable")
    assert reply.headers["retry-after"] == "5"
    database.rmdir()
    moved_file.rename(database)
    assert report(gateway, decision).status == 200


def test_scored_reports_are_labels(
    gateway: LocalGateway, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Whose answer is scored?"
    decision = route(gateway, text=text)
    scored = {"id": decision, "score": 1, "source": "user"}
    monkeypatch.setattr(gateway.gateway, "recent", RecentRequests())
    assert gateway.ask("/v1/feedback", scored, **bearer("bob")).status == 200
    report(gateway, decision, target=EXPENSIVE, cost=0.004, **TOKENS)
    dataset = export(scored_receipts(world.files.url)).dataset
    ((row,),) = [[n for n, q in enumerate(dataset.queries) if text in json.dumps(q.prompt)]]
    column = dataset.pool.names.index(EXPENSIVE)
    assert dataset.correct[row, column] == 1
    assert dataset.observed_cost[row, column] == 0.004


def test_metrics_count_a_report_once(gateway: LocalGateway) -> None:
    def value(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in gateway.gateway.metrics._registry.collect()
            for sample in family.samples
            if sample.name == f"prefill_router_{name}" and labels.items() <= sample.labels.items()
        )

    before = [value("requests_total"), value("dollars_total", target=CHEAP)]
    report(gateway, route(gateway, "ann"), "ann", cost=0.5)
    after = [value("requests_total"), value("dollars_total", target=CHEAP)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, pytest.approx(0.5)]
