"""The free choice: the policy's order, the fallbacks, the costs and the names of decisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    AT,
    THREE_TARGETS,
    Parts,
    build_forecast,
    build_question,
    estimator,
    parts,
    set_up_decider,
    target,
)
from prefill_router.cost import CostEstimator
from prefill_router.errors import ConfigError
from prefill_router.policy import Argmax, Cascade, Lambda, Policy, Threshold, Tiered, Tolerance
from prefill_router.router.decision import decide
from prefill_router.targets import Pool
from prefill_router_gateway.decide import decision_id
from prefill_router_gateway.decide.affinity import share_of
from prefill_router_gateway.decide.candidates import RequestCosts, request_tokens
from prefill_router_gateway.decide.selection import policy_order
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.records import AgentRequest

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "d")
POLICIES: tuple[Policy, ...] = (
    Lambda(),
    Argmax(),
    Tolerance(),
    Threshold(strong="d", weak="a"),
    Tiered(tiers=(("a", "b"), ("c", "d"))),
    Tiered(count=2),
)
coarse = st.integers(0, 4).map(lambda n: n / 4)
unit = st.one_of(st.floats(0, 1), coarse)
four_scores = st.tuples(unit, unit, unit, unit)
four_prices = st.tuples(*[st.one_of(st.floats(0.01, 9), st.sampled_from([0.0, 1.0, 2.0]))] * 4)
target_places = st.sets(st.integers(0, 3), min_size=1).map(sorted)


def router(price: tuple[float, ...], policy: Policy) -> Parts:
    return parts(*(target(n, price=x) for n, x in zip(NAMES, price, strict=True)), policy=policy)


@given(four_scores, four_prices, unit, st.sampled_from(POLICIES), st.integers(1, 5000))
@settings(deadline=None)
def test_the_order_is_that_of_the_router_itself(
    p: tuple[float, ...], price: tuple[float, ...], lam: float, policy: Policy, tokens: int
) -> None:
    router_parts = router(price, policy)
    choice = set_up_decider(router_parts).decide(build_forecast(*p, tokens=tokens), lam_asked=lam)
    expected = decide(
        NAMES,
        np.array(p),
        router_parts.costs.estimate(np.array([tokens]))[0],
        router_parts.costs.scale,
        policy=policy,
        lam=lam,
        input_tokens=tokens,
        truncated=False,
    )
    assert choice.order == expected.order
    assert choice.policy_target == expected.target
    assert dict(choice.correctness) == dict(expected.correctness)
    assert dict(choice.estimated_cost) == dict(expected.estimated_cost)
    assert (choice.reason, choice.lam, choice.lam_asked) == ("policy", lam, lam)
    assert choice.input_tokens == tokens


@settings(deadline=None)
@given(four_scores, four_scores, unit, st.sampled_from(POLICIES), target_places)
def test_among_some_the_order_is_that_of_a_router_of_these(
    p: tuple[float, ...], cost: tuple[float, ...], lam: float, policy: Policy, among: list[int]
) -> None:
    order = policy_order(policy, np.array(p), np.array(cost), lam, names=NAMES, among=among)
    assert sorted(order) == among
    targets = tuple(NAMES[k] for k in among)
    try:
        expected = policy.order(
            np.array([p])[:, among], np.array([cost])[:, among], lam, targets=targets
        )
    except ConfigError:  # the policy names a target that may not answer: it is passed over
        everyone = policy.order(np.array([p]), np.array([cost]), lam, targets=NAMES)[0].tolist()
        assert order == [k for k in everyone if k in among]
    else:
        assert order == [among[k] for k in expected[0].tolist()]


@settings(deadline=None)
@given(four_scores, four_scores, st.integers(-3, 3))
def test_where_two_scores_cross_rounding_decides_as_in_the_router(
    p: tuple[float, ...], cost: tuple[float, ...], steps: int
) -> None:
    gain, extra = p[1] - p[0], cost[1] - cost[0]
    lam = extra / (gain + extra) if gain + extra else 0.5
    for _ in range(abs(steps)):
        lam = float(np.nextafter(lam, np.sign(steps)))
    lam = min(1.0, max(0.0, lam))
    order = policy_order(Lambda(), np.array(p), np.array(cost), lam, names=NAMES, among=range(4))
    assert order == Lambda().order(np.array([p]), np.array([cost]), lam)[0].tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(range(4)),
    st.lists(unit, min_size=4, max_size=4, unique=True),
    st.lists(st.floats(0.01, 9), min_size=4, max_size=4, unique=True),
    unit,
)
def test_permuting_targets_permutes_the_order(
    places: list[int], p: list[float], price: list[float], lam: float
) -> None:
    straight = parts(*(target(n, price=x) for n, x in zip(NAMES, price, strict=True)))
    mixed = parts(*(target(NAMES[k], price=price[k]) for k in places))
    choice = set_up_decider(straight).decide(build_forecast(*p), lam_asked=lam)
    permuted = set_up_decider(mixed).decide(build_forecast(*(p[k] for k in places)), lam_asked=lam)
    assert choice.order == permuted.order
    assert choice.estimated_cost == permuted.estimated_cost


def test_a_cascade_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="can't choose a target beforehand"):
        set_up_decider(parts(target("a"), policy=Cascade()))
    with pytest.raises(ConfigError, match=r"routing\.fallback is 'nobody'"):
        set_up_decider(routing={"fallback": "nobody"})
    with pytest.raises(ConfigError, match=r"traffic\.otherwise is 'nobody'"):
        set_up_decider(traffic={"share": 0.5, "otherwise": "nobody"})


PRIOR = (0.5, 0.9, 0.7)
ORDERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "prior": (PRIOR, ("middle", "large", "small")),
    "best": (PRIOR, ("middle", "large", "small")),
    "cheapest": (PRIOR, ("small", "middle", "large")),
    "small": (PRIOR, ("small", "middle", "large")),
    "large": (PRIOR, ("large", "middle", "small")),
}


@pytest.mark.parametrize("fallback", ORDERS)
def test_fallbacks_order_all_that_may_answer(fallback: str) -> None:
    prior, order = ORDERS[fallback]
    setup = set_up_decider(
        parts(*THREE_TARGETS.pool, prior=prior), routing={"fallback": fallback, "lam": 1.0}
    )
    choice = setup.decide("deadline")
    assert (choice.order, choice.reason, choice.fallback) == (order, "fallback", "deadline")
    assert (choice.correctness, choice.policy_target) == ({}, None)
    limited = setup.decide("deadline", exclude=frozenset({order[0]}))
    assert limited.order == order[1:]


@pytest.mark.parametrize("fallback", ["prior", "best"])
@pytest.mark.parametrize("prior", [None, (0.5, np.nan, 0.7)])
def test_without_a_reference_the_dearest_counts_as_best(fallback: str, prior: Any) -> None:
    setup = set_up_decider(parts(*THREE_TARGETS.pool, prior=prior), routing={"fallback": fallback})
    assert setup.decide("encoder_down").order == ("large", "middle", "small")


def test_of_equally_good_ones_the_cheaper_is_best() -> None:
    setup = set_up_decider(
        parts(*THREE_TARGETS.pool, prior=(0.5, 0.9, 0.9)), routing={"fallback": "best"}
    )
    assert setup.decide("deadline").order == ("middle", "large", "small")


def test_the_prior_goes_by_lam() -> None:
    setup = set_up_decider(parts(*THREE_TARGETS.pool, prior=PRIOR))
    assert setup.decide("deadline", lam_asked=0.0).target == "small"
    assert setup.decide("deadline", lam_asked=1.0).target == "middle"


def test_strange_requests_fall_back_and_keep_their_forecast() -> None:
    setup = set_up_decider(routing={"novelty": 0.99, "fallback": "cheapest", "lam": 1.0})
    forecast = build_forecast(0.1, 0.2, 0.9, novelty=0.995)
    choice = setup.decide(forecast)
    assert (choice.order[0], choice.reason, choice.fallback) == ("small", "fallback", "novel")
    assert (choice.policy_target, choice.novelty, choice.correctness["large"]) == (
        "large",
        0.995,
        0.9,
    )
    assert setup.decide(build_forecast(0.1, 0.2, 0.9, novelty=0.99)).fallback is None
    assert set_up_decider().decide(build_forecast(0.1, 0.2, 0.9, novelty=1.0)).fallback is None


@pytest.mark.parametrize("p", [(0.1, 0.2), (0.1, float("nan"), 0.3)])
def test_a_forecast_that_cant_be_used_is_none(p: tuple[float, ...]) -> None:
    choice = set_up_decider(routing={"fallback": "cheapest"}).decide(build_forecast(*p))
    assert (choice.target, choice.fallback, choice.correctness) == ("small", "encoder_down", {})


@settings(deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**5))
def test_the_whole_request_has_at_least_the_tokens_that_were_read(
    text_bytes: int, scored_bytes: int, tokens_read: int
) -> None:
    question = build_question(text_bytes=text_bytes, scored_bytes=scored_bytes)
    assert request_tokens(question, tokens_read) >= tokens_read
    assert request_tokens(question, None) == -(-text_bytes // 4)
    if scored_bytes and text_bytes >= scored_bytes:
        assert request_tokens(question, tokens_read) == pytest.approx(
            tokens_read * text_bytes / scored_bytes, abs=1
        )


def test_costs_are_those_of_the_whole_request() -> None:
    choice = set_up_decider().decide(build_forecast(0.5, 0.5, 0.5, tokens=100), text_bytes=1200)
    assert choice.input_tokens == 300
    assert choice.estimated_cost["middle"] == pytest.approx((300 * 1 + 100 * 4) / 1e6)


def test_a_limit_below_the_median_answer_lowers_the_cost() -> None:
    p = build_forecast(0.5, 0.5, 0.5)
    cost = {
        n: set_up_decider().decide(p, max_tokens=n).estimated_cost["middle"]
        for n in (10, 100, 1000)
    }
    assert cost == pytest.approx({10: 140 / 1e6, 100: 500 / 1e6, 1000: 500 / 1e6})
    choice = set_up_decider().decide(None, endpoint="embeddings", named="middle")
    assert choice.estimated_cost["middle"] == pytest.approx(100 / 1e6)


def test_unknown_prices_cost_nothing_and_are_not_told() -> None:
    ones = np.ones(2)
    nan = np.nan * ones
    pool = Pool((target("a", price=None), target("b", price=None)))
    free = Parts(CostEstimator(pool, nan, ones, ones, ones, nan))
    choice = set_up_decider(free).decide(build_forecast(0.4, 0.6), max_cost=0.0)
    assert (choice.order, choice.estimated_cost) == (("b", "a"), {})


def test_the_cache_saves_no_more_than_the_request_has() -> None:
    pool = Pool((target("a", price=2.0, cached_input_price=0.5), target("b")))
    costs = RequestCosts(estimator(pool, ratio=2.0), cache_seconds=300.0)
    full = costs.estimate(build_question(), 100)
    some_cached = costs.with_cache(build_question(), full, 0, tokens=100, cached=40)
    assert (full - some_cached) * 1e6 == pytest.approx([40 * 1.5, 0])
    all_cached = costs.with_cache(build_question(), full, 0, tokens=100, cached=10**6)
    assert (full - all_cached) * 1e6 == pytest.approx([200 * 1.5, 0])
    assert (
        costs.with_cache(build_question(), full, 1, tokens=100, cached=50).tolist() == full.tolist()
    )


# Input and output of 2 and 8 dollars a million tokens; read from a cache 0.2, written to it 2.5 for
# minutes and 4 for an hour.
CACHE_PRICES = {
    "price": 2.0,
    "cached_input_price": 0.2,
    "cache_write_price": 2.5,
    "cache_write_hour_price": 4.0,
}


@pytest.mark.parametrize(
    ("mark", "cold", "warm", "seconds"),
    [
        # 1,000 tokens of input, 100 of output (800 millionths), and 800 tokens in the cache
        (None, 2000 + 800, 2000 + 800, 300.0),  # nothing is cached without a mark
        ("minutes", 2500 + 800, 200 * 2.5 + 800 * 0.2 + 800, 300.0),
        ("hour", 4000 + 800, 200 * 4 + 800 * 0.2 + 800, 3600.0),
    ],
)
def test_writing_to_a_cache_is_paid_where_the_request_marks_it(
    mark: Any, cold: float, warm: float, seconds: float
) -> None:
    serves = ("chat", "messages")
    pool = Pool((target("a", **CACHE_PRICES, serves=serves), target("b", price=2.0, serves=serves)))
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    question = build_question(endpoint="messages", cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([cold, 2800])
    cached_costs = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert cached_costs * 1e6 == pytest.approx([warm, 2800])
    assert costs.cache(question).seconds.tolist() == [seconds, 300.0]


@pytest.mark.parametrize(
    ("mark", "minutes", "hour", "price"),
    [
        ("minutes", 0.0, 4.0, 2.0),
        ("hour", 0.0, 4.0, 4.0),
        ("minutes", 2.5, 0.0, 2.5),
        ("hour", 2.5, 0.0, 2.0),
        ("hour", 2.5, None, 2.5),
        ("minutes", None, 4.0, 2.0),
    ],
)
def test_a_price_of_0_says_that_writing_for_as_long_costs_nothing_more(
    mark: Any, minutes: float | None, hour: float | None, price: float
) -> None:
    prices = {**CACHE_PRICES, "cache_write_price": minutes, "cache_write_hour_price": hour}
    costs = RequestCosts(
        estimator(Pool((target("a", **prices, serves=("messages",)),))), cache_seconds=300.0
    )
    question = build_question(endpoint="messages", cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([1000 * price + 800])
    cached_costs = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert cached_costs * 1e6 == pytest.approx([200 * price + 800 * 0.2 + 800])
    assert costs.cache(build_question(endpoint="messages")).saved.tolist() == [0.0]


def test_an_agents_ask_costs_the_mean_of_its_requests() -> None:
    pool = Pool((target("a", **CACHE_PRICES, serves=("messages",)), target("b", price=2.0)))
    agent = AgentRequest(agent="codex", expected_requests=4)
    question = build_question(endpoint="messages", cache_mark="minutes", agent=agent)
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    full = costs.estimate(question, 1000)
    # of a, one request is written and three are read; b has no price of reading
    assert full * 1e6 == pytest.approx([(2500 + 3 * 200) / 4 + 800, 2800])
    cached_costs = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    first = 200 * 2.5 + 800 * 0.2
    assert cached_costs * 1e6 == pytest.approx([(first + 3 * 200) / 4 + 800, 2800])


def test_what_is_reserved_and_allowed_is_of_one_request() -> None:
    agent = AgentRequest(agent="codex", expected_requests=4)
    cached = parts(target("a", price=2.0, cached_input_price=0.2))
    choice = set_up_decider(cached).decide(build_forecast(0.5, tokens=1000), agent=agent)
    assert choice.estimated_cost["a"] * 1e6 == pytest.approx((2000 + 3 * 200) / 4 + 800)
    assert choice.high_cost is not None
    assert choice.high_cost * 1e6 == pytest.approx(2800)
    with pytest.raises(RefusalError):
        set_up_decider(cached).decide(build_forecast(0.5, tokens=1000), agent=agent, max_cost=0.002)


@pytest.mark.parametrize("mark", [None, "minutes", "hour"])
@pytest.mark.parametrize(("write", "price"), [(None, 2.0), (0.0, 2.0), (2.5, 2.5)])
def test_a_target_that_caches_by_itself_needs_no_mark(
    mark: Any, write: float | None, price: float
) -> None:
    prices = {"cached_input_price": 0.2, "cache_write_price": write}
    pool = Pool((target("a", price=2.0, **prices, serves=("chat", "responses")),))
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    question = build_question(cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([1000 * price + 800])
    cached_costs = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert cached_costs * 1e6 == pytest.approx([200 * price + 800 * 0.2 + 800])


@settings(deadline=None)
@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_names_of_decisions_grow_with_time_and_are_uuids(at: float, other_at: float) -> None:
    first, last = (decision_id(at, random=bytes) for at in sorted((at, other_at)))
    assert first <= last
    assert len(last) == 35
    assert (last[:3], last[15]) == ("pr_", "7")
    assert last[19] in "89ab"
    assert int(last[3:15], 16) == pytest.approx(max(at, other_at) * 1000, abs=1)


def test_names_of_decisions_differ() -> None:
    names = {decision_id(AT) for _ in range(100)}
    assert len(names) == 100
    shares = [share_of(name) for name in names]
    assert 0 <= min(shares) < 0.5 < max(shares) < 1


@pytest.mark.parametrize(
    ("floor", "order"),
    [
        (None, ("small", "middle", "large")),
        (0.2, ("small", "middle", "large")),
        (0.4, ("middle", "large", "small")),
        (0.95, ("large", "middle", "small")),  # none has it
    ],
)
def test_a_floor_leaves_the_cheapest_that_is_probable_enough(
    floor: float | None, order: tuple[str, ...]
) -> None:
    setup = set_up_decider(routing={"lam": 0.0})
    forecast = build_forecast(0.2, 0.5, 0.9)
    assert setup.decide(forecast, floor=floor).order == order
    assert setup.decide("deadline", floor=floor).target == setup.decide("deadline").target
