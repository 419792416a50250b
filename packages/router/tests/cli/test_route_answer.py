"""`route --answer`: the chosen target is asked, and its answer printed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packages.router.tests.commands import (
    CommandResult,
    Job,
    check_malformed,
    check_refused,
    run_ok,
)
from prefill_router import files
from prefill_router.data import read_dataset
from prefill_router.router.storage import CHECKED_FILES
from prefill_router.targets import Pool, Target, write_pool
from prefill_router_minipool.server import Faults, Rule, ScriptedModel, Server, serve

Route = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def names(job: Job) -> tuple[str, ...]:
    return read_dataset(job.answers).pool.names


@pytest.fixture(scope="module")
def server(names: tuple[str, ...]) -> Iterator[Server]:
    rules = [
        Rule(kind="status", status=400, contains="break"),
        Rule(kind="rate_limit", contains="again", retry_after=0.05, form="ms", attempts=1),
    ]
    models = [ScriptedModel(name, lambda q: f"you said {q}") for name in names]
    with serve(models, faults=Faults(rules=rules)) as running:
        yield running


@pytest.fixture
def pool(names: tuple[str, ...], server: Server, tmp_path: Path) -> Path:
    targets = tuple(Target(name=n, base_url=server.base_url) for n in names)
    write_pool(Pool(targets), tmp_path / "pool.yaml")
    return tmp_path / "pool.yaml"


def test_the_chosen_target_answers(route: Route, pool: Path, server: Server) -> None:
    result = route("Hello there", "--lam", 1, "--answer", "--pool", pool)
    assert result.code == 0, result.err
    assert "you said Hello there" in result.out
    assert result.out.split(" ", 1)[0] == server.log[-1].model


def test_as_json(route: Route, pool: Path, names: tuple[str, ...]) -> None:
    arguments = ("Hi", "--answer", "--pool", pool, "--only", names[1], "--json")
    value = json.loads(route(*arguments).out)
    assert value["target"] == value["reply"]["served_by"] == names[1]
    assert value["reply"]["text"] == "you said Hi"
    assert value["reply"]["usage"]["output_tokens"] > 0


def test_a_rate_limit_is_waited_for(route: Route, pool: Path, server: Server) -> None:
    before = len(server.log)
    result = route("and again", "--answer", "--pool", pool)
    assert result.code == 0, result.err
    assert "you said and again" in result.out
    assert len(server.log) == before + 2


@pytest.mark.slow
def test_a_target_that_fails(route: Route, pool: Path) -> None:
    result = route("break it", "--answer", "--pool", pool)
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert "break it" not in result.err
    assert "P(correct)" in result.out  # the decision stands
    json_result = route("break it", "--answer", "--pool", pool, "--json")
    assert json_result.code == 1
    assert json.loads(json_result.out)["reply"] is None


def test_a_routers_folder_does_not_say_who_is_asked_and_gets_a_key(
    copy: Job, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address and the variable in another person's router are shown and not used."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    content = json.loads((copy.router / "router.json").read_text())
    for row in content["pool"]["targets"]:
        row |= {"base_url": server.base_url, "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    files.write_json(copy.router / "router.json", content)
    files.write_checksums(copy.router, list(CHECKED_FILES))
    before = len(server.log)
    line = (copy.router, "Hello", "--answer", "--encoder-folder", copy.tiny)
    assert "--pool pool.yaml" in check_malformed("isn't trusted with that", "route", *line)
    assert "--pool pool.yaml" in check_refused("never called", "serve", copy.router, "--check")
    assert len(server.log) == before
    output = run_ok("show", copy.router)
    assert server.base_url in output
    assert "AWS_SECRET_ACCESS_KEY" in output
    assert "None is called unless you name it yourself" in output
    printed_json = json.loads(run_ok("show", copy.router, "--json"))
    assert printed_json["pool"]["targets"][0]["base_url"] == server.base_url
