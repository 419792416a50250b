"""Decisions of the gateway's encoder process: one prompt of 100 tokens at a time, and 32 at once.

The time is from the request in the gateway's loop to the forecast there, through both pipes. Every
prompt is another, so that nothing comes from memory. Without ROUTER, one that reads with minilm is
fitted on a few hundred of the answers: what it has learned doesn't change how long it takes.

    python -m benchmarks.gateway_decision [ROUTER] [--data FOLDER] [--threads N] [--prompts 200]
        [--out FILE]
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks._system import machine
from prefill_router import files
from prefill_router.data import prompt_text, read_dataset
from prefill_router_gateway.forecast import Forecaster

DATA = Path(__file__).parents[2] / "shared" / "data" / "mmlu_pro"
RESULTS = Path(__file__).parent / "results"
TOKENS = 100
AT_ONCE = 32
BAR_MS = 40.0


def fit(data: Path, folder: Path) -> None:
    """Fit a router on a part of the answers."""
    from prefill_router.encoders import MINILM, default_sites, load_encoder
    from prefill_router.fitting import FitConfig, fit_router

    answers = read_dataset(data)
    part = answers.select(answers.query_ids[:: max(1, len(answers) // 600)])
    encoder = load_encoder(MINILM, device="cpu")
    states = encoder.encode(part.queries, default_sites(encoder.provenance))
    fit_router(part, [states], config=FitConfig(test=0.15, resamples=20)).router.save(folder)


def fit_elsewhere(data: Path, folder: Path) -> None:
    """`fit` in a process of its own, so that this one stays as small as a gateway's."""
    call = (
        "import sys; from pathlib import Path; from benchmarks.gateway_decision import fit; "
        "fit(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", call, str(data), str(folder)], check=True)


async def prompts_of(forecaster: Forecaster, folder: Path, count: int) -> list[str]:
    """Texts of about 100 tokens of the encoder, all different: questions and their neighbours."""
    words = " ".join(prompt_text(q.prompt) for q in read_dataset(folder).queries[:400]).split()
    prompts = []
    for number in range(count):
        begin = (number * 97) % (len(words) - TOKENS)
        size = TOKENS
        for _ in range(3):  # a word is a token or more
            text = f"{number}: " + " ".join(words[begin : begin + size])
            read = (await forecaster.forecast(text, seconds=60)).tokens
            size = max(1, round(size * TOKENS / read))
        prompts.append(f"{number}: " + " ".join(words[begin : begin + size]) + "?")
    return prompts


async def measure_alone(forecaster: Forecaster, prompts: list[str]) -> dict[str, Any]:
    """One after another."""
    seconds, tokens = [], []
    for prompt in prompts:
        begun = time.perf_counter()
        forecast = await forecaster.forecast(prompt, seconds=60)
        seconds.append(time.perf_counter() - begun)
        tokens.append(forecast.tokens)
    median, high = np.quantile(np.array(seconds) * 1000, [0.5, 0.9]).round(2).tolist()
    return {"tokens": int(np.median(tokens)), "median_ms": median, "p90_ms": high}


async def measure_together(forecaster: Forecaster, prompts: list[str]) -> dict[str, Any]:
    """Always 32 under way."""
    waiting = iter(prompts)
    seconds: list[float] = []

    async def client() -> None:
        for prompt in waiting:
            start = time.perf_counter()
            await forecaster.forecast(prompt, seconds=60)
            seconds.append(time.perf_counter() - start)

    before, begun = forecaster.stats(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    elapsed, after = time.perf_counter() - begun, forecaster.stats()
    return {
        "at_once": AT_ONCE,
        "per_second": round(len(prompts) / elapsed, 1),
        "median_ms": round(float(np.median(seconds)) * 1000, 1),
        "mean_batch": round(len(prompts) / (after.batches - before.batches), 1),
    }


async def measure(router: Path, data: Path, threads: int | None, count: int) -> dict[str, Any]:
    """All figures with this number of threads."""
    forecaster = Forecaster(router, threads=threads, cache_entries=0)
    await forecaster.start()
    try:
        prompts = await prompts_of(forecaster, data, count)
        pid = forecaster.pid
        return {
            "threads": threads or "default",
            "alone": await measure_alone(forecaster, prompts),
            "together": await measure_together(forecaster, prompts * 2),
            "start_seconds": round(forecaster.hello.seconds, 1),
            "worker_mib": resident_mib(f"/proc/{pid}/status"),
        }
    finally:
        await forecaster.close()


def resident_mib(status: str) -> float:
    """Resident memory of a process on Linux."""
    lines = Path(status).read_text(encoding="utf-8").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kib / 1024, 1)


async def parent_mib(router: Path) -> dict[str, float]:
    """Resident memory of this process before and after a forecaster is at work in it."""
    before = resident_mib("/proc/self/status")
    forecaster = Forecaster(router)
    await forecaster.start()
    await forecaster.forecast("How are you?", seconds=60)
    after = resident_mib("/proc/self/status")
    await forecaster.close()
    return {"before": before, "with_forecaster": after}


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("router", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS / "gateway_decision.json")
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        router = options.router or Path(scratch) / "router"
        if options.router is None:
            fit_elsewhere(options.data, router)
        result: dict[str, Any] = {
            "what": "a forecast by the encoder's process, as the gateway sees it",
            "needed_median_ms": BAR_MS,
            "load_average_before": round(os.getloadavg()[0], 2),
            "parent_mib": uvloop.run(parent_mib(router)),
            "machine": machine(),
            "runs": [
                uvloop.run(measure(router, options.data, threads, options.prompts))
                for threads in [None, *options.threads]
            ],
        }
    result["met"] = result["runs"][0]["alone"]["median_ms"] < BAR_MS
    files.write_json(options.out, result)
    print(result)


if __name__ == "__main__":
    main()
