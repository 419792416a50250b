"""Two workers on one port with one encoder: what they share, and what a kill does to the rest."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packages.gateway.tests.faults.test_killed import (
    check_receipts,
    connect,
    read_answer,
    request_bytes,
)
from packages.gateway.tests.server_process import (
    TARGETS,
    GatewayFiles,
    GatewayProcess,
    gateway_process,
    write_gateway_files,
)
from prefill_router.errors import ConfigError
from prefill_router.targets import Pool
from prefill_router_gateway.api.supervisor import run_workers
from prefill_router_gateway.guard.client_keys import ClientKey
from prefill_router_gateway.guard.key_file import add_key
from prefill_router_gateway.runtime import load, needs_shared_state
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc of Linux"),
]

ALONE = {"sessions": {"known_by": "none"}, "listen": {"unready_seconds": 0}}
WORKER, ENCODER = (
    "prefill_router_gateway.api.worker",
    "prefill_router_gateway.forecast.encoder_program",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayFiles]:
    models = [ScriptedModel(name, {}, otherwise="word " * 8) for name in TARGETS]
    with serve(models) as server:
        folder = tmp_path_factory.mktemp("workers")
        yield write_gateway_files(folder, server.base_url, settings=ALONE, serves=("chat",))


@pytest.fixture(scope="module")
def gateway(files: GatewayFiles) -> Iterator[GatewayProcess]:
    """Two workers and an encoder, which each test but the last leaves serving."""
    with gateway_process(files, "--workers", "2") as running:
        yield running


def children(pid: int, module: str) -> list[int]:
    """The processes that a process has started to run a module."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    child_ids = [child for task in tasks for child in task.read_text().split()]
    runs = dict[int, str]()
    for child in child_ids:
        with suppress(FileNotFoundError):  # it has just ended
            runs[int(child)] = Path(f"/proc/{child}/cmdline").read_text()
    return sorted(child for child, line in runs.items() if module in line.split("\0"))


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.02)
    raise TimeoutError


def get(gateway: GatewayProcess, path: str) -> httpx2.Response:
    return httpx2.get(f"{gateway.url}{path}", trust_env=False, timeout=60)


def post(gateway: GatewayProcess, path: str, value: object) -> httpx2.Response:
    return httpx2.post(f"{gateway.url}{path}", json=value, trust_env=False, timeout=60)


def metric(gateway: GatewayProcess, name: str) -> float:
    rows = get(gateway, "/metrics").text.splitlines()
    return sum(float(r.rsplit(" ", 1)[1]) for r in rows if r.startswith(f"prefill_router_{name}"))


def ask(gateway: GatewayProcess, text: str) -> httpx2.Headers:
    turns = [{"role": "user", "content": text}]
    reply = post(gateway, "/v1/chat/completions", {"model": "auto", "messages": turns})
    assert reply.status_code == 200
    return reply.headers


def serving_workers(gateway: GatewayProcess) -> set[str]:
    """The workers that have logged a request."""
    log = gateway.log.read_text()
    return {row.split('"worker": ')[1][0] for row in log.splitlines() if '"request"' in row}


def is_complete(gateway: GatewayProcess) -> bool:
    """Whether two workers and the encoder serve."""
    checks = get(gateway, "/ready").json()["checks"]
    states = {checks[name]["state"] for name in ("workers", "encoder")}
    return states == {"ok"} and len(children(gateway.run.pid, WORKER)) == 2


def test_both_answer_with_one_encoder_and_count_together(
    gateway: GatewayProcess, files: GatewayFiles
) -> None:
    before = metric(gateway, "requests_total")
    number = 0
    while len(serving_workers(gateway)) < 2:  # a new connection each, so either may answer
        ask(gateway, f"Question {number} of difficulty 0.5?")
        number += 1
    assert metric(gateway, "requests_total") - before == number
    assert metric(gateway, 'forecast_events_total{kind="encoded"}') >= number
    assert len(children(gateway.run.pid, ENCODER)) == 1
    assert len(children(gateway.run.pid, WORKER)) == 2
    assert not children(children(gateway.run.pid, WORKER)[0], ENCODER)
    assert len(files.rows("id")) >= number
    wait_until(lambda: len(get(gateway, "/page/api/decisions").json()["decisions"]) >= number)


@pytest.mark.slow
def test_lam_set_on_the_page_counts_in_both(gateway: GatewayProcess) -> None:
    assert post(gateway, "/page/api/lam", {"lam": 0.25}).status_code == 200
    wait_until(lambda: all(lam_of(gateway) == "0.25" for _ in range(12)))
    assert metric(gateway, "lam") == 0.25


def lam_of(gateway: GatewayProcess) -> str:
    return ask(gateway, "How are you?")["x-prefill-router-lam"]


@pytest.mark.slow
def test_a_reload_reaches_both_or_neither(gateway: GatewayProcess, files: GatewayFiles) -> None:
    (encoder,) = children(gateway.run.pid, ENCODER)
    files.configure({**ALONE, "routing": {"lam": 3}})
    refused = post(gateway, "/admin/reload", {})
    assert (refused.status_code, "routing.lam" in refused.text) == (409, True)
    gateway.reload()
    wait_until(lambda: "reload failed" in gateway.log.read_text())
    files.configure({**ALONE, "budgets": [{"dollars": 1, "per": "day"}]})
    assert "budgets" in post(gateway, "/admin/reload", {}).text
    assert children(gateway.run.pid, ENCODER) == [encoder]

    names = {"lam-8": 0.8}
    files.configure({**ALONE, "routing": {"names": names, "max_batch": 5}})
    gateway.reload()  # with another size of batches, the encoder is another one
    wait_until(lambda: "all workers are reloaded" in gateway.log.read_text())
    models = [get(gateway, "/v1/models").json()["data"] for _ in range(12)]
    assert all("lam-8" in {model["id"] for model in each} for each in models)
    wait_until(lambda: len(children(gateway.run.pid, ENCODER)) == 1)
    assert children(gateway.run.pid, ENCODER) != [encoder]
    assert "x-prefill-router-fallback" not in ask(gateway, "And now?")
    files.configure(ALONE)
    assert post(gateway, "/admin/reload", {}).status_code == 200


@pytest.mark.slow
def test_a_killed_worker_takes_only_its_own_requests_along(
    gateway: GatewayProcess, files: GatewayFiles
) -> None:
    victim, other = children(gateway.run.pid, WORKER)
    decisions, broken_ports, late_breaks = list[str](), set[int](), list[int]()
    unread_counts, safe_ports = list[float](), set[int]()

    async def client(number: int, stop: asyncio.Event) -> None:
        turn, port = 0, 0
        while not stop.is_set():
            victim_is_gone = not Path(f"/proc/{victim}").exists()
            try:
                async with connect(gateway.port) as (reader, writer):
                    port = writer.get_extra_info("sockname")[1]
                    while not stop.is_set():
                        turn += 1
                        writer.write(request_bytes(number * 1000 + turn, stream=turn % 2 == 0))
                        status, decision = await read_answer(reader)
                        assert status == 200
                        decisions.append(decision)
            except (OSError, EOFError):
                broken_ports.add(port)
                late_breaks.extend([number] * victim_is_gone)

    async def load() -> None:
        stop = asyncio.Event()
        clients = [asyncio.create_task(client(number, stop)) for number in range(6)]
        while len(decisions) < 30:
            await asyncio.sleep(0.01)
        # nobody asks meanwhile
        unread_counts.append(metric(gateway, "requests_total") - len(decisions))
        safe_ports.update(client_ports(other))
        os.kill(victim, signal.SIGKILL)
        while len(decisions) < 90 or children(gateway.run.pid, WORKER) in (
            [other],
            [victim, other],
        ):
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*clients)

    asyncio.run(load())
    assert not broken_ports & safe_ports
    assert not late_breaks  # the killed one takes connections until its sockets are closed
    wait_until(lambda: is_complete(gateway))
    check_receipts(files, decisions)
    # what the killed one had counted stays, but for what was under way
    assert metric(gateway, "requests_total") - len(decisions) >= unread_counts[0] - 6
    assert "worker" in gateway.log.read_text().split("ended with status -9")[0][-40:]
    assert len(children(gateway.run.pid, ENCODER)) == 1


def client_ports(pid: int) -> set[int]:
    """The ports of the clients that are connected to a process."""
    links = set[str]()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(file.readlink().name)
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in links}


@pytest.mark.slow
def test_a_killed_encoder_is_restarted_once_and_the_fallback_decides_meanwhile(
    gateway: GatewayProcess,
) -> None:
    (encoder,) = children(gateway.run.pid, ENCODER)
    os.kill(encoder, signal.SIGKILL)
    fallbacks = set[str]()
    number = 0
    while not (fallbacks and is_complete(gateway)):
        number += 1
        fallbacks |= {ask(gateway, f"Anew {number}").get("x-prefill-router-fallback", "")} - {""}
    assert fallbacks == {"encoder_down"}
    for _ in range(6):
        number += 1
        wait_until(lambda n=number: "x-prefill-router-fallback" not in ask(gateway, f"Anew {n}"))
    assert len(children(gateway.run.pid, ENCODER)) == 1
    owner = '"prefill_router_gateway.forecast.shared_encoder", "event": "the encoder'
    assert gateway.log.read_text().count(owner) == 1


@pytest.mark.slow
def test_what_is_under_way_is_answered_at_the_end_and_no_process_is_left(
    files: GatewayFiles,
) -> None:
    files.configure(ALONE)
    with gateway_process(files, "--workers", "2") as gateway:
        ours = [*children(gateway.run.pid, WORKER), *children(gateway.run.pid, ENCODER)]
        decisions = list[str]()

        async def ask_and_terminate() -> None:
            barrier = asyncio.Barrier(4)  # a connection that no worker has accepted yet is reset

            async def ask_once(number: int) -> None:
                async with connect(gateway.port) as (reader, writer):
                    writer.write(request_bytes(number, stream=True))
                    await reader.readexactly(1)
                    await barrier.wait()
                    gateway.run.terminate()
                    rest = await reader.readuntil(b"[DONE]")
                    assert b"error" not in rest
                    decisions.append("yes")

            await asyncio.gather(*(ask_once(number) for number in range(4)))

        asyncio.run(ask_and_terminate())
        assert gateway.run.wait(60) == 0
        assert len(decisions) == 4
    wait_until(lambda: not any(is_running(pid) for pid in ours))


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_process(gateway: GatewayProcess) -> None:
    ours = [*children(gateway.run.pid, WORKER), *children(gateway.run.pid, ENCODER)]
    assert len(ours) == 3
    gateway.kill()
    wait_until(lambda: not any(is_running(pid) for pid in ours))


def is_running(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (ALONE, []),
        ({}, ["conversations"]),
        ({**ALONE, "budgets": [{"dollars": 1.0, "per": "day"}]}, ["budgets"]),
    ],
)
def test_what_workers_would_have_apart_is_named(
    files: GatewayFiles, settings: dict[str, Any], names: list[str]
) -> None:
    files.configure(settings)
    names_of_parts = needs_shared_state(load(files.paths()))
    assert [name.split(" ")[0] for name in names_of_parts] == names


def test_limits_of_keys_tool_loops_and_stored_responses_are_named_too(files: GatewayFiles) -> None:
    files.configure(ALONE)
    keys = files.folder / "keys.yaml"
    add_key(keys, ClientKey(name="free", sha256="0" * 64))
    assert not needs_shared_state(load(files.paths(keys=keys)))
    add_key(keys, ClientKey(name="ann", sha256="1" * 64, concurrent=2))
    loaded = load(files.paths(keys=keys))
    able = [replace(t, accepts=("tools",), serves=("chat", "responses")) for t in loaded.pool]
    pool = Pool(tuple(able), loaded.pool.prices_date, loaded.pool.providers)
    assert needs_shared_state(replace(loaded, pool=pool)) == [
        "limits of keys",
        "tool loops (3 targets accept tools)",
        "stored responses (3 targets serve responses)",
    ]


def test_workers_are_refused_where_limits_would_be_wrong(files: GatewayFiles) -> None:
    files.configure({**ALONE, "budgets": [{"dollars": 1.0, "per": "day"}]})
    paths = files.paths()
    with pytest.raises(ConfigError, match="budgets; share them through PostgreSQL"):
        run_workers(paths, load(paths), workers=2, on_ready=print)
