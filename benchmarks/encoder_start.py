"""What it takes to start a language model as encoder, with compiled modules and without.

Processor time (user and system) of whole processes of one thread, the least of several. `smollm2`
comes from the cache in bfloat16, where its weights are converted already. It is loaded to layer 20
and reads one prompt. Beside it are the imports of torch and of the network's class in
`transformers`.

    python -m benchmarks.encoder_start [--rounds 3]
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._networks import RESULTS, machine
from benchmarks.startup import spent
from prefill_router import files

LOAD = """
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder
encoder = load_encoder("smollm2", device="cpu", dtype="bfloat16", layers=[20])
encoder.encode([Query("q", "Why?")], [Site(20, "last")])
"""
PROGRAMS = {
    "import torch": "import torch",
    "import LlamaModel": "from transformers import LlamaModel",
    "smollm2": LOAD,
}
MOST = 4.0
"""Seconds of processor time that were asked for."""


def measure(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of each program, by whether compiled modules are kept."""
    ways = {"compiled": {}, "not compiled": {"PYTHONDONTWRITEBYTECODE": "1"}}
    seconds: dict[str, dict[str, list[float]]] = {}
    spent("-c", LOAD, compiled=folder / "compiled")  # compiles, and converts the weights
    for number in range(rounds):
        for way, environment in ways.items():
            for name, program in PROGRAMS.items():
                place = folder / way.replace(" ", "_")
                each = spent("-c", program, compiled=place, OMP_NUM_THREADS="1", **environment)
                print(f"round {number + 1}/{rounds}, {name}, {way}: {each:.2f} s", flush=True)
                seconds.setdefault(way, {}).setdefault(name, []).append(each)
    return {
        way: {name: round(min(each), 2) for name, each in by.items()} for way, by in seconds.items()
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/encoder_start.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(rounds, Path(folder))
    result: dict[str, Any] = {
        "what": "processor seconds of a whole process of one thread, the least of the rounds",
        "rounds": rounds,
        "seconds": seconds,
        "needed": MOST,
        "met": seconds["compiled"]["smollm2"] < MOST,
        "machine": machine() | {"load_before": round(load, 2)},
    }
    files.write_json(RESULTS / "encoder_start.json", result)
    print(result)


if __name__ == "__main__":
    main()
