"""The free choice: the policy's order, the fallbacks, the costs and the names of decisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    AT,
    THREE,
    Parts,
    ask,
    estimator,
    forecast,
    parts,
    target,
    world,
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
four = st.tuples(unit, unit, unit, unit)
prices = st.tuples(*[st.one_of(st.floats(0.01, 9), st.sampled_from([0.0, 1.0, 2.0]))] * 4)
some = st.sets(st.integers(0, 3), min_size=1).map(sorted)


def router(price: tuple[float, ...], policy: Policy) -> Parts:
    return parts(*(target(n, price=x) for n, x in zip(NAMES, price, strict=True)), policy=policy)


@given(four, prices, unit, st.sampled_from(POLICIES), st.integers(1, 5000))
@settings(deadline=None)
def test_the_order_is_that_of_the_router_itself(
    p: tuple[float, ...], price: tuple[float, ...], lam: float, policy: Policy, tokens: int
) -> None:
    known = router(price, policy)
    got = world(known).decide(forecast(*p, tokens=tokens), lam_asked=lam)
    wanted = decide(
        NAMES,
        np.array(p),
        known.costs.estimate(np.array([tokens]))[0],
        known.costs.scale,
        policy=policy,
        lam=lam,
        input_tokens=tokens,
        truncated=False,
    )
    assert got.order == wanted.order
    assert got.policy_target == wanted.target
    assert dict(got.correctness) == dict(wanted.correctness)
    assert dict(got.estimated_cost) == dict(wanted.estimated_cost)
    assert (got.reason, got.lam, got.lam_asked) == ("policy", lam, lam)
    assert got.input_tokens == tokens


@settings(deadline=None)
@given(four, four, unit, st.sampled_from(POLICIES), some)
def test_among_some_the_order_is_that_of_a_router_of_these(
    p: tuple[float, ...], cost: tuple[float, ...], lam: float, policy: Policy, among: list[int]
) -> None:
    got = policy_order(policy, np.array(p), np.array(cost), lam, names=NAMES, among=among)
    assert sorted(got) == among
    here = tuple(NAMES[k] for k in among)
    try:
        wanted = policy.order(
            np.array([p])[:, among], np.array([cost])[:, among], lam, targets=here
        )
    except ConfigError:  # the policy names a target that may not answer: it is passed over
        everyone = policy.order(np.array([p]), np.array([cost]), lam, targets=NAMES)[0].tolist()
        assert got == [k for k in everyone if k in among]
    else:
        assert got == [among[k] for k in wanted[0].tolist()]


@settings(deadline=None)
@given(four, four, st.integers(-3, 3))
def test_where_two_scores_cross_rounding_decides_as_in_the_router(
    p: tuple[float, ...], cost: tuple[float, ...], steps: int
) -> None:
    gain, extra = p[1] - p[0], cost[1] - cost[0]
    lam = extra / (gain + extra) if gain + extra else 0.5
    for _ in range(abs(steps)):
        lam = float(np.nextafter(lam, np.sign(steps)))
    lam = min(1.0, max(0.0, lam))
    got = policy_order(Lambda(), np.array(p), np.array(cost), lam, names=NAMES, among=range(4))
    assert got == Lambda().order(np.array([p]), np.array([cost]), lam)[0].tolist()


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
    one = world(straight).decide(forecast(*p), lam_asked=lam)
    other = world(mixed).decide(forecast(*(p[k] for k in places)), lam_asked=lam)
    assert one.order == other.order
    assert one.estimated_cost == other.estimated_cost


def test_a_cascade_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="can't choose a target beforehand"):
        world(parts(target("a"), policy=Cascade()))
    with pytest.raises(ConfigError, match=r"routing\.fallback is 'nobody'"):
        world(routing={"fallback": "nobody"})
    with pytest.raises(ConfigError, match=r"traffic\.otherwise is 'nobody'"):
        world(traffic={"share": 0.5, "otherwise": "nobody"})


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
    here = world(parts(*THREE.pool, prior=prior), routing={"fallback": fallback, "lam": 1.0})
    got = here.decide("deadline")
    assert (got.order, got.reason, got.fallback) == (order, "fallback", "deadline")
    assert (got.correctness, got.policy_target) == ({}, None)
    limited = here.decide("deadline", exclude=frozenset({order[0]}))
    assert limited.order == order[1:]


@pytest.mark.parametrize("fallback", ["prior", "best"])
@pytest.mark.parametrize("prior", [None, (0.5, np.nan, 0.7)])
def test_without_a_reference_the_dearest_counts_as_best(fallback: str, prior: Any) -> None:
    here = world(parts(*THREE.pool, prior=prior), routing={"fallback": fallback})
    assert here.decide("encoder_down").order == ("large", "middle", "small")


def test_of_equally_good_ones_the_cheaper_is_best() -> None:
    here = world(parts(*THREE.pool, prior=(0.5, 0.9, 0.9)), routing={"fallback": "best"})
    assert here.decide("deadline").order == ("middle", "large", "small")


def test_the_prior_goes_by_lam() -> None:
    here = world(parts(*THREE.pool, prior=PRIOR))
    assert here.decide("deadline", lam_asked=0.0).target == "small"
    assert here.decide("deadline", lam_asked=1.0).target == "middle"


def test_strange_requests_fall_back_and_keep_their_forecast() -> None:
    here = world(routing={"novelty": 0.99, "fallback": "cheapest", "lam": 1.0})
    told = forecast(0.1, 0.2, 0.9, novelty=0.995)
    got = here.decide(told)
    assert (got.order[0], got.reason, got.fallback) == ("small", "fallback", "novel")
    assert (got.policy_target, got.novelty, got.correctness["large"]) == ("large", 0.995, 0.9)
    assert here.decide(forecast(0.1, 0.2, 0.9, novelty=0.99)).fallback is None
    assert world().decide(forecast(0.1, 0.2, 0.9, novelty=1.0)).fallback is None


@pytest.mark.parametrize("p", [(0.1, 0.2), (0.1, float("nan"), 0.3)])
def test_a_forecast_that_cant_be_used_is_none(p: tuple[float, ...]) -> None:
    got = world(routing={"fallback": "cheapest"}).decide(forecast(*p))
    assert (got.target, got.fallback, got.correctness) == ("small", "encoder_down", {})


@settings(deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**5))
def test_the_whole_request_has_at_least_the_tokens_that_were_read(
    whole: int, scored: int, read: int
) -> None:
    question = ask(text_bytes=whole, scored_bytes=scored)
    assert request_tokens(question, read) >= read
    assert request_tokens(question, None) == -(-whole // 4)
    if scored and whole >= scored:
        assert request_tokens(question, read) == pytest.approx(read * whole / scored, abs=1)


def test_costs_are_those_of_the_whole_request() -> None:
    got = world().decide(forecast(0.5, 0.5, 0.5, tokens=100), text_bytes=1200)
    assert got.input_tokens == 300
    assert got.estimated_cost["middle"] == pytest.approx((300 * 1 + 100 * 4) / 1e6)


def test_a_limit_below_the_median_answer_lowers_the_cost() -> None:
    p = forecast(0.5, 0.5, 0.5)
    cost = {n: world().decide(p, max_tokens=n).estimated_cost["middle"] for n in (10, 100, 1000)}
    assert cost == pytest.approx({10: 140 / 1e6, 100: 500 / 1e6, 1000: 500 / 1e6})
    asked = world().decide(None, endpoint="embeddings", named="middle")
    assert asked.estimated_cost["middle"] == pytest.approx(100 / 1e6)


def test_unknown_prices_cost_nothing_and_are_not_told() -> None:
    one = np.ones(2)
    nan = np.nan * one
    pool = Pool((target("a", price=None), target("b", price=None)))
    free = Parts(CostEstimator(pool, nan, one, one, one, nan))
    got = world(free).decide(forecast(0.4, 0.6), max_cost=0.0)
    assert (got.order, got.estimated_cost) == (("b", "a"), {})


def test_the_cache_saves_no_more_than_the_request_has() -> None:
    pool = Pool((target("a", price=2.0, cached_input_price=0.5), target("b")))
    costs = RequestCosts(estimator(pool, ratio=2.0), cache_seconds=300.0)
    full = costs.estimate(ask(), 100)
    some_cached = costs.with_cache(ask(), full, 0, tokens=100, cached=40)
    assert (full - some_cached) * 1e6 == pytest.approx([40 * 1.5, 0])
    all_cached = costs.with_cache(ask(), full, 0, tokens=100, cached=10**6)
    assert (full - all_cached) * 1e6 == pytest.approx([200 * 1.5, 0])
    assert costs.with_cache(ask(), full, 1, tokens=100, cached=50).tolist() == full.tolist()


# Input and output of 2 and 8 dollars a million tokens; read from a cache 0.2, written to it 2.5 for
# minutes and 4 for an hour.
MARKED = {
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
    pool = Pool((target("a", **MARKED, serves=serves), target("b", price=2.0, serves=serves)))
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    question = ask(endpoint="messages", cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([cold, 2800])
    there = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert there * 1e6 == pytest.approx([warm, 2800])
    assert costs.cache(question).seconds.tolist() == [seconds, 300.0]


@pytest.mark.parametrize(
    ("mark", "minutes", "hour", "paid"),
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
    mark: Any, minutes: float | None, hour: float | None, paid: float
) -> None:
    prices = {**MARKED, "cache_write_price": minutes, "cache_write_hour_price": hour}
    costs = RequestCosts(
        estimator(Pool((target("a", **prices, serves=("messages",)),))), cache_seconds=300.0
    )
    question = ask(endpoint="messages", cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([1000 * paid + 800])
    there = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert there * 1e6 == pytest.approx([200 * paid + 800 * 0.2 + 800])
    assert costs.cache(ask(endpoint="messages")).saved.tolist() == [0.0]


def test_an_agents_ask_costs_the_mean_of_its_requests() -> None:
    pool = Pool((target("a", **MARKED, serves=("messages",)), target("b", price=2.0)))
    agent = AgentRequest(agent="codex", expected_requests=4)
    question = ask(endpoint="messages", cache_mark="minutes", agent=agent)
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    full = costs.estimate(question, 1000)
    # of a, one request is written and three are read; b has no price of reading
    assert full * 1e6 == pytest.approx([(2500 + 3 * 200) / 4 + 800, 2800])
    there = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    first = 200 * 2.5 + 800 * 0.2
    assert there * 1e6 == pytest.approx([(first + 3 * 200) / 4 + 800, 2800])


def test_what_is_reserved_and_allowed_is_of_one_request() -> None:
    agent = AgentRequest(agent="codex", expected_requests=4)
    cached = parts(target("a", price=2.0, cached_input_price=0.2))
    got = world(cached).decide(forecast(0.5, tokens=1000), agent=agent)
    assert got.estimated_cost["a"] * 1e6 == pytest.approx((2000 + 3 * 200) / 4 + 800)
    assert got.high_cost is not None
    assert got.high_cost * 1e6 == pytest.approx(2800)
    with pytest.raises(RefusalError):
        world(cached).decide(forecast(0.5, tokens=1000), agent=agent, max_cost=0.002)


@pytest.mark.parametrize("mark", [None, "minutes", "hour"])
@pytest.mark.parametrize(("write", "paid"), [(None, 2.0), (0.0, 2.0), (2.5, 2.5)])
def test_a_target_that_caches_by_itself_needs_no_mark(
    mark: Any, write: float | None, paid: float
) -> None:
    prices = {"cached_input_price": 0.2, "cache_write_price": write}
    pool = Pool((target("a", price=2.0, **prices, serves=("chat", "responses")),))
    costs = RequestCosts(estimator(pool), cache_seconds=300.0)
    question = ask(cache_mark=mark)
    full = costs.estimate(question, 1000)
    assert full * 1e6 == pytest.approx([1000 * paid + 800])
    there = costs.with_cache(question, full, 0, tokens=1000, cached=800)
    assert there * 1e6 == pytest.approx([200 * paid + 800 * 0.2 + 800])


@settings(deadline=None)
@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_names_of_decisions_grow_with_time_and_are_uuids(one: float, other: float) -> None:
    first, last = (decision_id(at, random=bytes) for at in sorted((one, other)))
    assert first <= last
    assert len(last) == 35
    assert (last[:3], last[15]) == ("pr_", "7")
    assert last[19] in "89ab"
    assert int(last[3:15], 16) == pytest.approx(max(one, other) * 1000, abs=1)


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
    here = world(routing={"lam": 0.0})
    told = forecast(0.2, 0.5, 0.9)
    assert here.decide(told, floor=floor).order == order
    assert here.decide("deadline", floor=floor).target == here.decide("deadline").target
