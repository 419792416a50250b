"""The same small truth, written in every format."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefill_router.importers import Columns

from .call_log_samples import (
    litellm_rows,
    phoenix_rows,
    write_anthropic_batch,
    write_langfuse,
    write_langfuse_traces,
    write_openai_batch,
    write_otlp,
)
from .layout_samples import (
    vote_rows,
    write_inspect_eval,
    write_inspect_json,
    write_lm_eval,
    write_promptfoo,
)
from .truth import CELLS, COSTS, LABELS, PROMPTS, TABLES, TARGETS, tokens, write_jsonl


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A way to write the truth.

    Attributes:
        format: The importer's name.
        write: Writes it into a folder and gives the sources.
        rows: How many rows it takes.
        costs: Whether it tells costs.
        tokens: Whether it tells output tokens (10 times the query's number plus the target's).
        labels: Whether it tells labels.
        votes: Whether its labels are votes.
        columns: Options of the import.
        prompt: What the prompt becomes.
    """

    format: str
    write: Callable[[Path], list[Path]]
    rows: int
    costs: bool = False
    tokens: bool = False
    labels: bool = True
    votes: bool = False
    columns: Columns | None = None
    prompt: Callable[[str], str] = str


def long_rows() -> list[dict[str, object]]:
    return [
        {
            "query_id": f"q{q}",
            "prompt": PROMPTS[q],
            "target": TARGETS[t],
            "correct": LABELS[q][t],
            "output_tokens": tokens(q, t),
            "cost": COSTS[q][t],
            "benchmark": "made-up",
        }
        for q, t in CELLS
    ]


def wide_rows() -> list[dict[str, object]]:
    return [
        {
            "asked": PROMPTS[q],
            **{f"{name} ok": LABELS[q][t] for t, name in enumerate(TARGETS)},
            **{f"{name} usd": COSTS[q][t] for t, name in enumerate(TARGETS)},
        }
        for q in range(len(PROMPTS))
    ]


def routerbench_rows() -> list[dict[str, object]]:
    return [
        {
            "sample_id": f"made-up.val.{q}",
            "prompt": repr([PROMPTS[q]]),
            "eval_name": "made-up",
            **{name: LABELS[q][t] for t, name in enumerate(TARGETS)},
            **{f"{name}|model_response": "['A']" for name in TARGETS},
            **{f"{name}|total_cost": COSTS[q][t] for t, name in enumerate(TARGETS)},
            "oracle_model_to_route_to": "no_model_correct",
        }
        for q in range(len(PROMPTS))
    ]


def routellm_rows() -> list[dict[str, object]]:
    word = {1: True, 0: False, None: ""}
    return [
        {
            "": q,
            "prompt": PROMPTS[q],
            **{name: word[LABELS[q][t]] for t, name in enumerate(TARGETS)},
            "beta_response": "long, long",
        }
        for q in range(len(PROMPTS))
    ]


def nvidia_rows() -> list[dict[str, object]]:
    return [
        {
            "question": PROMPTS[q],
            "model": TARGETS[t],
            "isCorrect": LABELS[q][t],
            "output_tokens": tokens(q, t),
            "embedding_id": q,
        }
        for q, t in CELLS
    ]


def routerarena_item(q: int, t: int) -> dict[str, object]:
    usage = {"input_tokens": 7, "output_tokens": tokens(q, t), "total_tokens": 0}
    return {
        "global index": f"made-up_{q}",
        "prompt": PROMPTS[q],
        "prediction": TARGETS[t],
        "generated_result": {"generated_answer": "A", "success": True, "token_usage": usage},
        "cost": COSTS[q][t],
        "accuracy": LABELS[q][t],
        "for_optimality": False,
    }


def mmlu_pro_item(q: int, t: int) -> dict[str, object]:
    return {
        "question_id": q,
        "question": f" {PROMPTS[q]}\n",
        "options": ["yes", "no"],
        "answer": "B",
        "answer_index": 1,
        "category": "made-up",
        "src": "made-up",
        "pred": "B" if LABELS[q][t] else None,
        "generated_text": "The answer is (B).",
    }


def result(t: int, **changes: object) -> dict[str, object]:
    """An LLMRouterBench result of a target."""
    records = [
        {
            "index": q,
            "origin_query": PROMPTS[q],
            "prompt": f"Answer! {PROMPTS[q]}",
            "prompt_tokens": 7,
            "completion_tokens": tokens(q, t),
            "cost": COSTS[q][t],
            "score": LABELS[q][t],
            "raw_output": "A",
        }
        for q in range(len(PROMPTS))
        if LABELS[q][t] is not None
    ]
    return {"model_name": TARGETS[t], "dataset_name": "made-up", "records": records, **changes}


def result_path(target: str, stamp: str = "20260101_120000") -> str:
    return f"bench/made-up/test/{target}/made-up-test-{target}-{stamp}.json"


SHORT = ("alpha", "beta")
"""Targets that can be the name of a folder."""


def write_tree(folder: Path) -> list[Path]:
    for t, target in enumerate(SHORT):
        path = folder / "results" / result_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result(t)), encoding="utf-8")
    return [folder / "results"]


def write_tar(folder: Path, *, mode: str = "w:gz") -> list[Path]:
    path = folder / ("results.tar.gz" if mode.endswith("gz") else "results.tar")
    members = {f"results/{result_path(n)}": json.dumps(result(t)) for t, n in enumerate(SHORT)}
    tar_of(path, members, mode=mode)
    return [path]


def tar_of(path: Path, members: dict[str, str], *, mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, text in members.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_interchange(folder: Path) -> list[Path]:
    rows = [
        {
            "query": PROMPTS[q],
            "dataset": "made-up",
            "index": q,
            "records": {TARGETS[t]: LABELS[q][t] for t in range(2) if LABELS[q][t] is not None},
            "usages": {
                TARGETS[t]: {"prompt_tokens": 7, "completion_tokens": tokens(q, t), "cost": cost}
                for t, cost in enumerate(COSTS[q])
            },
        }
        for q in range(len(PROMPTS))
    ]
    return [write_jsonl(folder / "bench.jsonl", rows)]


def write_mmlu_pro(folder: Path, *, zipped: bool) -> list[Path]:
    for t, target in enumerate(SHORT):
        name = f"model_outputs_{target}_5shots"
        text = json.dumps([mmlu_pro_item(q, i) for q, i in CELLS if i == t])
        if zipped:
            with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(f"eval_results/{name}.json", text)
                archive.writestr(f"__MACOSX/._{name}.json", "\0")
        else:
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return [folder]


def write_routerarena(folder: Path) -> list[Path]:
    paths = [folder / f"{name}.json" for name in SHORT]
    for t, path in enumerate(paths):
        path.write_text(json.dumps([routerarena_item(q, i) for q, i in CELLS if i == t]))
    return paths


def _table(name: str, rows: Callable[[], list[dict[str, object]]]) -> Callable[[Path], list[Path]]:
    return lambda folder: [TABLES[name](folder / name, rows())]


_WIDE = Columns(
    prompt="asked", correct="{target} ok", cost="{target} usd", targets=("org/alpha", "beta")
)
SAMPLES: dict[str, Sample] = {
    **{
        f"long {name}": Sample(
            format="long", write=_table(name, long_rows), rows=9, costs=True, tokens=True
        )
        for name in TABLES
    },
    **{
        f"wide {name}": Sample(
            format="wide", write=_table(name, wide_rows), rows=5, costs=True, columns=_WIDE
        )
        for name in TABLES
    },
    **{
        f"routerbench {name}": Sample(
            format="routerbench", write=_table(name, routerbench_rows), rows=5, costs=True
        )
        for name in TABLES
    },
    "routellm": Sample(format="routellm", write=_table("answers.csv", routellm_rows), rows=5),
    "nvidia": Sample(
        format="nvidia", write=_table("answers.csv", nvidia_rows), rows=9, tokens=True
    ),
    "routerarena": Sample(
        format="routerarena", write=write_routerarena, rows=9, costs=True, tokens=True
    ),
    "mmlu_pro zip": Sample(
        format="mmlu_pro",
        write=lambda folder: write_mmlu_pro(folder, zipped=True),
        rows=9,
        prompt=lambda text: f"{text}\n\nA. yes\nB. no",
    ),
    "mmlu_pro json": Sample(
        format="mmlu_pro",
        write=lambda folder: write_mmlu_pro(folder, zipped=False),
        rows=9,
        prompt=lambda text: f"{text}\n\nA. yes\nB. no",
    ),
    "llmrouterbench tree": Sample(
        format="llmrouterbench", write=write_tree, rows=9, costs=True, tokens=True
    ),
    "llmrouterbench tar.gz": Sample(
        format="llmrouterbench", write=write_tar, rows=9, costs=True, tokens=True
    ),
    "llmrouterbench tar": Sample(
        format="llmrouterbench",
        write=lambda folder: write_tar(folder, mode="w"),
        rows=9,
        costs=True,
        tokens=True,
    ),
    "llmrouterbench jsonl": Sample(
        format="llmrouterbench", write=write_interchange, rows=5, costs=True, tokens=True
    ),
    "openai_batch": Sample(
        format="openai_batch", write=write_openai_batch, rows=9, tokens=True, labels=False
    ),
    "anthropic_batch": Sample(
        format="anthropic_batch", write=write_anthropic_batch, rows=9, tokens=True, labels=False
    ),
    **{
        f"litellm {name}": Sample(
            format="litellm",
            write=_table(name, litellm_rows),
            rows=9,
            costs=True,
            tokens=True,
            labels=False,
        )
        for name in TABLES
    },
    "langfuse blobs": Sample(
        format="langfuse", write=write_langfuse, rows=9, costs=True, tokens=True
    ),
    "langfuse traces": Sample(
        format="langfuse", write=write_langfuse_traces, rows=9, costs=True, tokens=True
    ),
    **{
        f"openinference {name}": Sample(
            format="openinference",
            write=_table(name, phoenix_rows),
            rows=9,
            costs=True,
            tokens=True,
        )
        for name in TABLES
    },
    "openinference otlp": Sample(
        format="openinference", write=write_otlp, rows=9, costs=True, tokens=True
    ),
    "lm_eval": Sample(format="lm_eval", write=write_lm_eval, rows=9),
    "inspect_ai json": Sample(format="inspect_ai", write=write_inspect_json, rows=9, tokens=True),
    "inspect_ai eval": Sample(format="inspect_ai", write=write_inspect_eval, rows=9, tokens=True),
    "votes": Sample(
        format="votes",
        write=lambda folder: [write_jsonl(folder / "votes.jsonl", vote_rows())],
        rows=5,
        votes=True,
    ),
    "promptfoo": Sample(format="promptfoo", write=write_promptfoo, rows=9, costs=True, tokens=True),
}
