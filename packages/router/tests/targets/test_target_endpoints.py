"""Targets that are served at several endpoints, in pools and pool files."""

from pathlib import Path
from typing import Any

import pytest

from prefill_router.endpoints import NO_KEY, provider_keys
from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import (
    Pool,
    Target,
    TargetEndpoint,
    pool_from_dict,
    read_pool,
    write_pool,
)

FILE = """
providers:
  - {name: azure, base_url: "https://a.example/v1?code=secret-1", api_key_env: AZURE_KEY}
  - {name: claude, base_url: "https://c.example", dialect: anthropic}
targets:
  - name: large
    input_price: 2
    output_price: 8
    model: large-1
    endpoints:
      - {name: east, provider: azure, weight: 3}
      - {name: west, base_url: "https://w.example/v1?code=secret-2", api_key_env: WEST_KEY,
         model: large-west, priority: 1, input_price: 1, output_price: 2}
  - {name: small, base_url: "http://127.0.0.1:1/v1"}
"""


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    (tmp_path / "pool.yaml").write_text(FILE)
    return read_pool(tmp_path / "pool.yaml")


def test_a_pool_file_lists_endpoints_and_is_written_as_it_was_read(
    pool: Pool, tmp_path: Path
) -> None:
    east, west = pool["large"].endpoints
    assert (east.weight, east.priority, west.weight, west.priority) == (3, 0, 1, 1)
    write_pool(pool, tmp_path / "again.yaml")
    assert read_pool(tmp_path / "again.yaml") == pool
    assert "weight: 1" not in (tmp_path / "again.yaml").read_text()


def test_each_endpoint_is_a_deployment_with_its_own_model_and_prices(pool: Pool) -> None:
    assert pool.names == ("large", "small")
    assert pool.several == {"large": ("large@east", "large@west")}
    assert pool.deployment_pool.names == ("large@east", "large@west", "small")
    east, west, _ = pool.deployment_pool
    assert (east.model, east.input_price, east.output_price) == ("large-1", 2, 8)
    assert (west.model, west.input_price, west.output_price) == ("large-west", 1, 2)
    assert pool.deployment_pool.provider_of("large@west").api_key_env == "WEST_KEY"
    assert pool.target_of["large@west"] == "large"


def test_without_a_gateway_a_target_is_at_its_first_endpoint(pool: Pool) -> None:
    assert pool.provider_of("large").name == "azure"
    assert [t.endpoints for t in pool.at_first()] == [(), ()]
    swapped = Pool(
        (Target(**{**vars(pool["large"]), "endpoints": pool["large"].endpoints[1:], **NOWHERE}),)
    )
    assert swapped.at_first()["large"].input_price == 1
    assert swapped.at_first()["large"].model == "large-west"


NOWHERE = {"provider": None, "base_url": None, "api_key_env": None}


def test_the_keys_of_all_endpoints_are_needed(pool: Pool) -> None:
    keys = provider_keys(pool, {"AZURE_KEY": "sk-one", "WEST_KEY": "sk-two"})
    assert sorted(keys.values()) == [NO_KEY, "sk-one", "sk-two"]
    with pytest.raises(ConfigError, match="WEST_KEY"):
        provider_keys(pool, {"AZURE_KEY": "sk-one"})


def test_what_is_public_has_no_secrets_of_endpoints(pool: Pool) -> None:
    assert "secret" not in str(pool.public().to_dict())
    assert pool.public().select(["large"]).provider_of("large").name == "azure"


def test_a_target_serves_what_all_its_endpoints_do(pool: Pool) -> None:
    assert "embeddings" in pool.serves("large")
    endpoints = (
        TargetEndpoint(name="a", provider="azure"),
        TargetEndpoint(name="c", provider="claude"),
    )
    mixed = Pool((Target(name="m", endpoints=endpoints),), None, pool.providers)
    assert mixed.serves("m") == ("chat",)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"endpoints": []}, "at least 1"),
        ({"endpoints": [{"name": "a b", "provider": "p"}]}, "has the name 'a b'"),
        ({"endpoints": [{"name": "a"}]}, "neither a provider nor a base_url"),
        ({"endpoints": [{"name": "a", "provider": "p", "weight": 0}]}, "has the weight 0"),
        ({"endpoints": [{"name": "a", "provider": "q"}]}, "unknown providers"),
        (
            {"endpoints": [{"name": "a", "provider": "p", "base_url": "http://x"}]},
            "both a provider",
        ),
        ({"endpoints": [{"name": "a", "provider": "p", "output_price": 1}]}, "only one price"),
        ({"endpoints": [{"name": "a", "provider": "p"}] * 2}, "name each once"),
        (
            {"endpoints": [{"name": "a", "provider": "p", "key": "sk-very"}]},
            "don't belong in files",
        ),
        (
            {"endpoints": [{"name": "a", "provider": "p", "wait": 1}]},
            "the fields are name, provider",
        ),
        ({"provider": "q", "endpoints": [{"name": "a", "provider": "p"}]}, "both endpoints and a"),
    ],
)
def test_endpoints_that_can_not_be(target: dict[str, Any], words: str) -> None:
    value = {
        "providers": [{"name": "p", "base_url": "http://127.0.0.1:1"}],
        "targets": [{"name": "t", **target}],
    }
    with pytest.raises(FormatError, match=words) as error:
        pool_from_dict(value, source="pool.yaml")
    assert "sk-very" not in str(error.value)


def test_a_target_may_not_be_named_like_another_ones_endpoint() -> None:
    endpoint = TargetEndpoint(name="east", base_url="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="rename the targets"):
        Pool((Target(name="t", endpoints=(endpoint,)), Target(name="t@east")))
