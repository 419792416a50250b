"""What an endpoint of a target keeps is continued at that endpoint."""

from dataclasses import replace
from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import (
    AT,
    URL,
    DeciderSetup,
    build_forecast,
    build_question,
    outcome,
    parts,
    set_up_decider,
    target,
)
from prefill_router.targets import Pool, TargetEndpoint
from prefill_router_gateway.decide import ResponseOwners
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.records import RequestOutcome, TargetAttempt

SESSION = "5" * 32
ENDPOINTS = (
    TargetEndpoint(name="east", base_url=URL),
    TargetEndpoint(name="west", base_url=f"{URL}/west"),
)
LARGE = replace(target("large", price=5.0), base_url=None, endpoints=ENDPOINTS)
POOL = (target("small", price=0.1), LARGE)


def set_up_endpoints() -> DeciderSetup:
    return set_up_decider(parts(*POOL))


def record_answer(setup: DeciderSetup, deployment: str | None, **fields: Any) -> None:
    """Note that `large` answered at this endpoint."""
    choice = setup.decide(build_forecast(0.1, 0.9), lam_asked=1.0, session=SESSION)
    setup.decider.record_outcome(choice, build_outcome(deployment, **fields), cost=None, at=AT)


def build_outcome(deployment: str | None, **fields: Any) -> RequestOutcome:
    attempt = TargetAttempt(
        target="large", end="answered", status=200, seconds=1.0, deployment=deployment
    )
    answer = outcome("large", tokens=(10, 10), **fields)
    return replace(answer, attempts=(attempt,), deployment=deployment)


def test_a_stored_response_is_continued_at_its_endpoint() -> None:
    setup = set_up_endpoints()
    record_answer(setup, "large@west", response_id="resp_1")
    choice = setup.decide(previous_response_id="resp_1")
    assert (choice.reason, choice.order, choice.deployment) == (
        "stored",
        ("large",),
        "large@west",
    )


def test_a_tool_loop_stays_at_the_endpoint_that_called_the_tools() -> None:
    setup = set_up_endpoints()
    record_answer(setup, "large@west", tool_calls=("call_1",))
    loop = {"in_tool_loop": True, "tool_call_ids": ("call_1",), "session": SESSION}
    choice = setup.decide(build_forecast(0.9, 0.1), **loop)
    assert (choice.reason, choice.target, choice.deployment) == (
        "tool_loop",
        "large",
        "large@west",
    )


def test_a_tool_loop_whose_calls_are_forgotten_stays_at_the_target_alone() -> None:
    setup = set_up_endpoints()
    record_answer(setup, "large@west")
    choice = setup.decide(in_tool_loop=True, tool_call_ids=("call_9",), session=SESSION)
    assert (choice.reason, choice.target, choice.deployment) == ("tool_loop", "large", None)


def test_a_conversation_keeps_its_target_whichever_endpoint_answered() -> None:
    setup = set_up_decider(parts(*POOL), sessions={"margin": 2.0})
    record_answer(setup, "large@west")
    choice = setup.decide(build_forecast(0.9, 0.1), session=SESSION)
    assert (choice.reason, choice.target, choice.deployment) == ("session", "large", None)


def test_calls_about_a_stored_response_go_to_its_endpoint() -> None:
    setup = set_up_endpoints()
    record_answer(setup, "large@east", response_id="resp_1")
    owners = ResponseOwners(Pool(POOL), setup.sessions)
    assert owners.keeper("resp_1", build_question(endpoint="responses")) == "large@east"


def test_a_response_whose_endpoint_left_the_pool_is_lost() -> None:
    setup = set_up_endpoints()
    record_answer(setup, "large@north", response_id="resp_1")
    with pytest.raises(RefusalError, match="'large@north', which can't answer"):
        setup.decide(previous_response_id="resp_1")
    owners = ResponseOwners(Pool(POOL), setup.sessions)
    with pytest.raises(RefusalError, match="'large@north', which can't be called"):
        owners.keeper("resp_1", build_question(endpoint="responses"))


def test_a_target_that_the_router_does_not_know_also_stays_at_its_endpoint() -> None:
    router = parts(target("small", price=0.1), target("middle"))
    setup = set_up_decider(router, pool=Pool((*router.pool, LARGE)))
    setup.sessions.keep("resp_1", target="large@west", key=None)
    choice = setup.decide(previous_response_id="resp_1")
    assert (choice.order, choice.deployment) == (("large",), "large@west")


def test_receipts_bring_back_which_endpoint_it_was() -> None:
    setup = set_up_endpoints()
    setup.sessions.restore([(SESSION, "large", 10, AT, ["call_1"], "resp_1", None, "large@west")])
    assert setup.decide(previous_response_id="resp_1").deployment == "large@west"
    state = setup.sessions.state(SESSION, AT)
    assert state is not None
    assert state.target == "large"
