"""Targets, pools and pool files."""

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import (
    ABILITIES,
    ENDPOINTS,
    Pool,
    Target,
    pool_from_dict,
    read_pool,
    write_pool,
)
from prefill_router.yaml_files import read_yaml

pytestmark = pytest.mark.slow

A = Target(name="a", input_price=1, output_price=2)
B = Target(name="b")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": " "}, "empty name"),
        ({"name": "x", "input_price": -1.0, "output_price": 1.0}, "has the price -1.0"),
        ({"name": "x", "input_price": 1.0, "output_price": float("nan")}, "has the price nan"),
        ({"name": "x", "input_price": float("inf"), "output_price": 1.0}, "has the price inf"),
        ({"name": "x", "input_price": 1.0}, "only one price"),
        ({"name": "x", "output_price": 1.0}, "only one price"),
    ],
)
def test_targets_that_can_not_be(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Target(**fields)  # type: ignore[arg-type]


def test_pools_that_can_not_be() -> None:
    with pytest.raises(ConfigError, match="no targets"):
        Pool(())
    with pytest.raises(ConfigError, match=r"names \['a'\] more than once"):
        Pool((A, B, A))


def test_what_a_pool_answers() -> None:
    pool = Pool((A, B))
    assert (pool.names, len(pool), list(pool), pool["b"]) == (("a", "b"), 2, [A, B], B)
    assert (A.has_price, B.has_price) == (True, False)
    assert Target(name="free", input_price=0, output_price=0).has_price
    assert pool.select(["b", "a"]).names == ("b", "a")
    assert pool.indices(["b", "a"]) == [1, 0]
    for ask in (
        lambda: pool["c"],
        lambda: pool.select(["c"]),
        lambda: pool.with_prices({"c": (1, 1)}),
    ):
        with pytest.raises(
            ConfigError, match=r"unknown targets \['c'\]; the pool has \['a', 'b'\]"
        ):
            ask()


def test_other_prices_change_those_named_alone() -> None:
    pool = Pool((A, B), "2026-01-01").with_prices({"b": (3, 4)}, date="2026-02-02")
    assert pool.targets == (A, Target(name="b", input_price=3, output_price=4))
    assert pool.prices_date == "2026-02-02"


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PRICES = st.floats(0, 1e5)
TARGETS = st.fixed_dictionaries(
    {
        "name": WORDS.filter(str.strip),
        "prices": st.none() | st.tuples(PRICES, PRICES),
        "base_url": st.none() | WORDS.map("http://x/{}".format),
        "api_key_env": st.none() | st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True),
        "model": st.none() | WORDS,
        "accepts": st.lists(st.sampled_from(ABILITIES), unique=True).map(tuple),
        "context_tokens": st.none() | st.integers(1, 10**7),
        "serves": st.none() | st.lists(st.sampled_from(ENDPOINTS), min_size=1).map(tuple),
    }
)


def make_target(prices: tuple[float, float] | None, **fields: Any) -> Target:
    low, high = prices or (None, None)
    return Target(input_price=low, output_price=high, **fields)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(TARGETS, min_size=1, max_size=4, unique_by=lambda target: target["name"]),
    st.none() | st.dates().map(str) | WORDS,
)
def test_what_is_written_is_read(targets: list[dict[str, Any]], date: str | None) -> None:
    pool = Pool(tuple(make_target(**target) for target in targets), date)
    assert pool_from_dict(pool.to_dict(), source="memory") == pool
    with TemporaryDirectory() as folder:
        write_pool(pool, Path(folder) / "pool.yaml")
        assert read_pool(Path(folder) / "pool.yaml") == pool


def test_a_pool_as_a_person_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "prices_date: 2026-03-19\ntargets:\n"
        "  - name: gpt-oss-20b\n    input_price: 0.03\n    output_price: 1\n"
        "    base_url: http://127.0.0.1:8000/v1\n    api_key_env: LOCAL_KEY\n"
        "  - name: other\n"
    )
    pool = read_pool(path)
    assert pool.prices_date == "2026-03-19"
    assert pool["gpt-oss-20b"].output_price == 1
    assert pool["gpt-oss-20b"].api_key_env == "LOCAL_KEY"
    assert not pool["other"].has_price


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "valid dictionary"),
        ("targets: []", "at least 1 item"),
        ("targets: [{input_price: 1}]", r"targets\.0\.name: Field required"),
        (
            "targets: [{name: a, api_key: secret}]",
            r"targets\.0\.api_key: keys don\'t belong in files; name the variable",
        ),
        ("targets: [{name: a}, {name: a}]", "more than once"),
        ("targets: [{name: a, input_price: x, output_price: 1}]", r"targets\.0\.input_price"),
        ("targets: [{name: a, input_price: -1, output_price: 1}]", "has the price -1"),
        (
            "targets: [{name: a, input_price: yes, output_price: 1}]",
            r"targets\.0\.input_price: must be a number, not true or false",
        ),
        (
            "targets: [{name: a, context_tokens: on}]",
            r"targets\.0\.context_tokens: must be a number, not true or false",
        ),
        (
            "targets: [{name: a, input_price: 1, output_price: 200000}]",
            "has the price 200000.0; .* at most 100,000",
        ),
        ("targets: [{name: a, input_price: .nan, output_price: 1}]", "has the price nan"),
        ("targets: [{name: a\n", r"pool\.yaml:2: not YAML"),
        ("targets: !!python/object/apply:os.system ['true']", "not YAML"),
        ("a: &a [*a]", "its aliases repeat too much"),
        ("\0", "not YAML"),
        ("targets: [{name: a}]\ntargets: [{name: b}]", "line 2: 'targets' is repeated"),
        ("targets: [{name: 0b_}]", "malformed"),
        ("targets: [{name: a, input_price: " + "9" * 5000 + "}]", "malformed"),
        ("targets: !!timestamp abc", "malformed"),
    ],
)
def test_pool_files_that_can_not_be(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read_pool(path)


HEADER = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"


def test_prices_as_csv(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("\ufeff" + HEADER + 'a/b,1,2\n"c,d",0.5,1e-3\n', encoding="utf-8")
    assert read_pool(path).targets == (
        Target(name="a/b", input_price=1, output_price=2),
        Target(name="c,d", input_price=0.5, output_price=0.001),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs"),
        ("target,price\na,1\n", "csv:1: has the columns"),
        (HEADER, "no targets"),
        (HEADER + "a,1,2\na,1,2\n", "more than once"),
        (HEADER + "a,1,2\nb,x,2\n", "csv:3: not a price row"),
        (HEADER + "a,1\n", "csv:2: not a price row"),
        (HEADER + "a,-1,2\n", "csv:2: not a price row"),
        (HEADER + "a,nan,2\n", "csv:2: not a price row"),
        (HEADER + ",1,2\n", "csv:2: not a price row"),
        (HEADER + "a" * 200_000 + ",1,2\n", "not CSV: field larger"),
    ],
)
def test_price_tables_that_can_not_be(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read_pool(path)


@pytest.mark.parametrize("name", ["pool.yaml", "prices.csv"])
def test_missing_files_and_bytes_that_are_no_text(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read_pool(tmp_path / name)
    (tmp_path / name).write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FormatError, match="not a text file"):
        read_pool(tmp_path / name)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["pool.yaml", "prices.csv"]))
def test_any_text_is_a_pool_or_refused(text: str, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(FormatError):
            assert len(read_pool(path)) > 0


@pytest.mark.parametrize(
    "key", ["sk-secret: [", "*secret", "!secret x", "!secret!x y", "!!int secret", "!!bool secret"]
)
def test_a_malformed_pool_is_not_quoted(tmp_path: Path, key: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(f"targets:\n  - name: a\n    api_key: {key}\n")
    with pytest.raises(FormatError, match="not YAML") as error:
        read_pool(path)
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="not YAML") as caught_too:
        read_yaml(path)
    assert "secret" not in str(caught_too.value)
