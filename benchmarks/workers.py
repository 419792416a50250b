"""What a second worker adds: processor time of a request, and requests per second.

`prefill-router serve` with one worker and with two, and two gateways of one worker on two ports,
which share nothing, run in turns. 32 clients ask for whole answers by `auto`; the target answers at
once. A busier event loop takes less for each request, so one worker is asked by half the clients,
too: then it has the load that each of two workers has. `full`: each asks again at once. `paced`:
together they ask 200 times a second. `cached`: they ask the same text. `new`: every text is new to
the encoder, which reads texts' complexity.

Processor time is that of all processes of the gateway, and of its encoder apart. Clients, target
and gateways share the machine's cores, so the throughput is that of two workers with cores of their
own only where there are enough of them; `bound` is computed, not measured: what the processor time
allows there. With `--share 0.15` each process that answers requests gets that share of a core, by
a control group, and the rest is left to clients, target and encoder: what a second worker adds is
measured, on a small scale. It needs version 1 of the controller `cpu`, at /sys/fs/cgroup/cpu. Two
busy cores slow each other (two ports show by how much); with `--one-core` all gateways have the
first core and everything else the second, so that what a worker itself costs is seen.

    python -m benchmarks.workers [--seconds 4] [--rounds 6] [--share 0.15 | --one-core]
        [--shared postgresql://...]
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._asking import read_answer, request
from benchmarks._system import machine
from benchmarks.gateway import COMMAND, RESULTS, make_router
from prefill_router import files
from prefill_router.targets import Pool, read_pool, write_pool

CLIENTS = 32
PACED = 200.0
GROUPS, PERIOD = Path("/sys/fs/cgroup/cpu"), 10_000
WORKER = "prefill_router_gateway.api.worker"
ENCODER = "prefill_router_gateway.forecast.encoder_program"
SETTINGS = "logs: {level: warning}\nsessions: {known_by: none}\n"
NEEDED = {"processor_time": 1.1, "throughput": 1.6}


@contextmanager
def process(*line: object) -> Iterator["subprocess.Popen[str]"]:
    """A process, ended with this; its first line is left to read."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    words = [*map(str, line)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as run:
        try:
            yield run
        finally:
            run.terminate()


def first_line(run: "subprocess.Popen[str]") -> str:
    """What a process prints first."""
    return run.stdout.readline() if run.stdout else ""


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for task in tasks for child in task.read_text().split()]
    return [pid, *(descendant for child in below for descendant in tree(child))]


def runs(module: str, pid: int) -> bool:
    """Whether a process runs a module."""
    return module in Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@contextmanager
def limit_share(pids: list[int], share: float) -> Iterator[None]:
    """Give each process that answers requests this share of a core, until the block ends."""
    processes = [each for top in pids for each in tree(top)]
    groups = [GROUPS / f"prefill-router-{pid}" for pid in processes if runs(WORKER, pid)]
    groups = groups or [GROUPS / f"prefill-router-{pid}" for pid in pids]
    for group in groups:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD}")
        (group / "cpu.cfs_quota_us").write_text(f"{round(share * PERIOD)}")
        (group / "cgroup.procs").write_text(group.name.rsplit("-", 1)[1])
    try:
        yield
    finally:
        for group in groups:
            (GROUPS / "cgroup.procs").write_text(group.name.rsplit("-", 1)[1])
            group.rmdir()


def pin(pids: list[int]) -> None:
    """Give the gateways' own processes the first core, and all else the second."""
    for pid in (each for top in pids for each in tree(top)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {1 if runs(ENCODER, pid) else 0})


def processor_seconds(pids: list[int]) -> dict[int, float]:
    """Processor time so far of each of the gateway's processes."""
    clock = time.clock_gettime  # of a process's own clock, which has no ticks
    return {pid: clock(~pid << 3 | 2) for top in pids for pid in tree(top)}


async def load(
    ports: list[int], clients: int, texts: Iterator[str], seconds: float, every: float
) -> tuple[int, float]:
    """Ask for so long, each client so often; the number of answers, and their seconds."""
    began = time.perf_counter()
    counts = [0] * clients

    async def ask_repeatedly(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[number % len(ports)])
        due = began + every * number / clients
        while (now := time.perf_counter()) < began + seconds:
            if every and due > now:
                await asyncio.sleep(due - now)
            due += every
            writer.write(request("auto", next(texts), stream=False))
            if not await read_answer(reader):
                raise RuntimeError("an answer was an error")
            counts[number] += 1
        writer.close()

    await asyncio.gather(*(ask_repeatedly(n) for n in range(clients)))
    return sum(counts), time.perf_counter() - began


def texts(kind: str) -> Iterator[str]:
    """What clients ask."""
    words = "How many primes are there below one hundred? Think, then answer. " * 6
    stamp = time.time_ns()
    return (words + (f"{stamp} {n}" if kind == "new" else "") for n in itertools.count())


def measure(
    ways: dict[str, tuple[list[int], list[int], int]], rounds: int, seconds: float, share: float
) -> Any:
    """Every way in turns: what a request takes, and how many a second are answered."""
    loads: dict[str, Any] = {}
    paces = ("full",) if share else ("full", "paced")
    for kind, pace in itertools.product(("cached", "new"), paces):
        every = CLIENTS / PACED if pace == "paced" else 0.0
        rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):  # the first warms up
            for name, (ports, pids, clients) in ways.items():
                before = processor_seconds(pids)
                with limit_share(pids, share) if share else nullcontext():
                    answers, wall = asyncio.run(load(ports, clients, texts(kind), seconds, every))
                after = processor_seconds(pids)
                spent = {pid: 1e3 * (after[pid] - before[pid]) / answers for pid in before}
                encoder = sum(ms for pid, ms in spent.items() if runs(ENCODER, pid))
                if turn:
                    own = sum(spent.values()) - encoder
                    rows[name].append((answers / wall, own, encoder))
        names = ("requests_per_second", "gateway_ms", "encoder_ms")
        loads[f"{kind}, {pace}"] = by = {
            name: dict(zip(names, map(median, zip(*seen, strict=True)), strict=True))
            for name, seen in rows.items()
        }
        print(kind, pace, by, flush=True)
    return loads


def ratios(loads: dict[str, Any]) -> dict[str, Any]:
    """Two workers, and two ports, to one worker, by load."""
    by_load = {}
    for load, by in loads.items():
        single, double, apart = by["one worker"], by["two workers"], by["two ports"]
        cost = double["gateway_ms"] / single["gateway_ms"]
        half = by["one worker, half the load"]["gateway_ms"]
        by_load[load] = {
            "processor_time": cost,
            "processor_time_at_the_same_load_of_a_worker": double["gateway_ms"] / half,
            "processor_time_of_two_ports": apart["gateway_ms"] / single["gateway_ms"],
            "throughput": double["requests_per_second"] / single["requests_per_second"],
            "throughput_of_two_ports": apart["requests_per_second"] / single["requests_per_second"],
            "bound": 2 / cost,
        }
    return by_load


def main() -> None:
    """Measure, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--share", type=float, default=0.0, help="of a core, for each worker")
    options.add_argument("--one-core", action="store_true", help="for all gateways together")
    options.add_argument("--shared", help="where workers share state; none by default")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        if chosen.one_core:
            os.sched_setaffinity(0, {1})
        target = stack.enter_context(process(sys.executable, "-m", "benchmarks._upstream"))
        router, pool = make_router(folder, int(first_line(target)))
        targets = read_pool(pool)
        only_chat = tuple(
            replace(each, serves=("chat",)) for each in targets
        )  # no stored responses
        write_pool(Pool(only_chat, targets.prices_date, targets.providers), pool)
        shared = "" if chosen.shared is None else f"shared: {{url: '{chosen.shared}'}}\n"
        (folder / "gateway.yaml").write_text(SETTINGS + shared)

        def gateway(name: str, workers: int) -> tuple[int, int]:
            line = ("serve", router, "--pool", pool, "--port", 0, "--workers", workers)
            storage = (
                "--config",
                folder / "gateway.yaml",
                "--receipts",
                f"sqlite:///{folder}/{name}",
            )
            run = stack.enter_context(process(COMMAND, *line, *storage))
            return int(first_line(run).rsplit(":", 1)[1]), run.pid

        first, second, double = gateway("a", 1), gateway("b", 1), gateway("c", 2)
        ways = {
            "one worker": ([first[0]], [first[1]], CLIENTS),
            "one worker, half the load": ([first[0]], [first[1]], CLIENTS // 2),
            "two workers": ([double[0]], [double[1]], CLIENTS),
            "two ports": ([first[0], second[0]], [first[1], second[1]], CLIENTS),
        }
        if chosen.one_core:
            pin([first[1], second[1], double[1]])
        loads = measure(ways, chosen.rounds, chosen.seconds, chosen.share)
    result = {"machine": machine(), "loads": loads, "ratios": ratios(loads), "needed": NEEDED}
    result |= {"share": chosen.share, "load": os.getloadavg()[0]}
    name = "workers_of_shares" if chosen.share else "workers"
    name = "workers_of_one_core" if chosen.one_core else name
    files.write_json(RESULTS / f"{name}.json", result)
    print(files.as_json(result["ratios"]))


if __name__ == "__main__":
    main()
