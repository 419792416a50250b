"""Small files like those of the benchmarks, with questions of our own."""

import base64
import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

SUBJECTS = ("physics", "law")
CANARY = "a canary"
STARTER = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        "


def mmlu_rows(*, solved: bool = False) -> list[dict[str, Any]]:
    """Twelve rows; solved, six of each of two subjects, else with more and fewer options."""
    return [
        {
            "question_id": n if solved else 70 + n,
            "question": f" Which is number {n}? ",
            "options": [f"it is {k}" for k in range(3 + n % 8)] + ["N/A"] * (n % 2),
            "answer": "ABC"[n % 3],
            "answer_index": n % 3,
            "cot_content": f"A: Let's see {n}. The answer is ({'ABC'[n % 3]})." if solved else "",
            "category": SUBJECTS[n % 2],
            "src": "ours",
        }
        for n in range(12)
    ]


def hle_rows() -> list[dict[str, Any]]:
    """Three rows; the second has an image."""
    return [
        {
            "id": f"66e{n}",
            "question": f"What is the {n}th thing?",
            "image": "data:image/png;base64,AAAA" if n == 1 else "",
            "image_preview": None,
            "answer": f"thing {n}",
            "answer_type": "exactMatch",
            "author_name": "somebody",
            "rationale": "because",
            "rationale_image": None,
            "raw_subject": "Things",
            "category": "Other",
            "canary": CANARY,
        }
        for n in range(3)
    ]


def pack_tests(tests: object, *, protocol: int = 4) -> str:
    """Tests as the repository packs them."""
    text = json.dumps(tests)
    return base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()


def problem(number: int, *, day: str = "2024-08-01", functional: bool = False) -> dict[str, Any]:
    """A problem to add two numbers."""
    kind = "functional" if functional else "stdin"
    between = "\n" if functional else " "

    def test(a: int, b: int) -> dict[str, str]:
        return {"input": f"{a}{between}{b}", "output": f"{a + b}", "testtype": kind}

    return {
        "question_title": f"Sum {number}",
        "question_content": "Add the two numbers.",
        "platform": "leetcode" if functional else "atcoder",
        "question_id": f"abc{number}_a",
        "contest_id": f"abc{number}",
        "contest_date": f"{day}T00:00:00",
        "starter_code": STARTER if functional else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([test(1, 2)]),
        "private_test_cases": pack_tests([test(number, 5), test(-1, 1)]),
        "metadata": json.dumps({"func_name": "add"} if functional else {}),
    }


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_parquet(path)
    return path


def write_mmlu_pro(folder: Path) -> Path:
    """The two parts, as the repository names them."""
    write_table(folder / "data" / "test-00000-of-00001.parquet", mmlu_rows())
    write_table(folder / "data" / "validation-00000-of-00001.parquet", mmlu_rows(solved=True))
    return folder


def write_hle(folder: Path) -> Path:
    write_table(folder / "data" / "test-00000-of-00001.parquet", hle_rows())
    return folder


def write_livecodebench(folder: Path) -> Path:
    """Three releases: two problems, one with a function, one late."""
    write_lines(folder / "test.jsonl", [problem(1), problem(2, day="2024-08-31")])
    write_lines(folder / "test2.jsonl", [problem(3, functional=True, day="2024-09-01")])
    write_lines(folder / "test3.jsonl", [problem(4, day="2025-02-01")])
    return folder
