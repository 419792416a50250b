"""Conversations: what names them, what is remembered, and when a switch pays."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    AT,
    THREE_TARGETS,
    DeciderSetup,
    build_forecast,
    build_question,
    outcome,
    parts,
    set_up_decider,
    target,
)
from packages.gateway.tests.decide.test_eligibility import refusal
from prefill_router.data import Message
from prefill_router.policy import Argmax, Tolerance
from prefill_router_gateway.decide import Sessions, session_name
from prefill_router_gateway.decide.affinity import is_routed
from prefill_router_gateway.records import AgentRequest
from prefill_router_gateway.settings import SessionSettings, TrafficSettings

SESSION = "5" * 32
USER = (Message("user", "What is a tapir?"),)
FORECAST = build_forecast(0.2, 0.5, 0.9)


def conversation_name(known_by: Any = "conversation", **changes: Any) -> str | None:
    fields = {"header": None, "hint": None, "key_turns": USER, "key": None, **changes}
    return session_name(SessionSettings(known_by=known_by), **fields)


def test_a_name_is_the_same_in_every_process() -> None:
    assert conversation_name(header="abc") == "edd926b758ae06f9083d3a2b0d63e834"
    assert conversation_name() == "09ce8767a0fc71a0942a76059ef1a348"


def test_names_differ_where_conversations_do() -> None:
    other = (Message("user", "What is an okapi?"),)
    system = (Message("system", "Be brief."), *USER)
    split = (Message("user", "What is"), Message("user", " a tapir?"))
    names = [
        conversation_name(),
        conversation_name(key_turns=other),
        conversation_name(key_turns=system),
        conversation_name(key_turns=split),
        conversation_name(hint="cache"),
        conversation_name(key="ann"),
        conversation_name(header="abc"),
        conversation_name(header="abd"),
        conversation_name(header="abc", key="ann"),
        conversation_name(header="\ud800"),
    ]
    assert len(set(names)) == len(names)
    assert all(isinstance(name, str) and len(name) == 32 for name in names)


def test_what_conversations_are_known_by() -> None:
    assert conversation_name(header="abc", key_turns=USER) == conversation_name(
        header="abc", key_turns=()
    )
    assert conversation_name(header="abc", hint="h") == conversation_name(header="abc")
    assert conversation_name(key_turns=(), hint="h") is None
    assert conversation_name("header") is None
    assert conversation_name("header", header="abc") == conversation_name(header="abc")
    assert conversation_name("none", header="abc") is None


def test_only_so_many_are_remembered_and_only_for_so_long() -> None:
    sessions = Sessions(SessionSettings(most=2, seconds=100))
    for i in range(3):
        sessions.record_answer(f"{i}", target="a", tokens=1, at=AT + i, tool_calls=(f"c{i}",))
    assert len(sessions) == 2
    assert sessions.state("0", AT) is None
    assert sessions.caller(["c0"], session="0", key=None) is None
    assert sessions.caller(["c0", "c2"], session="2", key=None) == "a"
    seat = sessions.state("2", AT + 102)
    assert seat is not None
    assert (seat.target, seat.tokens, seat.at) == ("a", 1, AT + 2)
    assert sessions.state("2", AT + 103) is None
    sessions.record_answer("9", target="a", tokens=1, at=AT + 1000)
    sessions.use(SessionSettings(most=1))
    assert len(sessions) == 1
    assert sessions.state("9", AT + 1000) is not None


def test_receipts_bring_back_what_was_remembered() -> None:
    sessions = Sessions(SessionSettings())
    sessions.restore(
        [
            (SESSION, "a", 10, AT, ["x"], "r1", "ann", None),
            (SESSION, "b", 20, AT + 1, [], None, "ann", None),
            (None, "a", 1, AT, ["y"], "r2", "ann", None),
        ]
    )
    seat = sessions.state(SESSION, AT + 2)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("b", 20)
    assert [sessions.caller([c], session=SESSION, key="ann") for c in "xyz"] == ["a", "a", None]
    assert [sessions.keeper(r, key="ann") for r in ("r1", "r2", "r3")] == ["a", "a", None]


def test_what_one_key_was_answered_steers_no_other() -> None:
    sessions = Sessions(SessionSettings())
    answer = {"tool_calls": ["call_0"], "response_id": "r1"}
    sessions.record_answer("s1", target="a", tokens=1, at=AT, key="ann", **answer)
    sessions.record_answer(None, target="a", tokens=1, at=AT, key="ann", tool_calls=["call_1"])
    for session in ("s2", None):
        for call in ("call_0", "call_1"):
            assert sessions.caller([call], session=session, key="bob") is None
    assert sessions.keeper("r1", key="bob") is None
    assert sessions.is_anothers("r1", key="bob")
    assert sessions.is_anothers("r1", key=None)
    assert not sessions.is_anothers("r1", key="ann")
    assert not sessions.is_anothers("r2", key="bob")
    assert sessions.caller(["call_0"], session="changed", key="ann") == "a"
    assert sessions.keeper("r1", key="ann") == "a"


def test_ids_that_a_target_counts_anew_go_by_their_conversation() -> None:
    sessions = Sessions(SessionSettings())
    for session, name in (("s1", "a"), ("s2", "b")):
        sessions.record_answer(session, target=name, tokens=1, at=AT, tool_calls=("functions.f:0",))
    callers = [sessions.caller(["functions.f:0"], session=s, key=None) for s in ("s1", "s2")]
    assert callers == ["a", "b"]


@pytest.mark.parametrize("named", [None, "small"])
def test_a_response_of_another_key_is_refused(named: str | None) -> None:
    setup = set_up_decider()
    setup.sessions.record_answer(None, target="small", tokens=1, at=AT, response_id="r1", key="ann")
    fields: dict[str, Any] = {"endpoint": "responses", "previous_response_id": "r1", "named": named}
    assert refusal(lambda: setup.decide(None, **fields, key="bob")).code == "unknown_response"
    assert setup.decide(None, **fields, key="ann").target == "small"


def remember_answer(
    setup: DeciderSetup, name: str, *, tokens: int = 0, ago: float = 10.0, **fields: Any
) -> DeciderSetup:
    setup.sessions.record_answer(SESSION, target=name, tokens=tokens, at=AT - ago, **fields)
    return setup


TWO_TARGETS = (
    target("a", price=2.0, cached_input_price=0.2),
    target("b", price=2.0, cached_input_price=0.2),
)
# 100 output tokens at 8 dollars, and up to 1,000 of input at 2: from 0.0008 to 0.0028 dollars.
CACHE_SAVING = 800 * (2.0 - 0.2) / 1e6 / 0.002  # of 800 cached tokens, on the scale


@pytest.mark.parametrize("lam", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("margin", [0.0, 0.05])
@pytest.mark.parametrize(
    ("ago", "saved"), [(10.0, CACHE_SAVING), (300.0, CACHE_SAVING), (301.0, 0.0)]
)
def test_a_switch_must_gain_more_than_cache_and_margin(
    lam: float, margin: float, ago: float, saved: float
) -> None:
    # A switch pays where lam times what b is likelier gains more than what a's cache saves.
    needed = ((1 - lam) * saved + margin) / lam
    for extra, switches in ((-1e-6, False), (1e-6, True)):
        setup = set_up_decider(
            parts(*TWO_TARGETS), sessions={"margin": margin}, routing={"lam": lam}
        )
        remember_answer(setup, "a", tokens=800, ago=ago)
        forecast = build_forecast(0.1, 0.1 + needed + extra, tokens=1000)
        choice = setup.decide(forecast, session=SESSION)
        assert (choice.target == "b") is switches
        assert choice.policy_target == ("b" if needed + extra > 0 else "a")
        assert choice.reason == ("policy" if choice.target == choice.policy_target else "session")
        full = (1000 * 2 + 100 * 8) / 1e6
        assert choice.estimated_cost == pytest.approx({"a": full - saved * 0.002, "b": full})


def test_a_switch_must_be_worth_writing_the_other_cache() -> None:
    # 50,000 tokens of input and 100 of output; claude holds 49,000 of them.
    prices = {"serves": ("chat", "messages"), "cached_input_price": 0.3, "cache_write_price": 3.75}
    claude = target("claude", price=3.0, output_price=15.0, **prices)
    tenth = {**prices, "cached_input_price": 0.03, "cache_write_price": 0.375}
    haiku = target("haiku", price=0.3, output_price=1.5, **tenth)
    forecast = build_forecast(0.5, 0.5, tokens=50_000)
    size = {"text_bytes": 200_000, "scored_bytes": 200_000}
    fields = {"session": SESSION, "lam_asked": 0.5, **size}
    setup = remember_answer(set_up_decider(parts(claude, haiku)), "claude", tokens=49_000)
    choice = setup.decide(forecast, **fields, cache_mark="minutes")
    stays = (1_000 * 3.75 + 49_000 * 0.3 + 100 * 15) / 1e6  # 0.01995
    moves = (50_000 * 0.375 + 100 * 1.5) / 1e6  # 0.0189
    assert choice.estimated_cost == pytest.approx({"claude": stays, "haiku": moves})
    assert choice.target == "haiku"
    dearer = replace(haiku, cache_write_price=0.4)  # 0.02015
    dearer_setup = remember_answer(set_up_decider(parts(claude, dearer)), "claude", tokens=49_000)
    choice = dearer_setup.decide(forecast, **fields, cache_mark="minutes")
    assert (choice.target, choice.reason) == ("claude", "session")
    assert (
        dearer_setup.decide(forecast, **fields).target == "haiku"
    )  # 0.1515 against 0.01515: nothing cached


def test_a_switch_pays_over_the_requests_of_an_ask() -> None:
    other = target("b", price=1.0, cached_input_price=0.1)
    setup = remember_answer(set_up_decider(parts(TWO_TARGETS[0], other)), "a", tokens=1000)
    forecast = build_forecast(0.5, 0.5, tokens=1000)
    # In a's cache: 200 and 800 for each. In b's: 1,000 for the first, 100 for others, and 400.
    for requests, chosen in ((1, "a"), (3, "b")):
        agent = AgentRequest(agent="codex", expected_requests=requests)
        choice = setup.decide(forecast, session=SESSION, agent=agent)
        first_tokens = (1000 + 100 * (requests - 1)) / requests
        expected = {"a": 1000 / 1e6, "b": (first_tokens + 400) / 1e6}
        assert choice.estimated_cost == pytest.approx(expected)
        assert choice.target == chosen


def test_without_cached_prices_only_the_scores_count() -> None:
    plain = parts(target("a", price=2.0), target("b", price=2.0))
    setup = remember_answer(set_up_decider(plain), "a", tokens=800)
    assert setup.decide(build_forecast(0.5, 0.5), session=SESSION).target == "a"
    assert setup.decide(build_forecast(0.5, 0.5000001), session=SESSION).target == "b"


@pytest.mark.slow
@settings(deadline=None)
@given(st.permutations(["small", "middle", "large"]), st.floats(0, 1), st.floats(0, 1))
def test_equal_scores_keep_the_target(names: list[str], p: float, lam: float) -> None:
    alike = parts(*(target(name, price=2.0) for name in names))
    setup = remember_answer(set_up_decider(alike), "middle")
    assert setup.decide(build_forecast(p, p, p), session=SESSION, lam_asked=lam).target == "middle"


def test_within_a_persons_turn_an_agent_keeps_its_target() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "small")
    goes_on = {"session": SESSION, "agent": AgentRequest(agent="codex", is_ongoing=True)}
    choice = setup.decide(FORECAST, **goes_on)
    assert (choice.order, choice.reason) == (("small", "large", "middle"), "turn")
    assert choice.policy_target == "large"
    asks_anew = AgentRequest(agent="codex")
    assert setup.decide(FORECAST, session=SESSION, agent=asks_anew).reason == "policy"
    setup.open_breakers.add("small")
    assert setup.decide(FORECAST, **goes_on).target == "large"


def test_a_summary_moves_only_to_a_target_that_is_cheaper_uncached() -> None:
    summary = AgentRequest(agent="codex", kind="compaction", is_ongoing=True)
    forecast = build_forecast(0.5, 0.9, tokens=1000)
    for price, target_ in ((1.9, "a"), (0.3, "b")):
        other = target("b", price=price, cached_input_price=price / 10)
        setup = remember_answer(
            set_up_decider(parts(TWO_TARGETS[0], other), routing={"lam": 1.0}), "a", tokens=1000
        )
        assert setup.decide(forecast, session=SESSION, agent=summary).target == target_


def test_a_floor_moves_no_turn_and_no_share() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 0.0}), "small")
    goes_on = AgentRequest(agent="codex", is_ongoing=True)
    assert setup.decide(FORECAST, session=SESSION, agent=goes_on, floor=0.7).reason == "turn"
    assert (
        setup.decide(FORECAST, session=SESSION, agent=AgentRequest(agent="codex"), floor=0.7).target
        == "large"
    )
    shared = set_up_decider(traffic={"share": 0.0, "otherwise": "small"}, routing={"lam": 0.0})
    choice = shared.decide(FORECAST, floor=0.7)
    assert (choice.target, choice.reason) == ("small", "share")


def test_a_summary_by_another_target_moves_no_conversation() -> None:
    setup = remember_answer(set_up_decider(), "large")
    summary = setup.decide(FORECAST, session=SESSION, allow=frozenset({"small"}))
    setup.decider.record_outcome(summary, outcome("small"), cost=None, at=AT, moves=False)
    state = setup.sessions.last_state(SESSION)
    assert state is not None
    assert state.target == "large"
    setup.decider.record_outcome(summary, outcome("small"), cost=None, at=AT)
    assert setup.sessions.last_state(SESSION) != state


def test_state_that_only_its_target_can_read_binds_a_conversation() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "small", ago=10 * 24 * 3600.0)
    assert setup.decide(FORECAST, session=SESSION).reason == "policy"
    choice = setup.decide(FORECAST, session=SESSION, holds_state=True)
    assert (choice.order, choice.reason) == (("small", "large", "middle"), "state")
    assert setup.decide(FORECAST, session="9" * 32, holds_state=True).reason == "policy"


def test_other_policies_switch_where_their_winner_has_the_better_score() -> None:
    far = build_forecast(0.2, 0.6, 0.95)
    for policy, lam, winner, target_ in (
        (Argmax(), 1.0, "large", "large"),
        (Argmax(), 0.1, "large", "small"),  # by Equation 2 it is far too expensive
        (Tolerance(), 0.2, "small", "small"),
    ):
        setup = remember_answer(set_up_decider(parts(*THREE_TARGETS.pool, policy=policy)), "small")
        choice = setup.decide(far, session=SESSION, lam_asked=lam)
        assert (choice.policy_target, choice.target) == (winner, target_)


def test_the_first_turn_of_turns_alone_is_decided_afresh() -> None:
    setup = remember_answer(set_up_decider(parts(*TWO_TARGETS)), "a", tokens=800)
    forecast = build_forecast(0.5, 0.51, tokens=1000)
    assert setup.decide(forecast, session=SESSION).target == "a"
    assert setup.decide(forecast, session=SESSION, opening=True).target == "b"


def test_a_target_that_cant_answer_loses_its_conversation() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "small")
    setup.open_breakers.add("large")
    assert setup.decide(FORECAST, session=SESSION).target == "middle"
    setup = remember_answer(set_up_decider(sessions={"margin": 2.0}, routing={"lam": 1.0}), "small")
    assert setup.decide(FORECAST, session=SESSION).target == "small"
    assert setup.decide(FORECAST, session=SESSION, exclude=frozenset({"small"})).target == "large"
    remember_answer(setup, "gone")
    assert setup.decide(FORECAST, session=SESSION).target == "large"


def test_without_a_forecast_nothing_speaks_for_a_switch() -> None:
    setup = remember_answer(set_up_decider(routing={"fallback": "best"}), "small")
    choice = setup.decide("deadline", session=SESSION)
    assert (choice.order, choice.reason, choice.fallback) == (
        ("small", "large", "middle"),
        "session",
        "deadline",
    )
    assert setup.decide("deadline").target == "large"


def test_a_tool_loop_never_changes_its_target() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "small", tool_calls=("call",))
    setup.open_breakers.add("small")
    for changes in (
        {"session": SESSION},
        {"tool_call_ids": ("unknown", "call")},
        {"session": SESSION, "exclude": frozenset({"small"}), "max_cost": 0.0},
        {"session": SESSION, "allow": frozenset({"large"})},
        {"session": SESSION, "lam_asked": 1.0},
    ):
        fields = {"in_tool_loop": True, **changes}
        choice = setup.decide(FORECAST, **fields)
        assert (choice.order, choice.reason, choice.tool_loop) == (("small",), "tool_loop", True)
        assert not setup.decider.begin(build_question(**fields)).needs_forecast


def test_a_tool_loop_whose_target_cant_go_on_is_routed_afresh() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "gone", tool_calls=("call",))
    loop = {"in_tool_loop": True, "tool_call_ids": ("call",), "session": SESSION}
    choice = setup.decide(FORECAST, **loop)
    assert (choice.target, choice.reason, choice.tool_loop) == ("large", "policy", False)
    remember_answer(setup, "small", tool_calls=("call",))
    assert setup.decide(FORECAST, **loop, key_targets=frozenset({"large"})).target == "large"
    assert setup.decide(FORECAST, in_tool_loop=True, tool_call_ids=("other",)).target == "large"


def test_a_named_target_wins() -> None:
    setup = remember_answer(
        set_up_decider(traffic={"share": 0.0, "otherwise": "large"}), "small", tool_calls=("call",)
    )
    fields = {
        "named": "middle",
        "in_tool_loop": True,
        "session": SESSION,
        "needs": frozenset({"tools"}),
    }
    choice = setup.decide(None, **fields, exclude=frozenset({"middle"}))
    assert (choice.order, choice.reason, choice.lam, choice.lam_asked) == (
        ("middle",),
        "named",
        None,
        None,
    )
    assert choice.estimated_cost["middle"] > 0


def test_a_named_target_that_cant_be_used_says_why() -> None:
    setup = set_up_decider(parts(target("a", serves=("chat",)), target("b")))
    error = refusal(lambda: setup.decide(None, named="a", endpoint="responses"))
    assert (error.status, error.param) == (400, "model")
    assert "serves: [responses]" in str(error)
    error = refusal(lambda: setup.decide(None, named="a", key_targets=frozenset({"b"})))
    assert (error.status, error.code) == (403, "target_not_allowed")
    error = refusal(lambda: setup.decide(None, named="a", max_cost=1e-9))
    assert "raise the maximum cost" in str(error)
    error = refusal(lambda: setup.decide(None, named="gone"))
    assert (error.status, error.code) == (404, "model_not_found")


def test_a_stored_response_goes_to_who_keeps_it() -> None:
    setup = remember_answer(set_up_decider(routing={"lam": 1.0}), "small", response_id="resp_1")
    fields = {"endpoint": "responses", "previous_response_id": "resp_1"}
    choice = setup.decide(None, **fields)
    assert (choice.order, choice.reason) == (("small",), "stored")
    error = refusal(lambda: setup.decide(None, **fields, needs=frozenset({"images"})))
    assert (error.code, error.param) == ("response_lost", "previous_response_id")
    remember_answer(setup, "gone", response_id="resp_2")
    error = refusal(lambda: setup.decide(None, endpoint="responses", previous_response_id="resp_2"))
    assert "is no longer in the pool" in str(error)


def test_an_unknown_response_goes_to_the_only_one_that_may_keep_it() -> None:
    fields = {"endpoint": "responses", "previous_response_id": "resp_9"}
    error = refusal(lambda: set_up_decider().decide(None, **fields))
    assert (error.status, error.code) == (400, "unknown_response")
    setup = set_up_decider(parts(target("a", serves=("chat",)), target("b")))
    assert (setup.decide(None, **fields).order, setup.decide(None, **fields).reason) == (
        ("b",),
        "stored",
    )
    chat_only = set_up_decider(parts(target("a", serves=("chat",))))
    assert refusal(lambda: chat_only.decide(None, **fields)).code == "no_eligible_target"


def test_answers_are_remembered_as_they_ended() -> None:
    setup = set_up_decider(routing={"lam": 1.0})
    choice = setup.decide(FORECAST, session=SESSION)
    setup.decider.reserve(choice, key=None)
    for kind in ("failed", "cut", "refused"):
        setup.decider.record_outcome(choice, outcome("large", kind=kind), cost=None, at=AT)
    setup.decider.record_outcome(choice, outcome(None), cost=None, at=AT)
    assert len(setup.sessions) == 0
    answer = outcome("middle", tokens=(70, 30), tool_calls=("call",), response_id="resp_1")
    setup.decider.record_outcome(choice, answer, cost=None, at=AT)
    seat = setup.sessions.state(SESSION, AT)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("middle", 100)
    assert setup.sessions.caller(["call"], session=SESSION, key=None) == "middle"
    assert setup.sessions.keeper("resp_1", key=None) == "middle"
    answer = outcome("middle", response_id="chatcmpl-1")
    setup.decider.record_outcome(choice, answer, cost=None, at=AT, stored=False)
    assert setup.sessions.keeper("chatcmpl-1", key=None) is None
    setup.decider.record_outcome(
        choice, outcome("small", kind="disconnected"), cost=None, at=AT + 1
    )
    seat = setup.sessions.state(SESSION, AT)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("small", choice.input_tokens)


def test_a_share_of_conversations_is_routed() -> None:
    sessions = [f"{i:032x}" for i in range(0, 1 << 52, 1 << 46)]  # evenly over all names
    routed = {}
    for share in (0.0, 0.25, 1.0):
        setup = set_up_decider(traffic={"share": share, "otherwise": "small"}, routing={"lam": 1.0})
        choices = [setup.decide(FORECAST, session=session) for session in sessions]
        routed[share] = {c.session for c in choices if c.reason == "policy"}
        assert {c.target for c in choices if c.reason == "share"} <= {"small"}
        assert {c.policy_target for c in choices} == {"large"}
        assert len(routed[share]) == share * len(sessions)
        next_choices = [setup.decide(FORECAST, session=session) for session in sessions]
        assert [c.target for c in next_choices] == [c.target for c in choices]
    assert routed[0.25] < routed[1.0]


def test_without_a_conversation_each_request_stands_for_itself() -> None:
    half = TrafficSettings(share=0.5, otherwise="small")
    low, high = "pr_" + "0" * 32, "pr_" + "f" * 32
    assert is_routed(half, session=None, decision=low)
    assert not is_routed(half, session=None, decision=high)
    assert not is_routed(half, session="f" * 32, decision=low)


def test_the_rest_goes_to_the_router_where_its_target_cant_answer() -> None:
    setup = set_up_decider(traffic={"share": 0.0, "otherwise": "small"}, routing={"lam": 1.0})
    assert setup.decide(FORECAST).order == ("small", "large", "middle")
    setup.open_breakers.add("small")
    choice = setup.decide(FORECAST)
    assert (choice.target, choice.reason) == ("large", "policy")
    shadow = setup.decide("deadline", exclude=frozenset({"large"}))
    assert (shadow.target, shadow.reason) == ("middle", "fallback")


def test_a_target_that_was_only_told_holds_the_conversation_and_costs_nothing() -> None:
    setup = set_up_decider(sessions={"margin": 2.0}, budgets=({"dollars": 1, "per": "day"},))
    choice = setup.decide(FORECAST, session=SESSION, lam_asked=1.0, to_call=False)
    setup.decider.record_outcome(choice, outcome(None, kind="routed"), cost=None, at=AT)
    next_choice = setup.decide(FORECAST, session=SESSION, lam_asked=0.0, to_call=False)
    assert (choice.target, next_choice.target, next_choice.reason) == ("large", "large", "session")
    loop = setup.decide(
        None, session=SESSION, in_tool_loop=True, tool_call_ids=("x",), to_call=False
    )
    assert (loop.order, loop.reason) == (("large",), "tool_loop")
    assert [(s.spent, s.reserved) for s in setup.budgets.states(AT)] == [(0, 0)]
