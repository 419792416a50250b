"""Encoding on Ray: tokens per second beside one process, and twenty kills of workers and driver.

Speed: two workers of one thread each against one process with two threads, in turns, with the
packaged encoder on MMLU-Pro's prompts. Steady are the tokens from the third chunk on; whole is a
run with everything that it waits for. Kills: a random worker or the driver is killed after every
few shards; the store must be byte for byte the one of a single process.

    python -m benchmarks.ray_engine [--data FOLDER] [--prompts 1200] [--rounds 3] [--kills 20]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks._networks import DATA, RESULTS, machine, prompts
from prefill_router import files
from prefill_router.activations import ActivationStore, Site
from prefill_router.encoders import (
    Encoder,
    EncoderSource,
    EncodingPlan,
    load_encoder,
    plan_encoding,
    run_encoding,
    run_encoding_on,
)
from prefill_router.engines import RayEngine
from prefill_router.progress import Advance, Progress

NAME, NEEDED = "minilm", 0.9
SITES = [Site(layer, pooling) for layer in (3, 4, 5, 6) for pooling in ("last", "mean")]
ENGINE = RayEngine(workers=(2, 2))
SPEED_CHUNK, KILL_CHUNK = 4096, 1024
BEGUN = 3
"""The chunks after which both workers are at work."""


class Times(Progress):
    """The time and the tokens of each chunk."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, float]] = []

    @contextmanager
    def task(self, label: str, *, total: float) -> Iterator[Advance]:
        """A task whose chunks are timed."""
        del label, total

        def advance(amount: float = 1, *, note: str = "") -> None:
            del note
            self.chunks.append((time.perf_counter(), amount))

        yield advance

    @property
    def steady(self) -> float:
        """Tokens per second once all workers are at work."""
        first, last = self.chunks[BEGUN - 1][0], self.chunks[-1][0]
        return sum(tokens for _, tokens in self.chunks[BEGUN:]) / (last - first)


def plan_job(encoder: Encoder, data: Path, count: int, out: Path, chunk: int) -> EncodingPlan:
    """The plan of a run."""
    return plan_encoding(prompts(data, count), encoder, out, sites=SITES, chunk_tokens=chunk)


def on_ray(plan: EncodingPlan, encoder: Encoder, progress: Progress | None = None) -> None:
    """A run on Ray."""
    run_encoding_on(ENGINE, plan, EncoderSource.of(encoder, NAME), progress=progress)


def content(store: Path) -> dict[str, str]:
    """The digest of every file."""
    found = [p for p in store.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return {str(path.relative_to(store)): files.file_digest(path) for path in found}


def speed(data: Path, count: int, rounds: int) -> dict[str, Any]:
    """Both ways, in turns."""
    encoder = load_encoder(NAME, device="cpu")
    steady: dict[str, list[float]] = {"one_process": [], "ray": []}
    whole: dict[str, list[float]] = {"one_process": [], "ray": []}
    tokens = 0
    for _ in range(rounds):
        for name in steady:
            with tempfile.TemporaryDirectory() as folder:
                times, plan = Times(), plan_job(encoder, data, count, Path(folder), SPEED_CHUNK)
                tokens, begin = plan.tokens_left, time.perf_counter()
                if name == "ray":
                    torch.set_num_threads(1)
                    on_ray(plan, encoder, times)
                else:
                    torch.set_num_threads(2)
                    run_encoding(plan, encoder, progress=times)
                whole[name].append(tokens / (time.perf_counter() - begin))
                steady[name].append(times.steady)
                print(name, round(steady[name][-1]), round(whole[name][-1]), flush=True)
    ratios = [ray / one for ray, one in zip(steady["ray"], steady["one_process"], strict=True)]
    seconds = [tokens / w - tokens / s for w, s in zip(whole["ray"], steady["ray"], strict=True)]
    return {
        "tokens": tokens,
        "steady_tokens_per_second": {name: median(values) for name, values in steady.items()},
        "whole_tokens_per_second": {name: median(values) for name, values in whole.items()},
        "steady_ratio": median(ratios),
        "steady_ratios": ratios,
        "needed": NEEDED,
        "seconds_before_the_steady_state": {"first": seconds[0], "later": median(seconds[1:])},
    }


def descendants(pid: int) -> list[int]:
    """The processes that a process has begun, and those that they have."""
    threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for text in threads for child in text.split()]
    return children + [below for child in children for below in descendants(child)]


def workers(driver: int) -> list[int]:
    """The processes with an encoder; none where the driver is ending."""
    try:
        pids = descendants(driver)
        return [p for p in pids if b"_Worker" in Path(f"/proc/{p}/cmdline").read_bytes()]
    except OSError:
        return []


def shards(store: Path) -> int:
    """The number of shards that are committed."""
    return sum(not path.name.startswith(".") for path in store.glob("shards/*.json"))


def kills(data: Path, count: int, wanted: int) -> dict[str, Any]:
    """Kill, begin again where the driver was killed, and compare with one process."""
    encoder, chance = load_encoder(NAME, device="cpu"), random.Random(0)
    torch.set_num_threads(1)
    killed = {"workers": 0, "drivers": 0}
    with tempfile.TemporaryDirectory() as folder:
        local, store = Path(folder) / "local", Path(folder) / "ray"
        run_encoding(plan_job(encoder, data, count, local, KILL_CHUNK), encoder)
        words = [sys.executable, "-m", "benchmarks.ray_engine", "--job", str(store)]
        words += ["--data", str(data), "--prompts", str(count)]
        driver = subprocess.Popen(words)
        written, after = 0, 2
        while sum(killed.values()) < wanted:
            assert driver.poll() is None, "the driver ended before the last kill; more --prompts"
            if shards(store) >= written + after and (process_ids := workers(driver.pid)):
                which = "drivers" if chance.random() < 0.25 else "workers"
                os.kill(
                    driver.pid if which == "drivers" else chance.choice(process_ids), signal.SIGKILL
                )
                killed[which] += 1
                print(killed, shards(store), flush=True)
                if which == "drivers":
                    driver.wait()
                    ActivationStore.open(store).verify()
                    driver = subprocess.Popen(words)
                written, after = shards(store), chance.randint(1, 4)
            time.sleep(0.02)
        assert driver.wait() == 0
        begin = time.perf_counter()
        subprocess.run(words, check=True)
        return {
            "shards": shards(local),
            **killed,
            "same_bytes": content(store) == content(local),
            "seconds_of_a_run_with_nothing_left": time.perf_counter() - begin,
        }


def main() -> None:
    """Run both and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--prompts", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--job", type=Path, help="Only encode on Ray, into this store.")
    options = parser.parse_args()
    if options.job is not None:
        encoder = load_encoder(NAME, device="cpu")
        on_ray(plan_job(encoder, options.data, options.prompts, options.job, KILL_CHUNK), encoder)
        return
    result = {
        "machine": machine(),
        "speed": speed(options.data, options.prompts, options.rounds),
        "kills": kills(options.data, options.prompts, options.kills),
    }
    files.write_json(RESULTS / "ray_engine.json", result)
    print(result)


if __name__ == "__main__":
    main()
