"""The same small truth in logs of calls: batch files of providers, and what observers export."""

import json
from pathlib import Path

from .truth import CELLS, COSTS, LABELS, PROMPTS, TARGETS, tokens, write_jsonl


def call_messages(q: int) -> list[dict[str, object]]:
    """The messages of a call, of which the last user turn is the prompt."""
    parts = [{"type": "text", "text": PROMPTS[q]}, {"type": "image_url", "image_url": {}}]
    return [
        {"role": "system", "content": "Answer."},
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
            | {"body": {"model": target, "messages": call_messages(q)}}
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
        {"custom_id": f"{q}-{t}", "params": {"model": TARGETS[t], "messages": call_messages(q)}}
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
            "messages": json.dumps(call_messages(q)),
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
            "input": json.dumps({"messages": call_messages(q)}),
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
                    "input": call_messages(q),
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
    return [*call_messages(q)[:-1], {"role": "user", "content": PROMPTS[q]}]


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
