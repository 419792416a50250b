"""`prefill-router minipool`: serving with one command, and the files it writes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import httpx2
import pytest

from packages.minipool.tests.tiny_causal import save_tiny_causal
from packages.minipool.tests.wire import until
from packages.router.tests.commands import (
    CommandResult,
    check_malformed,
    check_refused,
    run,
    run_ok,
)
from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, read_pool
from prefill_router_lab.benchmarks import load_tasks
from prefill_router_minipool import NAMES, make_tasks
from prefill_router_minipool.server import Rule, parse_rule, read_faults
from prefill_router_minipool.server.faults import Kind

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def tiny_weights(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random models in the place of the pool's, which are many times larger."""
    folder = save_tiny_causal(tmp_path_factory.mktemp("weights") / "tiny")
    monkeypatch.setattr("prefill_router_minipool.server.app.folder_of", lambda _: folder)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """As in a terminal; what runs in the background of a shell may ignore interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def serve_and_visit(
    file: Path, visit: Callable[[Pool], None], *arguments: object, end: int = signal.SIGTERM
) -> CommandResult:
    """Serve with the command, visit the server from another thread, and end the command."""
    failures: list[BaseException] = []
    ended = threading.Event()

    def go() -> None:
        until(lambda: file.is_file() or ended.is_set())
        try:
            if not ended.is_set():
                visit(read_pool(file))
        except BaseException as error:
            failures.append(error)
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), end)

    visitor = threading.Thread(target=go)
    visitor.start()
    result = run("minipool", "serve", "--port", 0, "--write-pool", file, *arguments)
    ended.set()
    visitor.join()
    if failures:
        raise failures[0]
    return result


def ask(pool: Pool, target: str, *, key: str = "x") -> httpx2.Response:
    provider = pool.provider_of(target)
    body = {
        "model": target,
        "messages": [{"role": "user", "content": "What is 1 + 1?"}],
        "max_tokens": pool[target].request.max_tokens,
    }
    url = f"{provider.base_url}/chat/completions"
    return httpx2.post(url, json=body, headers={"authorization": f"Bearer {key}"})


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_pool_is_served_until_it_is_ended(tmp_path: Path, end: int) -> None:
    def visit(pool: Pool) -> None:
        assert pool.names == NAMES
        for name in pool.names:
            assert pool[name].has_price
            assert ask(pool, name).json()["model"] == name

    result = serve_and_visit(tmp_path / "pool.yaml", visit, end=end)
    assert result.code == 0, result.err
    assert result.out.startswith(f"serving {', '.join(NAMES)} at http://127.0.0.1:")
    assert f"collect --pool {tmp_path / 'pool.yaml'} --tasks" in result.out
    assert f"{len(NAMES)} requests, {len(NAMES)} answers" in result.out
    assert result.err == "loading the tiny models\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_part_of_it_with_a_key_and_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOL_KEY", "sesame")
    faults = tmp_path / "faults.yaml"
    faults.write_text("rules: [{kind: status, status: 503, times: 1}]")

    def visit(pool: Pool) -> None:
        assert pool.names == (NAMES[1], NAMES[0])
        assert pool.provider_of(NAMES[0]).api_key_env == "POOL_KEY"
        codes = [ask(pool, NAMES[0], key=key).status_code for key in ("wrong", *["sesame"] * 3)]
        assert codes == [401, 503, 429, 200]

    options = ("--only", f"{NAMES[1]},{NAMES[0]}", "--api-key-env", "POOL_KEY")
    broken = ("--faults", faults, "--fault", "rate_limit,requests=1 4,retry_after=2")
    done = serve_and_visit(tmp_path / "pool.yaml", visit, *options, *broken)
    assert done.code == 0, done.err
    assert "sesame" not in done.out + done.err + (tmp_path / "pool.yaml").read_text()


def test_an_open_host_is_warned_of(tmp_path: Path) -> None:
    result = serve_and_visit(
        tmp_path / "pool.yaml", lambda _: None, "--host", "0.0.0.0", "--only", NAMES[0]
    )
    assert result.code == 0
    assert "warning: whoever reaches 0.0.0.0" in result.err


def test_what_can_not_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = ("minipool", "serve", "--port", 0)
    check_refused("no such file", *serve, "--faults", tmp_path / "nothing.yaml")
    check_refused("isn't of the form", *serve, "--fault", "status,503")
    check_refused("kind", *serve, "--fault", "explode")
    check_refused("unheard-of", *serve, "--only", "unheard-of")
    monkeypatch.delenv("POOL_KEY", raising=False)
    check_refused("holds no key", *serve, "--api-key-env", "POOL_KEY")
    check_refused("can't be created", *serve, "--write-pool", tmp_path.joinpath("x" * 300))
    check_malformed("--port is 70000", "minipool", "serve", "--port", 70_000)
    check_refused("can't listen", *serve, "--host", "no.such.host.invalid")
    assert run(*serve, "--max-batch", 0).code == 2


def test_tasks_are_written_as_collect_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    output = run_ok("minipool", "tasks", "--count", 30, "--seed", 3, "--out", file)
    assert "30 tasks" in output
    pool_tasks = make_tasks(30, seed=3)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(r["id"], r["prompt"], r["answer"], r["domain"], r["grader"]) for r in rows] == [
        (t.id, t.prompt, t.answer, t.domain, "exact") for t in pool_tasks
    ]
    assert [task.answer for task in load_tasks(str(file))] == [(t.answer,) for t in pool_tasks]
    family = pool_tasks[0].domain
    again = ("minipool", "tasks", "--count", 5, "--domains", family, "--out", file)
    check_refused("--overwrite", *again)
    run_ok(*again, "--overwrite")
    assert {json.loads(line)["domain"] for line in file.read_text().splitlines()} == {family}
    check_refused(
        "unheard-of", "minipool", "tasks", "--domains", "unheard-of", "--out", file, code=2
    )


def test_rules_as_text() -> None:
    assert parse_rule("stall, seconds=0.5,share=0.25") == Rule(
        kind="stall", seconds=0.5, share=0.25
    )
    assert parse_rule("break,requests=0 2,after=3") == Rule(kind="break", requests=(0, 2), after=3)
    for text in ("", "status,share", "status,share=much", "status,share=2", "status,unheard=1"):
        with pytest.raises(ConfigError):
            parse_rule(text)


def test_the_faults_of_the_guide_are_faults(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "guides" / "minipool-serving.md"
    block = page.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    (tmp_path / "faults.yaml").write_text(block)
    faults = read_faults(tmp_path / "faults.yaml")
    faults.check_models(NAMES)
    assert len(faults.rules) == 4
    assert faults.persona_of("atlas").style == "deepseek"
    text = page.read_text(encoding="utf-8")
    for kind in get_args(Kind):
        assert f"`{kind}`" in text


def test_help_and_the_faults_load_nothing_heavy() -> None:
    program = (
        "import sys; from prefill_router.cli import app; import prefill_router_minipool.server\n"
        "app(['minipool', 'serve', '--help'], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers', 'uvicorn', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
