"""Encoding on a GPU, beside a full forward pass of `transformers` as one would write it.

Networks with the shapes of Qwen3 0.6B, 1.7B, 4B and 8B and random weights are made on the device,
in bfloat16. The prompts are random tokens, with lengths as prompts have them. Three ways read each
network's states, taking turns:

    ours            `HubEncoder`, to the last block, at the default sites of `encode`
    ours, one layer `HubEncoder` to two thirds of the depth, as a router reads one layer
    transformers    `AutoModel(..., output_hidden_states=True)` over batches of 16 prompts in the
                    order of the file, padded, with a mask; the same sites are pooled from its list

Without CUDA it ends at once. `--tiny --device cpu` tries the script itself with tiny networks.

    python -m benchmarks.gpu_encoder [--device cuda:1] [--prompts 1024] [--rounds 3] [--sizes 0.6]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.__main__ import SKIPPED
from benchmarks._networks import RESULTS, interleaved, machine, timed
from prefill_router import files
from prefill_router.activations import DEFAULT_POOLINGS, Provenance, Site
from prefill_router.encoders import HubEncoder, TokenizedPrompt, candidate_layers, pad
from prefill_router.encoders.devices import batch_tokens_on, device_of

BATCH = 16
"""Prompts in a batch of the plain way."""
MEDIAN_TOKENS, LONGEST_TOKENS = 150, 2048
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
SHAPES: dict[str, dict[str, int]] = {
    "0.6": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, **HEADS},
    "1.7": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, **HEADS},
    "4": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        **HEADS,
        "num_attention_heads": 32,
    },
    "8": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        **HEADS,
        "num_attention_heads": 32,
    },
}
"""The shapes of Qwen3's dense networks, by billions of parameters."""
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def made_up_prompts(count: int, vocabulary: int, longest: int) -> list[TokenizedPrompt]:
    """Random tokens, with lengths around a median as those of prompts are."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(np.log(min(MEDIAN_TOKENS, longest // 2)), 0.9, count)
    return [
        TokenizedPrompt(str(i), str(i), random.integers(1, vocabulary, n).astype(np.int32), int(n))
        for i, n in enumerate(np.clip(lengths, 8, longest).astype(int))
    ]


def encoder_of(shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> HubEncoder:
    """An encoder with random weights, made on the device."""
    vocabulary = 300 if shape is TINY else 151_936
    library: Any = transformers
    config = library.Qwen3Config(**shape, vocab_size=vocabulary, pad_token_id=0)
    torch.manual_seed(0)
    with device:
        network = library.AutoModel.from_config(config, dtype=dtype)
    network = network.eval().requires_grad_(False)
    made_by = Provenance(
        encoder="random",
        revision="random",
        template="plain",
        template_hash="random",
        max_tokens=LONGEST_TOKENS,
        dtype=str(dtype).removeprefix("torch."),
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
    )
    most = batch_tokens_on(device, config, dtype)
    tokenizer = SimpleNamespace(pad_token_id=0)
    depth = config.num_hidden_layers
    return HubEncoder(made_by, tokenizer, network, network.layers, depth, most)


def plainly(encoder: HubEncoder, prompts: list[TokenizedPrompt], sites: list[Site]) -> None:
    """The states from the list of hidden states of a full forward pass, batch after batch."""
    for first in range(0, len(prompts), BATCH):
        rows = [prompt.ids for prompt in prompts[first : first + BATCH]]
        batch = pad(rows, 0, encoder.device)
        with torch.inference_mode():
            found = encoder.network(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                output_hidden_states=True,
                use_cache=False,
            )
        for site in sites:
            batch.pool(found.hidden_states[site.layer], site.pooling).cpu().numpy()


def measured(encoder: HubEncoder, prompts: list[TokenizedPrompt], rounds: int) -> dict[str, Any]:
    """Tokens per second of each way, and their ratios."""
    depth = encoder.provenance.num_layers
    layers = candidate_layers(depth)
    sites = [Site(layer, pooling) for layer in layers for pooling in DEFAULT_POOLINGS]
    one = [Site(round(depth * 2 / 3), pooling) for pooling in DEFAULT_POOLINGS]
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: encoder.states(prompts, sites),
        "ours_one_layer": lambda: encoder.states(prompts, one),
        "transformers": lambda: plainly(encoder, prompts, sites),
    }
    for call in calls.values():
        call()  # kernels are chosen and compiled
    ways: dict[str, Any] = {name: lambda c=call: [timed(c)] for name, call in calls.items()}
    seconds = interleaved(ways, rounds=rounds)
    tokens = sum(len(prompt.ids) for prompt in prompts)
    speed = {name: tokens / taken for name, taken in seconds.items()}
    return {
        "tokens": tokens,
        "batch_tokens": encoder.batch_tokens,
        "tokens_per_second": {name: round(found, 1) for name, found in speed.items()},
        "times_as_fast_as_transformers": {
            name: round(speed[name] / speed["transformers"], 2)
            for name in ("ours", "ours_one_layer")
        },
    }


def main() -> None:
    """Measure and print; write benchmarks/results/gpu_encoder.json unless with tiny networks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device")
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device is None and not torch.cuda.is_available():
        print("this needs a GPU with CUDA; --tiny --device cpu tries the script without one")
        sys.exit(SKIPPED)
    device = device_of(options.device)
    shapes = {"tiny": TINY} if options.tiny else {name: SHAPES[name] for name in options.sizes}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = {}
    for name, shape in shapes.items():
        encoder = encoder_of(shape, device, dtype)
        longest = 64 if options.tiny else LONGEST_TOKENS
        config: Any = encoder.network.config
        prompts = made_up_prompts(options.prompts, config.vocab_size, longest)
        found[name] = measured(encoder, prompts, options.rounds)
        del encoder
        torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    result = {
        "what": "Qwen3-shaped encoders with random weights, by billions of parameters",
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "sizes": found,
        "machine": machine(),
    }
    if options.out is not None or not options.tiny:
        files.write_json(options.out or RESULTS / "gpu_encoder.json", result)
    print(result)


if __name__ == "__main__":
    main()
