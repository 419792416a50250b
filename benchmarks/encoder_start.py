"""What it takes to start a language model as encoder, with compiled modules and without.

Processor time (user and system) of whole processes of one thread, the least of several. `encode`
reads one prompt with `smollm2` to layer 20. The model comes from the cache in bfloat16, where its
weights are converted already. Beside it are the imports of torch and of the network's class in
`transformers`.

    python -m benchmarks.encoder_start [--rounds 3]
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._large_world import write_world
from benchmarks._networks import RESULTS, machine
from benchmarks.startup import spent
from prefill_router import files

IMPORTS: dict[str, list[object]] = {
    "import torch": ["-c", "import torch"],
    "import LlamaModel": ["-c", "from transformers import LlamaModel"],
}
ENCODE = [
    *("-m", "prefill_router", "encode", "--encoder", "smollm2", "--device", "cpu"),
    *("--dtype", "bfloat16", "--layers", "20", "--pooling", "last"),
]
MOST = 4.0
"""Seconds of processor time that were asked for."""


def measure(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of each program, by whether compiled modules are kept."""
    ways = {"compiled": {}, "not compiled": {"PYTHONDONTWRITEBYTECODE": "1"}}
    seconds: dict[str, dict[str, list[float]]] = {}
    data = folder / "data"
    write_world(data, 1)
    # compiles, and converts the weights
    spent(*ENCODE, data, "--out", folder / "first", compiled=folder / "compiled")
    for number in range(rounds):
        for way, environment in ways.items():
            place = folder / way.replace(" ", "_")
            states = folder / f"{place.name}-{number}"
            encode: list[object] = [*ENCODE, data, "--out", states]
            for name, words in {**IMPORTS, "encode": encode}.items():
                each = spent(*words, compiled=place, OMP_NUM_THREADS="1", **environment)
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
        "met": seconds["compiled"]["encode"] < MOST,
        "machine": machine() | {"load_before": round(load, 2)},
    }
    files.write_json(RESULTS / "encoder_start.json", result)
    print(result)


if __name__ == "__main__":
    main()
