"""The time of `/v1/systemone`, beside `/v1/route`: one client, texts of about 100 tokens, minilm.

Every text is another, so that no forecast comes from memory; the two calls take turns.

    python -m benchmarks.decision_questions [ROUTER] [--data FOLDER] [--questions 300] [--out FILE]
"""

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from benchmarks._system import machine
from benchmarks.gateway import await_port, free_port
from benchmarks.gateway_decision import DATA, RESULTS, fit_elsewhere
from prefill_router import files
from prefill_router.data import prompt_text, read_dataset
from prefill_router.router import read_light
from prefill_router.targets import Pool, write_pool

WORDS = 65
BAR_MS = 15.0


def texts(data: Path, count: int) -> list[str]:
    """Pieces of questions, all different."""
    words = " ".join(prompt_text(q.prompt) for q in read_dataset(data).queries[:2000]).split()
    step = (len(words) - WORDS) // count
    return [f"{k}: " + " ".join(words[k * step : k * step + WORDS]) for k in range(count)]


def measure(url: str, targets: tuple[str, ...], asked: list[str]) -> dict[str, dict[str, float]]:
    """Milliseconds of both calls, in turns."""
    criteria = dict.fromkeys(targets, "A model.")
    question = {"type": "choice", "instructions": "Which model?", "criteria": criteria}
    spent: dict[str, list[float]] = {"systemone": [], "route": []}
    with httpx2.Client(base_url=url, timeout=60) as client:
        for number, text in enumerate(asked):
            bodies = {
                "systemone": {"state": text, "questions": {"model": question}},
                "route": {"messages": [{"role": "user", "content": f"{text} "}]},
            }
            for name in sorted(bodies, reverse=number % 2 == 0):
                begun = time.perf_counter()
                client.post(f"/v1/{name}", json=bodies[name]).raise_for_status()
                spent[name].append((time.perf_counter() - begun) * 1000)
    return {
        name: {f"p{q}_ms": round(float(np.percentile(ms[20:], q)), 2) for q in (50, 99)}
        for name, ms in spent.items()
    }


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("router", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "decision_questions.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        router = options.router or Path(scratch) / "router"
        if options.router is None:
            fit_elsewhere(options.data, router)
        port = free_port()
        pool, address = Path(scratch) / "pool.yaml", f"http://127.0.0.1:{port}"
        known = read_light(router).pool
        targets = tuple(replace(t, base_url=f"{address}/nobody") for t in known)
        write_pool(Pool(targets), pool)
        receipts = f"sqlite:///{scratch}/receipts.sqlite"
        line = ("serve", router, "--pool", pool, "--port", port, "--receipts", receipts)
        quiet = {**os.environ, "PREFILL_ROUTER_LOGS__LEVEL": "error"}
        with subprocess.Popen(["prefill-router", *map(str, line)], env=quiet) as run:
            await_port(port)
            found = measure(address, known.names, texts(options.data, options.questions))
            run.terminate()
    result: dict[str, Any] = {
        "what": "decisions over HTTP, one client",
        "machine": machine(),
        **found,
        "needed_p50_ms": BAR_MS,
        "met": found["systemone"]["p50_ms"] < BAR_MS,
    }
    files.write_json(options.out, result)
    print(result)


if __name__ == "__main__":
    main()
