"""Logs of calls: what is left out, which score is the label, and how a format is recognised."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefill_router.agents import load_harnesses, read_harnesses
from prefill_router.errors import ConfigError, FormatError
from prefill_router.importers import FORMATS, Columns, import_dataset, recognise_format
from prefill_router.importers.call_logs import scored_text

from .call_log_samples import litellm_rows
from .samples import SAMPLES, long_rows
from .truth import write_csv, write_jsonl

OWN = ("long", "wide")
LIKE_OWN = ("routellm",)
"""A public format that is a wide table like any other."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_recognised_by_its_fields(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    format_name = recognise_format(sample.write(tmp_path))
    assert format_name == (None if sample.format in (*OWN, *LIKE_OWN) else sample.format)
    assert recognise_format([tmp_path]) == format_name


def test_every_public_format_has_a_signature() -> None:
    lacking = {name for name, kind in FORMATS.own.items() if not kind.signatures}
    assert lacking == {*OWN, *LIKE_OWN}


def test_calls_without_prompts_say_which_setting_keeps_them(tmp_path: Path) -> None:
    rows = [{**row, "messages": "{}"} for row in litellm_rows()]
    with pytest.raises(FormatError, match=r"9 calls without the text.*store_prompts"):
        import_dataset("litellm", [write_csv(tmp_path / "spend.csv", rows)])


def test_failed_cached_and_other_calls_are_left_out(tmp_path: Path) -> None:
    rows = litellm_rows()
    rows[0]["status"], rows[1]["cache_hit"], rows[2]["call_type"] = "failure", "True", "aembedding"
    rows[3]["messages"] = {"messages": [{"role": "assistant", "content": "Hi"}]}
    result = import_dataset("litellm", [write_jsonl(tmp_path / "spend.jsonl", rows)])
    assert int((~np.isnan(result.dataset.output_tokens)).sum()) == 5
    (note,) = [note for note in result.report.notes if note.startswith("left out")]
    assert note.count("1 ") == 4


def test_runs_of_a_prompt_are_averaged_and_a_spend_of_zero_is_unknown(tmp_path: Path) -> None:
    first = litellm_rows()[0]
    rows = [
        {**first, "request_id": str(n), "completion_tokens": 10 * n, "spend": 0} for n in (1, 3)
    ]
    dataset, _ = import_dataset("litellm", [write_jsonl(tmp_path / "spend.jsonl", rows)])
    assert dataset.output_tokens.tolist() == [[20.0]]
    assert np.isnan(dataset.recorded_cost).all()


def batch(folder: Path, **changes: Any) -> list[Path]:
    """One request and its result, in OpenAI's files."""
    body = {"model": "small", "messages": [{"role": "user", "content": "Why?"}]}
    requests = [{"custom_id": "1", "body": body}]
    answer = {"model": "small-2026", "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    result = {"custom_id": "1", "response": {"status_code": 200, "body": answer}}
    more = changes.pop("requests", [])
    return [
        write_jsonl(folder / "in.jsonl", [*requests, *more]),
        write_jsonl(folder / "out.jsonl", [{**result, **changes}]),
    ]


def test_a_batch_needs_its_requests_and_its_results(tmp_path: Path) -> None:
    requests, results = batch(tmp_path)
    with pytest.raises(FormatError, match=r"request isn't in the sources.*give the files"):
        import_dataset("openai_batch", [results])
    with pytest.raises(FormatError, match="no result"):
        import_dataset("openai_batch", [requests])
    failed = batch(tmp_path, response={"status_code": 500, "body": {}})
    with pytest.raises(FormatError, match="failed, expired or were cancelled"):
        import_dataset("openai_batch", failed)


def test_a_custom_id_of_several_requests_is_refused_unless_the_model_tells(tmp_path: Path) -> None:
    other = {"model": "small", "messages": [{"role": "user", "content": "Who?"}]}
    large = {"custom_id": "1", "body": {**other, "model": "large"}}
    dataset, _ = import_dataset("openai_batch", batch(tmp_path, requests=[large]))
    assert [str(query.prompt) for query in dataset.queries] == ["Why?"]
    same = batch(tmp_path, requests=[{"custom_id": "1", "body": other}])
    with pytest.raises(FormatError, match="import each batch by itself"):
        import_dataset("openai_batch", same)


def langfuse(folder: Path, **scores: float) -> list[Path]:
    """A generation with these scores."""
    rows = [{"id": "o", "traceId": "t", "type": "GENERATION", "input": "Why?", "model": "small"}]
    score_rows = [{"id": n, "traceId": "t", "name": n, "value": v} for n, v in scores.items()]
    (folder / "export.json").write_text(json.dumps([*rows, *score_rows]))
    return [folder / "export.json"]


def test_one_of_several_scores_is_the_label(tmp_path: Path) -> None:
    sources = langfuse(tmp_path, good=1, brief=0)
    dataset, report = import_dataset("langfuse", sources)
    assert dataset.correct.tolist() == [[1.0]]
    assert any("good (1), brief (1)" in note for note in report.notes)
    named, _ = import_dataset("langfuse", sources, columns=Columns(correct="brief"))
    assert named.correct.tolist() == [[0.0]]
    with pytest.raises(ConfigError, match=r"no score 'kind'; there is \['brief', 'good'\]"):
        import_dataset("langfuse", sources, columns=Columns(correct="kind"))


def test_scores_on_another_scale_need_it(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="--scale"):
        import_dataset("langfuse", langfuse(tmp_path, good=4))


def test_a_table_of_ones_own_is_not_recognised_as_a_log(tmp_path: Path) -> None:
    assert recognise_format([write_csv(tmp_path / "own.csv", long_rows())]) is None


def test_a_request_of_an_agent_is_its_ask_and_a_short_one_has_what_it_refers_to() -> None:
    ask = "Why does test_checkout fail only on Mondays? Find the cause and fix it."
    reminder = {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "def handler(): ..."}
    parts = [reminder, {"type": "text", "text": ask}]
    agent = {
        "system": [{"type": "text", "text": "You are Claude Code, Anthropic's CLI."}],
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read"}]},
            {"role": "user", "content": [result, reminder]},
        ],
    }
    plain = [{"role": "user", "content": ask}, {"role": "assistant", "content": "Shall I?"}]
    assert scored_text(agent) == scored_text(ask) == scored_text({"prompt": plain}) == ask
    assert scored_text([*plain, {"role": "user", "content": "yes"}]) == f"{ask}\n\nyes"
    assert scored_text([{"role": "user", "content": [result]}]) is None
    assert scored_text({"messages": None}) is None


MARKS = {"our-agent": {"systems": ["You are ours"], "blocks": ["memo"]}}
OURS = [
    {"role": "system", "content": "You are ours. Be kind."},
    {"role": "user", "content": "<memo>\nBe brief.\n</memo>\nWhy does it fail on Mondays?"},
]


def our_log(format_: str, folder: Path) -> list[Path]:
    """One call of the agent, in a format of logs."""
    if format_ == "litellm":
        return [write_jsonl(folder / "log.jsonl", [{**litellm_rows()[0], "messages": OURS}])]
    if format_ == "langfuse":
        call = {"id": "o", "traceId": "t", "type": "GENERATION", "input": OURS, "model": "small"}
        return [write_jsonl(folder / "log.jsonl", [call])]
    if format_ == "openai_batch":
        sources = batch(folder)
        request = {"custom_id": "1", "body": {"model": "small", "messages": OURS}}
        write_jsonl(sources[0], [request])
        return sources
    messages = {
        f"llm.input_messages.{n}.message.{name}": turn[name]
        for n, turn in enumerate(OURS)
        for name in turn
    }
    attributes = {"openinference.span.kind": "LLM", "llm.model_name": "small", **messages}
    span = {"context.span_id": "s", "context.trace_id": "t", "span_kind": "LLM"}
    return [write_jsonl(folder / "log.jsonl", [{**span, "attributes": attributes}])]


@pytest.mark.parametrize("format_", ["litellm", "langfuse", "openai_batch", "openinference"])
def test_marks_of_ones_own_agent_are_read_of_every_log(tmp_path: Path, format_: str) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text(json.dumps({"listen": {"port": 1}, "agents": {"marks": MARKS}}))
    source = our_log(format_, tmp_path)
    (query,) = import_dataset(format_, source, harnesses=read_harnesses(settings)).dataset.queries
    assert query.prompt == "Why does it fail on Mondays?"
    (other,) = import_dataset(format_, source).dataset.queries
    assert other.prompt == OURS[1]["content"]


def test_marks_that_are_none_are_refused(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    for text, why in {
        "agents: {marks: {ours: {tags: [memo]}}}": "agents.marks.ours.tags: .* give marks",
        "agents: 3": "no section agents; give marks",
        "agents: null": "no section agents; give marks",
        "[1]": "no section agents; give marks",
        "[": "gateway.yaml",
    }.items():
        settings.write_text(text)
        with pytest.raises(ConfigError, match=why):
            read_harnesses(settings)
    with pytest.raises(ConfigError, match="no such file"):
        read_harnesses(tmp_path / "none.yaml")
    settings.write_text("")
    assert read_harnesses(settings) == load_harnesses()
