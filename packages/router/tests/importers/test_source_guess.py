"""What is guessed of a user's table, what is doubted, and what is never guessed."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from prefill_router.errors import ConfigError
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


def guess(path: Path, given: Columns | None = None) -> SourceGuess:
    return guess_source([path], given=given)


def test_a_long_table_by_the_usual_names(tmp_path: Path) -> None:
    found = guess(long(tmp_path, [1, 0], prompt="User Message", target="LLM", correct="isCorrect"))
    assert (found.format, found.doubts) == ("long", ())
    assert found.columns == Columns(prompt="User Message", target="LLM", correct="isCorrect")
    assert found.facts["scale"] == "0 is wrong, 1 is right"


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
def test_a_wide_table_with_costs_beside_the_scores(write: object, tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "small_score": n % 2, "large_score": 1}
        | {"small_cost_usd": 0.1, "large_cost_usd": 0.2, "id": n}
        for n, text in enumerate(QUESTIONS)
    ]
    name = {"write_csv": "t.csv", "write_jsonl": "t.jsonl"}.get(write.__name__, "t.parquet")  # type: ignore[attr-defined]
    found = guess(write(tmp_path / name, rows))  # type: ignore[operator]
    assert (found.format, found.columns.targets, found.doubts) == ("wide", MODELS, ())
    assert (found.columns.correct, found.columns.cost) == ("{target}_score", "{target}_cost_usd")
    dataset, _ = import_dataset("wide", [tmp_path / name], columns=found.columns)
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
    found = guess(long(tmp_path, scores))
    assert (found.columns.scale, found.doubts) == (Scale(ends=ends), ())


@pytest.mark.parametrize("scores", [["yes", "no"], [True, False], [0.2, 0.9], ["", 1, 0]])
def test_labels_need_no_scale(scores: list[object], tmp_path: Path) -> None:
    assert guess(long(tmp_path, scores)).columns.scale is None


def test_a_scale_whose_ends_are_not_seen_is_doubted(tmp_path: Path) -> None:
    path = long(tmp_path, [2, 3, 4])
    (doubt,) = guess(path).doubts
    assert (doubt.option, doubt.is_reckless) == ("scale", False)
    assert doubt.choices[0] == "1-5"
    settled = guess(path, doubt.settle(Columns(), "1-10"))
    assert (settled.columns.scale, settled.doubts) == (Scale(ends=(1, 10)), ())


@pytest.mark.parametrize(
    ("scores", "name"), [([1, 2], "score"), ([1, 2, 3, 4, 5], "rank"), ([-7, 300, 2], "score")]
)
def test_what_could_turn_labels_round_is_never_guessed(
    scores: list[float], name: str, tmp_path: Path
) -> None:
    (doubt,) = guess(long(tmp_path, scores, correct=name)).doubts
    assert doubt.is_reckless
    assert "--scale" in doubt.fix


def test_two_columns_that_could_be_the_score_are_doubted(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "model": model, "rating": 1, "correct": 0}
        for text in QUESTIONS
        for model in MODELS
    ]
    (doubt,) = guess(write_csv(tmp_path / "t.csv", rows)).doubts
    assert (doubt.option, doubt.choices) == ("correct", ("correct", "rating"))


def test_an_id_that_is_the_row_s_is_not_the_query_s(tmp_path: Path) -> None:
    rows = [
        {"id": 2 * n + k, "query_id": n, "prompt": text, "model": model, "correct": k}
        for n, text in enumerate(QUESTIONS)
        for k, model in enumerate(MODELS)
    ]
    assert guess(write_csv(tmp_path / "t.csv", rows)).columns.query == "query_id"
    alone = [{name: cell for name, cell in row.items() if name != "query_id"} for row in rows]
    assert guess(write_csv(tmp_path / "t.csv", alone)).columns.query is None


def test_repeated_answers_are_averaged(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "model": model, "correct": run}
        for text in QUESTIONS
        for model in MODELS
        for run in (0, 1)
    ]
    found = guess(write_csv(tmp_path / "t.csv", rows))
    assert found.columns.repeats == "mean"
    dataset, _ = import_dataset("long", [tmp_path / "t.csv"], columns=found.columns)
    assert set(dataset.correct.ravel().tolist()) == {0.5}


def test_a_table_without_scores_says_what_to_name(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": "because"} for text in QUESTIONS]
    with pytest.raises(ConfigError, match="--target-columns"):
        guess(write_csv(tmp_path / "t.csv", rows))
    rows = [{"prompt": text, "model": "small"} for text in QUESTIONS]
    with pytest.raises(ConfigError, match="--correct-column"):
        guess(write_csv(tmp_path / "t.csv", rows))


def test_a_public_format_takes_no_columns(tmp_path: Path) -> None:
    found = guess_source(SAMPLES["nvidia"].write(tmp_path))
    assert (found.format, found.columns, found.doubts) == ("nvidia", Columns(), ())
