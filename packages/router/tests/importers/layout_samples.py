"""The small truth in the files of evaluation tools."""

import json
import zipfile
from pathlib import Path

from .truth import CELLS, COSTS, LABELS, PROMPTS, TARGETS, tokens, write_jsonl


def lm_eval_row(q: int, t: int) -> dict[str, object]:
    return {
        "doc_id": q,
        "doc": {"question": PROMPTS[q], "answer": "A"},
        "target": "A",
        "arguments": {"gen_args_0": {"arg_0": PROMPTS[q], "arg_1": {"until": []}}},
        "resps": [["A"]],
        "filtered_resps": ["A"],
        "filter": "strict-match",
        "metrics": ["exact_match"],
        "exact_match": LABELS[q][t],
    }


def write_lm_eval(folder: Path) -> list[Path]:
    """A folder per model, which also holds results."""
    for t, target in enumerate(TARGETS):
        place = folder / "lm_eval" / target.replace("/", "__")
        place.mkdir(parents=True)
        (place / "results_2026-03-01T10-00-00.000000.json").write_text("{}")
        rows = [lm_eval_row(q, i) for q, i in CELLS if i == t]
        write_jsonl(place / "samples_made_up_2026-03-01T10-00-00.000000.jsonl", rows)
    return [folder / "lm_eval"]


def inspect_sample(q: int, t: int) -> dict[str, object]:
    usage = {"input_tokens": 7, "output_tokens": tokens(q, t)}
    return {
        "id": f"q{q}",
        "epoch": 1,
        "input": [{"role": "user", "content": [{"type": "text", "text": PROMPTS[q]}]}],
        "scores": {"match": {"value": "C" if LABELS[q][t] else "I", "answer": "A"}},
        "model_usage": {"judge": {"input_tokens": 1, "output_tokens": 1}, TARGETS[t]: usage},
    }


def inspect_log(t: int) -> tuple[dict[str, object], list[dict[str, object]]]:
    header: dict[str, object] = {"eval": {"task": "made-up", "model": TARGETS[t]}, "plan": {}}
    return header, [inspect_sample(q, i) for q, i in CELLS if i == t]


def write_inspect_json(folder: Path) -> list[Path]:
    for t in range(2):
        header, samples = inspect_log(t)
        (folder / f"log{t}.json").write_text(json.dumps({**header, "samples": samples}))
    return [folder]


def write_inspect_eval(folder: Path) -> list[Path]:
    for t in range(2):
        header, samples = inspect_log(t)
        with zipfile.ZipFile(folder / f"log{t}.eval", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("_journal/start.json", json.dumps({"eval": {"model": "journal"}}))
            for sample in samples:
                archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
            archive.writestr("summaries.json", "[]")
            archive.writestr("header.json", json.dumps(header))
    return [folder]


def vote_rows() -> list[dict[str, object]]:
    """A row per question: the better of the two, a tie, or no vote where an answer is missing."""
    return [
        {
            "model_a": TARGETS[0],
            "model_b": TARGETS[1],
            "winner": None if b is None else {1: "model_a", 0: "tie", -1: "model_b"}[int(a - b)],
            "conversation_a": [
                {"role": "user", "content": PROMPTS[q]},
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "Sure?"},
            ],
        }
        for q, (a, b) in enumerate(LABELS)
    ]


def promptfoo_row(q: int, t: int) -> dict[str, object]:
    usage = {"total": 0, "prompt": 7, "completion": tokens(q, t)}
    return {
        "promptIdx": 0,
        "provider": {"id": f"openai:{TARGETS[t]}", "label": TARGETS[t]},
        "prompt": {"raw": PROMPTS[q], "label": "{{question}}"},
        "vars": {"question": PROMPTS[q]},
        "response": {"output": "A", "tokenUsage": usage},
        "success": bool(LABELS[q][t]),
        "score": 0.5,
        "cost": COSTS[q][t],
    }


def write_promptfoo(folder: Path, rows: list[dict[str, object]] | None = None) -> list[Path]:
    listed = [promptfoo_row(q, t) for q, t in CELLS] if rows is None else rows
    file = folder / "promptfoo.json"
    content = {"evalId": "eval-1", "results": {"version": 3, "results": listed}, "config": {}}
    file.write_text(json.dumps(content))
    return [file]
