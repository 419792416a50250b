"""Collecting: how soon a large run goes on, and what the client costs beside a busy server.

A run of 100,000 recorded answers, each with a reasoning trace of 20 kB, is gone on with by the
command itself, started anew, with five answers more to get. Then the tiny pool is asked with 64
calls in flight, by `collect`, by the client of endpoints alone, and by one that only moves bytes,
in turns. The share of the time in which the server had nothing to generate is the client's
overhead; where both share two hyperthreads, a client that computes also slows its server down.

    python -m benchmarks.collect [--answers 100000] [--tasks 400] [--rounds 3]
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._bare import requests_of, send_all
from benchmarks._system import machine
from prefill_router import files
from prefill_router.data import Query
from prefill_router.endpoints import Reply, Upstream, Usage
from prefill_router.runs import Answer, Attempt, Run, Task
from prefill_router.targets import Pool, read_pool, write_pool
from prefill_router_lab.benchmarks import load_tasks, write_tasks
from prefill_router_lab.collection.job import collect
from prefill_router_lab.collection.journal import Journal

RESULTS = Path(__file__).parent / "results"
IN_FLIGHT = 64
TRACE_BYTES = 20_000
NEEDED_SECONDS = 5.0
NEEDED_OVERHEAD = 0.05
COMMAND = Path(sys.executable).with_name("prefill-router")


def command(*arguments: object) -> str:
    """What a command prints."""
    line = [str(COMMAND), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=True, text=True).stdout


@contextmanager
def minipool(folder: Path) -> Iterator[Pool]:
    """The tiny pool, served by another process; yields its pool file."""
    place = str(folder / "pool.yaml")
    line = [str(COMMAND), "minipool", "serve", "--port", "0", "--write-pool", place]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=environment) as server:
        try:
            if server.stdout is None or not server.stdout.readline():
                raise RuntimeError("the tiny pool can't be served")
            yield read_pool(folder / "pool.yaml")
        finally:
            server.terminate()


def make_answers(pool: Pool, tasks: int, answers: int) -> Iterator[Answer]:
    """Answers with long traces, each other than the last."""
    chance = random.Random(0)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(4000)]
    trace = " ".join(chance.choices(words, k=TRACE_BYTES // 4))
    for number in range(answers):
        start = chance.randrange(len(trace) - TRACE_BYTES)
        yield Answer(
            target=pool.names[number // tasks],
            query_id=f"made-{number % tasks}",
            reply=Reply(
                text="The answer is (B).",
                reasoning=trace[start : start + TRACE_BYTES],
                finish_reason="stop",
                usage=Usage(input_tokens=200, output_tokens=5000, reported={"total_tokens": 5200}),
                seconds=30.0,
            ),
            attempts=(Attempt(began="2026-11-01T00:00:00.000+00:00", seconds=30.0, cost=0.001),),
            cost=0.001,
            cost_source="usage",
        )


def make_questions(count: int) -> list[Task]:
    """Short questions."""
    prompts = (f"What is {number} plus {number + 7}?" for number in range(count))
    return [
        Task(query=Query(f"made-{i}", p), grader="exact", answer=("x",))
        for i, p in enumerate(prompts)
    ]


def resume(pool: Pool, folder: Path, answers: int) -> dict[str, Any]:
    """Seconds of the command that goes on with a run of this many answers."""
    count = answers // len(pool)
    tasks = make_questions(count + 1)
    write_tasks(tasks, folder / "tasks.jsonl")
    begin = time.perf_counter()
    with Run.create(folder / "run", pool) as run, Journal(run) as journal:
        journal.add_tasks(tasks)
        for answer in make_answers(pool, count, count * len(pool)):
            journal.record(answer, lambda _: None)
            while journal.waiting > 2000:
                time.sleep(0.01)
    wrote = time.perf_counter() - begin
    write_pool(pool, folder / "pool.yaml")
    files_of = ("--pool", folder / "pool.yaml", "--tasks", folder / "tasks.jsonl")
    seconds = []
    for turn in range(3):
        begin = time.perf_counter()
        output = command("collect", *files_of, "--out", folder / "run", "--json")
        seconds.append(time.perf_counter() - begin)
        if json.loads(output)["answered"] != (len(pool) if turn == 0 else 0):
            raise RuntimeError("it asked what it had, or not what it lacked")
    return {
        "answers": count * len(pool),
        "megabytes": round((folder / "run" / "run.sqlite").stat().st_size / 1e6),
        "written_per_second": round(count * len(pool) / wrote),
        "seconds": round(seconds[0], 2),
        "seconds_with_nothing_left": round(statistics.median(seconds[1:]), 2),
        "needed": NEEDED_SECONDS,
        "met": seconds[0] < NEEDED_SECONDS,
    }


def stats(pool: Pool) -> dict[str, Any]:
    """What the server says of itself."""
    address = pool.providers[0].base_url.removesuffix("/v1")
    with urllib.request.urlopen(f"{address}/stats") as reply:
        return dict(json.load(reply))


async def ask_all(pool: Pool, tasks: list[Task]) -> None:
    """The client of endpoints alone: nothing is kept, planned or limited."""
    left = iter([(target.name, task.query.prompt) for task in tasks for target in pool])
    async with Upstream(pool) as upstream:

        async def worker() -> None:
            for name, prompt in left:
                await upstream.ask(name, prompt)

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


def watch_idle(pool: Pool, work: Callable[[], object], answers: int) -> dict[str, float]:
    """How fast something asks, what it costs, and how busy it keeps the server."""
    before, begin, used = stats(pool), time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - used
    after = stats(pool)
    if after["answers"] - before["answers"] != answers:
        raise RuntimeError("an answer is missing")
    return {
        "answers_per_second": round(answers / seconds, 1),
        "client_milliseconds": round(cpu / answers * 1000, 2),
        "server_idle_share": round(
            1 - (after["busy_seconds"] - before["busy_seconds"]) / seconds, 3
        ),
    }


def overhead(pool: Pool, folder: Path, tasks: list[Task], rounds: int) -> dict[str, Any]:
    """The median round of each way of asking."""
    requests, base_url = requests_of(pool, tasks), pool.providers[0].base_url
    asyncio.run(send_all(base_url, requests[:IN_FLIGHT], IN_FLIGHT))
    collect(folder / "warm", pool, tasks[:5], asker=Upstream(pool))  # imports what is imported late
    turns = iter(range(rounds))
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: asyncio.run(send_all(base_url, requests, IN_FLIGHT)),
        "upstream": lambda: asyncio.run(ask_all(pool, tasks)),
        "collect": lambda: collect(
            folder / f"asked-{next(turns)}", pool, tasks, asker=Upstream(pool)
        ),
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(watch_idle(pool, way, len(requests)))
    medians = {
        name: {what: round(statistics.median(r[what] for r in rows), 3) for what in rows[0]}
        for name, rows in figures.items()
    }
    share = medians["collect"]["server_idle_share"]
    return {
        "answers": len(requests),
        "in_flight": IN_FLIGHT,
        **medians,
        "needed": NEEDED_OVERHEAD,
        "met": share < NEEDED_OVERHEAD,
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/collect.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    result: dict[str, Any] = {"what": "going on with a large run; the client beside its server"}
    with tempfile.TemporaryDirectory() as name, minipool(Path(name)) as pool:
        folder = Path(name)
        questions = folder / "mini.jsonl"
        command("minipool", "tasks", "--count", options.tasks, "--out", questions)
        tasks = list(load_tasks(str(questions)))
        result["overhead"] = overhead(pool, folder, tasks, options.rounds)
        result["resume"] = resume(pool, folder, options.answers)
    result["machine"] = {**machine(), "load_average": round(os.getloadavg()[0], 2)}
    files.write_json(RESULTS / "collect.json", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
