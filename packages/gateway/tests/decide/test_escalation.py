"""A task that doesn't get on goes to a stronger target: when, to which, and how often."""

from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import AT, World, ask, forecast, outcome, world
from prefill_router_gateway.records import AgentRequest, RoutingDecision

S = "5" * 32
P = forecast(0.2, 0.5, 0.9)


def at_middle(mode: str = "on", **settings: Any) -> World:
    """A conversation in the middle of a task, at the target `middle`."""
    here = world(agents={"escalation": mode}, **settings)
    here.sessions.record_answer(S, target="middle", tokens=800, at=AT - 10, tool_calls=("t1",))
    return here


def go_on(here: World, said: Any = P, *, failing: int = 3, **known: Any) -> RoutingDecision:
    """The decision about the task's next request."""
    agent = {"agent": "codex", "is_ongoing": True, "failing_steps": failing}
    made = AgentRequest(**{**agent, **known.pop("of_agent", {})})
    question = {"session": S, "agent": made, "lam_asked": 1.0}
    return here.decide(said, **{**question, **known})


@pytest.mark.parametrize("loop", [{}, {"in_tool_loop": True, "tool_call_ids": ("t1",)}])
def test_a_task_that_fails_goes_to_a_stronger_target_once_and_stays(loop: dict[str, Any]) -> None:
    here = at_middle()
    kept = go_on(here, failing=2, **loop)
    assert (kept.target, kept.escalation) == ("middle", None)
    got = go_on(here, **loop)
    assert (got.target, got.reason, got.tool_loop) == ("large", "escalation", False)
    assert got.order[1] == "middle"
    here.decider.record_outcome(got, outcome("large", tool_calls=("t2",)), cost=None, at=AT)
    then = {**loop, "tool_call_ids": ("t2",)} if loop else {}
    again = go_on(here, forecast(0.2, 0.95, 0.9), failing=9, **then)
    assert (again.target, again.escalation) == ("large", None)
    assert again.reason == ("tool_loop" if loop else "turn")


def test_the_next_ask_may_be_escalated_again() -> None:
    here = at_middle()
    got = go_on(here)
    here.decider.record_outcome(got, outcome("large"), cost=None, at=AT)
    asks = here.decide(P, session=S, agent=AgentRequest(agent="codex"), lam_asked=0.0)
    assert asks.target != "large"
    here.decider.record_outcome(asks, outcome(asks.target), cost=None, at=AT)
    assert go_on(here).reason == "escalation"


@pytest.mark.parametrize(
    ("counts", "cause"),
    [
        ({"failing_steps": 0, "repeated_calls": 2}, "repeated_calls"),
        ({"failing_steps": 0, "stalled_steps": 4}, "stalled_steps"),
        ({"failing_steps": 2, "repeated_calls": 1, "stalled_steps": 3}, None),
    ],
)
def test_a_task_that_repeats_itself_does_not_get_on(counts: dict[str, int], cause: Any) -> None:
    found = go_on(at_middle(), of_agent=counts).escalation
    assert (None if found is None else found.cause) == cause


def test_what_is_only_observed_changes_no_target() -> None:
    here = at_middle("observe")
    got = go_on(here)
    assert (got.target, got.reason) == ("middle", "turn")
    assert got.escalation is not None
    assert (got.escalation.target, got.escalation.is_made) == ("large", False)
    here.decider.record_outcome(got, outcome("middle"), cost=None, at=AT)
    assert go_on(here).escalation is None  # it is said once
    assert go_on(at_middle("off")).escalation is None


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({"holds_state": True}, "state"),
        ({"previous_response_id": "r1"}, "stored"),
        ({"exclude": frozenset({"large"})}, "turn"),
        ({"of_agent": {"kind": "compaction"}}, "turn"),
    ],
)
def test_what_must_stay_is_not_escalated(known: dict[str, Any], reason: str) -> None:
    here = at_middle()
    here.sessions.keep("r1", target="middle", key=None)
    got = go_on(here, **known)
    assert (got.target, got.reason) == ("middle", reason)


def test_without_a_stronger_target_or_a_forecast_the_target_is_kept() -> None:
    assert go_on(at_middle(), forecast(0.2, 0.95, 0.9)).reason == "turn"
    assert go_on(at_middle(), "deadline").target == "middle"
    spent = at_middle(budgets=[{"dollars": 1.0, "per": "day"}])
    spent.budgets.spend(None, 2.0, AT)
    assert go_on(spent).target == "small"


def test_a_request_in_a_tool_loop_is_forecast_only_where_it_may_be_escalated() -> None:
    here, loop = at_middle(), {"in_tool_loop": True, "tool_call_ids": ("t1",), "session": S}
    for failing, needed in ((2, False), (3, True)):
        agent = AgentRequest(is_ongoing=True, failing_steps=failing)
        assert here.decider.begin(ask(agent=agent, **loop)).needs_forecast is needed


def test_the_policy_chooses_among_the_stronger_targets() -> None:
    here = world(agents={"escalation": "on"})
    here.sessions.record_answer(S, target="small", tokens=800, at=AT - 10)
    assert go_on(here, lam_asked=0.0).target == "middle"
    assert go_on(here, lam_asked=1.0).target == "large"
