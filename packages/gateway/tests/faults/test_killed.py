"""A gateway that is killed at any moment, or reloaded all the time, under load."""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.server_process import (
    TARGETS,
    GatewayFiles,
    GatewayProcess,
    gateway_process,
    write_gateway_files,
)
from prefill_router_gateway.receipts.rows import from_row
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

CLIENTS = 4
KILLS = 2
BUDGET = {
    "budgets": [{"dollars": 1000.0, "per": "day"}],
    "sessions": {"margin": 2.0},  # no switch gains that much
    "logs": {"level": "warning"},
}
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    "x-session-id: {}\r\ncontent-length: {}\r\n\r\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayFiles]:
    models = [ScriptedModel(name, {}, otherwise="word " * 8) for name in TARGETS]
    with serve(models) as server:
        folder = tmp_path_factory.mktemp("killed")
        yield write_gateway_files(folder, server.base_url, settings=BUDGET)


@pytest.fixture(scope="module")
def gateway(files: GatewayFiles) -> Iterator[GatewayProcess]:
    with gateway_process(files) as running:
        yield running


def request_bytes(number: int, *, stream: bool) -> bytes:
    turns = [{"role": "user", "content": f"Question {number} of difficulty 0.5?"}]
    value: dict[str, Any] = {"model": "auto", "messages": turns, "stream": stream}
    body = json.dumps(value)
    return (_HEAD.format(f"s{number % 7}", len(body)) + body).encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Read an answer to its end; its status and decision."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(row.split(": ", 1) for row in head.split("\r\n")[1:] if ": " in row)
    if "content-length" in fields:
        await reader.readexactly(int(fields["content-length"]))
    else:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    return int(head.split(" ")[1]), fields.get("x-prefill-router-decision-id", "")


async def client(
    port: int, number: int, decisions: list[str], limit: int, stop: asyncio.Event
) -> int:
    """Ask until the gateway is gone or `limit` is reached; how many answers weren't 200."""
    odd = 0
    try:
        async with connect(port) as (reader, writer):
            for turn in range(limit):
                if stop.is_set():
                    break
                writer.write(request_bytes(number * 1000 + turn, stream=turn % 2 == 0))
                status, decision = await read_answer(reader)
                odd += status != 200
                decisions.append(decision)
    except (OSError, EOFError):
        odd += stop.is_set()  # else it was killed
    return odd


@asynccontextmanager
async def connect(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("pragma integrity_check").fetchone()[0])


def check_receipts(files: GatewayFiles, decisions: list[str]) -> None:
    assert integrity(files.database) == "ok"
    rows = files.rows()
    for row in rows:
        assert from_row(tuple(row.values())).outcome.kind in ("answered", "disconnected")
    assert not set(decisions) - {row["id"] for row in rows}


def test_a_killed_gateway_loses_nothing_that_a_client_has(files: GatewayFiles) -> None:
    chance = random.Random(5)
    decisions: list[str] = []

    async def load(gateway: GatewayProcess, answers: int) -> None:
        async def kill() -> None:
            while len(decisions) < answers:
                await asyncio.sleep(0.001)
            await asyncio.sleep(chance.random() * 0.02)
            gateway.kill()

        never = asyncio.Event()
        clients = [client(gateway.port, n, decisions, 10**6, never) for n in range(CLIENTS)]
        await asyncio.gather(kill(), *clients)

    for _ in range(KILLS):
        with gateway_process(files) as gateway:
            asyncio.run(load(gateway, len(decisions) + chance.randrange(40)))
        check_receipts(files, decisions)
        # at most the ones that were in flight, and had no end yet, are more than clients know of
        assert len(files.rows("id")) <= len(decisions) + KILLS * CLIENTS
    assert len(decisions) > CLIENTS


def test_what_was_spent_and_who_answered_are_known_after_a_restart(files: GatewayFiles) -> None:
    with gateway_process(files) as gateway:
        asyncio.run(ask_conversation(gateway.port))
        gateway.kill()
    cost = sum(row["cost"] for row in files.rows("at, id, cost"))
    (first,) = [r for r in files.rows() if r["requested"] == "prefill-router:1"]
    with gateway_process(files) as gateway:
        left = asyncio.run(metric(gateway.port, "prefill_router_budget_left_dollars"))
        asyncio.run(ask_conversation(gateway.port, model="prefill-router:0", turns=3))
    assert left == pytest.approx(1000 - cost, abs=1e-9)
    last = files.rows()[-1]
    assert (last["session"], last["target"]) == (first["session"], first["target"])
    assert last["reason"] == "session"
    assert last["policy_target"] != last["target"]


async def ask_conversation(port: int, *, model: str = "prefill-router:1", turns: int = 1) -> None:
    messages = [{"role": "user", "content": "Question 1 of difficulty 0.9: why?"}]
    messages += [{"role": "assistant", "content": "word"}, {"role": "user", "content": "And now?"}]
    body = json.dumps({"model": model, "messages": messages[:turns]})
    async with connect(port) as (reader, writer):
        writer.write((_HEAD.format("the-one", len(body)) + body).encode())
        assert (await read_answer(reader))[0] == 200


async def metric(port: int, name: str) -> float:
    async with connect(port) as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        text = (await reader.read()).decode()
    (row,) = [row for row in text.splitlines() if row.startswith(name + "{")]
    return float(row.rsplit(" ", 1)[1])


def count_open_files_and_children(pid: int) -> tuple[int, int]:
    """The counts of files that a process has open, and of its children."""
    place = Path(f"/proc/{pid}")
    children = " ".join(file.read_text() for file in place.glob("task/*/children")).split()
    return len(list((place / "fd").iterdir())), len(children)


def databases(pid: int) -> list[str]:
    """The databases that a process has open, each once for every open file."""
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(file.readlink().name)
    return [name for name in names if name.endswith(".sqlite")]


def resident_mb(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS")) / 1000


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc of Linux")
def test_reloads_without_end_drop_no_request_and_leave_nothing_behind(
    files: GatewayFiles, gateway: GatewayProcess
) -> None:
    decisions: list[str] = []

    async def reload_repeatedly(gateway: GatewayProcess) -> list[int]:
        stop = asyncio.Event()
        clients = [client(gateway.port, n, decisions, 10**6, stop) for n in range(CLIENTS)]
        tasks = [asyncio.create_task(coroutine) for coroutine in clients]
        for _ in range(30):
            gateway.reload()
            await asyncio.sleep(0.05)
        stop.set()
        return await asyncio.gather(*tasks)

    async def wait_for_idle(gateway: GatewayProcess, before: tuple[int, int]) -> tuple[int, int]:
        """The open files and children once idle connections to targets are closed."""
        for _ in range(600):
            if (now := count_open_files_and_children(gateway.run.pid)) <= before:
                break
            await asyncio.sleep(0.1)
        return now

    # so many receipts that their file is open for its checkpoints, too
    assert asyncio.run(client(gateway.port, 7, decisions, 300, asyncio.Event())) == 0
    while len(databases(gateway.run.pid)) < 2:
        time.sleep(0.01)
    before = count_open_files_and_children(gateway.run.pid)
    assert asyncio.run(reload_repeatedly(gateway)) == [0] * CLIENTS
    assert len(decisions) > CLIENTS
    for size in (5, 6):  # with another one, the encoder's process is a new one
        files.configure({**BUDGET, "routing": {"max_batch": size}})
        asyncio.run(reload_now(gateway.port))
        decisions.clear()
        never = asyncio.Event()
        assert asyncio.run(client(gateway.port, size, decisions, 20, never)) == 0
        assert len(decisions) == 20
    after = asyncio.run(wait_for_idle(gateway, before))
    assert after[0] <= before[0], "files stay open"
    assert after[1] <= before[1], "processes stay"
    files.configure(BUDGET)


async def reload_now(port: int) -> None:
    async with connect(port) as (reader, writer):
        writer.write(
            b"POST /admin/reload HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n"
            b"content-type: application/json\r\n\r\n{}"
        )
        assert (await read_answer(reader))[0] == 200


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc of Linux")
def test_memory_stays_what_it_was(gateway: GatewayProcess) -> None:
    async def load(gateway: GatewayProcess, count: int) -> None:
        never, decisions = asyncio.Event(), list[str]()
        clients = [
            client(gateway.port, n, decisions, count // CLIENTS, never) for n in range(CLIENTS)
        ]
        assert await asyncio.gather(*clients) == [0] * CLIENTS
        assert len(decisions) == count

    asyncio.run(load(gateway, 300))  # what is kept of the latest requests fills
    warm = resident_mb(gateway.run.pid)
    asyncio.run(load(gateway, 700))
    assert resident_mb(gateway.run.pid) < warm + 9.5
