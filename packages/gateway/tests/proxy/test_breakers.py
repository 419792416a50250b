"""Circuit breakers: a target that fails too often gets no calls for a while."""

import asyncio
import re

import pytest

from packages.gateway.tests.scripted_target import (
    ERROR,
    GOOD_REPLY,
    QUICK,
    STREAM,
    Fake,
    Gateway,
    Script,
    ScriptedClient,
    ask_targets,
    body_reply,
    chunked_reply,
    delta,
    gateway,
    json_reply,
)
from prefill_router.endpoints import Breakers
from prefill_router_gateway.settings import FailureSettings


def test_a_breaker_opens_after_so_many_failures_and_lets_one_try_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    breakers = Breakers(failures=2, seconds=10, clock=lambda: now[0])
    for _ in range(2):
        assert breakers.allow("a")
        assert breakers.state("a") == "closed"
        breakers.record_failure("a")
    assert (breakers.state("a"), breakers.allow("a")) == ("open", False)
    now[0] = 4.0
    assert (breakers.retry_in("a"), breakers.retry_in("b")) == (6.0, None)
    now[0] = 10.0
    assert (breakers.state("a"), breakers.retry_in("a")) == ("half_open", 0.0)
    assert [breakers.allow("a"), breakers.allow("a")] == [True, False]
    breakers.record_failure("a")
    assert (breakers.state("a"), breakers.allow("a")) == ("open", False)
    assert breakers.count_openings("a") == 2
    now[0] = 20.0
    assert breakers.allow("a")
    breakers.release("a")
    assert breakers.allow("a")
    breakers.record_success("a")
    assert (breakers.state("a"), breakers.failures("a")) == ("closed", 0)
    assert caplog.messages == [  # once, although several trials failed
        "a failed 2 times in a row: it gets no calls but one every 10 seconds, to test it",
        "a answers again",
    ]


def test_another_reason_of_a_failed_trial_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    breakers = Breakers(failures=1, seconds=10, clock=lambda: now[0])
    for why in ("nothing listens", "nothing listens", "a rate limit", "a rate limit"):
        assert breakers.allow("a")
        breakers.record_failure("a", why)
        now[0] += 10
    assert caplog.messages == [
        "a failed 1 times in a row: it gets no calls but one every 10 seconds, to test it; "
        "nothing listens",
        "a still fails, now for another reason; a rate limit",
    ]


def test_what_another_replica_found_is_taken_over_and_what_changes_here_is_told() -> None:
    now, changes = [0.0], list[str]()
    breakers = Breakers(failures=2, seconds=10, clock=lambda: now[0])
    breakers.on_change = changes.append
    breakers.learn("a", 4.0)
    assert (breakers.state("a"), breakers.retry_in("a")) == ("open", 6.0)
    assert breakers.seconds_open("a") == 4.0
    assert (breakers.count_openings("a"), changes) == (
        0,
        [],
    )  # the breaker of this replica didn't open
    breakers.learn("a", None)
    assert (breakers.state("a"), breakers.failures("a"), changes) == ("closed", 0, [])
    breakers.record_failure("a")
    assert changes == []
    breakers.record_failure("a")
    breakers.record_success("a")
    assert changes == ["a", "a"]


def test_a_stream_on_probation_closes_the_breaker_and_opens_it_again_if_it_is_cut() -> None:
    now = [0.0]
    breakers = Breakers(failures=3, seconds=10, clock=lambda: now[0])
    for _ in range(3):
        breakers.record_failure("a")
    now[0] = 10.0
    assert breakers.allow("a")
    breakers.record_start("a")
    assert breakers.allow("a")
    breakers.record_failure("a")
    assert breakers.state("a") == "open"


def test_targets_whose_breaker_is_open_are_left_out_unless_all_are() -> None:
    async def ask() -> list[list[tuple[str, str]]]:
        breakers = Breakers(failures=1, seconds=3600)
        breakers.record_failure("a")
        async with Fake(GOOD_REPLY) as a, Fake(GOOD_REPLY) as b:
            async with gateway(a, b, breakers=breakers) as app:
                await ScriptedClient().ask(app)
                breakers.record_failure("b")
                await ScriptedClient().ask(app)
                assert app.forwarder.state()["b"].breaker == "open"
                assert app.forwarder.state()["a"].under_way == 0
            return [[(t.target, t.end) for t in o.attempts] for o in app.outcomes]

    first, second = asyncio.run(ask())
    assert first == [("a", "breaker_open"), ("b", "answered")]
    assert second == [("a", "breaker_open"), ("b", "breaker_open"), ("a", "answered")]


def test_a_breaker_that_opens_ends_the_retries() -> None:
    failures = FailureSettings(backoff_seconds=0.0, retries=9, breaker_failures=3)
    _, app, counts = ask_targets([json_reply(ERROR, status=500)], failures=failures)
    assert counts == [3]
    assert app.breakers.state("a") == "open"


def test_retries_of_a_rate_limit_count_once_and_only_where_none_got_past_it() -> None:
    limited = json_reply(ERROR, status=429)
    _, app, counts = ask_targets([limited], failures=QUICK.model_copy(update={"retries": 3}))
    assert counts == [4]
    assert app.breakers.failures("a") == 1


def test_streams_that_are_cut_time_and_again_open_the_breaker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> Gateway:
        failures = FailureSettings(breaker_failures=2)
        async with (
            Fake(chunked_reply([delta("4")], end=False)) as fake,
            gateway(fake, failures=failures) as app,
        ):
            for _ in range(2):
                await ScriptedClient(STREAM).ask(app)
            return app

    assert asyncio.run(ask()).breakers.state("a") == "open"
    assert "broke off before the end of its answer; try again (HTTP 200)" in caplog.text


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (body_reply(b"<html>", kind="text/html"), r"sent a web page; check that its base_url .*"),
        (json_reply(ERROR, status=500), r"had an internal error; try again later \(HTTP 500\)"),
    ],
)
def test_log_says_why_a_breaker_opened(
    script: Script, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask_targets([script], failures=QUICK.model_copy(update={"breaker_failures": 1}))
    (message,) = caplog.messages
    assert re.search(rf"to test it; its endpoint at http://127\.0\.0\.1:\d+\S* {why}", message)
