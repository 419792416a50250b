"""The canonical order of train rows, and numbers of equal rows, against plain loops."""

import numpy as np
import pytest

from prefill_router import statistics
from prefill_router.predictors import Examples
from prefill_router.predictors.base import usable_rows
from prefill_router.statistics import mean_and_spread, row_numbers


def examples(width: int) -> Examples:
    """Rows of which many are equal, or begin alike."""
    random = np.random.default_rng(width)
    features = random.integers(-1, 2, (200, width)).astype(np.float32) * np.float32(0.5)
    features[features == 0] *= np.float32(-1)  # both zeros
    correct = random.integers(0, 3, (200, 2)).astype(np.float64)
    correct[correct == 2] = np.nan
    groups = tuple(random.choice(["a", "b", ""], 200).tolist())
    return Examples(
        features, correct, ("s", "t"), groups, costs=random.integers(0, 3, (200, 2)) / 2
    )


@pytest.mark.parametrize("missing", [np.nan, -1.0])
@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_rows_are_sorted_by_all_their_bytes(width: int, missing: float) -> None:
    train = examples(width)
    assert train.costs is not None
    rows = np.flatnonzero(train.present.any(axis=1))

    def content(row: int) -> tuple[bytes, str, bytes]:
        labels = np.where(np.isnan(train.correct[row]), missing, train.correct[row] + 0.0)
        features = (train.features[row] + np.float32(0)).tobytes()
        return features + labels.tobytes(), train.groups[row], train.costs[row].tobytes()

    order = np.array(sorted(rows.tolist(), key=content))
    rows_kept = usable_rows(train, missing=missing)
    np.testing.assert_array_equal(rows_kept.features, train.features[order])
    np.testing.assert_array_equal(rows_kept.correct, train.correct[order])
    assert rows_kept.groups == tuple(train.groups[row] for row in order)
    assert not np.signbit(rows_kept.features[rows_kept.features == 0]).any()
    assert np.signbit(train.features[train.features == 0]).any()


def test_equal_rows_share_a_number_in_order_of_appearance() -> None:
    rows = examples(3).features
    numbers: dict[bytes, int] = {}
    expected = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]
    assert row_numbers(rows).tolist() == expected
    assert row_numbers(np.asfortranarray(rows)).tolist() == expected


def test_mean_and_spread_of_blocks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (np.random.default_rng(0).normal(size=(50, 4)) + 1000).astype(np.float32)
    mean, spread = mean_and_spread(rows)
    np.testing.assert_array_equal(mean, rows.mean(axis=0, dtype=np.float64))
    np.testing.assert_array_equal(spread, rows.std(axis=0, dtype=np.float64))
    monkeypatch.setattr(statistics, "_BLOCK_ROWS", 7)
    for actual, expected in zip(mean_and_spread(rows), (mean, spread), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
