"""Many more requests than the encoder can read: how many get a forecast, and how the rest fares.

A router that reads with minilm is fitted on some of the answers and served. First 8 clients ask
again and again, which shows the encoder's capacity; then requests come at 4 and 16 times as many a
second, whether or not others have ended; and 64 clients ask again and again. Each prompt is
another, so that nothing comes from memory. `/v1/route` is asked: targets would add but noise.

Clients, the gateway and other programs share the cores with the encoder. So forecasts are counted
by the encoder's own processor time, too: what it reads in vain shows there on a busy machine, too.

    python -m benchmarks.overload [ROUTER] [--seconds 15] [--words 100]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import uvloop

from benchmarks._system import machine
from benchmarks.gateway_decision import DATA, RESULTS, fit_elsewhere
from prefill_router import files
from prefill_router.data import prompt_text, read_dataset
from prefill_router.targets import Pool, Target, write_pool

COMMAND = Path(sys.executable).with_name("prefill-router")
NEEDED = {"share_of_peak": 0.9, "fallback_ms": 5.0}
_TICKS = os.sysconf("SC_CLK_TCK")


@final
@dataclass
class DecisionTimes:
    """What came back.

    Attributes:
        forecasts: Milliseconds of each decision with a forecast, as the gateway says.
        fallbacks: Of each without.
        reasons: Why, and how often.
        failed: Replies with another status than 200, or none.
        waited: Milliseconds of all replies, as the client sees it.
    """

    forecasts: list[float] = field(default_factory=list)
    fallbacks: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    waited: list[float] = field(default_factory=list)

    def figures(self, seconds: float) -> dict[str, Any]:
        """Plain values."""
        return {
            "asked_per_second": round((len(self.waited) + self.failed) / seconds, 1),
            "forecasts": len(self.forecasts),
            "forecasts_per_second": round(len(self.forecasts) / seconds, 1),
            "forecast_ms": quantiles(self.forecasts),
            "fallback_ms": quantiles(self.fallbacks),
            "client_ms": quantiles(self.waited),
            "fallbacks": self.reasons,
            "fallbacks_in_time": in_time(self.fallbacks),
            "failed": self.failed,
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """Half, and all but one in a hundred, stay below these."""
    if not values:
        return {}
    median, high = np.quantile(values, [0.5, 0.99]).round(2).tolist()
    return {"median": median, "p99": high}


def in_time(fallbacks: list[float]) -> float | None:
    """The share of fallbacks that took no longer than is needed."""
    under = sum(taken < NEEDED["fallback_ms"] for taken in fallbacks)
    return round(under / len(fallbacks), 4) if fallbacks else None


def encoder_seconds(gateway: int) -> float:
    """Processor time of the gateway's only child so far."""
    child = Path(f"/proc/{gateway}/task/{gateway}/children").read_text(encoding="ascii").split()[0]
    fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / _TICKS


@final
class Prompts:
    """Texts of about `words` words of questions, all different."""

    def __init__(self, data: Path, words: int) -> None:
        self._all = " ".join(
            prompt_text(q.prompt) for q in read_dataset(data).queries[:400]
        ).split()
        self._words, self._next = words, 0

    def request(self) -> bytes:
        """The next one, whole."""
        begin = (self._next * 97) % (len(self._all) - self._words)
        self._next += 1
        text = f"{self._next}: " + " ".join(self._all[begin : begin + self._words])
        body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": text}]})
        head = (
            b"POST /v1/route HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        return head % len(body.encode()) + body.encode()


async def ask(
    pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], message: bytes, tally: DecisionTimes
) -> None:
    """Ask once, and note what comes."""
    reader, writer = pair
    began = time.perf_counter()
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    names = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    await reader.readexactly(int(names[b"content-length"]))
    if b" 200 " not in head[:16]:
        tally.failed += 1
        return
    tally.waited.append((time.perf_counter() - began) * 1e3)
    milliseconds = float(names[b"x-prefill-router-decision-ms"])
    fallback = names.get(b"x-prefill-router-fallback", b"").decode()
    if fallback:
        tally.fallbacks.append(milliseconds)
        tally.reasons[fallback] = tally.reasons.get(fallback, 0) + 1
    else:
        tally.forecasts.append(milliseconds)


async def in_turns(port: int, prompts: Prompts, *, clients: int, seconds: float) -> dict[str, Any]:
    """Several clients, each asking again once it has its answer."""
    tally, began = DecisionTimes(), time.perf_counter()

    async def client() -> None:
        pair = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < began + seconds:
            await ask(pair, prompts.request(), tally)
        pair[1].close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return {"clients": clients, **tally.figures(time.perf_counter() - began)}


async def at_a_rate(port: int, prompts: Prompts, *, rate: float, seconds: float) -> dict[str, Any]:
    """`rate` requests a second, over as many connections as it takes."""
    tally, began = DecisionTimes(), time.perf_counter()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    going: set[asyncio.Task[None]] = set()
    messages = [prompts.request() for _ in range(round(rate * seconds))]

    async def send(message: bytes) -> None:
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        await ask(pair, message, tally)
        idle.append(pair)

    for number, message in enumerate(messages):
        late = time.perf_counter() - began - number / rate
        if late < 0:
            await asyncio.sleep(-late)
        task = asyncio.create_task(send(message))
        going.add(task)
        task.add_done_callback(going.discard)
    sending = time.perf_counter() - began
    await asyncio.gather(*going)
    for _, writer in idle:
        writer.close()
    return {"rate": round(rate, 1), "sent_in_seconds": round(sending, 1), **tally.figures(sending)}


@contextmanager
def serve_router(router: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """A gateway in a process of its own: its port, and its number."""
    (folder / "gateway.yaml").write_text("logs: {level: error}\n")
    line = [COMMAND, "serve", router, "--pool", folder / "pool.yaml", "--port", "0"]
    line += ["--config", folder / "gateway.yaml", "--receipts", f"sqlite:///{folder}/r.sqlite"]
    with subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, text=True) as run:
        try:
            said = run.stdout.readline() if run.stdout else ""
            yield int(said.rsplit(":", 1)[1]), run.pid
        finally:
            run.terminate()


def write_targets(data: Path, folder: Path) -> None:
    """The pool file: the targets of the answers at an address that is never called."""
    address = "http://127.0.0.1:9/v1"
    targets = tuple(Target(name=name, base_url=address) for name in read_dataset(data).pool.names)
    write_pool(Pool(targets), folder / "pool.yaml")


async def measure(port: int, pid: int, prompts: Prompts, seconds: float) -> list[dict[str, Any]]:
    """All loads, one after another."""
    await in_turns(port, prompts, clients=8, seconds=5)  # warms up
    runs: list[dict[str, Any]] = []

    async def add(load: Coroutine[Any, Any, dict[str, Any]], **what: float) -> None:
        before = encoder_seconds(pid)
        run = {**what, **await load}
        await asyncio.sleep(1)  # what is under way ends
        encoder_time = encoder_seconds(pid) - before
        run["encoder_seconds"] = round(encoder_time, 2)
        run["forecasts_per_encoder_second"] = round(run.pop("forecasts") / encoder_time, 1)
        runs.append(run)
        peak = runs[0]
        for name in ("forecasts_per_second", "forecasts_per_encoder_second"):
            run[f"share_of_{name}"] = round(run[name] / peak[name], 3)

    await add(in_turns(port, prompts, clients=8, seconds=seconds))
    capacity = runs[0]["forecasts_per_second"]
    for times in (4, 16):
        load = at_a_rate(port, prompts, rate=times * capacity, seconds=seconds)
        await add(load, times_capacity=times)
    await add(in_turns(port, prompts, clients=64, seconds=seconds))
    return runs


def met(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """What is needed, and whether it was so at 4 and 16 times the capacity."""
    flooded = [run for run in runs if "times_capacity" in run]
    least = NEEDED["share_of_peak"]
    return {
        "share_of_peak": all(r["share_of_forecasts_per_second"] >= least for r in flooded),
        "share_of_peak_by_processor_time": all(
            r["share_of_forecasts_per_encoder_second"] >= least for r in flooded
        ),
        "fallback_ms_median": all(
            r["fallback_ms"]["median"] < NEEDED["fallback_ms"] for r in flooded
        ),
        "fallback_ms_p99": all(r["fallback_ms"]["p99"] < NEEDED["fallback_ms"] for r in flooded),
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/overload.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("router", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--words", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        router = options.router or folder / "router"
        if options.router is None:
            fit_elsewhere(options.data, router)
        write_targets(options.data, folder)
        load = round(os.getloadavg()[0], 2)
        with serve_router(router, folder) as (port, pid):
            prompts = Prompts(options.data, options.words)
            runs = uvloop.run(measure(port, pid, prompts, options.seconds))
    result = {
        "what": "decisions of a gateway that is asked more than its encoder can read",
        "needed": NEEDED,
        "met": met(runs),
        "load_average_before": load,
        "machine": machine(),
        "runs": runs,
    }
    files.write_json(RESULTS / "overload.json", result)
    print(files.as_json(result))


if __name__ == "__main__":
    main()
