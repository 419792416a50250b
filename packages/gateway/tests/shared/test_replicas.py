"""Three replicas act as one gateway, also if one is killed and one loses the database."""

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from packages.gateway.tests.receipts.postgres_server import PostgresServer
from packages.gateway.tests.scripted_target import ANSWER, ERROR, USAGE, json_reply
from packages.gateway.tests.shared.replicas import ReplicaGroup, run_replica_group
from packages.gateway.tests.world import (
    CHATS,
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PRICES,
    Reply,
    ask,
    chat,
    make_world,
    user,
)
from prefill_router_gateway.guard.key_file import digest

pytestmark = pytest.mark.slow

COST = (USAGE["prompt_tokens"] * 0.4 + USAGE["completion_tokens"] * 1.6) / 1e6
"""US dollars of one answer of the middle target."""
BUDGET, LEASE = 60, 0.1
"""The budget of one key, in answers, and the share that is leased at a time."""
KEYS = [
    {"name": name, "sha256": digest(f"pr-{name}"), **limits}
    for name, limits in {
        "boss": {"admin": True},
        "ann": {"requests_per_minute": 20},
        "bob": {},
        "con": {"concurrent": 2},
        "dan": {},
    }.items()
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL_CALL_MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[ReplicaGroup]:
    folder = tmp_path_factory.mktemp("replicas")
    abilities = {"accepts": ["tools"], "serves": ["chat", "responses"]}
    rows = {name: {**prices, **abilities} for name, prices in PRICES.items()}
    settings = {
        "budgets": [{"dollars": BUDGET * COST, "per": "day", "key": "bob", "stop": True}],
        "failures": {"breaker_failures": 1, "breaker_seconds": 600, "retries": 0},
    }
    with (
        make_world(folder, rows, settings=settings, keys=KEYS) as world,
        run_replica_group(world, folder, postgres.url, lease=LEASE, wait_seconds=60) as group,
    ):
        yield group


@pytest.fixture(autouse=True)
def forget_requests(replicas: ReplicaGroup) -> None:
    replicas.world.forget()


def ask_as(url: str, key: str, body: Any, path: str = CHATS, **headers: str) -> Reply:
    return ask(url, path, body, {"authorization": f"Bearer pr-{key}", **headers})


def wait_until(holds: Any) -> None:
    while not holds():
        time.sleep(0.05)


def test_exactly_the_requests_per_minute_are_allowed(replicas: ReplicaGroup) -> None:
    start = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        urls = replicas.urls * 14
        replies = list(pool.map(lambda url: ask_as(url, "ann", chat(MIDDLE)), urls))
    refill = math.floor((time.monotonic() - start) * 20 / 60)
    allowed = sum(reply.status == 200 for reply in replies)
    assert 20 <= allowed <= 20 + refill
    refusals = [reply for reply in replies if reply.status != 200]
    assert {(r.status, r.error["code"]) for r in refusals} == {(429, "rate_limit_exceeded")}
    assert int(refusals[-1].headers["retry-after"]) in (1, 2, 3)


def test_concurrent_requests_are_counted_over_all_replicas(replicas: ReplicaGroup) -> None:
    go_on = threading.Event()
    target = replicas.world[MIDDLE].then(*[[b"", go_on, *json_reply(ANSWER)]] * 2)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(ask_as, url, "con", chat(MIDDLE)) for url in replicas.urls[1:]]
        for _ in futures:
            target.request_arrived.acquire()
        for url in replicas.urls:
            reply = ask_as(url, "con", chat(MIDDLE))
            assert (reply.status, reply.error["code"]) == (429, "concurrency_limit_exceeded")
        go_on.set()
        assert [future.result().status for future in futures] == [200, 200]
    # a slot is free before its client has the end of the answer
    assert {ask_as(url, "con", chat(MIDDLE)).status for url in replicas.urls * 3} == {200}


def test_a_tool_loop_goes_on_at_the_target_that_called(replicas: ReplicaGroup) -> None:
    choices = [{"index": 0, "message": TOOL_CALL_MESSAGE, "finish_reason": "tool_calls"}]
    replicas.world[EXPENSIVE].then(json_reply({**ANSWER, "choices": choices}))
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    first = [user("what does f say?")]
    first_reply = ask_as(
        replicas.near.url, "dan", chat(**tools) | {"messages": first}, **lam_header(1)
    )
    assert (first_reply.status, first_reply.own_header("target")) == (200, EXPENSIVE)
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    body = chat(**tools) | {"messages": [*first, TOOL_CALL_MESSAGE, result]}
    for url in replicas.urls:
        reply = ask_as(url, "dan", body, **lam_header(0))
        assert (reply.own_header("target"), reply.own_header("reason")) == (EXPENSIVE, "tool_loop")
    assert ask_as(replicas.far.url, "con", body, **lam_header(0)).own_header("reason") == "policy"


def lam_header(value: float) -> dict[str, str]:
    return {"x-prefill-router-lam": str(value)}


def test_a_stored_response_is_found_by_its_key_at_every_replica(replicas: ReplicaGroup) -> None:
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    replicas.world[CHEAP].then(json_reply(response))
    path, body = "/v1/responses", {"model": CHEAP, "input": "hi"}
    assert ask_as(replicas.far.url, "dan", body, path).status == 200
    for url in replicas.urls:
        replicas.world.forget()
        reply = ask_as(url, "dan", None, "/v1/responses/resp_1")
        assert (reply.status, replicas.world.requested_targets()) == (200, [CHEAP])
        assert ask_as(url, "bob", None, "/v1/responses/resp_1").status == 404
        next_body = {"model": "auto", "input": "on", "previous_response_id": "resp_1"}
        assert ask_as(url, "dan", next_body, path).own_header("reason") == "stored"
        assert ask_as(url, "bob", next_body, path).status == 400


def test_the_lam_of_the_page_reaches_every_replica(replicas: ReplicaGroup) -> None:
    reply = ask_as(replicas.near.url, "boss", {"lam": 0.125}, "/page/api/lam")
    assert reply.status == 200
    for url in replicas.urls:
        wait_until(lambda url=url: ask_as(url, "dan", chat()).own_header("lam") == "0.125")


def test_a_target_that_failed_at_one_replica_is_left_alone_by_all(replicas: ReplicaGroup) -> None:
    replicas.world[MIDDLE].then(json_reply(ERROR, status=500))
    ask_as(replicas.far.url, "dan", chat(MIDDLE))

    def states() -> list[str]:
        return [read_breaker(url, MIDDLE) for url in replicas.urls]

    wait_until(lambda: states() == ["open"] * 3)
    replicas.far.call_in_gateway(lambda: replicas.far.gateway.breakers.record_success(MIDDLE))
    wait_until(lambda: states() == ["closed"] * 3)


def read_breaker(url: str, target: str) -> str:
    rows = ask_as(url, "boss", None, "/page/api/targets").json["targets"]
    return next(row["breaker"] for row in rows if row["target"] == target)


def test_a_killed_and_a_cut_off_replica_pass_a_stop_budget_by_no_lease(
    replicas: ReplicaGroup,
) -> None:
    """Must be the last test: it kills a replica."""
    near, far, _ = replicas.urls
    spent = 0

    def spend(url: str) -> Reply:
        nonlocal spent
        reply = ask_as(url, "bob", chat(MIDDLE))
        spent += reply.status == 200
        return reply

    assert {spend(url).status for url in replicas.urls * 3} == {200}
    replicas.process.kill()
    replicas.line.cut()
    far_replies = [spend(far) for _ in range(12)]
    assert far_replies[0].status == 200
    assert (far_replies[-1].status, far_replies[-1].error["code"]) == (503, "budget_unknown")
    ready = ask(far, "/ready")
    assert (ready.status, ready.json["checks"]["shared"]["state"]) == (200, "degraded")
    assert ask_as(far, "dan", chat(MIDDLE)).status == 200  # this key has no budget
    shared = ask_as(far, "boss", None, "/page/api/overview").json["shared"]
    assert 0 < time.time() - shared["away_since"] < 600
    (budget,) = ask_as(far, "boss", None, "/page/api/spend").json["budgets"]
    assert budget["leased"] == 0
    near_replies = [spend(near) for _ in range(BUDGET)]
    assert (near_replies[-1].status, near_replies[-1].error["code"]) == (429, "budget_spent")
    replicas.line.restore()
    wait_until(lambda: ask(far, "/ready").json["checks"]["shared"]["state"] == "ok")
    last_replies = [
        spend(far) for _ in range(round(BUDGET * LEASE))
    ]  # leases that other replicas gave back
    assert (last_replies[-1].status, spend(near).status) == (429, 429)
    # The lease of the killed replica and the rests of the last leases stay unspent.
    assert BUDGET * (1 - 3 * LEASE) <= spent <= BUDGET * (1 + LEASE)
