"""`serve --check`: all errors of all parts, each on a line of its own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from packages.gateway.tests.server_process import GatewayFiles, write_gateway_files
from packages.router.tests.commands import run
from prefill_router.errors import refer
from prefill_router.targets import Pool, read_pool, write_pool

pytestmark = pytest.mark.slow

POOL = """\
targets:
  - {name: a, base_url: "http://127.0.0.1:1/v1", input_prize: 1}
  - {name: b, base_url: "http://127.0.0.1:1/v1", context_tokens: many}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayFiles:
    return write_gateway_files(tmp_path_factory.mktemp("check"), "http://127.0.0.1:1/v1")


def write_broken_files(folder: Path) -> list[str]:
    """Write files of which none can be used; the command's options."""
    for name, text in (
        ("pool.yaml", POOL),
        ("keys.yaml", "keys: [{name: ann}, {name: bob}]\n"),
        ("gateway.yaml", "routing: {lam: 3}\nroting: {}\n"),
    ):
        (folder / name).write_text(text)
    files = {"--pool": "pool.yaml", "--keys": "keys.yaml", "--config": "gateway.yaml"}
    words = [str(word) for option, name in files.items() for word in (option, folder / name)]
    return ["serve", str(folder / "router"), *words]


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_all_that_is_wrong_is_told_line_by_line(tmp_path: Path, options: list[str]) -> None:
    result = run(*write_broken_files(tmp_path), *options)
    lines = result.err.splitlines()
    assert (result.code, result.out) == (1, "")
    assert all(line.startswith("error: ") for line in lines)
    for words in (
        "gateway.yaml:1: routing.lam",
        "gateway.yaml:2: roting",
        "router",
        "pool.yaml: targets.0.input_prize",
        "pool.yaml: targets.1.context_tokens",
        "keys.yaml: keys.0.sha256",
        "keys.yaml: keys.1.sha256",
    ):
        assert [line for line in lines if words in line], words


def test_a_damaged_router_is_told_with_where_to_read_on(
    files: GatewayFiles, tmp_path: Path
) -> None:
    shutil.copytree(files.router, tmp_path / "router")
    with (tmp_path / "router" / "router.json").open("a") as file:
        file.write(" ")
    result = run("serve", tmp_path / "router", "--pool", files.pool, "--check")
    assert result.code == 1
    assert "isn't what was written" in result.err
    assert refer("the-router-is-damaged") in result.err


def test_programs_are_told_the_same(tmp_path: Path) -> None:
    result = run(*write_broken_files(tmp_path), "--check", "--json")
    report = json.loads(result.out)
    assert (result.code, result.err, report["ok"]) == (1, "", False)
    assert len(report["errors"]) == 7
    assert run(*write_broken_files(tmp_path), "--json").code == 2


def test_what_is_well_is_told_with_warnings(
    files: GatewayFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_BUDGET", "[]")
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(files.folder))
    monkeypatch.setenv("PREFILL_ROUTER_EMBEDDINGS_KEY", "a-key")
    line = ["serve", files.router, "--pool", files.pool, "--config", files.config, "--check"]
    report = json.loads(run(*line, "--json").out)
    assert report["ok"]
    assert report["targets"] == ["target-0", "target-1", "target-2"]
    (warning,) = report["warnings"]
    assert warning == (
        "the environment variable PREFILL_ROUTER_BUDGET isn't a setting; did you mean "
        "PREFILL_ROUTER_BUDGETS?"
    )
    result = run(*line)
    assert result.out.startswith("all is well: ")
    assert result.err.strip() == f"warning: {warning}"


def test_what_contradicts_something_else_is_told_with_what_was_meant(
    files: GatewayFiles, tmp_path: Path
) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "routing: {fallback: chepest}\ntraffic: {share: 0.5, otherwise: target-9}\n"
        "budgets: [{dollars: 1, per: day, key: ann}]\nlisten: {host: 0.0.0.0}\n"
    )
    result = run("serve", files.router, "--pool", files.pool, "--config", config, "--check")
    lines = result.err.splitlines()
    assert len(lines) == 4
    assert any(line.endswith("; did you mean cheapest?") for line in lines)


def test_what_was_hardly_meant_is_a_warning(files: GatewayFiles, tmp_path: Path) -> None:
    there = read_pool(files.pool)
    first, second, _ = there
    renamed_target = replace(first, name="target_0")
    other = replace(first, name="helper", input_price=None, output_price=None)
    pool, config = tmp_path / "pool.yaml", tmp_path / "gateway.yaml"
    write_pool(Pool((renamed_target, second, other), there.prices_date, there.providers), pool)
    config.write_text("routing: {names: {cheap: 0.1, helper: 0.2}}\n")
    result = run("serve", files.router, "--pool", pool, "--config", config, "--check")
    assert result.err.splitlines() == [
        f"warning: {warning}"
        for warning in (
            "target-0, target-2: no endpoint in the pool, so never called; did you mean target_0?",
            "routing.names has helper, which is also a target: the target takes precedence",
            "helper: no prices, so spending there isn't counted",
        )
    ]


def test_without_a_router_a_default_is_all_that_is_needed(files: GatewayFiles) -> None:
    line = ["serve", "--pool", files.pool, "--config", files.config, "--check"]
    result = run(*line, "--default", "target-1")
    assert (result.code, result.out) == (
        0,
        "all is well: no router yet, in front of target-0, target-1, target-2\n",
    )
    assert json.loads(run(*line, "--default", "target-1", "--json").out)["router"] is None
    assert "name it with --default" in run(*line).err
    both = run("serve", files.router, *line[1:], "--default", "target-1")
    assert (both.code, "without a router" in both.err) == (2, True)
