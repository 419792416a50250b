"""A model with efforts is several targets with one row in the pool's file and one price list."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prefill_router.endpoints import bound
from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import (
    Pool,
    RequestOptions,
    Target,
    pool_from_dict,
    read_pool,
    write_pool,
)

ROW: Mapping[str, Any] = {"name": "large", "input_price": 1.0, "output_price": 4.0}


def pool_of(*rows: Mapping[str, Any], **providers: Any) -> Pool:
    return pool_from_dict({"targets": list(rows), **providers}, source="pool")


def test_a_row_becomes_a_target_for_each_effort(tmp_path: Path) -> None:
    pool = pool_of({"name": "small"}, {**ROW, "efforts": ["none", "low", 4096]})
    assert pool.names == ("small", "large:none", "large:low", "large:4096")
    assert [t.effort for t in pool] == [None, "none", "low", "4096"]
    assert [t.base for t in pool] == ["small", "large", "large", "large"]
    assert [t.model for t in pool] == [None, "large", "large", "large"]
    assert pool.efforts_of == {"large": pool.names[1:]}
    write_pool(pool, tmp_path / "pool.yaml")
    assert read_pool(tmp_path / "pool.yaml") == pool
    assert len(pool.to_dict()["targets"]) == 2


def test_efforts_that_differ_otherwise_have_rows_of_their_own() -> None:
    request = {"max_tokens": 9}
    pool = pool_of({**ROW, "efforts": ["low"]}, {**ROW, "name": "large:high", "request": request})
    assert [t.request.max_tokens for t in pool] == [RequestOptions().max_tokens, 9]
    assert pool_from_dict(pool.to_dict(), source="pool") == pool


def test_a_name_that_ends_in_an_effort_sets_it() -> None:
    assert Target(name="vendor/m:high").effort == "high"
    assert Target(name="vendor/m:free").effort is None
    assert Target(name="m:70").effort is None  # it may be the model's size
    assert Target(name=":low").effort is None


def test_a_name_may_mean_something_else() -> None:
    """With another model or its own reasoning, the end of a name is no effort."""
    assert Target(name="tier:low", model="nano").effort is None
    own = Target(name="o3:high", request=RequestOptions(reasoning_effort="high"))
    assert own.effort is None
    assert pool_of({**ROW, "name": "m:4096", "effort": 4096}).targets[0].effort == "4096"
    with pytest.raises(ConfigError, match="two efforts in its name"):
        Target(name="m:low:low", effort="low")
    with pytest.raises(ConfigError, match="have the models"):
        Pool((Target(name="m:low", effort="low"), Target(name="m:high", effort="high", model="x")))


def test_endpoints_keep_the_effort() -> None:
    east = {"name": "east", "base_url": "http://127.0.0.1:1/v1"}
    pool = pool_of({**ROW, "efforts": ["low", "high"], "endpoints": [east]})
    assert pool.deployment_pool.names == ("large:low@east", "large:high@east")
    assert {t.base for t in pool.deployment_pool} == {"large@east"}
    assert {t.effort for t in pool.deployment_pool} == {"low", "high"}


def test_one_price_list() -> None:
    pool = pool_of({**ROW, "efforts": ["low", "high"]}).with_prices({"large": (2.0, 9.0)})
    assert [(t.input_price, t.output_price) for t in pool] == [(2.0, 9.0)] * 2
    with pytest.raises(ConfigError, match="different prices"):
        pool.with_prices({"large:low": (3.0, 9.0)})


def test_a_model_that_is_a_target_too_has_a_price_of_its_own() -> None:
    pool = pool_of(ROW, {**ROW, "efforts": ["low"]}).with_prices({"large": (2.0, 9.0)})
    assert [(t.name, t.input_price) for t in pool] == [("large", 2.0), ("large:low", 1.0)]


def test_an_effort_is_served_where_it_can_be_said() -> None:
    address = {"base_url": "http://127.0.0.1:1/v1"}
    assert pool_of({**ROW, "efforts": ["low"], **address}).serves("large:low") == (
        "chat",
        "responses",
    )
    claude = {"name": "c", "base_url": address["base_url"], "dialect": "anthropic"}
    row = {**ROW, "efforts": ["low"], "provider": "c"}
    assert pool_of(row, providers=[claude]).serves("large:low") == ("chat", "messages")
    narrow = {**row, "serves": ["messages", "embeddings"]}
    assert pool_of(narrow, providers=[claude]).serves("large:low") == ("messages",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"efforts": ["lw"]}, "the effort 'lw'; use one of none, minimal"),
        ({"efforts": []}, "at least 1 item"),
        ({"efforts": ["low", "low"]}, "more than once"),
        ({"efforts": [0]}, "the effort '0'"),
        ({"efforts": [True]}, "efforts"),
        ({"effort": "low"}, "which its name lacks"),
        ({"efforts": ["low"], "effort": "low"}, "keep one"),
        ({"efforts": ["low"], "request": {"reasoning_effort": "high"}}, "keep one"),
        ({"efforts": ["low"], "request": {"thinking_budget": 8}}, "keep one"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        pool_of({**ROW, **row})


def test_efforts_that_a_switch_cannot_tell_apart_are_refused() -> None:
    provider = {"name": "q", "base_url": "http://127.0.0.1:1/v1", "dialect": "qwen"}
    row = {**ROW, "provider": "q"}
    assert len(pool_of({**row, "efforts": ["none", "high", 512]}, providers=[provider])) == 3
    with pytest.raises(FormatError, match="only switches thinking"):
        pool_of({**row, "efforts": ["low", "high"]}, providers=[provider])


def test_a_budget_is_part_of_what_a_call_may_cost() -> None:
    options = RequestOptions(max_tokens=100)
    assert bound(Target(name="m:50", effort="50", request=options), "x").output_tokens == 150
    budget = RequestOptions(max_tokens=100, thinking_budget=60)
    assert bound(Target(name="m", request=budget), "x").output_tokens == 160
