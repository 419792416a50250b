"""Encoding by threads that share each batch, and by workers of one thread, beside a busy core.

Both ways have two threads. One program that never waits keeps a core busy in half of the rounds.
`many` is the encoding of prompts in batches, `decisions` that of short prompts each by itself: as
many at once as there are threads, or one after the other by all threads. The ways take turns, so
that what else the machine does meets them alike; figures are medians of the rounds.

    python -m benchmarks.busy_core [--encoder smollm2] [--prompts 16] [--rounds 5]
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks._networks import DATA, RESULTS, machine, prompts, time_step
from prefill_router import files
from prefill_router.activations import Site
from prefill_router.encoders import TokenizedPrompt, load_encoder
from prefill_router.encoders.parallel import ParallelEncoder

THREADS = 2
LAYER = {"smollm2": 20, "minilm": 6}
SHORT = range(60, 160)
"""The tokens of a short prompt."""


@contextmanager
def busy_core(count: int) -> Iterator[None]:
    """Programs that never wait, until the block ends."""
    runs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for run in runs:
            run.kill()
            run.wait()


def ways(name: str, rows: list[TokenizedPrompt], sites: list[Site]) -> dict[str, Any]:
    """What is measured: a function, and the number of tokens or prompts that it encodes."""
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    torch.set_num_threads(THREADS)
    shared = load_encoder(name, device="cpu", layers=[LAYER[name]])
    workers = shared.with_workers(THREADS)
    assert isinstance(workers, ParallelEncoder)
    short = [row for row in rows if len(row.ids) in SHORT][:THREADS]
    tokens = sum(len(row.ids) for row in rows)

    def one_by_one() -> None:
        for row in short:
            shared.states([row], sites)

    def at_once() -> None:
        for first in range(0, len(short), THREADS):
            workers.states(short[first : first + THREADS], sites)

    return {
        "many, shared batches": (lambda: shared.states(rows, sites), tokens),
        "many, workers": (lambda: workers.states(rows, sites), tokens),
        "decisions, shared batches": (one_by_one, len(short)),
        "decisions, workers": (at_once, len(short)),
    }


def measure(ways: dict[str, Any], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Tokens, or decisions, a second of each way in each round."""
    rates: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for beside, count in (("alone", 0), ("beside a busy core", 1)):
            with busy_core(count):
                for name, (run, amount) in ways.items():
                    rate = amount / time_step(run)
                    print(f"round {number}/{rounds}, {name}, {beside}: {rate:,.1f}/s", flush=True)
                    if number:  # the first warms up
                        rates.setdefault(name, {}).setdefault(beside, []).append(rate)
    return rates


def summary(rates: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Medians of rates, and of the ratios of pairs that took turns."""
    medians = {
        name: {beside: round(median(seen), 2) for beside, seen in by.items()}
        for name, by in rates.items()
    }
    ratios = {}
    for kind in ("many", "decisions"):
        shared, workers = rates[f"{kind}, shared batches"], rates[f"{kind}, workers"]
        ratios[kind] = {
            beside: round(
                median(b / a for a, b in zip(shared[beside], workers[beside], strict=True)), 2
            )
            for beside in shared
        }
    return {"per_second": medians, "times_as_fast_by_workers": ratios}


def main() -> None:
    """Measure, print, and write benchmarks/results/busy_core.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--encoder", choices=sorted(LAYER), default="smollm2")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    site = LAYER[options.encoder]
    sites = [Site(site, "last"), Site(site, "mean")]
    encoder = load_encoder(options.encoder, device="cpu", layers=[0])
    rows = encoder.tokenize(prompts(options.data, options.prompts))
    load = os.getloadavg()[0]
    rates = measure(ways(options.encoder, rows, sites), options.rounds)
    path = RESULTS / "busy_core.json"
    results = read_results(path)
    results[options.encoder] = {
        "what": f"layer {site}, both poolings, {THREADS} threads; tokens or decisions a second",
        "prompts": len(rows),
        "tokens": sum(len(row.ids) for row in rows),
        "rounds": options.rounds,
        **summary(rates),
        "machine": machine() | {"load_before": round(load, 2)},
    }
    files.write_json(path, results)
    print(results[options.encoder])


def read_results(path: Path) -> dict[str, Any]:
    """The results of other encoders."""
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return results


if __name__ == "__main__":
    main()
