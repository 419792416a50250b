"""One routing decision: the states of one prompt against a plain full forward.

Plain is the causal LM in float32 with all hidden states and logits, as one would call it. Ours is
the encoder cut at 60 % of its depth, from the text to the pooled states of its last layer,
tokenising included.

    python -m benchmarks.decision [--data FOLDER] [--rounds 9] [--threads 2]
"""

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks._networks import (
    DATA,
    RESULTS,
    machine,
    prompts,
    qwen3_5_like,
    qwen3_like,
    run_interleaved,
    save_random,
    time_step,
)
from prefill_router import files
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder

DEPTH = 0.6
TOKENS = 120
SHAPES = {"qwen3_12x512": (qwen3_like, 5.0), "qwen3.5_24x1024": (qwen3_5_like, 4.0)}


def measure(config: Any, queries: list[Query], rounds: int) -> dict[str, Any]:
    """Seconds of a decision both ways, and how many times ours is faster."""
    with tempfile.TemporaryDirectory() as folder:
        network = save_random(config, Path(folder))
        layer = round(DEPTH * config.num_hidden_layers)
        encoder = load_encoder(folder, device="cpu", layers=[layer])
    query = min(queries, key=lambda q: abs(len(encoder.tokenize([q])[0].ids) - TOKENS))
    ids = torch.from_numpy(encoder.tokenize([query])[0].ids).long()[None]
    sites = [Site(layer, "last"), Site(layer, "mean")]

    def plain() -> None:
        with torch.no_grad():
            network(input_ids=ids, output_hidden_states=True, use_cache=False)

    seconds = run_interleaved(
        {
            "plain": lambda: [time_step(plain)],
            "ours": lambda: [time_step(lambda: encoder.encode([query], sites))],
        },
        rounds=rounds,
    )
    return {
        "tokens": ids.shape[1],
        "blocks": layer,
        "of_blocks": config.num_hidden_layers,
        "dtype": encoder.provenance.dtype,
        "seconds": {name: round(s, 4) for name, s in seconds.items()},
        "times_as_fast_as_plain": round(seconds["plain"] / seconds["ours"], 2),
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/decision.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    queries = prompts(options.data, 200)
    result: dict[str, Any] = {"what": "one routing decision, cut at 60 % of the depth"}
    for name, (shape, needed) in SHAPES.items():
        found = measure(shape(), queries, options.rounds)
        met = found["times_as_fast_as_plain"] >= needed
        result[name] = {**found, "needed": needed, "met": met}
        gc.collect()
    result["machine"] = machine()
    files.write_json(RESULTS / "decision.json", result)
    print(result)


if __name__ == "__main__":
    main()
