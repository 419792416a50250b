"""Made-up answers under the names of the paper's targets, in the formats of published data."""

import csv
import json
from pathlib import Path

from prefill_router.data import RoutingDataset, prompt_text

FRONTIER = ("claude-sonnet-4", "gpt-5", "gemini-2.5-pro")
SMALL = ("Qwen3-8B", "Llama-3.1-8B-Instruct", "glm-4-9b-chat")
MIXED = ("nemotron-3-nano-reasoning", "gpt-5-4-high", "claude-opus-4-6-high")


def write_llmrouterbench(dataset: RoutingDataset, names: tuple[str, ...], folder: Path) -> Path:
    """A tree of results; the targets of the dataset get these names."""
    benchmarks = sorted({query.benchmark for query in dataset.queries})
    for k, target in enumerate(names):
        for benchmark in benchmarks:
            records = [
                {
                    "index": row,
                    "origin_query": prompt_text(query.prompt),
                    "prompt_tokens": dataset.input_tokens[row, k],
                    "completion_tokens": dataset.output_tokens[row, k],
                    "cost": dataset.observed_cost[row, k],
                    "score": dataset.correct[row, k],
                }
                for row, query in enumerate(dataset.queries)
                if query.benchmark == benchmark
            ]
            place = folder / benchmark / "test" / target
            place.mkdir(parents=True)
            path = place / f"{benchmark}-test-{target}-20260101_120000.json"
            path.write_text(json.dumps({"records": records}))
    return folder


def write_nvidia(dataset: RoutingDataset, names: tuple[str, ...], path: Path) -> Path:
    """The blueprint's long CSV."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "model", "isCorrect", "output_tokens", "embedding_id"])
        for row, query in enumerate(dataset.queries):
            for k, target in enumerate(names):
                right = int(dataset.correct[row, k])
                tokens = int(dataset.output_tokens[row, k])
                writer.writerow([prompt_text(query.prompt), target, right, tokens, row])
    return path
