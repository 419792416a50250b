"""The command line from S3 to S3: every command that reads a dataset, a store or a router."""

import json
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from packages.router.tests.commands import check_malformed, check_refused, run, run_ok
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router import Router
from prefill_router.data import write_dataset
from prefill_router.remote import RemotePath, path as path_module
from prefill_router.router import EncoderSources, fingerprint
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

HEAD = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
RECIPE = """
features: [{kind: prefill, dim: 8}]
predictor: {kind: shared_trunk, seeds: 2, keep: 1, max_epochs: 5}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture(scope="module")
def job(s3: None, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RemotePath:
    """A dataset, its states and a router, all in a bucket."""
    del s3
    place = RemotePath(f"s3://bucket/{uuid4().hex}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path_factory.mktemp("cache")))
        write_dataset(make_routing_dataset(queries=80, missing=0.05), place / "answers")
        answers, states = place / "answers", place / "states"
        output = run_ok("encode", answers, "--encoder", tiny, "--out", states, "--json")
        assert json.loads(output)["store"] == states.url
        recipe = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
        recipe.write_text(RECIPE)
        fit = ("fit", "--no-verdict", "--test=0.15", answers, "--store", states, "--recipe", recipe)
        output = run_ok(*fit, "--out", place / "router")
        assert f"router: {place}/router" in output
    return place


def test_a_router_is_loaded_from_its_url(job: RemotePath, tiny: Path) -> None:
    sources = EncoderSources(folders={"tiny": tiny})
    for load in (Router.load, Router.from_pretrained):
        router = load(f"{job}/router", sources=sources)
        assert router.route("a question").target in router.pool.names


def test_commands_read_datasets_stores_and_routers_at_urls(
    job: RemotePath, tiny: Path, tmp_path: Path
) -> None:
    answers, router, states = (job / name for name in ("answers", "router", "states"))
    run_ok("describe", answers)
    assert json.loads(run_ok("route", router, "hello", "--encoder-folder", tiny, "--json"))
    assert "Targets" in run_ok("show", router)
    options = ("--data", answers, "--store", states, "--resamples", 20)
    run_ok("evaluate", router, *options, "--out", tmp_path / "report")
    origin = json.loads((tmp_path / "report" / "origin.json").read_text())
    assert origin["sources"] == ["router", "answers"]
    assert f"{answers}" in (tmp_path / "report" / "index.html").read_text()
    run_ok("compare", router, router, *options)
    run_ok("split", answers, "--out", tmp_path / "split.json")
    write_dataset(make_routing_dataset(queries=80), tmp_path / "more")
    run_ok("merge", answers, tmp_path / "more", "--out", job / "both")
    assert "queries" in run_ok("describe", f"{job}/both")


def test_a_router_is_repriced_where_it_lies(job: RemotePath, tmp_path: Path) -> None:
    name = Router.load(job / "router").pool.names[0]
    prices = tmp_path / "prices.csv"
    prices.write_text(f"{HEAD}{name},3,4\n")
    place = job / "repriced"
    run_ok("reprice", job / "router", "--prices", prices, "--out", place)
    run_ok("reprice", job / "router", "--prices", prices, "--out", place)
    assert Router.load(place).pool[name].output_price == 4


def test_the_gateway_reads_a_router_at_a_url(job: RemotePath, tmp_path: Path) -> None:
    names = Router.load(job / "router").pool.names
    rows = "".join(f"  - {{name: {n}, base_url: 'http://127.0.0.1:9/v1'}}\n" for n in names)
    (tmp_path / "pool.yaml").write_text(f"targets:\n{rows}")
    output = run_ok("serve", job / "router", "--pool", tmp_path / "pool.yaml", "--check", "--json")
    assert json.loads(output)["router"] == fingerprint(job / "router")


def test_nothing_is_replaced_without_being_asked(job: RemotePath, tmp_path: Path) -> None:
    fit = ("fit", "--no-verdict", "--test=0.15", job / "answers", "--store", job / "states")
    check_refused("has another router", *fit, "--dim", 4, "--out", job / "router")
    check_refused("exists and isn't a router", *fit, "--out", job / "answers")
    (tmp_path / "long.csv").write_text("query_id,prompt,target,correct\n1,a,b,1\n")
    wide = ("import", "long", tmp_path / "long.csv", "--out")
    check_refused("is a dataset of an unknown origin", *wide, job / "answers")
    run_ok(*wide, job / "imported")
    run_ok(*wide, job / "imported")
    assert "1 queries" in run_ok("describe", job / "imported")


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "router", "--data", "answers", "--out", "s3://bucket/report"),
        ("doctor", "router", "--data", "answers", "--out", "s3://bucket/report"),
        ("split", "answers", "--out", "s3://bucket/split.json"),
        ("compare", "all", "--data", "answers", "--out", "s3://bucket/report"),
        ("import", "long", "s3://bucket/long.csv", "--out", "answers"),
        ("collect", "--tasks", "t", "--pool", "pool.yaml", "--out", "s3://bucket/run"),
    ],
)
def test_what_must_be_on_the_disk_is_refused_at_a_url(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_malformed("s3:/bucket/.* is a URL, and this must be a path on the disk", *command)
    assert not list(tmp_path.iterdir())


def test_a_password_in_a_url_is_refused_and_never_shown() -> None:
    output = check_refused("a password or a query", "describe", "s3://key:hunter2@bucket/answers")
    assert "hunter2" not in output


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    check_refused(r"pip install 'prefill-router\[s3\]'", "describe", "s3://bucket/answers")


def test_long_transfers_show_their_progress(
    job: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_module, "_PROGRESS_BYTES", 100)
    assert "downloading answers, MB: " in run("describe", job / "answers").err
