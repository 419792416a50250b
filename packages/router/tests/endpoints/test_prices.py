"""Prices from a list like OpenRouter's, served on 127.0.0.1 or in a file."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from packages.router.tests.commands import check_refused, run, run_ok
from packages.router.tests.endpoints.price_lists import MODELS, Page, PriceServer, serve_prices
from prefill_router.endpoints.price_list import RefreshedPool, fetch, refresh_prices
from prefill_router.errors import ConfigError, FormatError, UpstreamError
from prefill_router.targets import (
    PRICES,
    Pool,
    Provider,
    RequestOptions,
    Target,
    read_pool,
    write_pool,
)

pytestmark = pytest.mark.slow

TODAY = "2026-11-21"
OSS = Target(name="oss", model="openai/gpt-oss-20b", input_price=1.0, output_price=2.0)
POOL = Pool((OSS, Target(name="google/gemini"), Target(name="mine", input_price=0, output_price=0)))


@pytest.fixture
def server() -> Iterator[PriceServer]:
    with serve_prices() as server:
        yield server


def refresh(server: PriceServer, pool: Pool = POOL, **options: Any) -> RefreshedPool:
    return refresh_prices(pool, date=TODAY, source=server.url, **options)


def prices(pool: Pool, name: str) -> tuple[float | None, ...]:
    return tuple(getattr(pool[name], price) for price in PRICES)


def test_prices_by_model_and_by_name(server: PriceServer) -> None:
    price_update = refresh(server)
    assert prices(price_update.pool, "oss") == (0.03, 0.14, None, None, None, None)
    assert prices(price_update.pool, "google/gemini") == (1.25, 10.0, 0.31, 3.5, 1.5625, None)
    assert price_update.pool["mine"] == POOL["mine"]
    assert price_update.reasons == {"mine": "the list has no model 'mine'"}
    assert price_update.pool.prices_date == TODAY
    assert [(c.target, c.before[:2], c.after[:2]) for c in price_update.changes] == [
        ("oss", (1.0, 2.0), (0.03, 0.14)),
        ("google/gemini", (None, None), (1.25, 10.0)),
    ]
    assert price_update.notes == (
        "google/gemini: long prompts have another price, which isn't counted",
    )
    assert server.paths == ["/v1/models"]
    assert "authorization" not in {name.lower() for name in server.headers[0]}


def test_everything_else_of_a_pool_stays(server: PriceServer) -> None:
    options = RequestOptions(reasoning_effort="high")
    provider = Provider(name="here", base_url="http://127.0.0.1:1/v1")
    target = replace(OSS, provider="here", request=options, cached_input_price=0.5)
    pool = Pool((target,), "2020-01-01", (provider,))
    new_pool = refresh(server, pool).pool
    assert new_pool.providers == (provider,)
    assert new_pool["oss"] == replace(
        target, input_price=0.03, output_price=0.14, cached_input_price=None
    )


@given(st.decimals(min_value=0, max_value="0.001", places=12))
def test_price_per_million_is_exact(price: Any) -> None:
    entry = {"id": "m", "pricing": {"prompt": f"{price:f}", "completion": str(price)}}
    data = json.dumps({"data": [entry]}).encode()
    price_update = refresh_prices(
        Pool((Target(name="m"),)), date=TODAY, source="list.json", read=lambda _: data
    )
    assert prices(price_update.pool, "m")[:2] == (float(price * 10**6), float(price * 10**6))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("openrouter/auto", "its price for prompt varies"),
        ("odd/text", "its price for prompt is 'cheap', which isn't an amount"),
        ("odd/nan", "its price for prompt is 'NaN', which isn't an amount"),
        ("odd/half", "no price of odd/half for both input and output"),
        ("odd/none", "the list has no pricing of odd/none"),
        ("odd/million", r"\$0.03 per token, which can't be; is the list in dollars per million"),
        ("gpt-oss-20b", "no model 'gpt-oss-20b'; did you mean openai/gpt-oss-20b"),
        ("a/nothing", "the list has no model 'a/nothing'"),
    ],
)
def test_price_that_is_none_is_told_and_the_old_one_kept(
    server: PriceServer, model: str, reason: str
) -> None:
    odd = Target(name="odd one", model=model, input_price=5, output_price=6)
    price_update = refresh(server, Pool((OSS, odd)))
    assert price_update.pool["odd one"] == odd
    assert list(price_update.reasons) == ["odd one"]
    with pytest.raises(ConfigError, match=f"target 'odd one': .*{reason}"):
        refresh(server, Pool((OSS, odd)), models={"odd one": model})
    with pytest.raises(ConfigError, match=f"none of the targets; 'odd one': .*{reason}"):
        refresh(server, Pool((odd,)))


def test_free_models_and_prices_of_requests(server: PriceServer) -> None:
    names = ("free/model:free", "perplexity/sonar")
    price_update = refresh(server, Pool(tuple(Target(name=name) for name in names)))
    assert prices(price_update.pool, names[0])[:4] == (0.0, 0.0, None, None)
    assert prices(price_update.pool, names[1])[:2] == (1.0, 1.0)
    assert price_update.notes == ("perplexity/sonar: also $0.005 per request, which isn't counted",)


def test_names_of_the_list_given_by_hand(server: PriceServer) -> None:
    price_update = refresh(server, models={"mine": "openai/gpt-oss-20b", "oss": "google/gemini"})
    assert prices(price_update.pool, "mine")[:4] == (0.03, 0.14, None, None)
    assert prices(price_update.pool, "oss")[:2] == (1.25, 10.0)
    assert not price_update.reasons
    for options in ({"models": {"nobody": "x"}}, {"providers": {"nobody": "x"}}):
        with pytest.raises(ConfigError, match=r"unknown targets \['nobody'\]"):
            refresh(server, **options)


def test_prices_of_a_provider(server: PriceServer) -> None:
    price_update = refresh(server, provider="fast")
    assert prices(price_update.pool, "oss")[:4] == (0.1, 0.5, None, None)
    assert prices(price_update.pool, "google/gemini")[:2] == (1.25, 10.0)
    assert "google/gemini: fast doesn't serve it; the model's own price" in price_update.notes
    assert [change.provider for change in price_update.changes] == ["fast", None]
    tagged = refresh(server, providers={"oss": "two/fp4"})
    assert prices(tagged.pool, "oss")[:4] == (0.02, 0.1, None, None)
    assert "/v1/models/google/gemini/endpoints" not in server.paths[-2:]


def test_provider_that_serves_at_several_prices_or_not_at_all(server: PriceServer) -> None:
    with pytest.raises(ConfigError, match="at several prices; name one of two/bf16, two/fp4"):
        refresh(server, providers={"oss": "Two"})
    with pytest.raises(ConfigError, match=r"'Slow' doesn't serve openai/gpt-oss-20b"):
        refresh(server, providers={"oss": "Slow"})
    with pytest.raises(ConfigError, match="has no providers' prices; give an address"):
        refresh_prices(POOL, date=TODAY, source="list.json", provider="Fast")
    server.pages["/v1/models/openai/gpt-oss-20b/endpoints"] = Page(b'{"data": []}')
    with pytest.raises(FormatError, match=r"endpoints: isn't a list of providers"):
        refresh(server, provider="Fast")


@pytest.mark.parametrize(
    ("page", "failure", "reason"),
    [
        (Page(status=429, headers={"Retry-After": "7"}), "rate_limited", "try again after 7 s"),
        (Page(status=429), "rate_limited", "answers with HTTP 429; try again later"),
        (Page(status=503), "overloaded", "HTTP 503; try again later"),
        (Page(status=500), "server_error", "HTTP 500; try again later"),
        (Page(status=401), "unauthorised", "HTTP 401"),
        (Page(status=404), "refused", "HTTP 404"),
        (Page(status=204), "refused", "HTTP 204"),
        (
            Page(status=302, headers={"Location": "http://elsewhere.example/x"}),
            "refused",
            "redirects to http://elsewhere.example/x",
        ),
        (Page(b'{"data"', missing=20), "broken_off", "breaks off"),
        (Page(b"no gzip", headers={"Content-Encoding": "gzip"}), "broken_off", "breaks off"),
    ],
)
def test_server_that_gives_no_list(
    server: PriceServer, page: Page, failure: str, reason: str
) -> None:
    server.pages["/v1/models"] = page
    with pytest.raises(UpstreamError) as error:
        refresh(server)
    assert error.value.failure == failure
    assert reason in str(error.value)
    assert server.url in str(error.value)
    assert len(server.paths) == 1


def test_server_that_is_slow_or_not_there(server: PriceServer) -> None:
    server.pages["/v1/models"] = Page(wait=30)
    with pytest.raises(UpstreamError, match="doesn't answer in time"):
        fetch(server.url, seconds=0.2)
    with pytest.raises(UpstreamError, match="can't be reached") as error:
        fetch("http://127.0.0.1:9/models")
    assert error.value.failure == "connect"
    for odd in ("http://", "http://[::1", "http://127.0.0.1:99999999/"):
        with pytest.raises((ConfigError, UpstreamError)):
            fetch(odd)
    for odd in ("http://me:sk-secret@127.0.0.1/models", "http://127.0.0.1/models?key=sk-secret"):
        with pytest.raises(ConfigError, match="none is needed, so leave it out") as refusal:
            fetch(odd)
        assert "secret" not in str(refusal.value)


def test_endless_answer(server: PriceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_router.endpoints.price_list.MOST_BYTES", 500)
    with pytest.raises(UpstreamError, match="sends more than 500 bytes"):
        refresh(server)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<!DOCTYPE html><html></html>", "is a web page; a list of models is JSON"),
        (b"", "is not JSON"),
        (b'{"data": [', "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "isn't a list of models"),
        (b"{}", "isn't a list of models"),
        (b'{"data": {}}', "isn't a list of models"),
        (b'{"data": []}', "isn't a list of models"),
    ],
)
def test_answer_that_is_no_list(server: PriceServer, body: bytes, reason: str) -> None:
    server.pages["/v1/models"] = Page(body)
    with pytest.raises(FormatError) as error:
        refresh(server)
    assert str(error.value).startswith(server.url)
    assert reason in str(error.value)


def test_list_in_a_file(tmp_path: Path, server: PriceServer) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(MODELS))
    assert refresh_prices(POOL, date=TODAY, source=str(path)).pool == refresh(server).pool
    with pytest.raises(FormatError, match="no such file; name a file, or an address"):
        fetch(str(tmp_path / "nothing"))
    with pytest.raises(FormatError, match="no such file"):
        fetch("file:///etc/hostname")


def test_command_writes_the_pool_and_shows_what_changed(
    server: PriceServer, tmp_path: Path
) -> None:
    path, other = tmp_path / "pool.yaml", tmp_path / "other.yaml"
    write_pool(POOL, path)
    before = path.read_bytes()
    output = run_ok("prices", "--pool", path, "--from", server.url, "--out", other)
    assert "1 -> 0.03" in output
    assert "2 -> 0.14" in output
    assert "- -> 3.5" in output
    assert path.read_bytes() == before
    written_pool = read_pool(other)
    assert written_pool.prices_date == datetime.now(UTC).date().isoformat()
    assert prices(written_pool, "oss")[:4] == (0.03, 0.14, None, None)
    options = (
        "--map",
        "mine=openai/gpt-oss-20b",
        "--provider",
        "fast",
        "--provider",
        "mine=two/fp4",
    )
    output = run_ok("prices", "--pool", path, "--from", server.url, *options, "--json")
    summary = json.loads(output)
    assert summary["kept"] == {}
    assert summary["out"] == str(path)
    assert [c["provider"] for c in summary["found"]] == ["fast", None, "two/fp4"]
    assert summary["found"][0]["before"]["input_price"] == 1.0
    assert summary["found"][0]["changed"] is True
    assert prices(read_pool(path), "mine")[:4] == (0.02, 0.1, None, None)
    again = run_ok("prices", "--pool", path, "--from", server.url, *options, "--json")
    assert not any(change["changed"] for change in json.loads(again)["found"])


def test_command_says_that_comments_are_lost(server: PriceServer, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("# mine\ntargets:\n  - name: openai/gpt-oss-20b\n")
    command = ("prices", "--pool", path, "--from", server.url)
    assert "comments" not in run(*command, "--out", tmp_path / "other.yaml").err
    assert f"the comments in {path} aren't kept" in run(*command).err.replace("\n", " ")
    assert "comments" not in run(*command).err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--from", "{url}/nothing"), "HTTP 404"),
        (("--from", "{folder}/pool.yaml"), "is not JSON; a list of models is JSON"),
        (("--map", "oss"), "--map is 'oss'; write it as TARGET=MODEL"),
        (("--map", "nobody=openai/gpt-oss-20b"), "unknown targets"),
        (("--map", "oss=openrouter/auto"), "its price for prompt varies"),
        (("--provider", "a", "--provider", "b"), "--provider names a and b"),
        (("--provider", "=b"), "--provider is '=b'"),
        (("--out", "{folder}/prices.csv"), r"--out is .*such as prices\.yaml"),
        (("--out", "{folder}/pool.yaml/x.yaml"), "is a file; name another place"),
        (("--pool", "{folder}/none.yaml"), "no such file; a pool is"),
    ],
)
def test_command_that_can_not_be_done_writes_nothing(
    server: PriceServer, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    path = tmp_path / "pool.yaml"
    write_pool(POOL, path)
    before = path.read_bytes()
    filled = [part.format(url=server.url, folder=tmp_path) for part in arguments]
    usual = [] if "--pool" in arguments else ["--pool", path]
    usual += [] if "--from" in arguments else ["--from", server.url]
    of_the_line_alone = reason.startswith("--")
    check_refused(reason, "prices", *usual, *filled, code=2 if of_the_line_alone else 1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
