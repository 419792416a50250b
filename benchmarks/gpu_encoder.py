"""Encoding on a GPU: exact first, then as fast as what, and how near to the card's limit.

It takes six minutes on one card, and runs from a checkout with torch and transformers alone.
Networks with the shapes of Qwen3 and random weights are made on the device, in bfloat16. The
prompts are random tokens, with lengths as prompts have them. In one run:

    exactness       every family of the tests against passes one by one on the processor, in
                    float32; packed families also in bfloat16, where their error may be three
                    times that of passes one by one
    card            TFLOP/s of bf16 matrix products of 8192 x 8192
    ours            `HubEncoder` as it is loaded: to the last block, at the default sites of
                    `encode`
    ours_one_layer  to two thirds of the depth, as a router reads one layer
    transformers    `AutoModel(..., output_hidden_states=True)` over batches of 16 prompts in the
                    order of the file, padded, with a mask; the same sites are pooled from its list
    decision        milliseconds of one prompt to two thirds of the depth, with recorded passes and
                    without

TFLOP/s count two operations for each token and each parameter of the blocks that it passes.
Without CUDA it ends at once. `--tiny --device cpu` tries the script itself with tiny networks.

    python -m benchmarks.gpu_encoder [--device cuda:1] [--prompts 400] [--rounds 2] [--sizes 0.6 30]
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from benchmarks.__main__ import SKIPPED
from benchmarks._checkout import ROOT, imports_from_checkout

with imports_from_checkout():
    from benchmarks._networks import RESULTS, machine, run_interleaved, time_step
    from prefill_router import files
    from prefill_router.accelerator import torch_device
    from prefill_router.activations import DEFAULT_POOLINGS, POOLINGS, Provenance, Site
    from prefill_router.encoders.devices import batch_tokens_on, dtype_name
    from prefill_router.encoders.encoder_names import candidate_layers
    from prefill_router.encoders.hub import HubEncoder, pad
    from prefill_router.encoders.pretrained import find_blocks, pack_if_possible
    from prefill_router.encoders.tokenisation import TokenizedPrompt

BATCH = 16
"""Prompts in a batch of the plain way."""
MEDIAN_TOKENS, LONGEST_TOKENS = 150, 2048
VOCABULARY = 151_936
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
MANY_HEADS = {**HEADS, "num_attention_heads": 32}
SHAPES: dict[str, dict[str, int]] = {
    "0.6": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, **HEADS},
    "1.7": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, **HEADS},
    "4": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, **MANY_HEADS},
    "8": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, **MANY_HEADS},
    "30": {
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        **MANY_HEADS,
        "num_key_value_heads": 4,
    },
}
"""The shapes of Qwen3's networks, by billions of parameters; 30 is Qwen3-30B-A3B."""
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
DECISIONS = (128, 1273)
"""Tokens of a short request, and of the average request in the paper."""
CALLS = 20
LARGEST_ERROR = 2e-5
"""In float32, relative to the largest number of a state."""
ROUNDING = 3
"""How many times the error of passes one by one that in bfloat16 may be. Prompts that aren't kept
apart are off by a half and more, and rounding by 0.01 to 0.1."""


def make_prompts(lengths: Sequence[int], vocabulary: int) -> list[TokenizedPrompt]:
    """Random tokens."""
    random = np.random.default_rng(0)
    return [
        TokenizedPrompt(str(i), str(i), random.integers(3, vocabulary, n).astype(np.int32), n)
        for i, n in enumerate(lengths)
    ]


def mixed_lengths(count: int, longest: int) -> list[int]:
    """Lengths around a median as those of prompts are."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(np.log(min(MEDIAN_TOKENS, longest // 2)), 0.9, count)
    return [int(length) for length in np.clip(lengths, 8, longest)]


def encoder_of(network: Any, device: torch.device) -> HubEncoder:
    """A network on a device as an encoder, whose prompts are padded."""
    config, dtype = network.config, next(network.parameters()).dtype
    depth = config.num_hidden_layers
    made_by = Provenance(
        encoder="random",
        revision="random",
        template="plain",
        template_hash="random",
        max_tokens=LONGEST_TOKENS,
        dtype=dtype_name(dtype),
        num_layers=depth,
        hidden_size=config.hidden_size,
    )
    most = batch_tokens_on(device, config, dtype)
    tokenizer = SimpleNamespace(pad_token_id=0)
    return HubEncoder(made_by, tokenizer, network, find_blocks(network, depth), depth, most)


def network_of(shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> Any:
    """A network with random weights, made on the device."""
    library: Any = transformers
    kind = library.Qwen3MoeConfig if "num_experts" in shape else library.Qwen3Config
    config = kind(**shape, vocab_size=300 if shape is TINY else VOCABULARY, pad_token_id=0)
    torch.manual_seed(0)
    with device:
        network = library.AutoModel.from_config(config, dtype=dtype)
    return network.eval().requires_grad_(False)


def families() -> ModuleType:
    """The small networks of the exactness tests; their package needs what tests need."""
    path = ROOT / "packages" / "router" / "tests" / "encoders" / "families.py"
    spec = spec_from_file_location("families", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Rows = dict[Site, NDArray[np.float32]]


def worst_error(states: Rows, expected: list[Rows]) -> float:
    """The largest error, relative to the largest number of the state."""
    return max(
        float(np.abs(rows[i] - truth[site]).max() / np.abs(truth[site]).max())
        for site, rows in states.items()
        for i, truth in enumerate(expected)
    )


def check_exactness(family: str, device: torch.device, tests: ModuleType) -> dict[str, float]:
    """The errors of a family's states on the device.

    Raises:
        SystemExit: They are more than rounding.
    """
    network = tests.build(family)
    depth = network.config.num_hidden_layers
    prompts = make_prompts([1, 20, 40, 19, 7, 33], tests.VOCABULARY)
    blocks = find_blocks(network, depth)
    expected = [tests.read_plainly(network, prompt.ids, blocks) for prompt in prompts]
    sites = [Site(layer, pooling) for layer in range(depth + 1) for pooling in POOLINGS]
    plain = encoder_of(network.to(device), device)
    errors = {"float32": worst_error(read(plain, prompts, sites), expected)}
    is_exact = errors["float32"] < LARGEST_ERROR
    if device.type == "cuda":
        network.to(torch.bfloat16)
        halves = replace(plain, made_by=replace(plain.made_by, dtype="bfloat16"))
        alone = worst_error(read(replace(halves, batch_tokens=1), prompts, sites), expected)
        packed = pack_if_possible(halves, compile_blocks=False)
        errors |= {"bfloat16": alone}
        if packed.packing is not None:
            errors |= {"bfloat16_packed": worst_error(read(packed, prompts, sites), expected)}
            is_exact &= errors["bfloat16_packed"] < ROUNDING * alone
    if not is_exact:
        raise SystemExit(f"{family} isn't exact on {device}: {errors}")
    return errors


def read(encoder: HubEncoder, prompts: list[TokenizedPrompt], sites: list[Site]) -> Rows:
    """The states of the prompts."""
    return dict(encoder.states(prompts, sites))


def matrix_rate(device: torch.device, size: int, dtype: torch.dtype) -> float:
    """TFLOP/s of matrix products on the device, by the fastest of five."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def product() -> None:
        for _ in range(CALLS):
            torch.mm(left, right)
        wait(device)

    product()
    return CALLS * 2 * size**3 / min(time_step(product) for _ in range(5)) / 1e12


def wait(device: torch.device) -> None:
    """Wait until the device has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plainly(encoder: HubEncoder, prompts: list[TokenizedPrompt], sites: list[Site]) -> None:
    """The states from the list of hidden states of a full forward pass, batch after batch."""
    for first in range(0, len(prompts), BATCH):
        rows = [prompt.ids for prompt in prompts[first : first + BATCH]]
        batch = pad(rows, 0, encoder.device)
        with torch.inference_mode():
            outputs = encoder.network(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                output_hidden_states=True,
                use_cache=False,
            )
        for site in sites:
            batch.pool(outputs.hidden_states[site.layer], site.pooling).cpu().numpy()


def measure_speed(
    plain: HubEncoder, ours: HubEncoder, prompts: list[TokenizedPrompt], rounds: int
) -> dict[str, Any]:
    """Tokens per second and TFLOP/s of each way, and their ratios.

    Args:
        plain: The encoder before its network was set to run packed.
        ours: The encoder as it is loaded.
        prompts: The prompts.
        rounds: How often each way reads them.
    """
    depth = ours.provenance.num_layers
    sites = default_sites_of(ours)
    one_layer = [Site(two_thirds(depth), pooling) for pooling in DEFAULT_POOLINGS]
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.states(prompts, sites),
        "ours_one_layer": lambda: ours.states(prompts, one_layer),
        "transformers": lambda: as_loaded(plain, lambda: plainly(plain, prompts, sites)),
    }
    ways: dict[str, Any] = {name: lambda c=call: [time_step(c)] for name, call in calls.items()}
    begin = perf_counter()
    ours.expect_tokens(1 << 40)  # compile, whatever these few prompts are worth
    compiling = perf_counter() - begin
    for call in calls.values():
        call()  # kernels are chosen
    seconds = run_interleaved(ways, rounds=rounds)
    tokens = sum(len(prompt.ids) for prompt in prompts)
    speed = {name: tokens / taken for name, taken in seconds.items()}
    work = 2 * active_parameters(ours.blocks, ours.network.config) / 1e12
    return {
        "tokens": tokens,
        "compiling_seconds": round(compiling, 1),
        "batch_tokens": ours.batch_tokens,
        "packed_by": ours.made_by.packed_by,
        "tokens_per_second": {name: round(found, 1) for name, found in speed.items()},
        "tflops": {name: speed[name] * work for name in ("ours", "transformers")},
        "times_as_fast_as_transformers": {
            name: round(speed[name] / speed["transformers"], 2)
            for name in ("ours", "ours_one_layer")
        },
    }


def as_loaded(plain: HubEncoder, call: Callable[[], object]) -> None:
    """Call something while the network has its own attention and uncompiled blocks."""
    network: Any = plain.network
    name = network.config._attn_implementation
    compiled = [vars(block).pop("forward", None) for block in plain.blocks]
    network.set_attn_implementation("sdpa")
    try:
        call()
    finally:
        network.set_attn_implementation(name)
        for block, forward in zip(plain.blocks, compiled, strict=True):
            if forward is not None:
                block.forward = forward


def two_thirds(depth: int) -> int:
    """The layer at two thirds of the depth."""
    return round(depth * 2 / 3)


def active_parameters(blocks: nn.ModuleList, config: Any) -> float:
    """The parameters of the blocks that a token passes; of experts, its share."""
    share = getattr(config, "num_experts_per_tok", 1) / getattr(config, "num_experts", 1)
    return float(
        sum(
            weight.numel() * (share if ".experts." in name else 1)
            for name, weight in blocks.named_parameters()
        )
    )


def measure_decisions(encoder: HubEncoder, vocabulary: int) -> dict[str, Any]:
    """Milliseconds of one prompt to two thirds of the depth: the median of many calls."""
    sites = [Site(two_thirds(encoder.provenance.num_layers), "last")]
    ways = {"recorded": encoder, "not_recorded": replace(encoder, passes=None)}
    decisions: dict[str, Any] = {}
    for tokens in DECISIONS:
        prompts = make_prompts([tokens], vocabulary)
        for way in ways.values():
            way.states(prompts, sites)
        decisions[str(tokens)] = {
            name: round(1000 * median(call_times(way, prompts, sites)), 2)
            for name, way in ways.items()
        }
    return decisions


def call_times(
    encoder: HubEncoder, prompts: list[TokenizedPrompt], sites: list[Site]
) -> Iterator[float]:
    """Seconds of each call."""
    for _ in range(CALLS):
        yield time_step(lambda: encoder.states(prompts, sites))


def measure_shape(
    shape: dict[str, int], device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """All figures of one network."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    network = network_of(shape, device, dtype)
    plain = encoder_of(network, device)
    ours = pack_if_possible(plain)
    vocabulary = network.config.vocab_size
    longest = 64 if options.tiny else LONGEST_TOKENS
    prompts = make_prompts(mixed_lengths(options.prompts, longest), vocabulary)
    return {
        "decision_ms": measure_decisions(ours, vocabulary),
        **measure_speed(plain, ours, prompts, options.rounds),
        "is_compiled": "forward" in vars(ours.blocks[0]),
        "peak_gb": peak_memory(ours, prompts),
    }


def peak_memory(encoder: HubEncoder, prompts: list[TokenizedPrompt]) -> float | None:
    """Gigabytes of a GPU that reading takes at most, weights included; None without a GPU."""
    if encoder.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(encoder.device)
    encoder.states(prompts, default_sites_of(encoder))
    return round(torch.cuda.max_memory_allocated(encoder.device) / 1e9, 1)


def default_sites_of(encoder: HubEncoder) -> list[Site]:
    """The sites that `encode` reads by default."""
    layers = candidate_layers(encoder.provenance.num_layers)
    return [Site(layer, pooling) for layer in layers for pooling in DEFAULT_POOLINGS]


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--families", nargs="+", help="those to check; by default all")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure and print; write benchmarks/results/gpu_encoder.json unless with tiny networks."""
    options = parse_options()
    if options.device is None and not torch.cuda.is_available():
        print("this needs a GPU with CUDA; --tiny --device cpu tries the script without one")
        sys.exit(SKIPPED)
    device = torch_device(options.device)
    with suppress(AttributeError):
        transformers.utils.logging.set_verbosity_error()
    tests = families()
    names = options.families or list(tests.FAMILIES)
    errors = {name: check_exactness(name, device, tests) for name in names}
    print(f"{len(errors)} families are exact: {errors}", flush=True)
    is_gpu = device.type == "cuda"
    matrices = (8192, torch.bfloat16) if is_gpu else (128, torch.float32)
    result: dict[str, Any] = {
        "what": "Qwen3-shaped encoders with random weights, by billions of parameters",
        "device": torch.cuda.get_device_name(device) if is_gpu else str(device),
        "exactness": errors,
        "card_tflops": matrix_rate(device, *matrices),
        "machine": machine(),
        "sizes": {},
    }
    out = options.out or (None if options.tiny else RESULTS / "gpu_encoder.json")
    shapes = {"tiny": TINY} if options.tiny else {name: SHAPES[name] for name in options.sizes}
    for name, shape in shapes.items():
        figures = measure_shape(shape, device, options)
        figures["share_of_card"] = round(figures["tflops"]["ours"] / result["card_tflops"], 3)
        result["sizes"][name] = figures
        print(name, figures, flush=True)
        if out is not None:
            files.write_json(out, result)  # after each size, so that none is lost
        if is_gpu:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
