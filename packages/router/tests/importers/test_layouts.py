"""Files of evaluation tools: what is particular to each, and samples of real ones."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prefill_router.data import Message
from prefill_router.errors import ConfigError, FormatError
from prefill_router.importers import Columns, Scale, guess_source, import_dataset
from prefill_router.quickstart import read_table

from .layout_samples import (
    inspect_log,
    inspect_sample,
    lm_eval_row,
    promptfoo_row,
    write_inspect_json,
    write_lm_eval,
    write_promptfoo,
)
from .truth import PROMPTS, TARGETS, write_jsonl

COSTS = frozenset({"recorded_cost"})
TOKENS = frozenset({"input_tokens", "output_tokens"})


@pytest.mark.parametrize(
    ("name", "rows", "holds"),
    [
        ("sprout.parquet", 40, TOKENS),
        ("embedllm.csv", 40, frozenset()),
        ("lm_eval", 40, frozenset()),
        ("inspect_ai", 40, TOKENS),
        ("promptfoo.json", 37, COSTS | TOKENS),
        ("experiment_comparison.csv", 40, COSTS),
        ("lists.parquet", 37, frozenset()),
        ("nested.jsonl", 37, COSTS | TOKENS),
        ("long.jsonl.gz", 40, frozenset()),
        ("ratings_semicolon_utf16.csv", 37, COSTS),
    ],
)
def test_samples_are_read_without_a_question(
    name: str, rows: int, holds: frozenset[str], table_samples: Path
) -> None:
    assert guess_source([table_samples / name]).doubts == ()
    dataset = read_table(table_samples / name)
    names = [target.removeprefix("provider/") for target in dataset.pool.names]
    assert sorted(names) == ["large-pro", "medium-70b", "small-8b"]
    assert len(dataset) == rows
    assert not np.isnan(dataset.correct).any()
    assert dataset.correct[:, names.index("small-8b")].mean() < 0.7
    for table in COSTS | TOKENS:
        is_known = ~np.isnan(getattr(dataset, table))
        assert is_known.all() if table in holds else not is_known.any()


def test_sampled_votes_are_read_without_a_question(table_samples: Path) -> None:
    guess = guess_source([table_samples / "arena_pairs.jsonl"])
    assert (guess.format, guess.doubts) == ("votes", ())
    dataset = read_table(table_samples / "arena_pairs.jsonl")
    assert (len(dataset), dataset.meaning.kind) == (40, "vote")
    assert (np.nansum(dataset.correct, axis=1) == 1).all()
    assert ((~np.isnan(dataset.correct)).sum(axis=1) == 2).all()


def test_votes_in_parquet_are_those_of_the_lines(table_samples: Path, tmp_path: Path) -> None:
    frame = pl.read_ndjson(table_samples / "arena_pairs.jsonl")
    frame.drop("category_tag").write_parquet(tmp_path / "votes.parquet")  # it has no field
    read = read_table(tmp_path / "votes.parquet")
    assert read.fingerprint == read_table(table_samples / "arena_pairs.jsonl").fingerprint


def labels(format_: str, sources: Sequence[Path], columns: Columns | None = None) -> list[float]:
    """The labels of the first target."""
    dataset, _ = import_dataset(format_, sources, columns=columns, strict=True)
    column: list[float] = dataset.correct[:, 0].tolist()
    return column


def test_a_call_that_failed_has_no_label(tmp_path: Path) -> None:
    rows = [
        promptfoo_row(0, 0),
        {**promptfoo_row(1, 0), "failureReason": 2, "error": "rate limited"},
        {**promptfoo_row(2, 0), "response": {"error": "no answer"}, "success": False},
        {**promptfoo_row(3, 0), "failureReason": 1, "error": "expected A"},
    ]
    values = labels("promptfoo", write_promptfoo(tmp_path, rows))
    assert values[0] == 1
    assert np.isnan(values[1:3]).all()
    assert values[3] == 0


def test_another_score_can_be_named(tmp_path: Path) -> None:
    sources = write_promptfoo(tmp_path)
    assert set(labels("promptfoo", sources, Columns(correct="score"))) == {0.5}
    with pytest.raises(ConfigError, match="there is no score 'helpful'"):
        import_dataset("promptfoo", sources, columns=Columns(correct="helpful"))


def test_inspect_values_and_scorers(tmp_path: Path) -> None:
    values = ["C", "P", "I", "N", "C"]
    samples = [
        {**inspect_sample(q, 0), "scores": {"match": {"value": value}, "judge": {"value": q}}}
        for q, value in enumerate(values)
    ]
    samples[4]["error"] = {"message": "broken off"}
    header, _ = inspect_log(0)
    (tmp_path / "log.json").write_text(json.dumps({**header, "samples": samples}))
    first_labels = labels("inspect_ai", [tmp_path])
    assert first_labels[:4] == [1, 0.5, 0, 0]
    assert np.isnan(first_labels[4])
    report = import_dataset("inspect_ai", [tmp_path]).report
    assert any("of the scores match, judge the first" in note for note in report.notes)
    judge_labels = labels(
        "inspect_ai", [tmp_path], Columns(correct="judge", scale=Scale(ends=(0, 4)))
    )
    assert judge_labels[:4] == [0, 0.25, 0.5, 0.75]


def test_epochs_of_inspect_are_runs(tmp_path: Path) -> None:
    header, _ = inspect_log(0)
    samples = [
        {**inspect_sample(0, 0), "epoch": n, "scores": {"match": {"value": value}}}
        for n, value in enumerate("CCI")
    ]
    (tmp_path / "log.json").write_text(json.dumps({**header, "samples": samples}))
    dataset, _ = import_dataset("inspect_ai", [tmp_path])
    assert dataset.correct.tolist() == [[pytest.approx(2 / 3)]]
    assert dataset.runs is not None
    assert dataset.runs.tolist() == [[3]]


def test_only_the_model_s_own_tokens_count(tmp_path: Path) -> None:
    dataset, _ = import_dataset("inspect_ai", write_inspect_json(tmp_path))
    assert np.nanmax(dataset.input_tokens) == 7


def test_an_eval_file_that_is_no_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match=r"log\.eval: can't be read: File is not a zip"):
        import_dataset("inspect_ai", [tmp_path])
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("samples/a_epoch_1.json", "[]")
    with pytest.raises(FormatError, match="a row must be an object"):
        import_dataset("inspect_ai", [tmp_path])


def test_the_first_filter_of_a_task_counts(tmp_path: Path) -> None:
    rows = [
        {**lm_eval_row(q, 0), "filter": name, "exact_match": score}
        for q in range(3)
        for name, score in (("strict", 0), ("flexible", 1))
    ]
    (tmp_path / "a").mkdir()
    write_jsonl(tmp_path / "a" / "samples_t_2026-03-01T10-00-00.0.jsonl", rows)
    assert labels("lm_eval", [tmp_path / "a"]) == [0, 0, 0]


def test_models_with_their_own_chat_templates_are_joined(tmp_path: Path) -> None:
    (source,) = write_lm_eval(tmp_path)
    (file,) = (source / "beta").glob("samples_*")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["arguments"]["gen_args_0"]["arg_0"] = f"<|user|>{row['doc']['question']}"
    write_jsonl(file, rows)
    dataset, report = import_dataset("lm_eval", [source], strict=True)
    assert dataset.pool.names == TARGETS[::-1]
    assert len(dataset) == len(PROMPTS)
    assert any("have different texts" in note for note in report.notes)


def test_messages_with_a_system_turn_stay_messages(tmp_path: Path) -> None:
    row = {**promptfoo_row(0, 0)}
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    row["prompt"] = {"raw": json.dumps(turns)}
    dataset, _ = import_dataset("promptfoo", write_promptfoo(tmp_path, [row]))
    assert dataset.queries[0].prompt == (Message("system", "Be brief."), Message("user", "Why?"))


def test_answers_of_one_target_say_what_was_looked_for(tmp_path: Path) -> None:
    (source,) = write_lm_eval(tmp_path)
    with pytest.raises(ConfigError, match=r"all of one target, 'beta'.*a folder per model"):
        read_table(source / "beta")


@pytest.mark.parametrize("text", ["[1, 2, 3]", "{}", '"quoted"', "[]", "[not json"])
def test_a_text_that_looks_like_json_stays_a_text(text: str, tmp_path: Path) -> None:
    row = {**promptfoo_row(0, 0), "prompt": {"raw": text}}
    dataset, _ = import_dataset("promptfoo", write_promptfoo(tmp_path, [row]), strict=True)
    assert dataset.queries[0].prompt == text
