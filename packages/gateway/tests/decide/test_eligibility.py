"""Which targets may answer, and which error the client gets where none may."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    THREE_TARGETS,
    build_forecast,
    build_question,
    parts,
    set_up_decider,
    target,
)
from prefill_router.targets import ABILITIES, ENDPOINTS, Target
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import Decider
from prefill_router_gateway.decide.candidates import RESERVE_TOKENS
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.records import RoutingDecision

pytestmark = pytest.mark.slow

FORECAST = build_forecast(0.2, 0.5, 0.9)


def refusal(act: Callable[[], Any]) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        act()
    return caught.value


def test_who_lacks_an_ability_is_left_out() -> None:
    setup = set_up_decider(
        parts(target("a", accepts=("tools", "images")), target("b", accepts=("tools",)))
    )
    choice = setup.decide(build_forecast(0.1, 0.9), needs=frozenset({"tools", "images"}))
    assert choice.order == ("a",)
    assert choice.excluded == {"b": "doesn't accept images"}


def test_nobody_with_the_ability_says_what_would_do() -> None:
    error = refusal(lambda: set_up_decider().decide(FORECAST, needs=frozenset({"images"})))
    assert (error.status, error.code) == (400, "no_eligible_target")
    assert "middle (doesn't accept images)" in str(error)
    assert "say so in the pool file: accepts: [images]" in str(error)


def test_too_long_a_request_is_refused_in_the_words_that_clients_look_for() -> None:
    small, large = target("a", context_tokens=500), target("b", context_tokens=600)
    setup = set_up_decider(parts(small, large, target("c", serves=("embeddings",))))
    error = refusal(lambda: setup.decide(None, text_bytes=40_000))
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert re.match(r"prompt is too long: \d{4,} tokens > 600 maximum\. ", str(error))
    lone = set_up_decider(parts(small, target("far", base_url=None)))
    fields = {"text_bytes": 40_000, "needs": frozenset({"audio"})}
    assert refusal(lambda: lone.decide(None, **fields)).code == "no_eligible_target"


def test_each_reason_is_told_with_what_would_do() -> None:
    setup = set_up_decider(
        parts(
            target("short", context_tokens=100),
            target("other", serves=("responses",)),
            target("blind", accepts=()),
            target("mine", accepts=("images",)),
            target("lost", base_url=None),
            target("dear", price=1000.0, accepts=("images",)),
            target("locked"),
        )
    )
    error = refusal(
        lambda: setup.decide(
            None,
            needs=frozenset({"images"}),
            exclude=frozenset({"mine"}),
            max_cost=0.01,
            key_targets=frozenset({"short", "other", "blind", "mine", "lost", "dear"}),
        )
    )
    for remedy in (
        "exclude fewer",
        "serves: [chat]",
        "accepts: [images]",
        "raise the maximum cost",
    ):
        assert remedy in str(error)
    assert "lost (has no endpoint): give it a base_url" in str(error)
    assert "locked" not in str(error)


def test_what_fits_counts_the_whole_request_and_its_answer() -> None:
    setup = set_up_decider(parts(target("short", context_tokens=1000), target("long")))

    def fits(tokens: int, most: int | None) -> bool:
        choice = setup.decide(
            build_forecast(0.9, 0.1, tokens=tokens), lam_asked=1.0, max_tokens=most
        )
        return "short" in choice.order

    assert fits(900, 100)
    assert not fits(900, 101)
    assert fits(1000 - RESERVE_TOKENS, None)
    assert not fits(1001 - RESERVE_TOKENS, None)
    longer = setup.decide(build_forecast(0.9, 0.1, tokens=400), text_bytes=1200, scored_bytes=400)
    assert longer.excluded == {"short": "its context has 1000 tokens, about 1456 are needed"}


def test_a_request_too_long_for_all_says_so() -> None:
    setup = set_up_decider(parts(target("a", context_tokens=500), target("b", context_tokens=600)))
    error = refusal(lambda: setup.decide(None, text_bytes=4000))
    assert "send a shorter request, or lower the maximum number of output" in str(error)


def test_headers_and_keys_narrow_the_choice() -> None:
    setup = set_up_decider(routing={"lam": 1.0})
    assert setup.decide(FORECAST).order == ("large", "middle", "small")
    assert setup.decide(FORECAST, exclude=frozenset({"large"})).order == ("middle", "small")
    assert setup.decide(FORECAST, allow=frozenset({"small"})).order == ("small",)
    assert setup.decide(FORECAST, key_targets=frozenset({"small", "middle"})).target == "middle"
    error = refusal(
        lambda: setup.decide(FORECAST, allow=frozenset({"small"}), exclude=frozenset({"small"}))
    )
    assert "allow more targets, or exclude fewer" in str(error)


def test_a_key_without_targets_is_told_no_names() -> None:
    error = refusal(lambda: set_up_decider().decide(FORECAST, key_targets=frozenset({"elsewhere"})))
    assert (error.status, error.kind) == (403, "permission_error")
    assert "large" not in str(error)


def test_a_maximum_cost_leaves_out_what_is_dearer() -> None:
    setup = set_up_decider(routing={"lam": 1.0})
    choice = setup.decide(FORECAST, max_cost=0.001)
    assert choice.order == ("middle", "small")
    assert choice.excluded == {"large": "about $0.00250, above $0.001"}
    assert choice.estimated_cost["middle"] <= 0.001 < choice.estimated_cost["large"]


def test_a_maximum_cost_holds_for_nine_answers_of_ten() -> None:
    """Not for the mean alone. Which targets may answer depends on the forecast."""
    setup = set_up_decider(routing={"lam": 1.0})
    expected = replace(FORECAST, output=np.full(3, 50.0), output_high=np.array([50.0, 300.0, 60.0]))
    choice = setup.decide(expected, max_cost=0.001)
    assert choice.order == ("small",)
    assert choice.estimated_cost["middle"] == pytest.approx((100 + 4 * 50) / 1e6)
    assert choice.excluded["middle"] == "about $0.00130, above $0.001"
    assert setup.decide(expected, max_cost=0.0018).order == ("large", "middle", "small")
    assert setup.decider.begin(build_question(max_cost=0.0002)).needs_forecast


def test_what_is_expected_of_an_answer_is_bounded_by_the_request() -> None:
    expected = replace(FORECAST, output=np.full(3, 500.0), output_high=np.full(3, 900.0))
    choice = set_up_decider().decide(expected, max_tokens=20)
    assert choice.estimated_cost["large"] == pytest.approx((5 * 100 + 20 * 20) / 1e6)
    assert choice.high_cost == choice.estimated_cost[choice.target]


def test_an_open_breaker_leaves_out_but_never_everybody() -> None:
    setup = set_up_decider(routing={"lam": 1.0})
    setup.open_breakers |= {"large"}
    choice = setup.decide(FORECAST)
    assert (choice.order, choice.excluded) == (("middle", "small"), {"large": "breaker open"})
    setup.open_breakers |= {"middle", "small"}
    choice = setup.decide(FORECAST)
    assert (choice.order, choice.excluded) == (("large", "middle", "small"), {})


def test_a_decision_alone_needs_no_endpoints() -> None:
    setup = set_up_decider(parts(target("a", base_url=None), target("b", base_url=None)))
    assert setup.decide(build_forecast(0.5, 0.9), lam_asked=1.0, to_call=False).target == "b"
    error = refusal(lambda: setup.decide(build_forecast(0.5, 0.9)))
    assert "has no endpoint" in str(error)


def test_embeddings_are_never_routed() -> None:
    setup = set_up_decider(parts(target("a"), target("b"), target("c", serves=("chat",))))
    error = refusal(lambda: setup.decide(None, endpoint="embeddings"))
    assert (error.code, error.param) == ("target_needed", "model")
    assert "['a', 'b']" in str(error)
    assert setup.decide(None, endpoint="embeddings", exclude=frozenset({"a"})).order == ("b",)
    assert setup.decide(None, endpoint="embeddings", named="a").order == ("a",)


def test_one_that_is_left_needs_no_forecast() -> None:
    setup = set_up_decider()
    only = {"allow": frozenset({"middle"})}
    assert not setup.decider.begin(build_question(**only)).needs_forecast
    choice = setup.decide(None, **only)
    assert (choice.order, choice.reason, choice.fallback) == (("middle",), "policy", None)
    assert setup.decider.begin(build_question()).needs_forecast
    setup.open_breakers |= {"large", "middle"}  # they may be tried again in a moment
    assert setup.decider.begin(build_question()).needs_forecast


def test_a_forecast_that_should_have_been_asked_for_is_a_fallback() -> None:
    assert set_up_decider().decide(None).fallback == "no_text"


names = st.sampled_from(["a", "b", "c", "d"])

target_options = st.fixed_dictionaries(
    {
        "price": st.sampled_from([0.1, 1.0, 5.0]),
        "accepts": st.sampled_from([(), ("tools",), ABILITIES]),
        "context_tokens": st.sampled_from([None, 300, 1000]),
        "serves": st.sampled_from([None, ("chat",), ("responses", "messages")]),
    }
)
questions = st.fixed_dictionaries(
    {
        "endpoint": st.sampled_from(["chat", "chat", "chat", *ENDPOINTS]),
        "text_bytes": st.integers(0, 8000),
        "needs": st.sets(st.sampled_from(ABILITIES), max_size=2).map(frozenset),
        "max_tokens": st.sampled_from([None, 10, 500]),
        "session": st.sampled_from([None, "0" * 32]),
        "in_tool_loop": st.booleans(),
        "tool_call_ids": st.sampled_from([(), ("call",)]),
        "lam_asked": st.sampled_from([None, 0.0, 1.0]),
        "max_cost": st.sampled_from([None, 0.0005]),
        "allow": st.sampled_from([None, frozenset({"a", "b"})]),
        "exclude": st.sampled_from([frozenset[str](), frozenset({"b", "c"})]),
        "key_targets": st.sampled_from([None, None, frozenset({"a", "c", "d"})]),
    }
)
forecasts = st.sampled_from(
    ["deadline", build_forecast(0.9, 0.6, 0.3, 0.1), build_forecast(0.1, 0.2, 0.7, 0.9)]
)


def can_answer(
    question: RoutingRequest, candidate: Target, decider_pool: Any, *, caller: str | None = None
) -> bool:
    """Whether a target can answer; one that called tools also takes their results."""
    called = question.in_tool_loop and candidate.name == caller
    needs = question.needs - {"tools"} if called else question.needs
    return (
        question.endpoint in decider_pool.serves(candidate.name)
        and needs <= set(candidate.accepts)
        and (question.key_targets is None or candidate.name in question.key_targets)
    )


def fits_context(choice: RoutingDecision, question: RoutingRequest, candidate: Target) -> bool:
    output_tokens = RESERVE_TOKENS if question.max_tokens is None else question.max_tokens
    output_tokens = 0 if question.endpoint == "embeddings" else output_tokens
    return (
        candidate.context_tokens is None
        or choice.input_tokens + output_tokens <= candidate.context_tokens
    )


def is_allowed(question: RoutingRequest, candidate: Target) -> bool:
    allowed = question.allow is None or candidate.name in question.allow
    return allowed and candidate.name not in question.exclude


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(*[target_options] * 4), questions, forecasts, st.sampled_from([None, "a", "c"]), names
)
def test_whoever_cant_answer_is_never_chosen(
    rows: Any, fields: Any, forecast: Any, remembered: str | None, otherwise: str
) -> None:
    pool = [target(name, **options) for name, options in zip("abcd", rows, strict=True)]
    router, question = parts(*pool), build_question(**fields)
    setup = set_up_decider(router, traffic={"share": 0.5, "otherwise": otherwise})
    if remembered is not None:
        setup.sessions.record_answer(
            "0" * 32, target=remembered, tokens=50, at=question.at, tool_calls=("call",)
        )
    decider: Decider = setup.decider
    forecast = forecast if decider.begin(question).needs_forecast else None
    if not any(
        can_answer(question, candidate, router.pool, caller=remembered) for candidate in pool
    ):
        error = refusal(lambda: decider.decide(question, forecast))
        assert error.code in ("no_eligible_target", "context_length_exceeded")
        return
    try:
        choice = decider.decide(question, forecast)
    except RefusalError:  # what fits and what it may cost, or embeddings
        return
    for name in choice.order:
        assert can_answer(question, router.pool[name], router.pool, caller=remembered)
        assert fits_context(choice, question, router.pool[name])
        assert name not in choice.excluded
        if choice.reason != "tool_loop":
            assert is_allowed(question, router.pool[name])
            assert choice.estimated_cost[name] <= (question.max_cost or 1)
    assert choice.fallback in (None, forecast)
    assert len(set(choice.order)) == len(choice.order)
    if choice.reason != "tool_loop":
        assert set(choice.order) | set(choice.excluded) == {candidate.name for candidate in pool}


def test_the_property_sees_the_pool_it_should() -> None:
    assert not can_answer(
        build_question(needs=frozenset({"images"})), THREE_TARGETS.pool["small"], THREE_TARGETS.pool
    )
    assert can_answer(build_question(), THREE_TARGETS.pool["small"], THREE_TARGETS.pool)
