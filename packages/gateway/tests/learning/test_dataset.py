"""The dataset of labelled samples: chances, errors and costs as they were recorded, by time."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.learning.traffic import START, build_pools, build_sample
from prefill_router.data import split_by_time
from prefill_router.errors import DataError
from prefill_router.testing import make_routing_dataset
from prefill_router_gateway.receipts import (
    AnswerLabel,
    Feedback,
    LabelledSample,
    SideAnswer,
    SideQuestions,
    combine_labels,
    export,
    insert_rows,
    labelled_samples,
    open_learning,
    scored_receipts,
    write_learning,
)
from prefill_router_gateway.receipts.rows import to_row

POOL, _ = build_pools("http://127.0.0.1:9/v1")


def label(name: str, target: str, source: str, score: float, error: float) -> AnswerLabel:
    return AnswerLabel(id=name, target=target, source=source, at=START, score=score, error=error)


def test_tables_have_what_was_drawn_asked_and_labelled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    (first, sample_a), (second, sample_b), (third, sample_c) = (build_sample(i) for i in range(3))
    rows: list[Any] = [
        sample_a,
        sample_b,
        sample_c,
        SideQuestions(
            id=sample_a.id,
            at=START,
            propensity={"weak-1": 0.5, "strong-1": 0.25},
            drawn=["weak-1", "strong-1"],
        ),
        SideQuestions(
            id=sample_b.id, at=START, propensity={"weak-1": 0.5, "strong-1": 0}, drawn=[]
        ),
        SideAnswer(
            id=sample_a.id,
            target="strong-1",
            at=START,
            propensity=0.25,
            answer="x",
            input_tokens=7,
            output_tokens=9,
            cost=0.5,
        ),
        label(sample_a.id, "weak-1", "judge:j", 1.0, 0.1),
        label(sample_a.id, "strong-1", "judge:j", 0.0, 0.1),
        label(sample_a.id, "strong-1", "verifier:pattern", 1.0, 0.0),
        label(sample_b.id, "weak-1", "judge:j", 1.0, 0.1),
    ]
    feedback = [
        Feedback(id=sample_a.id, score=1.0, at=START),
        Feedback(id=sample_b.id, score=1.0, at=START),
    ]
    with closing(open_learning(url)) as store:
        insert_rows(store, [to_row(r) for r in (first, second, third)], [f.row() for f in feedback])
        write_learning(store, rows)
    errors = {"user": 0.2, "judge:j": 0.1}
    samples = labelled_samples(url)
    table = export(scored_receipts(url), pool=POOL, samples=samples, errors=errors)
    dataset = table.dataset
    assert dataset.query_ids == (sample_a.id, sample_b.id)
    assert table.left_out == {"sampled, but nothing was asked yet": 1}
    assert table.sources == {"judge:j": 2, "user": 1, "verifier:pattern": 1}
    assert table.times == (first.at, second.at)
    np.testing.assert_array_equal(dataset.correct, [[1, 1], [np.nan, np.nan]])
    np.testing.assert_array_equal(dataset.propensity, [[0.5, 0.25], [0.5, 0]])
    combined_error = 0.1 * 0.2 / (0.1 * 0.2 + 0.9 * 0.8)
    assert dataset.label_error is not None
    np.testing.assert_allclose(dataset.label_error, [[combined_error, np.nan], [np.nan, np.nan]])
    assert dataset.recorded_cost[0, 1] == 0.5
    assert dataset.output_tokens[0, 1] == 9


def test_a_sample_of_an_earlier_version_has_the_prompt_of_its_body(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    receipt, sample = build_sample(0)
    chances = {"weak-1": 1.0, "strong-1": 0.0}
    questions = SideQuestions(id=sample.id, at=START, propensity=chances, drawn=["weak-1"])
    judgment = label(sample.id, "weak-1", "judge:j", 1.0, 0.1)
    with closing(open_learning(url)) as store:
        insert_rows(store, [to_row(receipt)], [])
        write_learning(store, [replace(sample, prompt=None), questions, judgment])
    dataset = export(scored_receipts(url), pool=POOL, samples=labelled_samples(url)).dataset
    assert [query.prompt for query in dataset.queries] == [sample.prompt]
    assert dataset.correct[0, 0] == 1


def test_labels_of_several_sources_are_combined() -> None:
    assert combine_labels([(1.0, 0.2)]) == (1.0, 0.2)
    assert combine_labels([(0.0, 0.1), (1.0, 0.0)]) == (1.0, 0.0)
    assert combine_labels([(1.0, 0.1), (0.0, 0.1)]) == (0.5, 0.0)
    score, error = combine_labels([(1.0, 0.1), (0.0, 0.3)])
    assert score == 1
    assert error == pytest.approx(0.1 * 0.7 / (0.1 * 0.7 + 0.9 * 0.3))


def test_labels_in_both_orders_are_of_one_judge_whatever_its_name() -> None:
    _, sample = build_sample(0)
    labels = [
        label("d", "weak-1", f"judge:vendor/m:free{end}", 1, 0.1) for end in ("", ":reversed")
    ]
    questions = SideQuestions(id="d", at=START, propensity={"weak-1": 1.0}, drawn=["weak-1"])
    labelled_sample = LabelledSample(sample=sample, questions=questions, labels=labels)
    assert labelled_sample.sources("weak-1") == {"judge:vendor/m:free"}
    _, error = labelled_sample.label("weak-1", errors={"judge:vendor/m:free": 0.3}) or (0.0, 0.0)
    assert error == pytest.approx(0.3**2 / (0.3**2 + 0.7**2))


def test_the_newest_rows_are_the_test_part_and_no_prompt_is_in_two_parts() -> None:
    dataset = make_routing_dataset(queries=100)
    parts = split_by_time(dataset)
    assert set(parts["test"]) == set(dataset.query_ids[85:])
    assert set(parts["train"]) == set(dataset.query_ids[:85])
    repeated = type(dataset).of(
        (*dataset.queries[:99], type(dataset.queries[0])("last", dataset.queries[0].prompt)),
        dataset.pool,
        dataset.correct,
    )
    assert "last" in split_by_time(repeated)["train"]
    with pytest.raises(DataError, match="a part would be empty"):
        split_by_time(dataset.select(dataset.query_ids[:1]))
