"""What calls cost, what they can cost, and what can't be true."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from prefill_router.data import Message
from prefill_router.endpoints import (
    CallBound,
    Reply,
    Usage,
    bound,
    cost_of,
    estimate_usage,
    read_usage,
    reason_against_usage,
    reported_cost,
)
from prefill_router.errors import ConfigError
from prefill_router.targets import RequestOptions, Target

COUNTS = st.integers(0, 10**6)
PRICES = st.one_of(st.sampled_from([0.0, 0.1, 0.03, 2.5, 15.0]), st.floats(0, 1000))
BOUND = CallBound(input_tokens=100, output_tokens=50, dollars=None)


def target(low: float | None = 3.0, high: float | None = 15.0, **more: Any) -> Target:
    return Target(name="t", input_price=low, output_price=high, **more)


def test_a_cost_by_hand() -> None:
    priced = target(3.0, 15.0, cached_input_price=0.3, reasoning_price=10.0)
    usage = Usage(input_tokens=1000, cached_tokens=400, output_tokens=200, reasoning_tokens=50)
    # 600 * 3 + 400 * 0.3 + 150 * 15 + 50 * 10 = 4670 millionths
    assert cost_of(usage, priced) == 0.00467
    assert cost_of(usage, target()) == 0.006


def test_tokens_written_to_a_cache_by_hand() -> None:
    created = {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}
    usage = read_usage(
        {
            "input_tokens": 50,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 300,
            "cache_creation": created,
            "output_tokens": 10,
        }
    )
    assert usage.input_tokens == 1350
    claude = {"cached_input_price": 0.3, "cache_write_price": 3.75, "cache_write_hour_price": 6.0}
    # 50 * 3 + 1000 * 0.3 + 200 * 3.75 + 100 * 6 + 10 * 15 = 1950 millionths
    assert cost_of(usage, target(**claude)) == 0.00195
    del claude["cache_write_hour_price"]
    assert cost_of(usage, target(**claude)) == 0.001725
    assert cost_of(usage, target()) == 0.0042


@pytest.mark.parametrize("kind", ["prompt", "input"])
def test_tokens_that_openai_wrote_to_a_cache_are_part_of_its_input(kind: str) -> None:
    details = {"cached_tokens": 1000, "cache_write_tokens": 300}
    counts = {f"{kind}_tokens": 1350, f"{kind}_tokens_details": details, "output_tokens": 10}
    usage = read_usage(counts)
    assert (usage.input_tokens, usage.cache_written_tokens) == (1350, 300)
    # 50 * 3 + 1000 * 0.3 + 300 * 3.75 + 10 * 15 = 1725 millionths
    prices = {"cached_input_price": 0.3, "cache_write_price": 3.75}
    assert cost_of(usage, target(3.0, 15.0, **prices)) == 0.001725


@pytest.mark.slow
@given(COUNTS, COUNTS, COUNTS, COUNTS, PRICES, PRICES, PRICES, PRICES)
def test_costs_are_exact(
    fresh: int, cached: int, plain: int, thought: int, a: float, b: float, c: float, d: float
) -> None:
    priced = target(a, b, cached_input_price=c, reasoning_price=d)
    usage = Usage(
        input_tokens=fresh + cached,
        cached_tokens=cached,
        output_tokens=plain + thought,
        reasoning_tokens=thought,
    )
    exact = sum(
        n * Fraction(repr(p)) for n, p in ((fresh, a), (cached, c), (plain, b), (thought, d))
    )
    cost = cost_of(usage, priced)
    assert cost == pytest.approx(float(exact / 10**6), rel=1e-15, abs=1e-300)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({}, "input_tokens is missing; output_tokens is missing"),
        ({"input_tokens": 5}, "output_tokens is missing"),
        ({"input_tokens": -1, "output_tokens": 1}, "input_tokens is -1"),
        (
            {"input_tokens": 101, "output_tokens": 1},
            "input_tokens is 101, more than the 100 possible",
        ),
        (
            {"input_tokens": 1, "output_tokens": 51},
            "output_tokens is 51, more than the 50 possible",
        ),
        (
            {"input_tokens": 1, "output_tokens": 1, "cached_tokens": 2},
            "cached_tokens is 2, more than input_tokens, 1",
        ),
        (
            {"input_tokens": 1, "output_tokens": 1, "reasoning_tokens": 2},
            "reasoning_tokens is 2, more than output_tokens, 1",
        ),
        ({"input_tokens": 1, "output_tokens": 1, "cached_tokens": -1}, "cached_tokens is -1"),
        (
            {"input_tokens": 9, "output_tokens": 1, "cached_tokens": 5, "cache_written_tokens": 5},
            "cached and written tokens are 10, more than input_tokens, 9",
        ),
        ({"input_tokens": 100, "output_tokens": 50, "reasoning_tokens": 50}, ""),
        ({"input_tokens": 0, "output_tokens": 0}, ""),
    ],
)
def test_what_cannot_be_true(counts: dict[str, int], reason: str) -> None:
    usage = Usage(**counts)
    assert reason_against_usage(usage, BOUND) == reason
    if reason and "possible" not in reason:
        assert cost_of(usage, target()) is None


def test_no_price_no_cost() -> None:
    assert cost_of(Usage(input_tokens=1, output_tokens=1), target(None, None)) is None
    assert bound(target(None, None), "x").dollars is None
    assert cost_of(Usage(input_tokens=1, output_tokens=1), target(0.0, 0.0)) == 0.0


@given(st.text(), PRICES, PRICES, st.floats(0, 1), st.floats(0, 1), PRICES, PRICES)
def test_nothing_within_the_bound_costs_more(
    prompt: str, low: float, high: float, x: float, y: float, cached: float, thought: float
) -> None:
    priced = target(
        low,
        high,
        cached_input_price=cached,
        cache_write_price=2 * cached,
        reasoning_price=thought,
        request=RequestOptions(max_tokens=77),
    )
    limit = bound(priced, prompt)
    assert limit.output_tokens == 77
    assert limit.input_tokens >= len(prompt.encode("utf-8", "surrogatepass"))
    assert limit.dollars is not None
    usage = Usage(
        input_tokens=limit.input_tokens,
        cached_tokens=int(x * limit.input_tokens),
        cache_written_tokens=int((1 - x) * limit.input_tokens),
        output_tokens=limit.output_tokens,
        reasoning_tokens=int(y * limit.output_tokens),
    )
    assert reason_against_usage(usage, limit) == ""
    cost = cost_of(usage, priced)
    assert cost is not None
    assert cost <= limit.dollars


def test_bounds_know_templates_and_ones_own_fields() -> None:
    plain = bound(target(), "x").input_tokens
    assert bound(target(), (Message("user", "x"), Message("user", ""))).input_tokens > plain
    assert bound(target(), "\ufdfa").input_tokens - plain >= 32  # one sign of 33 bytes in NFKC
    own = {"max_completion_tokens": 9, "tools": ["x" * 1000]}
    limit = bound(target(request=RequestOptions(extra_body=own)), "x")
    assert limit.output_tokens == 9
    assert limit.input_tokens > plain + 1000
    several = target(request=RequestOptions(max_tokens=10, extra_body={"n": 3}))
    assert bound(several, "x").output_tokens == 30


def test_bounds_know_budgets_beside_the_maximum() -> None:
    request = RequestOptions(max_tokens=100, extra_body={"thinking_budget": 4000})
    assert bound(Target(name="t", request=request), "x").output_tokens == 4100


@pytest.mark.parametrize(
    "extra",
    [{"n": 0}, {"thinking_budget": -1}, {"max_tokens": None}, {"max_tokens": "9"}],
)
def test_fields_that_no_bound_holds_for_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="extra_body"):
        RequestOptions(extra_body=extra)


def test_estimates_are_a_quarter_of_the_bytes() -> None:
    usage = estimate_usage("12345", Reply(text="1234", reasoning="éé"))
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (2, 2, 1)
    assert usage.reported == {}
    assert estimate_usage("", Reply(text="")) == Usage(
        input_tokens=0, output_tokens=0, reasoning_tokens=0
    )


@pytest.mark.parametrize(
    ("reported", "dollars"),
    [
        ({}, None),
        ({"cost": 0.25}, 0.25),
        ({"cost": 0}, 0.0),
        ({"cost": "0.25"}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": 10**400}, None),
        ({"cost": 0.5, "cost_details": {"upstream_inference_cost": 4}}, 0.5),
        ({"cost": 0.5, "is_byok": True, "cost_details": {"upstream_inference_cost": 4}}, 4.5),
        ({"cost": 0.5, "is_byok": True, "cost_details": {}}, 0.5),
    ],
)
def test_costs_that_the_provider_tells(reported: dict[str, Any], dollars: float | None) -> None:
    assert reported_cost(Usage(reported=reported)) == dollars
