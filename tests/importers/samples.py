"""The same small truth, written in every format."""

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prefill_router.importers import Columns

TARGETS = ("org/alpha", "beta")
PROMPTS = ("Why?", 'A "quoted", line\nand another', "Ünïcode ∑ 漢字 🙂", "four", "five")
LABELS: tuple[tuple[float | None, float | None], ...] = (
    (1, 0),
    (0, 1),
    (1, 1),
    (0, None),
    (0, 1),
)
COSTS = ((0.01, 0.002), (0.02, 0.003), (0.03, 0.004), (0.04, None), (0.05, 0.006))
CELLS = [(q, t) for q in range(len(PROMPTS)) for t in range(2) if LABELS[q][t] is not None]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A way of writing the truth down.

    Attributes:
        format: The importer's name.
        write: Writes it into a folder and gives the sources.
        rows: How many rows it takes.
        costs: Whether it tells costs.
        tokens: Whether it tells output tokens (10 times the query's number plus the target's).
        labels: Whether it tells labels.
        columns: Options of the import.
        prompt: What the prompt becomes.
    """

    format: str
    write: Callable[[Path], list[Path]]
    rows: int
    costs: bool = False
    tokens: bool = False
    labels: bool = True
    columns: Columns | None = None
    prompt: Callable[[str], str] = str


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


def asked(q: int) -> list[dict[str, object]]:
    """The messages of a call, of which the last user turn is the prompt."""
    parts = [{"type": "text", "text": PROMPTS[q]}, {"type": "image_url", "image_url": {}}]
    return [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": parts if q % 2 else PROMPTS[q]},
    ]


def write_openai_batch(folder: Path) -> list[Path]:
    """Both targets are asked under the same custom_id, in a batch each."""
    paths = []
    for t, target in enumerate(TARGETS):
        mine = [q for q, i in CELLS if i == t]
        requests = [
            {"custom_id": f"{q}", "url": "/v1/chat/completions", "method": "POST"}
            | {"body": {"model": target, "messages": asked(q)}}
            for q in mine
        ]
        results = [
            {"id": f"r{q}", "custom_id": f"{q}", "error": None}
            | {
                "response": {
                    "status_code": 200,
                    "body": {
                        "id": f"chatcmpl-{q}-{t}",
                        "model": f"{target}-2026-01-01",
                        "usage": {"prompt_tokens": 7, "completion_tokens": tokens(q, t)},
                    },
                }
            }
            for q in reversed(mine)
        ]
        paths += [
            write_jsonl(folder / f"in{t}.jsonl", requests),
            write_jsonl(folder / f"out{t}.jsonl", results),
        ]
    return paths


def write_anthropic_batch(folder: Path) -> list[Path]:
    requests = [
        {"custom_id": f"{q}-{t}", "params": {"model": TARGETS[t], "messages": asked(q)}}
        for q, t in CELLS
    ]
    (folder / "requests.json").write_text(json.dumps({"requests": requests}))
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4}
    results = [
        {"custom_id": f"{q}-{t}", "result": {"type": "succeeded", "message": message}}
        for q, t in CELLS
        for message in [
            {"id": f"msg_{q}_{t}", "model": TARGETS[t]}
            | {"usage": {**usage, "output_tokens": tokens(q, t)}}
        ]
    ]
    return [folder / "requests.json", write_jsonl(folder / "results.jsonl", results)]


def litellm_rows() -> list[dict[str, object]]:
    return [
        {
            "request_id": f"chatcmpl-{q}-{t}",
            "call_type": "acompletion",
            "spend": COSTS[q][t],
            "prompt_tokens": 7,
            "completion_tokens": tokens(q, t),
            "model": f"provider/{TARGETS[t]}",
            "model_group": TARGETS[t],
            "cache_hit": "False",
            "messages": json.dumps(asked(q)),
        }
        for q, t in CELLS
    ]


def write_langfuse(folder: Path) -> list[Path]:
    """Observations as JSON Lines, and scores of theirs and of their traces in another file."""
    observations = [
        {
            "id": f"o{q}{t}",
            "trace_id": f"t{q}{t}",
            "type": "GENERATION",
            "input": json.dumps({"messages": asked(q)}),
            "provided_model_name": TARGETS[t],
            "usage_details": {"input": 3, "input_cached_tokens": 4, "output": tokens(q, t)},
            "total_cost": COSTS[q][t],
        }
        for q, t in CELLS
    ]
    scores = [
        {"id": f"s{q}{t}", "name": "ok", "trace_id": f"t{q}{t}", "value": LABELS[q][t]}
        | ({"observation_id": f"o{q}{t}"} if q % 2 else {})
        for q, t in CELLS
    ]
    spans = [{"id": "x", "trace_id": "t00", "type": "SPAN", "input": "Hello"}]
    return [
        write_jsonl(folder / "observations.jsonl", [*observations, *spans]),
        write_jsonl(folder / "scores.jsonl", scores),
    ]


def write_langfuse_traces(folder: Path) -> list[Path]:
    """Traces with their observations and scores inside, in camel case."""
    traces = [
        {
            "id": f"t{q}{t}",
            "observations": [
                {
                    "id": f"o{q}{t}",
                    "type": "GENERATION",
                    "input": asked(q),
                    "model": TARGETS[t],
                    "usageDetails": {"input": 7, "output": tokens(q, t)},
                    "calculatedTotalCost": COSTS[q][t],
                }
            ],
            "scores": [
                {"name": "ok", "dataType": "CATEGORICAL", "value": 0}
                | {"stringValue": "pass" if LABELS[q][t] else "fail"}
            ],
        }
        for q, t in CELLS
    ]
    (folder / "traces.json").write_text(json.dumps({"data": traces}))
    return [folder / "traces.json"]


def phoenix_rows() -> list[dict[str, object]]:
    return [
        {
            "context.span_id": f"s{q}{t}",
            "span_kind": "LLM",
            "attributes.llm.model_name": TARGETS[t],
            "attributes.llm.input_messages": json.dumps(
                [{f"message.{k}": v for k, v in turn.items()} for turn in plain(q)]
            ),
            "attributes.llm.token_count.prompt": 7,
            "attributes.llm.token_count.completion": tokens(q, t),
            "attributes.llm.cost.total": COSTS[q][t],
            "eval.correctness.score": LABELS[q][t],
        }
        for q, t in CELLS
    ]


def plain(q: int) -> list[dict[str, object]]:
    return [*asked(q)[:-1], {"role": "user", "content": PROMPTS[q]}]


def write_otlp(folder: Path) -> list[Path]:
    """OTLP JSON, with annotations in a file of their own."""

    def attributes(q: int, t: int) -> dict[str, dict[str, object]]:
        turns = {
            f"llm.input_messages.{n}.message.{field}": {"stringValue": value}
            for n, turn in enumerate(plain(q))
            for field, value in turn.items()
        }
        return {
            "openinference.span.kind": {"stringValue": "LLM"},
            "llm.model_name": {"stringValue": TARGETS[t]},
            **turns,
            "llm.token_count.completion": {"intValue": str(tokens(q, t))},
            "llm.cost.total": {"doubleValue": COSTS[q][t]},
        }

    spans = [
        {
            "spanId": f"s{q}{t}",
            "attributes": [{"key": k, "value": v} for k, v in attributes(q, t).items()],
        }
        for q, t in CELLS
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    (folder / "spans.json").write_text(json.dumps(document))
    rows = [
        {"span_id": f"s{q}{t}", "name": "ok", "annotator_kind": "HUMAN"}
        | {"result": {"score": LABELS[q][t], "label": "?"}}
        for q, t in CELLS
    ]
    return [folder / "spans.json", write_jsonl(folder / "annotations.jsonl", rows)]


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
}
