"""The packaged encoder `minilm` in ONNX Runtime, against the plain way with `transformers`.

The plain way is `AutoModel` with all hidden states in the output, which are then pooled, in float32
too, on as many threads. Both read the same token ids. Single prompts of several lengths and batches
of many prompts are each run in pairs, one way after the other, so that what else the machine does
meets both alike; the median of the ratios of the pairs is reported.

    python -m benchmarks.minilm_runtime [--data FOLDER] [--prompts 64] [--pairs 15] [--threads 2]
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks._networks import DATA, RESULTS, machine, prompts, time_step
from prefill_router import files
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import TokenizedPrompt, load_encoder, pad
from prefill_router.encoders.batching import batches
from prefill_router.encoders.load import _package_path
from prefill_router.encoders.minilm import MiniLMEncoder

SITES = tuple(Site(layer, pooling) for layer in (3, 4, 5, 6) for pooling in ("last", "mean"))
"""The default sites of `encode`."""
ALL_SITES = tuple(Site(layer, pooling) for layer in range(7) for pooling in POOLINGS)
LENGTHS = (8, 32, 64, 128, 256, 512)
"""Tokens of the single prompts."""


class PlainEncoder:
    """`AutoModel` with the hidden states of every layer, pooled afterwards.

    Args:
        folder: The folder of the network.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    def __init__(self, folder: Path, batch_tokens: int) -> None:
        from transformers import AutoModel

        self._network: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._batch_tokens = batch_tokens

    def states(
        self, tokens: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> dict[Site, np.ndarray[Any, Any]]:
        """The states of each prompt at each site, [query, hidden]."""
        rows = {site: np.empty((len(tokens), 384), np.float32) for site in sites}
        for numbers in batches([len(prompt.ids) for prompt in tokens], self._batch_tokens):
            batch = pad([tokens[i].ids for i in numbers], 0, torch.device("cpu"))
            with torch.inference_mode():
                layers = self._network(
                    input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=True
                ).hidden_states
                for site in sites:
                    rows[site][numbers] = batch.pool(layers[site.layer], site.pooling).numpy()
        return rows


def compare(ours: Callable[[], object], plain: Callable[[], object], pairs: int) -> dict[str, Any]:
    """Median milliseconds of each way, and the median of the ratios of pairs."""
    ours(), plain()
    seconds = [
        (time_step(ours), time_step(plain)) if i % 2 else (time_step(plain), time_step(ours))[::-1]
        for i in range(pairs)
    ]
    ratios = sorted(first / second for first, second in seconds)
    return {
        "milliseconds": {
            "ours": round(1000 * median(first for first, _ in seconds), 2),
            "transformers": round(1000 * median(second for _, second in seconds), 2),
        },
        "of_transformers": round(median(ratios), 3),
        "of_transformers_quartiles": [round(ratios[i * pairs // 4], 3) for i in (1, 3)],
    }


def largest_errors(
    ours: MiniLMEncoder, plain: PlainEncoder, tokens: Sequence[TokenizedPrompt]
) -> dict[str, float]:
    """The largest distance of a state at any site, relative to its norm: in batches, and alone."""
    expected = plain.states(tokens, ALL_SITES)

    def error(states: dict[Site, Any], rows: slice) -> float:
        return max(
            float(
                (
                    np.linalg.norm(states[s] - e[rows], axis=1) / np.linalg.norm(e[rows], axis=1)
                ).max()
            )
            for s, e in expected.items()
        )

    alone = [
        error(ours.states(tokens[i : i + 1], ALL_SITES), slice(i, i + 1))
        for i in range(len(tokens))
    ]
    return {"batched": error(ours.states(tokens, ALL_SITES), slice(None)), "alone": max(alone)}


def main() -> None:
    """Measure, print, and write benchmarks/results/minilm_runtime.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    seconds = time_step(lambda: load_encoder("minilm", dtype="float32"))
    ours = load_encoder("minilm", dtype="float32")
    assert isinstance(ours, MiniLMEncoder)
    plain = PlainEncoder(_package_path("minilm"), ours.batch_tokens)
    many = ours.tokenize(prompts(options.data, options.prompts))
    long = max(many, key=lambda prompt: prompt.count)
    text = " ".join(str(i % 7) for i in range(600))
    single: dict[str, Any] = {}
    for length in LENGTHS:
        encoder = load_encoder("minilm", dtype="float32", max_tokens=length)
        prompt_tokens = encoder.tokenize([Query("q", text)])
        single[str(length)] = compare(
            lambda rows=prompt_tokens: ours.states(rows, SITES),  # type: ignore[misc]
            lambda rows=prompt_tokens: plain.states(rows, SITES),  # type: ignore[misc]
            2 * options.pairs,
        )
        print(length, single[str(length)], flush=True)
    batched = compare(
        lambda: ours.states(many, SITES), lambda: plain.states(many, SITES), options.pairs
    )
    tokens = sum(len(prompt.ids) for prompt in many)
    result = {
        "what": "minilm, float32, the default sites of encode, one process",
        "seconds_to_load": round(seconds, 3),
        "one_prompt_by_tokens": single,
        "many_prompts": {
            "prompts": len(many),
            "tokens": tokens,
            "longest": len(long.ids),
            "batch_tokens": ours.batch_tokens,
            "pairs": options.pairs,
            **batched,
            "tokens_per_second": round(1000 * tokens / batched["milliseconds"]["ours"]),
        },
        "largest_error_of_norm": largest_errors(ours, plain, many),
        "machine": {**machine(), "onnxruntime": onnxruntime_version()},
    }
    files.write_json(RESULTS / "minilm_runtime.json", result)
    print(result)


def onnxruntime_version() -> str:
    """The version of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


if __name__ == "__main__":
    main()
