"""Prompts of every kind become batches that providers take, and their results come back."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from packages.router.tests.assignment.worlds import random_predictions
from packages.router.tests.importers.truth import write_csv, write_jsonl
from prefill_router import files
from prefill_router.assignment import (
    MOST_LINES,
    Assignment,
    BatchFormat,
    BatchLines,
    PromptFile,
    SavedAssignment,
    assign,
    check_results,
    grade_results,
    predict_prompts,
    read_labels,
    write_assignment,
)
from prefill_router.assignment.prompt_file import PromptRecord
from prefill_router.data import Message, Query, RoutingDataset, write_dataset
from prefill_router.errors import ConfigError, CorruptError, DataError, FormatError
from prefill_router.importers import read_batch_results
from prefill_router.policy import Predictions
from prefill_router.router import Router
from prefill_router.targets import Dialect, Pool, Provider, RequestOptions, Target

POOL = Pool(
    (
        Target(name="t0", input_price=1, output_price=2),
        Target(name="org/t1", input_price=1, output_price=4, provider="o", model="gpt-one"),
        Target(
            name="t2",
            input_price=2,
            output_price=8,
            provider="a",
            model="claude-sonnet-4-6",
            request=RequestOptions(max_tokens=500, reasoning_effort="low"),
        ),
    ),
    providers=(
        Provider(name="o", base_url="https://one.example/v1", dialect="openai"),
        Provider(name="a", base_url="https://two.example/v1", dialect="anthropic"),
    ),
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def assignment_of(prompts: PromptFile) -> Assignment:
    """Each prompt at the next target in turn."""
    ids = tuple(record.query.id for block in prompts.blocks() for record in block)
    choice = np.arange(len(ids)) % 3
    predictions = dataclasses.replace(
        random_predictions(len(ids), 3, 0), query_ids=ids, targets=POOL.names
    )
    rows = np.arange(len(ids))
    assignment = assign(predictions, budget=1e9)
    return dataclasses.replace(
        assignment,
        choice=choice,
        correctness=predictions.correctness[rows, choice],
        cost=predictions.estimated_cost[rows, choice],
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_batches(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    prompts = PromptFile(write_jsonl(folder / "prompts.jsonl", rows))
    write_assignment(assignment_of(prompts), prompts, POOL, folder / "out", **options)
    return folder / "out"


def test_each_target_has_the_format_of_its_provider(tmp_path: Path) -> None:
    out = write_batches(tmp_path, [{"id": f"p{i}", "messages": CHAT} for i in range(6)])
    plain, chats, messages = (lines_of(out / f"{n}.jsonl") for n in ("t0", "org%2Ft1", "t2"))
    assert plain == [{"id": f"p{i}", "target": "t0", "messages": CHAT} for i in (0, 3)]
    assert [line.pop("custom_id") for line in chats] == ["p1", "p4"]
    body = {"model": "gpt-one", "messages": CHAT}
    assert chats == [{"method": "POST", "url": "/v1/chat/completions", "body": body}] * 2
    assert messages[0]["custom_id"] == "p2"
    assert messages[0]["params"] == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 500,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Why?"}],
    }


@pytest.mark.parametrize("text", ['"why"\n\\ ü 🎉', "prompt-6b1f0c52", "id-6b1f0c52"])
@pytest.mark.parametrize(("name", "form"), [("org/t1", "openai"), ("t2", "anthropic")])
def test_a_text_has_the_line_of_the_chat_that_it_is(
    name: str, form: BatchFormat, text: str
) -> None:
    lines = BatchLines(POOL, name, form)
    chat = (Message("user", text),)
    as_text, as_chat = (lines.line(PromptRecord(Query("q-1", p))) for p in (text, chat))
    assert as_text == as_chat
    assert as_text.count(json.dumps(text, ensure_ascii=False).encode()) == 1


def test_a_batch_keeps_its_requests_but_for_the_model(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "auto", "messages": CHAT, "max_tokens": 7, "tools": tools}
    rows = [
        {"custom_id": f"p{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(3)
    ]
    out = write_batches(tmp_path, rows, format="openai")
    names = ("t0", "gpt-one", "claude-sonnet-4-6")
    files = ("t0", "org%2Ft1", "t2")
    for model, file in zip(names, files, strict=True):
        [line] = lines_of(out / f"{file}.jsonl")
        fields = {k: v for k, v in line["body"].items() if k in body}
        assert fields == {**body, "model": model}
    with pytest.raises(DataError, match=r"'p2'.*\['tools'\].*translated"):
        write_batches(tmp_path, rows)


def test_requests_are_translated_between_protocols_where_they_are_text(tmp_path: Path) -> None:
    params = {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": CHAT[1:]}
    out = write_batches(tmp_path, [{"custom_id": f"p{i}", "params": params} for i in range(3)])
    [chat], [message] = (lines_of(out / f"{name}.jsonl") for name in ("org%2Ft1", "t2"))
    assert chat["body"] == {"model": "gpt-one", "max_completion_tokens": 9, "messages": CHAT}
    assert message["params"].items() >= {**params, "model": "claude-sonnet-4-6"}.items()


def request_for(folder: Path, target: Target, row: dict[str, Any], dialect: Dialect) -> Any:
    """The request that one target gets for one line of a batch."""
    provider = Provider(name="p", base_url="https://one.example/v1", dialect=dialect)
    served = dataclasses.replace(target, provider="p", input_price=1, output_price=1)
    prompts = PromptFile(write_jsonl(folder / "prompts.jsonl", [{"custom_id": "a", **row}]))
    [[record]] = prompts.blocks()
    form: BatchFormat = "anthropic" if dialect == "anthropic" else "openai"
    line = json.loads(
        BatchLines(Pool((served,), providers=(provider,)), target.name, form).line(record)
    )
    return line["params" if dialect == "anthropic" else "body"]


TURNS = CHAT[1:]


@pytest.mark.parametrize(
    ("effort", "params", "effort_fields"),
    [
        (
            "low",
            {"temperature": 0.2, "output_config": {"format": "json"}},
            {
                "thinking": {"type": "adaptive"},
                "output_config": {"format": "json", "effort": "low"},
            },
        ),
        ("none", {"output_config": {"effort": "high"}}, {"thinking": {"type": "disabled"}}),
        (
            "none",
            {"temperature": 0.2, "output_config": {"effort": "high", "format": "json"}},
            {
                "temperature": 0.2,
                "thinking": {"type": "disabled"},
                "output_config": {"format": "json"},
            },
        ),
    ],
)
def test_a_claude_gets_its_effort_and_keeps_the_rest_of_the_request(
    tmp_path: Path, effort: str, params: dict[str, Any], effort_fields: dict[str, Any]
) -> None:
    target = Target(name=f"c:{effort}", model="claude-sonnet-4-6", effort=effort)
    head = {"model": "m", "max_tokens": 9, "messages": TURNS}
    request = request_for(tmp_path, target, {"params": {**head, **params}}, "anthropic")
    assert request == {**head, "model": "claude-sonnet-4-6", **effort_fields}


def test_thinking_keeps_within_the_limit_of_the_request(tmp_path: Path) -> None:
    target = Target(name="c:high", model="claude-3-7-sonnet", effort="high")
    for limit, thinking in (
        (2000, {"type": "enabled", "budget_tokens": 1600}),
        (9, {"type": "disabled"}),
    ):
        params = {"model": "m", "max_tokens": limit, "messages": TURNS}
        request = request_for(tmp_path, target, {"params": params}, "anthropic")
        assert (request["max_tokens"], request["thinking"]) == (limit, thinking)


@pytest.mark.parametrize(
    ("dialect", "options", "effort_fields"),
    [
        (
            "openai",
            {"reasoning_effort": "high", "temperature": 1},
            {"reasoning_effort": "low", "temperature": 1},
        ),
        (
            "vllm",
            {"chat_template_kwargs": {"enable_thinking": False, "tools": 1}},
            {
                "reasoning_effort": "low",
                "chat_template_kwargs": {"enable_thinking": True, "thinking": True, "tools": 1},
            },
        ),
        (
            "openrouter",
            {"reasoning": {"max_tokens": 5, "exclude": True}},
            {
                "reasoning": {"effort": "low", "enabled": True, "exclude": True},
                "usage": {"include": True},
            },
        ),
    ],
)
def test_a_chat_asks_for_the_effort_of_its_target_alone(
    tmp_path: Path, dialect: Dialect, options: dict[str, Any], effort_fields: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": TURNS}
    row = {"url": "/v1/chat/completions", "body": {**body, **options}}
    request = request_for(tmp_path, Target(name="c:low"), row, dialect)
    assert request == {**body, "model": "c", **effort_fields}
    plain = request_for(tmp_path, Target(name="c"), row, "openai")
    assert plain == {**body, **options, "model": "c"}


def test_other_endpoints_say_the_effort_in_their_own_way_or_are_refused(tmp_path: Path) -> None:
    target, body = Target(name="c:low"), {"model": "m", "input": "Why?"}
    row = {
        "url": "/v1/responses",
        "body": {**body, "reasoning": {"effort": "high", "summary": "auto"}},
    }
    request = request_for(tmp_path, target, row, "openai")
    assert request == {**body, "model": "c", "reasoning": {"effort": "low", "summary": "auto"}}
    row = {"url": "/v1/embeddings", "body": body}
    with pytest.raises(DataError, match=r"'a'.*can't say the effort of 'c:low'.*--at-most c:low=0"):
        request_for(tmp_path, target, row, "openai")
    options = Target(name="c", request=RequestOptions(reasoning_effort="low"))
    assert request_for(tmp_path, options, row, "openai") == {**body, "model": "c"}


def test_a_translated_request_has_no_field_that_thinking_refuses(tmp_path: Path) -> None:
    target = Target(name="c:low", model="claude-sonnet-4-6", effort="low")
    body = {"model": "m", "messages": TURNS, "temperature": 0.2, "max_tokens": 9}
    request = request_for(tmp_path, target, {"body": body}, "anthropic")
    assert "temperature" not in request
    assert request["thinking"] == {"type": "adaptive"}


def test_ids_are_made_from_the_position_and_must_be_distinct(tmp_path: Path) -> None:
    out = write_batches(tmp_path, [{"prompt": "a"}, {"prompt": "a"}])
    table = pl.read_parquet(out / "assignment.parquet")
    assert table["id"].to_list() == ["prompt-1", "prompt-2"]
    assert table["target"].to_list() == ["t0", "org/t1"]
    twice = write_jsonl(tmp_path / "twice.jsonl", [{"id": 1, "prompt": "a"}] * 2)
    with pytest.raises(FormatError, match="two prompts have the id '1'"):
        list(PromptFile(twice).blocks())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"A secret.": "a"}, r"has no prompt: none of its fields \(1\) is named prompt,"),
        ({"prompt": "  "}, "prompt is empty"),
        ({"messages": []}, "one or more"),
        ({"messages": "a"}, "must be a list"),
        ({"body": {"messages": []}}, "no text of a user"),
        ({"prompt": "a", "id": 1.5}, "id is 1.5; give a text or a whole number"),
    ],
)
def test_a_record_that_is_no_prompt_is_named_with_its_line(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    path = write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": "a"}, row])
    with pytest.raises(FormatError, match=rf"prompts\.jsonl:2: .*{reason}") as error:
        list(PromptFile(path).blocks())
    assert "secret" not in str(error.value)


def test_what_is_not_there_and_what_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        PromptFile(tmp_path / "gone.jsonl")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    path = PromptFile(write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": "a"}]))
    with pytest.raises(DataError, match="isn't an assignment"):
        write_assignment(assignment_of(path), path, POOL, tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]
    with pytest.raises(FormatError, match="isn't an assignment"):
        SavedAssignment.read(tmp_path / "notes")


def test_a_file_that_changed_meanwhile_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    assignment = assignment_of(PromptFile(path))
    write_jsonl(path, [{"prompt": "a"}])
    with pytest.raises(DataError, match="may have changed"):
        write_assignment(assignment, PromptFile(path), POOL, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_anthropic_refuses_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a b': the id can't be sent to Anthropic"):
        write_batches(tmp_path, [{"prompt": "a", "id": "a b"}], format="anthropic")


def test_batches_are_as_large_as_a_provider_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST_LINES, "openai", 2)
    out = write_batches(tmp_path, [{"prompt": "a"}] * 13, format="openai")
    files = json.loads((out / "assignment.json").read_text())["targets"]["t0"]["files"]
    assert files == ["t0.jsonl", "t0+2.jsonl", "t0+3.jsonl"]
    ids = [line["custom_id"] for name in files for line in lines_of(out / name)]
    assert ids == [f"prompt-{n}" for n in (1, 4, 7, 10, 13)]


def test_what_is_no_json_is_named_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    request = '{"messages": [{"role": "user", "content": "a"}], "top_p": NaN}'
    path.write_text(f'{{"custom_id": "p", "body": {request}}}\n')
    prompts = PromptFile(path)
    with pytest.raises(DataError, match="'p': the request isn't JSON"):
        write_assignment(assignment_of(prompts), prompts, POOL, tmp_path / "out")


def openai_result(name: str, tokens: int, text: str = "") -> dict[str, Any]:
    usage = {"prompt_tokens": 10, "completion_tokens": tokens}
    body = {"model": "m", "usage": usage, "choices": [{"message": {"content": text}}]}
    return {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}


def anthropic_result(name: str, tokens: int) -> dict[str, Any]:
    message = {"usage": {"input_tokens": 10, "output_tokens": tokens}, "content": []}
    return {"custom_id": name, "result": {"type": "succeeded", "message": message}}


def test_results_are_joined_by_id_and_compared_with_the_forecast(tmp_path: Path) -> None:
    out = write_batches(tmp_path, [{"prompt": "a"}] * 9)
    expired = {"custom_id": "prompt-5", "response": None, "error": {"code": "batch_expired"}}
    chats = [openai_result("prompt-2", 100), expired, openai_result("other", 1)]
    results = [
        write_jsonl(tmp_path / "one.jsonl", chats),
        write_jsonl(tmp_path / "two.jsonl", [anthropic_result("prompt-3", 200)] * 2),
    ]
    labels = write_csv(tmp_path / "labels.csv", [{"id": "prompt-2", "correct": 1}])
    assignment = SavedAssignment.read(out)
    checked = check_results(assignment, results, labels=read_labels(labels, assignment))
    first, second = checked.targets["org/t1"], checked.targets["t2"]
    assert (first.prompts, first.answered, first.failed, first.labelled) == (3, 1, 1, 1)
    assert first.observed_cost == pytest.approx((10 * 1 + 100 * 4) / 1e6)
    assert second.observed_cost == pytest.approx((10 * 2 + 200 * 8) / 1e6)
    row = assignment.table.row(1, named=True)
    assert (first.expected_cost, first.predicted) == (row["expected_cost"], row["correctness"])
    assert (first.observed, second.observed) == (1.0, None)
    assert (checked.unknown, checked.total.answered, checked.total.prompts) == (1, 2, 9)
    assert checked.total.difference.to_dict()["reason"]


def test_answers_are_graded_by_the_tasks_that_the_prompts_are(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "answer": "yes"},
        {"prompt": "b", "answer": 12, "grader": "number"},
        {"prompt": "c", "grader": "judge", "rubric": "Is polite."},
        {"prompt": "d", "answer": "yes"},
    ]
    out = write_batches(tmp_path, rows)
    parts = [{"type": "thinking", "thinking": "12"}, {"type": "text", "text": "It is 11."}]
    second = anthropic_result("prompt-2", 1)
    second["result"]["message"]["content"] = parts
    results = [openai_result("prompt-1", 1, "yes"), second, openai_result("prompt-3", 1, "Hi")]
    paths = [write_jsonl(tmp_path / "results.jsonl", results)]
    report = grade_results(SavedAssignment.read(out), paths, tmp_path / "prompts.jsonl")
    assert report.labels == {"prompt-1": 1.0, "prompt-2": 0.0}
    assert report.ungraded == {"needs_judge": 1}
    other = write_jsonl(tmp_path / "other.jsonl", [{"id": "x", "prompt": "a", "answer": "b"}])
    with pytest.raises(DataError, match=r"no task of .* has an answer"):
        grade_results(SavedAssignment.read(out), paths, other)
    lacking = write_jsonl(tmp_path / "lacking.jsonl", [*rows[:2], {"prompt": "c"}])
    with pytest.raises(FormatError, match=r"lacking\.jsonl:3: lacks an answer"):
        grade_results(SavedAssignment.read(out), paths, lacking)


def test_tasks_without_ids_are_the_prompts_in_their_order(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "yes"}, {"prompt": "b", "answer": "no"}]
    assignment = SavedAssignment.read(write_batches(tmp_path, rows))
    answers = [openai_result("prompt-1", 1, "yes"), openai_result("prompt-2", 1, "no")]
    paths = [write_jsonl(tmp_path / "results.jsonl", answers)]
    labels = grade_results(assignment, paths, tmp_path / "prompts.jsonl").labels
    assert labels == {"prompt-1": 1.0, "prompt-2": 1.0}
    reversed_file = write_jsonl(tmp_path / "turned.jsonl", rows[::-1])
    with pytest.raises(
        FormatError,
        match=r"turned\.jsonl:1: this task has another prompt than the assigned prompt 'prompt-1'",
    ):
        grade_results(assignment, paths, reversed_file)
    ids = [{"id": f"prompt-{2 - n}", **row} for n, row in enumerate(rows[::-1])]
    id_file = write_jsonl(tmp_path / "named.jsonl", ids)
    assert grade_results(assignment, paths, id_file).labels == labels


def test_two_tasks_with_one_id_are_refused(tmp_path: Path) -> None:
    row = {"id": "x", "prompt": "a", "answer": "yes"}
    assignment = SavedAssignment.read(write_batches(tmp_path, [row]))
    paths = [write_jsonl(tmp_path / "results.jsonl", [openai_result("x", 1, "yes")])]
    twice = write_jsonl(tmp_path / "twice.jsonl", [row, {**row, "answer": "no"}])
    with pytest.raises(FormatError, match=r"twice\.jsonl:2: two tasks have the id 'x'"):
        grade_results(assignment, paths, twice)


def test_a_missing_label_is_no_other_label(tmp_path: Path) -> None:
    assignment = SavedAssignment.read(write_batches(tmp_path, [{"id": "a", "prompt": "a"}]))
    path = tmp_path / "labels.csv"
    for text in ("a,1\na,\n", "a,\na,1\n"):
        path.write_text(f"id,correct\n{text}")
        assert read_labels(path, assignment) == {"a": 1.0}
    path.write_text("id,correct\na,1\na,0\n")
    with pytest.raises(FormatError, match="two different labels"):
        read_labels(path, assignment)


def test_reasoning_is_no_part_of_an_answers_text(tmp_path: Path) -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Is it 11?"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "12"}]},
    ]
    response = {"status_code": 200, "body": {"output": output}}
    path = write_jsonl(tmp_path / "r.jsonl", [{"custom_id": "a", "response": response}])
    assert [result.text for result in read_batch_results([path])] == ["12"]


def test_targets_with_long_names_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["ü" * 100 + end for end in "ab"]
    prompts = PromptFile(write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}] * 2))
    assignment = dataclasses.replace(
        assignment_of(prompts), targets=(*names, "c"), choice=np.array([0, 1])
    )
    pool = Pool(tuple(Target(name=name) for name in assignment.targets))
    summary = write_assignment(assignment, prompts, pool, tmp_path / "out")
    for name in names:
        [file] = summary["targets"][name]["files"]
        assert [line["target"] for line in lines_of(tmp_path / "out" / file)] == [name]


def test_labels_are_those_of_each_prompts_own_target(
    tmp_path: Path, answers: RoutingDataset
) -> None:
    dataset = answers.select(answers.query_ids[:3])
    pool = Pool(tuple(Target(name=name) for name in POOL.names))
    write_dataset(dataclasses.replace(dataset, pool=pool), tmp_path / "graded")
    out = write_batches(tmp_path, [{"id": i, "prompt": "a"} for i in dataset.query_ids])
    labels = read_labels(tmp_path / "graded", SavedAssignment.read(out))
    mine = {name: dataset.correct[row, row] for row, name in enumerate(dataset.query_ids)}
    assert labels == {name: value for name, value in mine.items() if not np.isnan(value)}


def test_results_and_folders_that_can_not_be_used(tmp_path: Path) -> None:
    out = write_batches(tmp_path, [{"prompt": "a"}])
    other = write_jsonl(tmp_path / "other.jsonl", [openai_result("other", 1)])
    with pytest.raises(DataError, match="none of the 1 results"):
        check_results(SavedAssignment.read(out), [other])
    broken = write_jsonl(tmp_path / "broken.jsonl", [{"custom_id": "prompt-1"}])
    with pytest.raises(FormatError, match=r"broken\.jsonl:1"):
        check_results(SavedAssignment.read(out), [broken])
    summary = json.loads((out / "assignment.json").read_text())
    earlier = tmp_path / "earlier"
    shutil.copytree(out, earlier)
    files.write_json(
        earlier / "assignment.json", {**summary, "format": "prefill-router assignment 1"}
    )
    files.write_checksums(earlier, ["assignment.json", "assignment.parquet"])
    with pytest.raises(CorruptError, match=r"assignment 1.*assign the prompts again"):
        SavedAssignment.read(earlier)
    content = (out / "assignment.parquet").read_bytes()
    (out / "assignment.parquet").write_bytes(content[:-1])
    with pytest.raises(CorruptError, match="assign the prompts again"):
        SavedAssignment.read(out)


@pytest.mark.slow
def test_prompts_are_predicted_as_a_dataset_is(
    router: Router, answers: RoutingDataset, tmp_path: Path
) -> None:
    few = answers.select(answers.query_ids[:20])
    rows = [{"id": query.id, "prompt": query.prompt} for query in few.queries]
    predictions = predict_prompts(router, PromptFile(write_jsonl(tmp_path / "p.jsonl", rows)))
    plain = router.predict(dataclasses.replace(few, input_tokens=np.full((20, 3), np.nan)))
    assert predictions.query_ids == few.query_ids
    np.testing.assert_allclose(predictions.correctness, plain.correctness)
    np.testing.assert_allclose(predictions.estimated_cost, plain.estimated_cost)
    write_dataset(few, tmp_path / "folder")
    folder: Predictions = predict_prompts(router, PromptFile(tmp_path / "folder"))
    np.testing.assert_allclose(predictions.correctness, folder.correctness)


@pytest.mark.slow
def test_a_router_without_costs_keeps_to_no_budget(router: Router, tmp_path: Path) -> None:
    free = Pool(tuple(Target(name=name) for name in router.pool.names))
    path = PromptFile(write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}]))
    with pytest.raises(ConfigError, match="knows no costs"):
        predict_prompts(router.with_pool(free), path)
