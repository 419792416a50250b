"""A soak: targets that fail, stall, truncate and recover, clients that leave, and reloads.

The gateway runs as its user runs it. Clients ask for `auto` and for targets by name, streaming and
not, in conversations and alone, and some leave in the middle. Every minute the gateway reloads.
At the end: has every request an answer or a proper error, is memory flat, do connections and
processes end, and do receipts and metrics agree with what clients and targets saw? What may differ
there, and why, is in `_soak_audit`.

With `--replicas 3` clients ask several gateways that share a database; one after another is killed,
and so is the database. Then spending is compared as well, and memory and reloads are left out.

    python -m benchmarks.soak [--minutes 20] [--clients 24] [--reload-seconds 60] [--good-seconds 9]
    python -m benchmarks.soak --replicas 3 [--minutes 20] [--kill-seconds 20]
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks._soak_audit import EQUAL, audit, read_receipts
from benchmarks._soak_replicas import Replicas, replicas_of
from benchmarks._system import machine
from benchmarks.gateway import (
    COMMAND,
    RESULTS,
    await_port,
    free_port,
    make_router,
    process,
    resident_mb,
)
from prefill_router import files
from prefill_router.targets import Pool, Target, read_pool, write_pool

TARGETS = 3
LEAVE = 0.08
_MOVE = 0.2
"""How often a client goes to another replica."""
SETTLE_SECONDS = 10.0
_PATIENCE = 60.0
_CONFIG = """
logs: {level: warning}
routing: {deadline_seconds: 5}
failures: {first_token_seconds: 4, silence_seconds: 4, answer_seconds: 30, breaker_seconds: 2}
limits: {requests: 500}
sessions: {most: 1000}
"""
"""Little is remembered of conversations, so that memory is full early, and what grows is a leak."""


@final
@dataclass
class Tally:
    """What clients saw.

    Attributes:
        ends: How many requests ended how.
        decisions: The number of each request whose reply named its decision, by the decision's id.
        odd: What was no proper end, a few of them.
        left: The requests whose client left: number, port, and when.
        killed: The numbers of the requests whose replica was killed.
    """

    ends: Counter[str] = field(default_factory=Counter)
    decisions: dict[str, str] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)
    left: list[tuple[str, int, float]] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)


def body_of(chance: random.Random, number: int, user: str) -> dict[str, Any]:
    """One request."""
    words = " ".join(chance.choice(("why", "how", "prime", "sum", "of")) for _ in range(30))
    turns = [{"role": "user", "content": f"Question {number % 500} of difficulty 0.5: {words}?"}]
    if chance.random() < 0.3:
        turns += [{"role": "assistant", "content": "word"}, {"role": "user", "content": "And now?"}]
    model = chance.choice(("auto", "auto", "auto", "prefill-router:0.9", "target-1"))
    value: dict[str, Any] = {"model": model, "messages": turns, "user": user}
    if chance.random() < 0.6:
        value["stream"] = True
    return value


async def one_request(
    port: int, chance: random.Random, number: int, user: str, connection: Any, tally: Tally
) -> Any:
    """Ask once, over the connection that is given or a new one; the one to go on with, or None."""
    reader, writer = connection or await asyncio.open_connection("127.0.0.1", port)
    value = body_of(chance, number, user)
    body = json.dumps(value).encode()
    session = f"x-session-id: s{number % 97}\r\n" if chance.random() < 0.5 else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\n{session}content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    if chance.random() < LEAVE:
        await asyncio.sleep(chance.random() * 0.05)
        writer.close()
        tally.ends["left"] += 1
        tally.left.append((user, port, time.monotonic()))
        return None
    async with asyncio.timeout(_PATIENCE):
        end = await read_end(reader, user, tally)
    tally.ends[end] += 1
    return (reader, writer)


async def read_end(reader: asyncio.StreamReader, user: str, tally: Tally) -> str:
    """Read an answer to its end, and say how it ended."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(row.split(": ", 1) for row in head.split("\r\n")[1:] if ": " in row)
    status = int(head.split(" ", 2)[1])
    body = bytearray()
    if "content-length" in fields:
        body += await reader.readexactly(int(fields["content-length"]))
    else:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:size]
        await reader.readexactly(2)
    if named := fields.get("x-prefill-router-decision-id"):
        tally.decisions[named] = user
    end = how_it_ended(status, fields, bytes(body))
    if end.startswith("odd") and len(tally.odd) < 20:
        tally.odd.append(f"{end}: {head[:300]!r} {bytes(body[-300:])!r}")
    return end


def how_it_ended(status: int, fields: dict[str, str], body: bytes) -> str:
    """`answered`, `stream cut with its error`, an error's status, or what is odd."""
    if status != 200:
        try:
            json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return f"odd error {status}"
        return f"error {status}" if status in (429, 502, 503, 504) else f"odd error {status}"
    if "text/event-stream" in fields.get("content-type", ""):
        if body.endswith(b"data: [DONE]\n\n"):
            return "answered"
        last = body.strip().rsplit(b"\n\n", 1)[-1]
        return "stream cut, with its error" if b'"error"' in last else "odd stream"
    try:
        json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, TypeError, IndexError):
        return "odd answer"
    return "answered"


IsKilled = Callable[[int, float], bool]
"""Whether the gateway at a port was killed since a time on the monotonic clock."""


async def client(
    ports: Sequence[int], number: int, until: float, tally: Tally, is_killed: IsKilled
) -> None:
    """Ask until the time is over, one gateway or another."""
    chance = random.Random(number)
    connection, port = None, ports[number % len(ports)]
    count, used = 0, 0.0
    while time.monotonic() < until:
        count += 1
        if len(ports) > 1 and chance.random() < _MOVE:
            if connection is not None:
                connection[1].close()
            port, connection = chance.choice(ports), None
        if connection is None:
            used = time.monotonic()
        try:
            connection = await one_request(
                port, chance, count, f"{number}-{count}", connection, tally
            )
            used = time.monotonic()
        except TimeoutError:
            tally.ends["odd: no answer"] += 1
            connection = None
        except ConnectionRefusedError:
            port, connection = chance.choice(ports), None
            tally.ends["refused by a killed replica"] += 1
            if len(ports) == 1:
                tally.odd.append(f"client {number}: refused")
        except (OSError, asyncio.IncompleteReadError) as error:
            connection = None
            if is_killed(port, used):
                tally.killed.add(f"{number}-{count}")
                tally.ends["cut by a kill"] += 1
                continue
            tally.ends["odd: broken connection"] += 1
            if len(tally.odd) < 20:
                tally.odd.append(f"client {number}: {type(error).__name__}")
        await asyncio.sleep(chance.random() * 0.2)


def count_open(pid: int) -> dict[str, int]:
    """What a process has open."""
    place = Path(f"/proc/{pid}")
    children = [path.read_text() for path in place.glob("task/*/children")]
    return {
        "files": len(list((place / "fd").iterdir())),
        "threads": len(list((place / "task").iterdir())),
        "processes": len(" ".join(children).split()),
    }


async def watch(pid: int, until: float, every: float, sizes: list[tuple[float, float]]) -> int:
    """Look at the process's memory, and have it reload; how often it did."""
    began = last = time.monotonic()
    reloads = 0
    while (now := time.monotonic()) < until:
        sizes.append((now - began, resident_mb(pid)))
        if now - last >= every:
            os.kill(pid, signal.SIGHUP)
            reloads, last = reloads + 1, now
        await asyncio.sleep(2)
    return reloads


def read(url: str) -> str:
    """What a server says."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        text: str = reply.read().decode()
    return text


def growth(sizes: list[tuple[float, float]]) -> dict[str, float]:
    """Memory in the second fifth of the time and in the last, MB."""
    duration = sizes[-1][0]
    early = [size for at, size in sizes if 0.2 * duration <= at < 0.4 * duration]
    late = [size for at, size in sizes if at >= 0.8 * duration]
    first, last = statistics.median(early), statistics.median(late)
    return {"early_mb": first, "late_mb": last, "growth": last / first - 1}


def main() -> None:
    """Soak, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--clients", type=int, default=24)
    options.add_argument("--reload-seconds", type=float, default=60.0)
    options.add_argument("--good-seconds", type=float, default=12.0, help="between troubles")
    options.add_argument("--replicas", type=int, default=1, help="gateways that share a database")
    options.add_argument("--kill-seconds", type=float, default=20.0, help="between kills of those")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        until = chosen.minutes * 60
        server = (sys.executable, "-m", "benchmarks._soak_targets", "--until", until)
        moods = ("--good-seconds", chosen.good_seconds, "--count", TARGETS)
        targets = stack.enter_context(process(*server, *moods, core=1))
        ports = json.loads(targets.stdout.readline() if targets.stdout else "[]")
        router, place = make_router(folder, ports[0])
        served = [_at(target, port) for target, port in zip(read_pool(place), ports, strict=True)]
        write_pool(Pool(tuple(served)), place)
        config = folder / "gateway.yaml"
        config.write_text(_CONFIG)
        serve = ("serve", router, "--pool", place, "--config", config)
        soaked = soak_one if chosen.replicas == 1 else soak_several
        result = soaked(serve, config, chosen, ports[0])
    name = "soak.json" if chosen.replicas == 1 else "soak_replicas.json"
    files.write_json(RESULTS / name, {"machine": machine(), **result})
    print(files.as_json(result))
    if result["odd"] or any(finding != EQUAL for finding in result["audit"].values()):
        sys.exit(1)


Serve = tuple[object, ...]
"""The words of `serve`, without the port and the receipts."""


def soak_one(serve: Serve, config: Path, chosen: argparse.Namespace, upstream: int) -> Any:
    """Soak one gateway, and audit it."""
    port, database = free_port(), config.parent / "r.sqlite"
    storage = ("--port", port, "--receipts", f"sqlite:///{database}")
    tally, sizes = Tally(), list[tuple[float, float]]()
    until = chosen.minutes * 60

    async def soak(pid: int) -> int:
        end = time.monotonic() + until
        asking = [client([port], n, end, tally, lambda *_: False) for n in range(chosen.clients)]
        reloads = asyncio.create_task(watch(pid, end, chosen.reload_seconds, sizes))
        await asyncio.gather(*asking)
        await asyncio.sleep(SETTLE_SECONDS)  # what stalls ends by its time limits
        return await reloads

    with process(COMMAND, *serve, *storage, core=0) as run:
        await_port(port)
        before = count_open(run.pid)
        reloads = asyncio.run(soak(run.pid))
        metrics = read(f"http://127.0.0.1:{port}/metrics")
        upstream_counts = json.loads(read(f"http://127.0.0.1:{upstream}/counts"))
        receipts = read_receipts(database)
        return {
            "minutes": chosen.minutes,
            "reloads": reloads,
            **summarise(tally, receipts),
            "memory": growth(sizes),
            "held": {"before": before, "after": count_open(run.pid)},
            "audit": audit(
                receipts,
                tally.decisions,
                upstream_counts["heard"],
                upstream_counts["counts"],
                metrics,
            ),
            "counts of targets": upstream_counts["counts"],
        }


def soak_several(serve: Serve, config: Path, chosen: argparse.Namespace, upstream: int) -> Any:
    """Soak replicas that share a database, with kills of both, and audit them."""
    tally = Tally()

    async def soak(several: Replicas) -> None:
        end = time.monotonic() + chosen.minutes * 60
        asking = [
            client(several.ports, n, end, tally, several.is_killed) for n in range(chosen.clients)
        ]
        trouble = asyncio.create_task(several.trouble(end, chosen.kill_seconds))
        await asyncio.gather(*asking)
        await trouble
        await asyncio.sleep(SETTLE_SECONDS)

    with replicas_of(serve, config, chosen.replicas) as several:
        asyncio.run(soak(several))
        ready = [json.loads(read(f"http://127.0.0.1:{p}/ready")) for p in several.ports]
        upstream_counts = json.loads(read(f"http://127.0.0.1:{upstream}/counts"))
        receipts = read_receipts(*several.databases)
        killed = tally.killed | several.left_by(tally.left)
        audited = audit(
            receipts,
            tally.decisions,
            upstream_counts["heard"],
            upstream_counts["counts"],
            None,
            killed,
        )
        spending = several.spending(receipts, len(killed))
        return {
            "minutes": chosen.minutes,
            "replicas": chosen.replicas,
            "killed under a request": len(killed),
            "kills": {"of replicas": len(several.kills), "of the database": several.stops},
            **summarise(tally, receipts),
            "dollars": spending,
            "shared state in the end": [reply["checks"]["shared"]["state"] for reply in ready],
            "audit": {**audited, "spending and receipts": spending.pop("verdict")},
            "counts of targets": upstream_counts["counts"],
        }


def summarise(tally: Tally, receipts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What clients saw, and what receipts say of it."""
    return {
        "ends": dict(tally.ends),
        "odd": tally.odd,
        "receipts": len(receipts),
        "outcomes": dict(Counter(row["outcome"] for row in receipts.values())),
        "decisions that clients were told of": len(tally.decisions),
    }


def _at(target: Target, port: int) -> Target:
    return Target(
        name=target.name,
        input_price=target.input_price,
        output_price=target.output_price,
        base_url=f"http://127.0.0.1:{port}/v1",
    )


if __name__ == "__main__":
    main()
