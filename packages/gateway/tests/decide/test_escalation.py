"""A task that doesn't get on goes to a stronger target: when, to which, and how often."""

from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import (
    AT,
    DeciderSetup,
    build_forecast,
    build_question,
    outcome,
    set_up_decider,
)
from prefill_router_gateway.records import AgentRequest, RoutingDecision

SESSION = "5" * 32
FORECAST = build_forecast(0.2, 0.5, 0.9)


def set_up_middle(mode: str = "on", **settings: Any) -> DeciderSetup:
    """A conversation in the middle of a task, at the target `middle`."""
    setup = set_up_decider(agents={"escalation": mode}, **settings)
    setup.sessions.record_answer(
        SESSION, target="middle", tokens=800, at=AT - 10, tool_calls=("t1",)
    )
    return setup


def decide_next(
    setup: DeciderSetup, forecast: Any = FORECAST, *, failing: int = 3, **fields: Any
) -> RoutingDecision:
    """The decision about the task's next request."""
    agent = {"agent": "codex", "is_ongoing": True, "failing_steps": failing}
    agent_request = AgentRequest(**{**agent, **fields.pop("of_agent", {})})
    question = {"session": SESSION, "agent": agent_request, "lam_asked": 1.0}
    return setup.decide(forecast, **{**question, **fields})


@pytest.mark.parametrize("loop", [{}, {"in_tool_loop": True, "tool_call_ids": ("t1",)}])
def test_a_task_that_fails_goes_to_a_stronger_target_once_and_stays(loop: dict[str, Any]) -> None:
    setup = set_up_middle()
    before = decide_next(setup, failing=2, **loop)
    assert (before.target, before.escalation) == ("middle", None)
    choice = decide_next(setup, **loop)
    assert (choice.target, choice.reason, choice.tool_loop) == ("large", "escalation", False)
    assert choice.order[1] == "middle"
    setup.decider.record_outcome(choice, outcome("large", tool_calls=("t2",)), cost=None, at=AT)
    then = {**loop, "tool_call_ids": ("t2",)} if loop else {}
    next_choice = decide_next(setup, build_forecast(0.2, 0.95, 0.9), failing=9, **then)
    assert (next_choice.target, next_choice.escalation) == ("large", None)
    assert next_choice.reason == ("tool_loop" if loop else "turn")


def test_the_next_ask_may_be_escalated_again() -> None:
    setup = set_up_middle()
    choice = decide_next(setup)
    setup.decider.record_outcome(choice, outcome("large"), cost=None, at=AT)
    next_ask = setup.decide(
        FORECAST, session=SESSION, agent=AgentRequest(agent="codex"), lam_asked=0.0
    )
    assert next_ask.target != "large"
    setup.decider.record_outcome(next_ask, outcome(next_ask.target), cost=None, at=AT)
    assert decide_next(setup).reason == "escalation"


@pytest.mark.parametrize(
    ("counts", "cause"),
    [
        ({"failing_steps": 0, "repeated_calls": 2}, "repeated_calls"),
        ({"failing_steps": 0, "stalled_steps": 4}, "stalled_steps"),
        ({"failing_steps": 2, "repeated_calls": 1, "stalled_steps": 3}, None),
    ],
)
def test_a_task_that_repeats_itself_does_not_get_on(counts: dict[str, int], cause: Any) -> None:
    escalation = decide_next(set_up_middle(), of_agent=counts).escalation
    assert (None if escalation is None else escalation.cause) == cause


def test_what_is_only_observed_changes_no_target() -> None:
    setup = set_up_middle("observe")
    choice = decide_next(setup)
    assert (choice.target, choice.reason) == ("middle", "turn")
    assert choice.escalation is not None
    assert (choice.escalation.target, choice.escalation.is_made) == ("large", False)
    setup.decider.record_outcome(choice, outcome("middle"), cost=None, at=AT)
    assert decide_next(setup).escalation is None  # it is recorded once
    assert decide_next(set_up_middle("off")).escalation is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"holds_state": True}, "state"),
        ({"previous_response_id": "r1"}, "stored"),
        ({"exclude": frozenset({"large"})}, "turn"),
        ({"of_agent": {"kind": "compaction"}}, "turn"),
    ],
)
def test_what_must_stay_is_not_escalated(fields: dict[str, Any], reason: str) -> None:
    setup = set_up_middle()
    setup.sessions.keep("r1", target="middle", key=None)
    choice = decide_next(setup, **fields)
    assert (choice.target, choice.reason) == ("middle", reason)


def test_without_a_stronger_target_or_a_forecast_the_target_is_kept() -> None:
    assert decide_next(set_up_middle(), build_forecast(0.2, 0.95, 0.9)).reason == "turn"
    assert decide_next(set_up_middle(), "deadline").target == "middle"
    setup = set_up_middle(budgets=[{"dollars": 1.0, "per": "day"}])
    setup.budgets.spend(None, 2.0, AT)
    assert decide_next(setup).target == "small"


def test_a_request_in_a_tool_loop_is_forecast_only_where_it_may_be_escalated() -> None:
    setup, loop = (
        set_up_middle(),
        {"in_tool_loop": True, "tool_call_ids": ("t1",), "session": SESSION},
    )
    for failing, needed in ((2, False), (3, True)):
        agent = AgentRequest(is_ongoing=True, failing_steps=failing)
        assert setup.decider.begin(build_question(agent=agent, **loop)).needs_forecast is needed


def test_the_policy_chooses_among_the_stronger_targets() -> None:
    setup = set_up_decider(agents={"escalation": "on"})
    setup.sessions.record_answer(SESSION, target="small", tokens=800, at=AT - 10)
    assert decide_next(setup, lam_asked=0.0).target == "middle"
    assert decide_next(setup, lam_asked=1.0).target == "large"
