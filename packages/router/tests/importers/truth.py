"""The small truth that samples of every format tell, and writers of tables."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

TARGETS = ("org/alpha", "beta")
PROMPTS = ("Why?", 'A "quoted", line\nand another', "Ünïcode ∑ 漢字 🙂", "four", "five")
LABELS: tuple[tuple[float | None, float | None], ...] = (
    (1, 0),
    (0, 1),
    (1, 1),
    (0, None),
    (0, 1),
)
VOTES = {0: (1, 0), 1: (0, 1), 2: (0.5, 0.5), 4: (0, 1)}
"""The labels of two targets as votes between them, by question."""
COSTS = ((0.01, 0.002), (0.02, 0.003), (0.03, 0.004), (0.04, None), (0.05, 0.006))
CELLS = [(q, t) for q in range(len(PROMPTS)) for t in range(2) if LABELS[q][t] is not None]


def tokens(query: int, target: int) -> int:
    return 10 * query + target


def write_csv(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    pl.DataFrame(list(rows), infer_schema_length=None).write_parquet(path)
    return path


Writer = Callable[[Path, Sequence[dict[str, object]]], Path]
TABLES: dict[str, Writer] = {
    "answers.csv": write_csv,
    "answers.jsonl": write_jsonl,
    "answers.parquet": write_parquet,
}
