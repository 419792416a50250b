"""Guesses about a user's table: sure ones, doubts, and questions that are left open."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from prefill_router.data import Message
from prefill_router.errors import ConfigError, FormatError
from prefill_router.importers import Columns, Scale, SourceGuess, guess_source, import_dataset

from .samples import SAMPLES
from .truth import write_csv, write_jsonl, write_parquet

QUESTIONS = [f"question {n}, and why?" for n in range(6)]
MODELS = ("small", "large")


def long(folder: Path, scores: Sequence[object], **names: str) -> Path:
    """A row per question and model; the scores are given in turn."""
    rows = [
        {
            names.get("prompt", "question"): text,
            names.get("target", "model"): model,
            names.get("correct", "score"): scores[(2 * n + k) % len(scores)],
            "latency": 0.1 * n,
        }
        for n, text in enumerate(QUESTIONS)
        for k, model in enumerate(MODELS)
    ]
    return write_csv(folder / "answers.csv", rows)


def guess_file(path: Path, columns: Columns | None = None) -> SourceGuess:
    return guess_source([path], columns=columns)


def test_a_long_table_by_the_usual_names(tmp_path: Path) -> None:
    guess = guess_file(
        long(tmp_path, [1, 0], prompt="User Message", target="LLM", correct="isCorrect")
    )
    assert (guess.format, guess.doubts) == ("long", ())
    assert guess.columns == Columns(prompt="User Message", target="LLM", correct="isCorrect")
    assert guess.facts["scale"] == "0 is wrong, 1 is right"


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
def test_a_wide_table_with_costs_beside_the_scores(write: object, tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "small_score": n % 2, "large_score": 1}
        | {"small_cost_usd": 0.1, "large_cost_usd": 0.2, "id": n}
        for n, text in enumerate(QUESTIONS)
    ]
    name = {"write_csv": "t.csv", "write_jsonl": "t.jsonl"}.get(write.__name__, "t.parquet")  # type: ignore[attr-defined]
    guess = guess_file(write(tmp_path / name, rows))  # type: ignore[operator]
    assert (guess.format, guess.columns.targets, guess.doubts) == ("wide", MODELS, ())
    assert (guess.columns.correct, guess.columns.cost) == ("{target}_score", "{target}_cost_usd")
    dataset, _ = import_dataset("wide", [tmp_path / name], columns=guess.columns)
    assert dataset.recorded_cost[0].tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("scores", "ends"),
    [
        ([1, 2, 5, 4, 3], (1, 5)),
        ([1, 10, 7], (1, 10)),
        ([0, 100, 55.5], (0, 100)),
        ([-1, 1, 0], (-1, 1)),
        ([0, 5, 2], (0, 5)),
    ],
)
def test_a_scale_whose_ends_are_seen_is_taken(
    scores: list[float], ends: tuple[float, float], tmp_path: Path
) -> None:
    guess = guess_file(long(tmp_path, scores))
    assert (guess.columns.scale, guess.doubts) == (Scale(ends=ends), ())


@pytest.mark.parametrize("scores", [["yes", "no"], [True, False], [0.2, 0.9], ["", 1, 0]])
def test_labels_need_no_scale(scores: list[object], tmp_path: Path) -> None:
    assert guess_file(long(tmp_path, scores)).columns.scale is None


def test_a_scale_whose_ends_are_not_seen_is_doubted(tmp_path: Path) -> None:
    path = long(tmp_path, [2, 3, 4])
    (doubt,) = guess_file(path).doubts
    assert (doubt.option, doubt.is_reckless) == ("scale", False)
    assert doubt.choices[0] == "1-5"
    settled = guess_file(path, doubt.settle(Columns(), "1-10"))
    assert (settled.columns.scale, settled.doubts) == (Scale(ends=(1, 10)), ())


@pytest.mark.parametrize(
    ("scores", "name"), [([1, 2], "score"), ([1, 2, 3, 4, 5], "rank"), ([-7, 300, 2], "score")]
)
def test_what_could_turn_labels_round_is_never_guessed(
    scores: list[float], name: str, tmp_path: Path
) -> None:
    (doubt,) = guess_file(long(tmp_path, scores, correct=name)).doubts
    assert doubt.is_reckless
    assert "--scale" in doubt.fix


def test_two_columns_that_could_be_the_score_are_doubted(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "model": model, "rating": 1, "correct": 0}
        for text in QUESTIONS
        for model in MODELS
    ]
    (doubt,) = guess_file(write_csv(tmp_path / "t.csv", rows)).doubts
    assert (doubt.option, doubt.choices) == ("correct", ("correct", "rating"))


def test_an_id_that_is_the_row_s_is_not_the_query_s(tmp_path: Path) -> None:
    rows = [
        {"id": 2 * n + k, "query_id": n, "prompt": text, "model": model, "correct": k}
        for n, text in enumerate(QUESTIONS)
        for k, model in enumerate(MODELS)
    ]
    assert guess_file(write_csv(tmp_path / "t.csv", rows)).columns.query == "query_id"
    alone = [{name: cell for name, cell in row.items() if name != "query_id"} for row in rows]
    assert guess_file(write_csv(tmp_path / "t.csv", alone)).columns.query is None


def test_repeated_answers_are_averaged(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "model": model, "correct": run}
        for text in QUESTIONS
        for model in MODELS
        for run in (0, 1)
    ]
    guess = guess_file(write_csv(tmp_path / "t.csv", rows))
    assert guess.columns.repeats == "mean"
    dataset, _ = import_dataset("long", [tmp_path / "t.csv"], columns=guess.columns)
    assert set(dataset.correct.ravel().tolist()) == {0.5}


def test_a_table_without_scores_says_what_to_name(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": "because"} for text in QUESTIONS]
    with pytest.raises(ConfigError, match="--target-columns"):
        guess_file(write_csv(tmp_path / "t.csv", rows))
    rows = [{"prompt": text, "model": "small"} for text in QUESTIONS]
    with pytest.raises(ConfigError, match="--correct-column"):
        guess_file(write_csv(tmp_path / "t.csv", rows))


def test_a_public_format_takes_no_columns(tmp_path: Path) -> None:
    guess = guess_source(SAMPLES["nvidia"].write(tmp_path))
    assert (guess.format, guess.columns, guess.doubts) == ("nvidia", Columns(), ())


@pytest.mark.parametrize(
    "names",
    [
        ("prompt_text", "model_name", "human_rating", "cost_usd"),
        ("Question text", "LLM name", "Human Score", "Cost (USD)"),
        ("userMessage", "modelId", "isCorrect", "totalCost"),
        ("input.question", "run.model", "scores.Correctness", "metrics.estimated_cost"),
    ],
)
def test_columns_by_the_words_in_their_names(names: Sequence[str], tmp_path: Path) -> None:
    prompt, target, correct, cost = names
    rows = [
        {
            "row_id": 2 * n + k,
            prompt: text,
            target: model,
            correct: (n + k) % 2,
            "score_explanation": "because",
            "correct_answer": 42,
            "latency_ms": 12.5,
            cost: 0.25,
        }
        for n, text in enumerate(QUESTIONS)
        for k, model in enumerate(MODELS)
    ]
    guess = guess_file(write_csv(tmp_path / "t.csv", rows))
    assert (guess.format, guess.doubts) == ("long", ())
    assert guess.columns == Columns(prompt=prompt, target=target, correct=correct, cost=cost)


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (("up", "down"), [1, 0]),
        (("Thumbs up", "thumbs down"), [1, 0]),
        (("PASS", "FAIL"), [1, 0]),
        (("👍", "👎"), [1, 0]),
        (("★★★★★", "★☆☆☆☆"), [1, 0]),
        (("5 stars", "1 star"), [1, 0]),
        (("5/5", "1/5"), [1, 0]),
    ],
)
def test_labels_in_words_and_stars(
    cells: Sequence[str], labels: list[float], tmp_path: Path
) -> None:
    path = long(tmp_path, cells, correct="Feedback (1-5)")
    guess = guess_file(path)
    assert guess.doubts == ()
    dataset, _ = import_dataset("long", [path], columns=guess.columns)
    assert dataset.correct[0].tolist() == labels


def test_a_range_in_the_name_is_the_scale_unless_low_may_be_good(tmp_path: Path) -> None:
    path = long(tmp_path, [2, 3, 4], correct="Human rating (1-5)")
    guess = guess_file(path)
    assert (guess.columns.scale, guess.doubts) == (Scale(ends=(1, 5)), ())
    (doubt,) = guess_file(long(tmp_path, [2, 3, 4], correct="Rating (1 = best, 5)")).doubts
    assert doubt.is_reckless


def wide(folder: Path, **columns: Sequence[object]) -> Path:
    rows = [
        {"prompt": text, **{name: cells[n % len(cells)] for name, cells in columns.items()}}
        for n, text in enumerate(QUESTIONS)
    ]
    return write_csv(folder / "t.csv", rows)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("dataset_idx", [5, 1, 0]),
        ("row_id", [5, 1, 0]),
        ("line", [7, 8, 9, 10, 11, 12]),
        ("unix", [1_700_000_000, 1_700_000_007]),
        ("day", [20260101, 20260102]),
        ("variant", [1]),
        ("eval_date", [1, 0]),
        ("num_turns", [1, 2]),
        ("Difficulty", [1, 2, 3]),
    ],
)
def test_what_can_be_no_target_is_never_taken_for_one(
    name: str, cells: Sequence[object], tmp_path: Path
) -> None:
    guess = guess_file(wide(tmp_path, small=[0, 1], **{name: cells}, large=[1, 1, 0]))
    assert (guess.columns.targets, guess.doubts) == (MODELS, ())
    assert name in guess.facts["no models"]
    with pytest.raises(ConfigError, match=r"one column of scores, 'small'.*Looked for a column"):
        guess_file(wide(tmp_path, small=[0, 1], **{name: cells}))
    with pytest.raises(ConfigError, match="no column of scores"):
        guess_file(wide(tmp_path, **{name: cells}))


def test_a_target_that_is_always_right_is_one_where_the_names_tell(tmp_path: Path) -> None:
    guess = guess_file(wide(tmp_path, small_score=[0, 1], large_score=[1], index=[1, 2]))
    assert guess.columns.targets == MODELS


def test_a_table_of_one_model_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": text, "model": "small", "score": n % 2} for n, text in enumerate(QUESTIONS)]
    with pytest.raises(ConfigError, match="names one model, 'small'; a router chooses"):
        guess_file(write_csv(tmp_path / "t.csv", rows))


def test_objects_per_model_and_lists_of_models(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": text, "models": {m: {"score": k, "usd": 0.5} for k, m in enumerate(MODELS)}}
        for text in QUESTIONS
    ]
    guess = guess_file(write_jsonl(tmp_path / "t.jsonl", rows))
    assert (guess.format, guess.columns.targets) == ("wide", MODELS)
    assert (guess.columns.correct, guess.columns.cost) == (
        "models.{target}.score",
        "models.{target}.usd",
    )
    listed: list[dict[str, object]] = [
        {"prompt": text, "models": list(MODELS), "scores": [0, 1], "tags": ["a", "b", "c"]}
        for text in QUESTIONS
    ]
    path = write_jsonl(tmp_path / "l.jsonl", listed)
    guess = guess_file(path)
    assert (guess.format, guess.columns.target, guess.doubts) == ("long", "models", ())
    dataset, _ = import_dataset("long", [path], columns=guess.columns, strict=True)
    assert dataset.correct.tolist() == [[0, 1]] * len(QUESTIONS)
    write_jsonl(path, [{**listed[0], "scores": [0]}, *listed[1:]])
    with pytest.raises(FormatError, match="scores has 1 items, models 2"):
        import_dataset("long", [path], columns=guess.columns, strict=True)


def test_two_scores_per_model_are_a_doubt(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "prompt": text,
            **{m: {"helpful_score": 1, "correct_score": k} for k, m in enumerate(MODELS)},
        }
        for text in QUESTIONS
    ]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    (doubt,) = guess_file(path).doubts
    assert set(doubt.choices) == {"{target}.helpful_score", "{target}.correct_score"}
    settled = guess_file(path, doubt.settle(Columns(), "{target}.correct_score"))
    assert (settled.columns.targets, settled.doubts) == (MODELS, ())


def test_an_object_that_is_missing_is_a_missing_answer(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": f"q{n}", "prompt": text, "small": {"score": n % 2}, "large": {"score": 1, "usd": 2}}
        for n, text in enumerate(QUESTIONS)
    ]
    del rows[1]["small"]
    rows[2]["large"] = None
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    guess = guess_file(path)
    assert (guess.columns.targets, guess.columns.query) == (MODELS, "id")
    dataset, report = import_dataset("wide", [path], columns=guess.columns)
    assert report.malformed == 0
    assert np.argwhere(np.isnan(dataset.correct)).tolist() == [[1, 0], [2, 1]]
    answers: list[dict[str, object]] = [
        {"input": text, "metadata": {"model": model}, "scores": {"Helpful": 1} if n else None}
        for n, text in enumerate(QUESTIONS)
        for model in MODELS
    ]
    path = write_jsonl(tmp_path / "l.jsonl", answers)
    guess = guess_file(path)
    assert (guess.columns.correct, guess.doubts) == ("scores.Helpful", ())
    dataset, report = import_dataset("long", [path], columns=guess.columns)
    assert report.malformed == 0
    assert np.isnan(dataset.correct).sum(axis=1).tolist() == [2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_list_of_an_object_per_model(
    write: Callable[[Path, list[dict[str, object]]], Path], tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {
            "messages": [{"role": "user", "content": text}],
            "results": [{"model": m, "score": k, "usd": 0.5} for k, m in enumerate(MODELS)],
        }
        for text in QUESTIONS
    ]
    path = write(tmp_path / ("t.jsonl" if write is write_jsonl else "t.parquet"), rows)
    guess = guess_file(path)
    assert guess.doubts == ()
    assert guess.columns.target == "results.model"
    dataset, _ = import_dataset("long", [path], columns=guess.columns, strict=True)
    assert dataset.correct.tolist() == [[0, 1]] * len(QUESTIONS)
    assert (dataset.recorded_cost == 0.5).all()
    assert dataset.queries[0].prompt == (Message("user", QUESTIONS[0]),)


@pytest.mark.parametrize(("name", "cells"), [("result", ["pass", "fail"]), ("acc", [1, 0, 1])])
def test_the_only_column_with_scores_is_taken_whatever_its_name(
    name: str, cells: Sequence[object], tmp_path: Path
) -> None:
    rows = [
        {"prompt": text, "model": m, name: cells[(n + k) % len(cells)], "tokens": 11, "answer": 7}
        for n, text in enumerate(QUESTIONS)
        for k, m in enumerate(MODELS)
    ]
    guess = guess_file(write_csv(tmp_path / "t.csv", rows))
    assert (guess.columns.correct, guess.doubts) == (name, ())
    two_columns = [{**row, "other": k % 3} for k, row in enumerate(rows)]
    (doubt,) = guess_file(write_csv(tmp_path / "t.csv", two_columns)).doubts
    assert (doubt.option, doubt.choices) == ("correct", (name, "other"))


def test_stars_are_from_1_to_5(tmp_path: Path) -> None:
    guess = guess_file(long(tmp_path, [3, 4], correct="Stars"))
    assert (guess.columns.scale, guess.doubts) == (Scale(ends=(1, 5)), ())
