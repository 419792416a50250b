"""Labels that may be wrong, or that chance selected: their error and propensity."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prefill_router.data import Query, RoutingDataset, merge, read_dataset, write_dataset
from prefill_router.errors import DataError
from prefill_router.targets import Pool, Target

NAN = float("nan")
POOL = Pool((Target(name="a"), Target(name="b")))


def build_dataset(
    correct: list[list[float]], *, error: list[list[float]], propensity: list[list[float]]
) -> RoutingDataset:
    return RoutingDataset.of(
        [Query(f"q{i}", f"question {i}") for i in range(len(correct))],
        POOL,
        np.array(correct),
        label_error=np.array(error),
        propensity=np.array(propensity),
    )


DATA = build_dataset(
    [[1, NAN], [0, 1]], error=[[0.1, NAN], [NAN, 0.2]], propensity=[[1, 0], [0.5, NAN]]
)


def test_error_and_propensity_are_read_as_written_even_where_a_label_is_missing(
    tmp_path: Path,
) -> None:
    write_dataset(DATA, tmp_path / "d")
    dataset = read_dataset(tmp_path / "d")
    for name in ("correct", "label_error", "propensity"):
        assert np.array_equal(getattr(dataset, name), getattr(DATA, name), equal_nan=True)
    assert dataset.fingerprint == DATA.fingerprint != replace(DATA, label_error=None).fingerprint


def test_a_subset_and_a_merged_dataset_keep_them() -> None:
    part = DATA.select(["q1"], targets=["b", "a"])
    assert part.label_error is not None
    assert part.propensity is not None
    assert np.array_equal(part.label_error, [[0.2, NAN]], equal_nan=True)
    assert np.array_equal(part.propensity, [[NAN, 0.5]], equal_nan=True)
    certain = RoutingDataset.of([Query("q0", "question 0")], POOL, np.array([[NAN, 0.0]]))
    union = merge({"traffic": DATA, "certain": certain})
    assert union.propensity is not None
    assert np.array_equal(union.correct, [[1, 0], [0, 1]])
    assert np.array_equal(union.propensity, [[1, NAN], [0.5, NAN]], equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_error": np.full((2, 2), 0.5)}, "below 0.5"),
        ({"propensity": np.full((2, 2), 1.5)}, "probabilities are in"),
        ({"propensity": np.zeros((2, 2))}, "0 for 3 labels that were observed"),
    ],
)
def test_impossible_ones_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(DATA, **change)


def test_they_cannot_be_averaged_as_runs() -> None:
    with pytest.raises(DataError, match="traffic has labels with an error"):
        merge({"traffic": DATA, "again": DATA}, repeats="mean")
