"""Labels that are scores or votes are called so, and never accuracies."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from packages.router.tests.commands import run_ok
from packages.router.tests.evaluation.trials import random_system
from packages.router.tests.importers.layout_samples import vote_rows
from packages.router.tests.importers.truth import write_jsonl
from prefill_router.data import LabelMeaning, merge, read_dataset, write_dataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.evaluation import evaluate
from prefill_router.importers import Columns, Scale, import_dataset
from prefill_router.reporting.evaluation_report import verdict
from prefill_router.testing import make_routing_dataset

RATINGS = LabelMeaning(kind="score", worst=1, best=5)
VOTES = LabelMeaning(kind="vote")


def ratings(folder: Path) -> Path:
    rows = [
        {"prompt": f"{n}?", "target": name, "correct": 1 + (n + k) % 5}
        for n in range(10)
        for k, name in enumerate(("small", "large"))
    ]
    return write_jsonl(folder / "ratings.jsonl", rows)


def test_ratings_are_mean_scores_on_their_scale(tmp_path: Path) -> None:
    options = ("--scale", "1-5", "--out", tmp_path / "data")
    run_ok("import", "long", ratings(tmp_path), *options)
    assert read_dataset(tmp_path / "data").meaning == RATINGS
    output = run_ok("describe", tmp_path / "data")
    assert "mean score" in output
    assert "3.00" in output
    assert "1 is the worst, 5 the best" in " ".join(output.split())
    assert "right is 3 or more" in " ".join(output.split())
    assert "accuracy  " not in output
    assert "60.0 %" not in output


def test_a_threshold_makes_right_and_wrong_and_is_named(tmp_path: Path) -> None:
    columns = Columns(scale=Scale(threshold=4))
    dataset, _ = import_dataset("long", [ratings(tmp_path)], columns=columns)
    assert dataset.meaning == LabelMeaning(threshold=4)
    assert dataset.meaning.note == "an answer counts as right from the score 4 on"


def test_labels_between_0_and_1_are_scores_and_means_of_runs_are_not(tmp_path: Path) -> None:
    row = {"prompt": "why?", "target": "a"}
    path = write_jsonl(tmp_path / "judged.jsonl", [{**row, "correct": 0.5}])
    assert import_dataset("long", [path]).dataset.meaning == LabelMeaning(kind="score")
    runs = write_jsonl(tmp_path / "runs.jsonl", [{**row, "correct": n} for n in (0, 1)])
    averaged = import_dataset("long", [runs], columns=Columns(repeats="mean")).dataset
    assert averaged.correct.tolist() == [[0.5]]
    assert averaged.meaning == LabelMeaning()


@pytest.mark.parametrize("meaning", [RATINGS, VOTES, LabelMeaning(threshold=7), LabelMeaning()])
def test_the_meaning_stays_with_a_dataset(meaning: LabelMeaning, tmp_path: Path) -> None:
    dataset = replace(make_routing_dataset(queries=6), meaning=meaning)
    write_dataset(dataset, tmp_path / "data")
    read = read_dataset(tmp_path / "data")
    assert read.meaning == meaning
    part = read.select(read.query_ids[:3], targets=read.pool.names[:2])
    assert part.with_pool(part.pool).meaning == meaning
    assert merge({"a": part, "b": read}).meaning == meaning


def test_datasets_whose_labels_mean_different_things_are_not_merged() -> None:
    right = make_routing_dataset(queries=6)
    with pytest.raises(DataError, match="the labels of a and of b mean different things"):
        merge({"a": right, "b": replace(right, meaning=RATINGS)})
    scored = replace(right, meaning=LabelMeaning(kind="score"))
    assert merge({"a": right, "b": scored}).meaning == scored.meaning


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"kind": "x"}', '{"kind": "score", "worst": 1, "best": 1}']
)
def test_a_malformed_meaning_is_named(content: str, tmp_path: Path) -> None:
    write_dataset(replace(make_routing_dataset(queries=6), meaning=RATINGS), tmp_path / "data")
    (tmp_path / "data" / "labels.json").write_text(content)
    with pytest.raises(FormatError, match=r"labels\.json: isn't a meaning of labels"):
        read_dataset(tmp_path / "data")
    with pytest.raises(ConfigError, match="give two different finite numbers"):
        LabelMeaning(kind="score", worst=2, best=2)


def report_words(meaning: LabelMeaning) -> str:
    """The first words of an evaluation's report."""
    predictions, dataset = random_system(queries=30)
    evaluation = evaluate(predictions, replace(dataset, meaning=meaning), resamples=0)
    assert json.loads(json.dumps(evaluation.to_dict()))["labels_mean"] == meaning.to_dict()
    return verdict(evaluation)


def test_a_report_says_correctly_only_of_right_answers() -> None:
    assert "of them correctly" in report_words(LabelMeaning())
    text = report_words(RATINGS)
    assert "correctly" not in text
    assert "has a mean score of" in text
    assert "1 is the worst, 5 the best" in text


def test_votes_have_win_rates_and_no_accuracies(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "votes.jsonl", vote_rows())
    run_ok("import", "votes", source, "--out", tmp_path / "data")
    dataset = read_dataset(tmp_path / "data")
    assert dataset.meaning == VOTES
    output = run_ok("describe", tmp_path / "data")
    assert "win rate" in output
    assert "37.5 %" in output
    assert "accuracy" not in output
    assert "oracle" not in output


def test_a_vote_of_a_model_with_itself_is_malformed(tmp_path: Path) -> None:
    row = {"prompt": "why?", "model_a": "a", "model_b": "b", "winner": "b"}
    same = {**row, "model_b": "a"}
    source = write_jsonl(tmp_path / "votes.jsonl", [row, same, {**row, "winner": "tie (bothbad)"}])
    dataset, report = import_dataset("votes", [source], skip_malformed=True)
    assert dataset.correct.tolist() == [[0, 1], [0.5, 0.5]]
    assert [problem.line for problem in report.problems] == [2]
    assert "compares 'a' with itself" in report.problems[0].reason
