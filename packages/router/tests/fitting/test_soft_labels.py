"""Labels of a judge, mixed into those of train rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from packages.router.tests.fitting.recipe_fits import ANSWERS, SMALL, STATES, fit_recipe
from prefill_router.data import RoutingDataset
from prefill_router.errors import FormatError
from prefill_router.fitting import (
    SoftLabels,
)
from prefill_router.fitting.inputs import mix_soft_labels

pytestmark = pytest.mark.slow


def scores(path: Path, rows: list[tuple[str, str, float]]) -> SoftLabels:
    frame = pl.DataFrame(rows, schema=["query_id", "target", "score"], orient="row")
    frame.write_csv(path)
    return SoftLabels(file=path, weight=0.25)


def test_soft_labels_are_mixed_in_by_id(tmp_path: Path) -> None:
    train = ANSWERS.select(["q5", "q2", "q9"])
    rows = [("q9", "target-1", 0.8), ("q5", "target-0", 0.0)]
    other_rows = [("q100", "target-0", 0.3), ("q2", "nobody", 0.1)]
    soft = scores(tmp_path / "j.csv", [*rows, *other_rows])
    expected = train.correct.copy()
    expected[2, 1] = 0.75 * expected[2, 1] + 0.25 * 0.8
    expected[0, 0] *= 0.75
    assert np.array_equal(mix_soft_labels(train, soft), expected)


def test_a_missing_label_stays_missing(tmp_path: Path) -> None:
    correct = np.full((2, 3), np.nan)
    correct[0] = 1
    few = RoutingDataset.of(ANSWERS.queries[:2], ANSWERS.pool, correct)
    soft = scores(tmp_path / "j.csv", [("q0", "target-0", 0.0), ("q1", "target-0", 0.0)])
    assert np.isnan(mix_soft_labels(few, soft)[1]).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("q1", "target-0", 1.5)], "score is 1.5"),
        ([("q1", "target-0", 0.5), ("q1", "target-0", 0.6)], "twice"),
        ([("nobody", "target-0", 0.5)], "scores no answer"),
    ],
)
def test_scores_that_make_no_sense_are_refused(
    rows: list[tuple[str, str, float]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=message):
        mix_soft_labels(ANSWERS, scores(tmp_path / "judge.csv", rows))


def test_soft_labels_reach_the_training_and_not_the_verdict(tmp_path: Path) -> None:
    rows = [(q, t, 1.0) for q in ANSWERS.query_ids for t in ANSWERS.pool.names]
    soft = scores(tmp_path / "judge.csv", rows)
    kind = {"file": str(soft.file), "weight": 0.9}
    router = fit_recipe(soft_labels=kind, predictor=SMALL)
    test = ANSWERS.select(router.split["test"])
    other = fit_recipe(predictor=SMALL)
    learned, control = (r.predict(test, stores=[STATES]).correctness for r in (router, other))
    assert learned.mean() > control.mean() + 0.1
    same = "best_single_accuracy"
    assert router.record.metrics[same].value == other.record.metrics[same].value


def test_scores_in_files_that_are_none_are_refused(tmp_path: Path) -> None:
    for name, text in (
        ("a.txt", "x"),
        ("a.csv", "x,y\n1,2\n"),
        ("a.parquet", "PAR1"),
        ("b.csv", ""),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(FormatError, match=name):
            mix_soft_labels(ANSWERS, SoftLabels(file=path))
    with pytest.raises(FormatError):
        mix_soft_labels(ANSWERS, SoftLabels(file=tmp_path / "nowhere.csv"))


def test_soft_labels_find_ids_that_look_like_numbers(tmp_path: Path) -> None:
    rows = tuple(replace(q, id=f"{i:03}") for i, q in enumerate(ANSWERS.queries))
    numbered = replace(ANSWERS, queries=rows)
    text = "query_id,target,score\n007,target-0,0.5\n1e2,target-0,0.5\n"
    (tmp_path / "judge.csv").write_text(text)
    labels = mix_soft_labels(numbered, SoftLabels(file=tmp_path / "judge.csv", weight=1.0))
    assert np.argwhere(labels != numbered.correct).tolist() == [[7, 0]]
    assert labels[7, 0] == 0.5
