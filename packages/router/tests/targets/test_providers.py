"""Providers and request options of a pool, in memory and on disk."""

from pathlib import Path

import pytest

from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import (
    DIALECTS,
    Pool,
    Provider,
    RequestOptions,
    Target,
    pool_from_dict,
    read_pool,
    write_pool,
)

LOCAL = Provider(name="local", base_url="http://127.0.0.1:1/v1", dialect="vllm", concurrency=64)
PAID = Provider(name="paid", base_url="https://api.example/v1", api_key_env="PAID_KEY")
ASKED = RequestOptions(
    max_tokens=9, reasoning_effort="high", enable_thinking=False, top_k=20, extra_body={"a": [1]}
)
POOL = Pool(
    (
        Target(name="small", provider="local", model="org/small", request=ASKED),
        Target(
            name="large",
            provider="paid",
            input_price=2,
            output_price=8,
            cached_input_price=0.5,
            reasoning_price=4,
        ),
        Target(name="alone", base_url="http://127.0.0.1:2/v1", api_key_env="ALONE_KEY"),
    ),
    "2026-11-21",
    (LOCAL, PAID),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert pool_from_dict(POOL.to_dict(), source="memory") == POOL
    write_pool(POOL, tmp_path / "pool.yaml")
    assert read_pool(tmp_path / "pool.yaml") == POOL
    assert hash(read_pool(tmp_path / "pool.yaml")) == hash(POOL)


def test_who_serves_what() -> None:
    assert POOL.provider_of("small") is LOCAL
    alone = POOL.provider_of("alone")
    assert (alone.base_url, alone.api_key_env) == ("http://127.0.0.1:2/v1", "ALONE_KEY")
    with pytest.raises(ConfigError, match="'x' has no endpoint; give it a base_url"):
        Pool((Target(name="x"),)).provider_of("x")


def test_a_part_of_a_pool_keeps_its_providers_alone() -> None:
    assert POOL.select(["large", "alone"]).providers == (PAID,)
    assert POOL.with_prices({"small": (1, 2)}).providers == POOL.providers


def test_the_papers_maximum_is_the_default() -> None:
    assert RequestOptions().max_tokens == 128_000
    assert RequestOptions().to_dict() == {"max_tokens": 128_000}
    assert "openrouter" in DIALECTS


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Provider(name=" ", base_url="http://x"), "empty name"),
        (lambda: Provider(name="p", base_url="x"), "begin with http"),
        (lambda: Provider(name="p", base_url="http://x", concurrency=0), "at least 1"),
        (lambda: Provider(name="p", base_url="http://x", requests_per_minute=0), "above 0"),
        (lambda: Provider(name="p", base_url="http://x", answer_seconds=float("nan")), "above 0"),
        (lambda: RequestOptions(max_tokens=0), "at least 1"),
        (lambda: RequestOptions(temperature=-1), "0 or more"),
        (lambda: RequestOptions(extra_body={"messages": []}), "which prefill-router sets"),
        (lambda: RequestOptions(extra_body={"a": float("nan")}), "isn't JSON"),
        (lambda: Target(name="a", api_key_env="sk-x"), "never the key"),
        (lambda: Target(name="a", reasoning_price=1), "only a price of caching or reasoning"),
        (
            lambda: Target(name="a", provider="p", base_url="http://x"),
            "both a provider and its own endpoint",
        ),
        (lambda: Pool((Target(name="a", provider="p"),)), "unknown providers"),
        (lambda: Pool((Target(name="a"),), None, (LOCAL, LOCAL)), "more than once"),
    ],
)
def test_what_can_not_be(make, words: str) -> None:  # noqa: ANN001
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{name: p, base_url: 'http://x', dialect: klingon}", r"providers\.0\.dialect"),
        (
            "{name: p, base_url: 'http://x', api_key: sk-1}",
            r"providers\.0\.api_key: keys don't belong",
        ),
        ("{name: p, base_url: 'http://x', api_key_env: sk-1}", "can't be the name of a variable"),
        ("{name: p, base_url: 'http://x', concurency: 2}", "concurency: no such field; .*concurr"),
        ("{name: p}", r"providers\.0\.base_url: Field required"),
        ("{name: p, base_url: ftp}", "begin with http"),
    ],
)
def test_providers_in_files_that_can_not_be(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(f"providers: [{text}]\ntargets: [{{name: a}}]\n")
    with pytest.raises(FormatError, match=words) as error:
        read_pool(path)
    assert "sk-1" not in str(error.value)


HUSH = "sk-hush-0123456789"


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{HUSH}@lab.example/v1",
        f"https://{HUSH}@lab.example/v1",
        f"htps://me:{HUSH}@lab.example/v1",
        f"https://me:{HUSH}@lab.example:99999/v1",
        f"https://me:a?{HUSH}@lab.example/v1",
        f"lab.example/v1?key={HUSH}",
    ],
)
def test_keys_in_addresses_that_can_not_be_are_not_quoted(url: str) -> None:
    for make in (lambda: Provider(name="p", base_url=url), lambda: Target(name="a", base_url=url)):
        with pytest.raises(ConfigError, match="base_url") as error:
            make()
        assert HUSH not in str(error.value)


def test_what_is_shown_of_a_pool_has_no_query() -> None:
    lab = Provider(name="lab", base_url=f"https://lab.example/v1?key={HUSH}#{HUSH}")
    alone = Target(name="b", base_url=f"http://h:8/v1?code={HUSH}&api-version=2026-11-22")
    pool = Pool((Target(name="a", provider="lab"), alone), providers=(lab,))
    assert HUSH not in str(pool.public().to_dict())
    assert pool.public().provider_of("a").base_url == "https://lab.example/v1"
    assert pool.provider_of("b").name == pool.public()["b"].base_url == "http://h:8/v1"
    assert pool.provider_of("b").secrets == (HUSH,)
    assert pool.provider_of("a").base_url == lab.base_url  # whom it is asked of
