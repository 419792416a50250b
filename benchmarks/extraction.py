"""Extraction for training: tokens per second against a plain full forward.

Plain is the causal LM as one would call it: float32, batches of 4 in the order of the file, padded,
all hidden states, logits of every position. Ours reads the candidate layers, the upper half of the
depth, so it runs every block; it wins by leaving the vocabulary head out, by batches of similar
length, and by bfloat16 where the processor has it.

    python -m benchmarks.extraction [--data FOLDER] [--prompts 48] [--rounds 3] [--threads 2]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks._networks import (
    DATA,
    RESULTS,
    machine,
    prompts,
    qwen3_like,
    run_interleaved,
    save_random,
    time_step,
)
from prefill_router import files
from prefill_router.activations import Site
from prefill_router.encoders import Encoder, TokenizedPrompt, candidate_layers, load_encoder
from prefill_router.encoders.batching import batches
from prefill_router.encoders.hub import pad
from prefill_router.encoders.provenance import CPU_BATCH_TOKENS

PLAIN_BATCH = 4
NEEDED = {"default": 6.0, "float32": 2.5}


def plainly(network: Any, rows: list[TokenizedPrompt]) -> list[float]:
    """Seconds of each batch of the plain way."""

    def forward(part: list[TokenizedPrompt]) -> None:
        batch = pad([prompt.ids for prompt in part], 0, torch.device("cpu"))
        with torch.no_grad():
            network(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                output_hidden_states=True,
                use_cache=False,
            )

    parts = [rows[i : i + PLAIN_BATCH] for i in range(0, len(rows), PLAIN_BATCH)]
    return [time_step(lambda part=part: forward(part)) for part in parts]  # type: ignore[misc]


def ours(encoder: Encoder, rows: list[TokenizedPrompt]) -> list[float]:
    """Seconds of each batch of ours."""
    layers = candidate_layers(encoder.provenance.num_layers)
    sites = [Site(layer, pooling) for layer in layers for pooling in ("last", "mean")]
    order = batches([len(row.ids) for row in rows], CPU_BATCH_TOKENS)
    parts = [[rows[i] for i in numbers] for numbers in order]
    return [time_step(lambda part=part: encoder.states(part, sites)) for part in parts]  # type: ignore[misc]


def main() -> None:
    """Measure, print, and write benchmarks/results/extraction.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        network = save_random(qwen3_like(), Path(folder))
        fast = load_encoder(folder, device="cpu")
        exact = load_encoder(folder, device="cpu", dtype="float32")
    rows = fast.tokenize(prompts(options.data, options.prompts))
    tokens = sum(len(row.ids) for row in rows)
    seconds = run_interleaved(
        {
            "plain": lambda: plainly(network, rows),
            "default": lambda: ours(fast, rows),
            "float32": lambda: ours(exact, rows),
        },
        rounds=options.rounds,
    )
    ratios = {name: seconds["plain"] / seconds[name] for name in NEEDED}
    result = {
        "what": "layers 6 to 12, both poolings; Qwen3-shaped, 12 x 512, vocabulary 151,936",
        "prompts": len(rows),
        "tokens": tokens,
        "dtype_of_default": fast.provenance.dtype,
        "tokens_per_second": {name: round(tokens / s, 1) for name, s in seconds.items()},
        "times_as_fast_as_plain": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "needed": NEEDED,
        "met": all(ratios[name] >= least for name, least in NEEDED.items()),
        "machine": machine(),
    }
    files.write_json(RESULTS / "extraction.json", result)
    print(result)


if __name__ == "__main__":
    main()
