"""What the gateway adds to plain pass-through, and what a thousand open streams take.

A server that answers at once, the bare reverse proxy of the same framework (FastAPI, httpx2,
uvicorn) and the gateway run in processes of their own; 32 clients ask either, in turns. `full`:
each client asks again at once. `paced`: together they ask 200 times a second. The gateway is asked
for a target by name, which needs no encoder, and for `auto`, where it routes by the text's
complexity. Each keeps its receipts in SQLite.

    python -m benchmarks.gateway [--seconds 5] [--rounds 5] [--streams 1000]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks._asking import Timings, ask_many, request
from benchmarks._system import machine
from prefill_router import files
from prefill_router.features.complexity import ComplexityConfig
from prefill_router.fitting import FitConfig, Recipe, fit_router
from prefill_router.predictors.logistic import LogisticConfig
from prefill_router.targets import Pool, Target, write_pool
from prefill_router.testing import make_routing_dataset

RESULTS = Path(__file__).parent / "results"
COMMAND = Path(sys.executable).with_name("prefill-router")
CLIENTS = 32
PACED = 200.0
TEXT = "How many primes are there below one hundred? Think, then answer. " * 6
NEEDED = {"median_ms": 3.0, "p99_ms": 10.0, "throughput": 0.7, "streams_mb": 600.0}


@contextmanager
def process(*line: object, core: int) -> Iterator["subprocess.Popen[str]"]:
    """A process on one core, ended with this."""
    words = ["taskset", "-c", str(core % (os.cpu_count() or 1)), *map(str, line)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as run:
        try:
            yield run
        finally:
            run.terminate()


def await_port(port: int) -> None:
    """Wait until somebody listens."""
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no server listens on port {port}")


def free_port() -> int:
    """A port that was free a moment ago."""
    import socket

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def make_router(folder: Path, upstream: int) -> tuple[Path, Path]:
    """A router that reads texts' complexity, and the pool file of its targets."""
    data = make_routing_dataset(queries=400, targets=3)
    recipe = Recipe(features=(ComplexityConfig(),), predictor=LogisticConfig())
    fit_router(data, config=FitConfig(test=0.15, recipe=recipe, resamples=20)).router.save(
        folder / "router"
    )
    address = f"http://127.0.0.1:{upstream}/v1"
    targets = tuple(
        Target(
            name=t.name, input_price=t.input_price, output_price=t.output_price, base_url=address
        )
        for t in data.pool
    )
    write_pool(Pool(targets), folder / "pool.yaml")
    return folder / "router", folder / "pool.yaml"


def begin(stack: ExitStack, folder: Path) -> tuple[int, Path, Path]:
    """Start the server that answers at once; its port, a router, and its targets' pool file."""
    server = stack.enter_context(process(sys.executable, "-m", "benchmarks._upstream", core=1))
    upstream = int(server.stdout.readline() if server.stdout else 0)
    return upstream, *make_router(folder, upstream)


def serve(
    stack: ExitStack, router: Path, pool: Path, *, name: str, settings: dict[str, Any]
) -> tuple[int, int]:
    """Start a gateway that keeps receipts in SQLite; its port and the id of its process."""
    folder, port = pool.parent, free_port()
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"logs": {"level": "warning"}, **settings}))
    line = ("serve", router, "--pool", pool, "--port", port, "--config", config)
    storage = ("--receipts", f"sqlite:///{folder}/{name}.sqlite")
    run = stack.enter_context(process(COMMAND, *line, *storage, core=0))
    await_port(port)
    return port, run.pid


def in_turns(
    requests: dict[str, tuple[int, bytes]], rounds: int, **how: Any
) -> dict[str, list[Timings]]:
    """Ask every port in turns, as `ask_many` does; the first round warms up."""
    timings: dict[str, list[Timings]] = {name: [] for name in requests}
    for _ in range(rounds + 1):
        for name, (port, message) in requests.items():
            timings[name].append(asyncio.run(ask_many(port, message, **how)))
    return {name: each[1:] for name, each in timings.items()}


def figures(timings: list[Timings]) -> dict[str, float]:
    """Of several rounds together: answers each second, and milliseconds of an answer."""
    every = sorted(s * 1e3 for part in timings for s in part.seconds)
    if any(part.failed for part in timings):
        raise RuntimeError("some answers were errors")
    return {
        "requests_per_second": len(every) / sum(part.wall for part in timings),
        "median_ms": statistics.median(every),
        "p99_ms": every[int(0.99 * len(every))],
    }


def compare(
    ports: dict[str, int], models: dict[str, str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Every way under every load, in turns."""
    loads: dict[str, Any] = {}
    for shape in ("whole", "stream"):
        for load, every in (("full", 0.0), ("paced", CLIENTS / PACED)):
            requests = {
                name: (port, request(models[name], TEXT, stream=shape == "stream"))
                for name, port in ports.items()
            }
            timings = in_turns(requests, rounds, clients=CLIENTS, seconds=seconds, every=every)
            loads[f"{shape}, {load}"] = by_way = {n: figures(s) for n, s in timings.items()}
            print(f"{shape}, {load}: {by_way}", flush=True)
    return loads


def resident_mb(pid: int) -> float:
    """Memory of a process that is its own or shared, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(row for row in status.splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


async def open_streams(port: int, upstream: int, count: int, pid: int) -> dict[str, float]:
    """The process's memory before and while `count` streams are open; read them to their ends."""
    before = resident_mb(pid)
    message = request("target-0", "hold", stream=True)
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in pairs:
        writer.write(message)
    for reader, _ in pairs:
        await reader.readuntil(b"word ")
    held_mb = resident_mb(pid)
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream)
    writer.write(b"GET /let-go HTTP/1.1\r\n\r\n")
    for stream, _ in pairs:
        if b"[DONE]" not in await stream.readuntil(b"0\r\n\r\n"):
            raise RuntimeError("a stream broke off")
    for _, each in pairs:
        each.close()
    return {"streams": count, "before_mb": before, "held_mb": held_mb}


def verdict(loads: dict[str, Any], streams: dict[str, float]) -> dict[str, Any]:
    """What the gateway adds, by load, and whether that is within what is needed."""
    added: dict[str, Any] = {}
    for load, by in loads.items():
        for name in ("named", "auto"):
            added[f"{load}, {name}"] = {
                "median_ms": by[name]["median_ms"] - by["bare"]["median_ms"],
                "p99_ms": by[name]["p99_ms"] - by["bare"]["p99_ms"],
                "throughput": by[name]["requests_per_second"] / by["bare"]["requests_per_second"],
            }
    return {"added": added, "streams": streams, "needed": NEEDED}


def main() -> None:
    """Measure, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--streams", type=int, default=1000)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        upstream, router, pool = begin(stack, folder)
        bare = free_port()
        proxy = ("-m", "benchmarks._bare_proxy", upstream, bare)
        stack.enter_context(process(sys.executable, *proxy, core=0))
        gateway, pid = serve(stack, router, pool, name="gateway", settings={})
        await_port(bare)
        os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
        ports = {"direct": upstream, "bare": bare, "named": gateway, "auto": gateway}
        models = {"direct": "m", "bare": "m", "named": "target-0", "auto": "auto"}
        loads = compare(ports, models, chosen.rounds, chosen.seconds)
        streams = asyncio.run(open_streams(gateway, upstream, chosen.streams, pid))
    result = {"machine": machine(), "loads": loads, **verdict(loads, streams)}
    files.write_json(RESULTS / "gateway.json", result)
    print(files.as_json({k: result[k] for k in ("added", "streams")}))


if __name__ == "__main__":
    main()
