"""Conversations: what names them, what is remembered, and when a switch pays."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    AT,
    THREE,
    World,
    ask,
    forecast,
    outcome,
    parts,
    target,
    world,
)
from packages.gateway.tests.decide.test_eligibility import refusal
from prefill_router.data import Message
from prefill_router.policy import Argmax, Tolerance
from prefill_router_gateway.decide import Sessions, session_name
from prefill_router_gateway.decide.affinity import is_routed
from prefill_router_gateway.records import AgentRequest
from prefill_router_gateway.settings import SessionSettings, TrafficSettings

S = "5" * 32
USER = (Message("user", "What is a tapir?"),)
P = forecast(0.2, 0.5, 0.9)


def name(known_by: Any = "conversation", **known: Any) -> str | None:
    given_ = {"header": None, "hint": None, "key_turns": USER, "key": None, **known}
    return session_name(SessionSettings(known_by=known_by), **given_)


def test_a_name_is_the_same_in_every_process() -> None:
    assert name(header="abc") == "edd926b758ae06f9083d3a2b0d63e834"
    assert name() == "09ce8767a0fc71a0942a76059ef1a348"


def test_names_differ_where_conversations_do() -> None:
    other = (Message("user", "What is an okapi?"),)
    system = (Message("system", "Be brief."), *USER)
    split = (Message("user", "What is"), Message("user", " a tapir?"))
    named = [
        name(),
        name(key_turns=other),
        name(key_turns=system),
        name(key_turns=split),
        name(hint="cache"),
        name(key="ann"),
        name(header="abc"),
        name(header="abd"),
        name(header="abc", key="ann"),
        name(header="\ud800"),
    ]
    assert len(set(named)) == len(named)
    assert all(isinstance(one, str) and len(one) == 32 for one in named)


def test_what_conversations_are_known_by() -> None:
    assert name(header="abc", key_turns=USER) == name(header="abc", key_turns=())
    assert name(header="abc", hint="h") == name(header="abc")
    assert name(key_turns=(), hint="h") is None
    assert name("header") is None
    assert name("header", header="abc") == name(header="abc")
    assert name("none", header="abc") is None


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
            (S, "a", 10, AT, ["x"], "r1", "ann", None),
            (S, "b", 20, AT + 1, [], None, "ann", None),
            (None, "a", 1, AT, ["y"], "r2", "ann", None),
        ]
    )
    seat = sessions.state(S, AT + 2)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("b", 20)
    assert [sessions.caller([c], session=S, key="ann") for c in "xyz"] == ["a", "a", None]
    assert [sessions.keeper(r, key="ann") for r in ("r1", "r2", "r3")] == ["a", "a", None]


def test_what_one_key_was_answered_steers_no_other() -> None:
    sessions = Sessions(SessionSettings())
    known = {"tool_calls": ["call_0"], "response_id": "r1"}
    sessions.record_answer("s1", target="a", tokens=1, at=AT, key="ann", **known)
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
    found = [sessions.caller(["functions.f:0"], session=s, key=None) for s in ("s1", "s2")]
    assert found == ["a", "b"]


@pytest.mark.parametrize("named", [None, "small"])
def test_a_response_of_another_key_is_refused(named: str | None) -> None:
    here = world()
    here.sessions.record_answer(None, target="small", tokens=1, at=AT, response_id="r1", key="ann")
    asked: dict[str, Any] = {"endpoint": "responses", "previous_response_id": "r1", "named": named}
    assert refusal(lambda: here.decide(None, **asked, key="bob")).code == "unknown_response"
    assert here.decide(None, **asked, key="ann").target == "small"


def sat(here: World, name: str, *, tokens: int = 0, ago: float = 10.0, **known: Any) -> World:
    here.sessions.record_answer(S, target=name, tokens=tokens, at=AT - ago, **known)
    return here


TWO = (
    target("a", price=2.0, cached_input_price=0.2),
    target("b", price=2.0, cached_input_price=0.2),
)
# 100 output tokens at 8 dollars, and up to 1,000 of input at 2: from 0.0008 to 0.0028 dollars.
SAVED = 800 * (2.0 - 0.2) / 1e6 / 0.002  # of 800 cached tokens, on the scale


@pytest.mark.parametrize("lam", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("margin", [0.0, 0.05])
@pytest.mark.parametrize(("ago", "saved"), [(10.0, SAVED), (300.0, SAVED), (301.0, 0.0)])
def test_a_switch_must_gain_more_than_cache_and_margin(
    lam: float, margin: float, ago: float, saved: float
) -> None:
    # A switch pays where lam times what b is likelier gains more than what a's cache saves.
    needed = ((1 - lam) * saved + margin) / lam
    for extra, switches in ((-1e-6, False), (1e-6, True)):
        here = world(parts(*TWO), sessions={"margin": margin}, routing={"lam": lam})
        sat(here, "a", tokens=800, ago=ago)
        told = forecast(0.1, 0.1 + needed + extra, tokens=1000)
        got = here.decide(told, session=S)
        assert (got.target == "b") is switches
        assert got.policy_target == ("b" if needed + extra > 0 else "a")
        assert got.reason == ("policy" if got.target == got.policy_target else "session")
        full = (1000 * 2 + 100 * 8) / 1e6
        assert got.estimated_cost == pytest.approx({"a": full - saved * 0.002, "b": full})


def test_a_switch_must_be_worth_writing_the_other_cache() -> None:
    # 50,000 tokens of input and 100 of output; claude holds 49,000 of them.
    marked = {"serves": ("chat", "messages"), "cached_input_price": 0.3, "cache_write_price": 3.75}
    claude = target("claude", price=3.0, output_price=15.0, **marked)
    tenth = {**marked, "cached_input_price": 0.03, "cache_write_price": 0.375}
    haiku = target("haiku", price=0.3, output_price=1.5, **tenth)
    said = forecast(0.5, 0.5, tokens=50_000)
    size = {"text_bytes": 200_000, "scored_bytes": 200_000}
    asked = {"session": S, "lam_asked": 0.5, **size}
    here = sat(world(parts(claude, haiku)), "claude", tokens=49_000)
    got = here.decide(said, **asked, cache_mark="minutes")
    stays = (1_000 * 3.75 + 49_000 * 0.3 + 100 * 15) / 1e6  # 0.01995
    moves = (50_000 * 0.375 + 100 * 1.5) / 1e6  # 0.0189
    assert got.estimated_cost == pytest.approx({"claude": stays, "haiku": moves})
    assert got.target == "haiku"
    dearer = replace(haiku, cache_write_price=0.4)  # 0.02015
    there = sat(world(parts(claude, dearer)), "claude", tokens=49_000)
    got = there.decide(said, **asked, cache_mark="minutes")
    assert (got.target, got.reason) == ("claude", "session")
    assert there.decide(said, **asked).target == "haiku"  # 0.1515 against 0.01515: nothing cached


def test_a_switch_pays_over_the_requests_of_an_ask() -> None:
    there = target("b", price=1.0, cached_input_price=0.1)
    here = sat(world(parts(TWO[0], there)), "a", tokens=1000)
    said = forecast(0.5, 0.5, tokens=1000)
    # In a's cache: 200 and 800 for each. In b's: 1,000 for the first, 100 for others, and 400.
    for requests, chosen in ((1, "a"), (3, "b")):
        agent = AgentRequest(agent="codex", expected_requests=requests)
        got = here.decide(said, session=S, agent=agent)
        written = (1000 + 100 * (requests - 1)) / requests
        expected = {"a": 1000 / 1e6, "b": (written + 400) / 1e6}
        assert got.estimated_cost == pytest.approx(expected)
        assert got.target == chosen


def test_without_cached_prices_only_the_scores_count() -> None:
    plain = parts(target("a", price=2.0), target("b", price=2.0))
    here = sat(world(plain), "a", tokens=800)
    assert here.decide(forecast(0.5, 0.5), session=S).target == "a"
    assert here.decide(forecast(0.5, 0.5000001), session=S).target == "b"


@pytest.mark.slow
@settings(deadline=None)
@given(st.permutations(["small", "middle", "large"]), st.floats(0, 1), st.floats(0, 1))
def test_equal_scores_keep_the_target(names: list[str], p: float, lam: float) -> None:
    alike = parts(*(target(name, price=2.0) for name in names))
    here = sat(world(alike), "middle")
    assert here.decide(forecast(p, p, p), session=S, lam_asked=lam).target == "middle"


def test_within_a_persons_turn_an_agent_keeps_its_target() -> None:
    here = sat(world(routing={"lam": 1.0}), "small")
    goes_on = {"session": S, "agent": AgentRequest(agent="codex", is_ongoing=True)}
    got = here.decide(P, **goes_on)
    assert (got.order, got.reason) == (("small", "large", "middle"), "turn")
    assert got.policy_target == "large"
    asks_anew = AgentRequest(agent="codex")
    assert here.decide(P, session=S, agent=asks_anew).reason == "policy"
    here.open_breakers.add("small")
    assert here.decide(P, **goes_on).target == "large"


def test_a_summary_moves_only_to_a_target_that_is_cheaper_uncached() -> None:
    summary = AgentRequest(agent="codex", kind="compaction", is_ongoing=True)
    told = forecast(0.5, 0.9, tokens=1000)
    for price, target_ in ((1.9, "a"), (0.3, "b")):
        there = target("b", price=price, cached_input_price=price / 10)
        here = sat(world(parts(TWO[0], there), routing={"lam": 1.0}), "a", tokens=1000)
        assert here.decide(told, session=S, agent=summary).target == target_


def test_a_floor_moves_no_turn_and_no_share() -> None:
    here = sat(world(routing={"lam": 0.0}), "small")
    goes_on = AgentRequest(agent="codex", is_ongoing=True)
    assert here.decide(P, session=S, agent=goes_on, floor=0.7).reason == "turn"
    assert here.decide(P, session=S, agent=AgentRequest(agent="codex"), floor=0.7).target == "large"
    shared = world(traffic={"share": 0.0, "otherwise": "small"}, routing={"lam": 0.0})
    got = shared.decide(P, floor=0.7)
    assert (got.target, got.reason) == ("small", "share")


def test_a_summary_by_another_target_moves_no_conversation() -> None:
    here = sat(world(), "large")
    summary = here.decide(P, session=S, allow=frozenset({"small"}))
    here.decider.record_outcome(summary, outcome("small"), cost=None, at=AT, moves=False)
    state = here.sessions.last_state(S)
    assert state is not None
    assert state.target == "large"
    here.decider.record_outcome(summary, outcome("small"), cost=None, at=AT)
    assert here.sessions.last_state(S) != state


def test_state_that_only_its_target_can_read_binds_a_conversation() -> None:
    here = sat(world(routing={"lam": 1.0}), "small", ago=10 * 24 * 3600.0)
    assert here.decide(P, session=S).reason == "policy"
    got = here.decide(P, session=S, holds_state=True)
    assert (got.order, got.reason) == (("small", "large", "middle"), "state")
    assert here.decide(P, session="9" * 32, holds_state=True).reason == "policy"


def test_other_policies_switch_where_their_winner_has_the_better_score() -> None:
    far = forecast(0.2, 0.6, 0.95)
    for policy, lam, winner, target_ in (
        (Argmax(), 1.0, "large", "large"),
        (Argmax(), 0.1, "large", "small"),  # by Equation 2 it is far too dear
        (Tolerance(), 0.2, "small", "small"),
    ):
        here = sat(world(parts(*THREE.pool, policy=policy)), "small")
        got = here.decide(far, session=S, lam_asked=lam)
        assert (got.policy_target, got.target) == (winner, target_)


def test_the_first_turn_of_turns_alone_is_decided_afresh() -> None:
    here = sat(world(parts(*TWO)), "a", tokens=800)
    told = forecast(0.5, 0.51, tokens=1000)
    assert here.decide(told, session=S).target == "a"
    assert here.decide(told, session=S, opening=True).target == "b"


def test_a_target_that_cant_answer_loses_its_conversation() -> None:
    here = sat(world(routing={"lam": 1.0}), "small")
    here.open_breakers.add("large")
    assert here.decide(P, session=S).target == "middle"
    here = sat(world(sessions={"margin": 2.0}, routing={"lam": 1.0}), "small")
    assert here.decide(P, session=S).target == "small"
    assert here.decide(P, session=S, exclude=frozenset({"small"})).target == "large"
    sat(here, "gone")
    assert here.decide(P, session=S).target == "large"


def test_without_a_forecast_nothing_speaks_for_a_switch() -> None:
    here = sat(world(routing={"fallback": "best"}), "small")
    got = here.decide("deadline", session=S)
    assert (got.order, got.reason, got.fallback) == (
        ("small", "large", "middle"),
        "session",
        "deadline",
    )
    assert here.decide("deadline").target == "large"


def test_a_tool_loop_never_changes_its_target() -> None:
    here = sat(world(routing={"lam": 1.0}), "small", tool_calls=("call",))
    here.open_breakers.add("small")
    for known in (
        {"session": S},
        {"tool_call_ids": ("unknown", "call")},
        {"session": S, "exclude": frozenset({"small"}), "max_cost": 0.0},
        {"session": S, "allow": frozenset({"large"})},
        {"session": S, "lam_asked": 1.0},
    ):
        asked = {"in_tool_loop": True, **known}
        got = here.decide(P, **asked)
        assert (got.order, got.reason, got.tool_loop) == (("small",), "tool_loop", True)
        assert not here.decider.begin(ask(**asked)).needs_forecast


def test_a_tool_loop_whose_target_cant_go_on_is_routed_afresh() -> None:
    here = sat(world(routing={"lam": 1.0}), "gone", tool_calls=("call",))
    loop = {"in_tool_loop": True, "tool_call_ids": ("call",), "session": S}
    got = here.decide(P, **loop)
    assert (got.target, got.reason, got.tool_loop) == ("large", "policy", False)
    sat(here, "small", tool_calls=("call",))
    assert here.decide(P, **loop, key_targets=frozenset({"large"})).target == "large"
    assert here.decide(P, in_tool_loop=True, tool_call_ids=("other",)).target == "large"


def test_a_named_target_wins() -> None:
    here = sat(world(traffic={"share": 0.0, "otherwise": "large"}), "small", tool_calls=("call",))
    asked = {"named": "middle", "in_tool_loop": True, "session": S, "needs": frozenset({"tools"})}
    got = here.decide(None, **asked, exclude=frozenset({"middle"}))
    assert (got.order, got.reason, got.lam, got.lam_asked) == (("middle",), "named", None, None)
    assert got.estimated_cost["middle"] > 0


def test_a_named_target_that_cant_be_used_says_why() -> None:
    here = world(parts(target("a", serves=("chat",)), target("b")))
    error = refusal(lambda: here.decide(None, named="a", endpoint="responses"))
    assert (error.status, error.param) == (400, "model")
    assert "serves: [responses]" in str(error)
    error = refusal(lambda: here.decide(None, named="a", key_targets=frozenset({"b"})))
    assert (error.status, error.code) == (403, "target_not_allowed")
    error = refusal(lambda: here.decide(None, named="a", max_cost=1e-9))
    assert "raise the maximum cost" in str(error)
    error = refusal(lambda: here.decide(None, named="gone"))
    assert (error.status, error.code) == (404, "model_not_found")


def test_a_stored_response_goes_to_who_keeps_it() -> None:
    here = sat(world(routing={"lam": 1.0}), "small", response_id="resp_1")
    asked = {"endpoint": "responses", "previous_response_id": "resp_1"}
    got = here.decide(None, **asked)
    assert (got.order, got.reason) == (("small",), "stored")
    error = refusal(lambda: here.decide(None, **asked, needs=frozenset({"images"})))
    assert (error.code, error.param) == ("response_lost", "previous_response_id")
    sat(here, "gone", response_id="resp_2")
    error = refusal(lambda: here.decide(None, endpoint="responses", previous_response_id="resp_2"))
    assert "is no longer in the pool" in str(error)


def test_an_unknown_response_goes_to_the_only_one_that_may_keep_it() -> None:
    asked = {"endpoint": "responses", "previous_response_id": "resp_9"}
    error = refusal(lambda: world().decide(None, **asked))
    assert (error.status, error.code) == (400, "unknown_response")
    one = world(parts(target("a", serves=("chat",)), target("b")))
    assert (one.decide(None, **asked).order, one.decide(None, **asked).reason) == (("b",), "stored")
    none = world(parts(target("a", serves=("chat",))))
    assert refusal(lambda: none.decide(None, **asked)).code == "no_eligible_target"


def test_answers_are_remembered_as_they_ended() -> None:
    here = world(routing={"lam": 1.0})
    choice = here.decide(P, session=S)
    here.decider.reserve(choice, key=None)
    for kind in ("failed", "cut", "refused"):
        here.decider.record_outcome(choice, outcome("large", kind=kind), cost=None, at=AT)
    here.decider.record_outcome(choice, outcome(None), cost=None, at=AT)
    assert len(here.sessions) == 0
    ended = outcome("middle", tokens=(70, 30), tool_calls=("call",), response_id="resp_1")
    here.decider.record_outcome(choice, ended, cost=None, at=AT)
    seat = here.sessions.state(S, AT)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("middle", 100)
    assert here.sessions.caller(["call"], session=S, key=None) == "middle"
    assert here.sessions.keeper("resp_1", key=None) == "middle"
    ended = outcome("middle", response_id="chatcmpl-1")
    here.decider.record_outcome(choice, ended, cost=None, at=AT, stored=False)
    assert here.sessions.keeper("chatcmpl-1", key=None) is None
    here.decider.record_outcome(choice, outcome("small", kind="disconnected"), cost=None, at=AT + 1)
    seat = here.sessions.state(S, AT)
    assert seat is not None
    assert (seat.target, seat.tokens) == ("small", choice.input_tokens)


def test_a_share_of_conversations_is_routed() -> None:
    sessions = [f"{i:032x}" for i in range(0, 1 << 52, 1 << 46)]  # evenly over all names
    routed = {}
    for share in (0.0, 0.25, 1.0):
        here = world(traffic={"share": share, "otherwise": "small"}, routing={"lam": 1.0})
        got = [here.decide(P, session=session) for session in sessions]
        routed[share] = {c.session for c in got if c.reason == "policy"}
        assert {c.target for c in got if c.reason == "share"} <= {"small"}
        assert {c.policy_target for c in got} == {"large"}
        assert len(routed[share]) == share * len(sessions)
        again = [here.decide(P, session=session) for session in sessions]
        assert [c.target for c in again] == [c.target for c in got]
    assert routed[0.25] < routed[1.0]


def test_without_a_conversation_each_request_stands_for_itself() -> None:
    half = TrafficSettings(share=0.5, otherwise="small")
    low, high = "pr_" + "0" * 32, "pr_" + "f" * 32
    assert is_routed(half, session=None, decision=low)
    assert not is_routed(half, session=None, decision=high)
    assert not is_routed(half, session="f" * 32, decision=low)


def test_the_rest_goes_to_the_router_where_its_target_cant_answer() -> None:
    here = world(traffic={"share": 0.0, "otherwise": "small"}, routing={"lam": 1.0})
    assert here.decide(P).order == ("small", "large", "middle")
    here.open_breakers.add("small")
    got = here.decide(P)
    assert (got.target, got.reason) == ("large", "policy")
    shadow = here.decide("deadline", exclude=frozenset({"large"}))
    assert (shadow.target, shadow.reason) == ("middle", "fallback")


def test_a_target_that_was_only_told_holds_the_conversation_and_costs_nothing() -> None:
    here = world(sessions={"margin": 2.0}, budgets=({"dollars": 1, "per": "day"},))
    told = here.decide(P, session=S, lam_asked=1.0, to_call=False)
    here.decider.record_outcome(told, outcome(None, kind="routed"), cost=None, at=AT)
    again = here.decide(P, session=S, lam_asked=0.0, to_call=False)
    assert (told.target, again.target, again.reason) == ("large", "large", "session")
    loop = here.decide(None, session=S, in_tool_loop=True, tool_call_ids=("x",), to_call=False)
    assert (loop.order, loop.reason) == (("large",), "tool_loop")
    assert [(s.spent, s.reserved) for s in here.budgets.states(AT)] == [(0, 0)]
