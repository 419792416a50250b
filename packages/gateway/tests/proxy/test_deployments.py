"""Targets with several endpoints: shares, conversations, failover, breakers and rate limits."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import (
    ERROR,
    GOOD_REPLY,
    Fake,
    Gateway,
    ScriptedClient,
    ask_targets,
    gateway,
    json_reply,
)
from prefill_router.endpoints import Breakers
from prefill_router.targets import Pool, Target, TargetEndpoint
from prefill_router_gateway.proxy import RateHeadroom
from prefill_router_gateway.proxy.deployments import DeploymentOrder
from prefill_router_gateway.settings import FailureSettings

SERVER_ERROR, RATE_LIMIT = json_reply(ERROR, status=500), json_reply(ERROR, status=429)
ONE_RETRY = FailureSettings(backoff_seconds=0.0, retries=1)


def target(**endpoints: dict[str, Any]) -> Target:
    """A target `t` with these endpoints."""
    rows = (
        TargetEndpoint(name=name, **{"base_url": "http://127.0.0.1:1", **fields})
        for name, fields in endpoints.items()
    )
    return Target(name="t", endpoints=tuple(rows))


def build_order(**endpoints: dict[str, Any]) -> DeploymentOrder:
    return DeploymentOrder(target(**endpoints), RateHeadroom())


def count_firsts(choose: DeploymentOrder, count: int = 4000) -> Counter[str]:
    return Counter(choose(f"conversation {i}", 0)[0] for i in range(count))


def test_conversations_are_shared_by_weight() -> None:
    shares = count_firsts(build_order(a={"weight": 3}, b={"weight": 1}, c={"weight": 4}))
    # three standard errors of a share of 4,000 are at most 2.4 %
    assert shares["t@a"] / 4000 == pytest.approx(3 / 8, abs=0.024)
    assert shares["t@b"] / 4000 == pytest.approx(1 / 8, abs=0.024)


def test_a_conversation_stays_at_its_endpoint_in_every_replica() -> None:
    choose, replica_choose = (build_order(a={}, b={}, c={}) for _ in range(2))
    for i in range(100):
        assert choose(f"{i}", 10) == replica_choose(f"{i}", 20)
        assert sorted(choose(f"{i}", 10)) == ["t@a", "t@b", "t@c"]


def test_a_new_endpoint_takes_conversations_only_for_itself() -> None:
    before, after = build_order(a={}, b={}), build_order(a={}, b={}, c={})
    new_places = {
        after(f"{i}", 0)[0] for i in range(300) if after(f"{i}", 0)[0] != before(f"{i}", 0)[0]
    }
    assert new_places == {"t@c"}


def test_a_lower_priority_comes_first_whatever_the_weights() -> None:
    choose = build_order(a={"priority": 1, "weight": 100}, b={}, c={"priority": 1})
    assert count_firsts(choose, 200) == {"t@b": 200}
    assert {choose(f"{i}", 0)[1] for i in range(200)} == {"t@a", "t@c"}


def build_pool(*urls: str) -> Pool:
    """Target t at all addresses but the last, in order of preference; target z at the last."""
    *several, single = (f"{url}/v1" for url in urls)
    endpoints = {
        chr(ord("a") + place): {"base_url": url, "priority": place}
        for place, url in enumerate(several)
    }
    return Pool((target(**endpoints), Target(name="z", base_url=single)))


def list_calls(app: Gateway) -> list[tuple[str | None, str]]:
    return [(attempt.deployment or attempt.target, attempt.end) for attempt in app.outcome.attempts]


def test_a_call_fails_over_to_the_next_endpoint_before_the_next_target() -> None:
    client, app, counts = ask_targets(
        [SERVER_ERROR], [GOOD_REPLY], [GOOD_REPLY], pool=build_pool, failures=ONE_RETRY
    )
    assert client.status == 200
    assert list_calls(app) == [("t@a", "server_error"), ("t@b", "answered")]
    assert (app.outcome.target, app.outcome.deployment) == ("t", "t@b")
    assert counts == [1, 1, 0]


def test_only_the_last_endpoint_is_retried_and_then_the_next_target_called() -> None:
    _, app, _ = ask_targets(
        [SERVER_ERROR], [SERVER_ERROR], [GOOD_REPLY], pool=build_pool, failures=ONE_RETRY
    )
    ends = [("t@a", "server_error"), *[("t@b", "server_error")] * 2, ("z", "answered")]
    assert list_calls(app) == ends
    assert (app.outcome.target, app.outcome.deployment) == ("z", None)


def test_endpoints_count_as_one_of_the_targets_that_may_be_called() -> None:
    failures = ONE_RETRY.model_copy(update={"targets": 1})
    client, _, counts = ask_targets(
        [SERVER_ERROR], [SERVER_ERROR], [GOOD_REPLY], pool=build_pool, failures=failures
    )
    assert (client.status, counts) == (502, [1, 2, 0])


def test_the_clients_own_error_ends_at_the_first_endpoint() -> None:
    refusal = json_reply({"error": {"message": "no such field", "code": None}}, status=400)
    client, app, counts = ask_targets([refusal], [GOOD_REPLY], [GOOD_REPLY], pool=build_pool)
    assert (client.status, counts) == (400, [1, 0, 0])
    assert app.outcome.deployment == "t@a"


TWO_ENDPOINTS = Pool((target(a={}, b={}),))


def test_each_endpoint_has_a_breaker_and_a_target_is_broken_if_all_are() -> None:
    async def ask() -> tuple[Gateway, list[Any], list[int]]:
        breakers = Breakers(failures=1, seconds=3600)
        breakers.use_pool(TWO_ENDPOINTS)
        states = []
        async with (
            Fake(SERVER_ERROR) as a,
            Fake(GOOD_REPLY, SERVER_ERROR) as b,
            Fake(GOOD_REPLY) as z,
        ):
            async with gateway(
                a, b, z, pool=build_pool, failures=ONE_RETRY, breakers=breakers
            ) as app:
                for _ in range(3):
                    await ScriptedClient().ask(app)
                    states.append(
                        (breakers.state("t@a"), breakers.state("t@b"), breakers.state("t"))
                    )
            return app, states, [len(fake.requests) for fake in (a, b, z)]

    app, states, counts = asyncio.run(ask())
    assert states == [
        ("open", "closed", "closed"),
        ("open", "open", "open"),
        ("open", "open", "open"),
    ]
    assert counts == [1, 2, 2]
    last = [(attempt.deployment, attempt.end) for attempt in app.outcomes[-1].attempts]
    assert last == [("t@a", "breaker_open"), ("t@b", "breaker_open"), (None, "answered")]


def test_a_targets_breaker_is_tried_again_when_the_first_of_its_endpoints_may_be() -> None:
    now = [0.0]
    breakers = Breakers(failures=1, seconds=10, clock=lambda: now[0])
    breakers.use_pool(TWO_ENDPOINTS)
    breakers.record_failure("t@a")
    assert breakers.retry_in("t") is None
    now[0] = 4.0
    breakers.record_failure("t@b")
    assert (breakers.is_open("t"), breakers.retry_in("t")) == (True, 6.0)


def test_a_request_that_must_stay_at_an_endpoint_is_never_called_elsewhere() -> None:
    client, app, counts = ask_targets(
        [GOOD_REPLY],
        [SERVER_ERROR],
        [GOOD_REPLY],
        pool=build_pool,
        failures=ONE_RETRY,
        order=("t@b",),
    )
    assert (client.status, counts) == (502, [0, 2, 0])
    assert {attempt.deployment for attempt in app.outcome.attempts} == {"t@b"}


def test_an_endpoint_gets_the_body_with_its_own_model() -> None:
    names = list[str]()

    def body_for(deployment: str) -> bytes:
        names.append(deployment)
        return b"{}"

    ask_targets(
        [SERVER_ERROR],
        [GOOD_REPLY],
        [GOOD_REPLY],
        pool=build_pool,
        failures=ONE_RETRY,
        bodies=body_for,
    )
    assert names == ["t@a", "t@b"]


@pytest.mark.parametrize(
    "script",
    [
        json_reply(ERROR, status=429, headers="retry-after: 1\r\n"),
        RATE_LIMIT,
        json_reply({"choices": []}, headers="x-ratelimit-remaining-requests: 0\r\n"),
        json_reply({"choices": []}, headers="x-ratelimit-remaining-tokens: 4\r\n"),
        json_reply(
            {"choices": []},
            headers="anthropic-ratelimit-requests-remaining: 0\r\n"
            "anthropic-ratelimit-requests-reset: 2099-01-01T00:00:00Z\r\n",
        ),
    ],
    ids=["429 with a wait", "429", "no requests", "too few tokens", "anthropic"],
)
def test_an_endpoint_without_headroom_isnt_called_while_another_has_some(script: Any) -> None:
    async def ask() -> list[int]:
        async with Fake(script, GOOD_REPLY) as a, Fake(GOOD_REPLY) as b, Fake(GOOD_REPLY) as z:
            async with gateway(a, b, z, pool=build_pool, failures=ONE_RETRY) as app:
                await ScriptedClient().ask(app)
                b.requests.clear()
                await ScriptedClient().ask(app)
            return [len(fake.requests) for fake in (a, b, z)]

    assert asyncio.run(ask()) == [1, 1, 0]


def test_headroom_comes_back_with_the_reset() -> None:
    now = [100.0]
    headroom = RateHeadroom(clock=lambda: now[0])
    remaining = [(b"x-ratelimit-remaining-tokens", b"50"), (b"x-ratelimit-reset-tokens", b"6m0s")]
    headroom.observe("t@a", [(b"content-type", b"x"), *remaining])
    assert [headroom.lacks("t@a", tokens) for tokens in (50, 51)] == [False, True]
    assert not headroom.lacks("t@b", 1000)
    now[0] += 360
    assert not headroom.lacks("t@a", 51)
    headroom.refused("t@a", 5.0)
    assert headroom.lacks("t@a", 0)
    now[0] += 5
    assert not headroom.lacks("t@a", 0)
