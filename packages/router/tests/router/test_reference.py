"""The reference of the train rows: what is far is found, what is alike isn't, and no row knows
itself."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.fitting import RouterFit
from prefill_router.router import Router
from prefill_router.router.light import read_light
from prefill_router.router.reference import WATCHED, WIDEST, TrainReference, outline

Rows = np.ndarray


def draw_rows(count: int, width: int = 12, *, seed: int = 0) -> Rows:
    """Rows with correlated columns of different spreads."""
    mixing = np.random.default_rng(99).normal(size=(width, width)) * np.linspace(5, 0.1, width)
    rows = np.random.default_rng(seed).normal(size=(count, width)) @ mixing + 100
    return rows.astype(np.float32)


def labels(count: int) -> Rows:
    return np.random.default_rng(5).integers(0, 2, (count, 3)).astype(np.float64)


def of(rows: Rows) -> TrainReference:
    return TrainReference.fit(rows, labels(len(rows)))


def test_held_out_rows_are_as_novel_as_a_quantile_says() -> None:
    reference = of(draw_rows(3000))
    novelty = reference.novelty(draw_rows(20_000, seed=1))
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.mean(novelty > quantile) == pytest.approx(1 - quantile, abs=0.03)
    assert novelty.min() >= 0
    assert novelty.max() <= 1


def test_of_many_rows_some_are_measured_and_all_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, correct = draw_rows(4000), labels(4000)
    reference = TrainReference.fit(rows, correct)
    monkeypatch.setattr("prefill_router.router.reference.MOST_ROWS", 1500)
    some = TrainReference.fit(rows, correct)
    assert (reference.rows, some.rows) == (4000, 1500)
    np.testing.assert_array_equal(some.accuracy, correct.mean(axis=0))
    far = draw_rows(2000, seed=1)
    assert np.abs(some.novelty(far) - reference.novelty(far)).mean() < 0.02


def test_train_rows_are_measured_by_the_others() -> None:
    """With few rows, a row is too near to a mean and a covariance that include it."""
    rows, test_rows = draw_rows(120, 60), draw_rows(5000, 60, seed=1)
    reference = of(rows)
    assert np.mean(reference.novelty(test_rows) > 0.9) == pytest.approx(0.1, abs=0.06)
    own = np.linalg.norm(
        (rows[:, reference.columns] - reference.mean) @ reference.whitening, axis=1
    )
    naive = dataclasses.replace(
        reference, quantiles=np.quantile(own, np.linspace(0, 1, 1001)).astype(np.float32)
    )
    assert np.mean(naive.novelty(test_rows) > 0.9) > 0.4


def test_leaving_a_row_out_in_closed_form_is_leaving_it_out() -> None:
    rows = draw_rows(40, 4)
    distances = np.sort(
        [_distance(of(np.delete(rows, i, axis=0)), rows[i]) for i in range(len(rows))]
    )
    quantiles = of(rows).quantiles[:: 1000 // (len(rows) - 1)][: len(rows)]
    grid = np.quantile(distances, np.linspace(0, 1, 1001))[:: 1000 // (len(rows) - 1)][: len(rows)]
    np.testing.assert_allclose(quantiles, grid, rtol=0.08)


def _distance(reference: TrainReference, row: Rows) -> float:
    near = row[list(reference.columns)] - reference.mean
    return float(np.linalg.norm(near @ reference.whitening))


def test_a_direction_that_no_train_row_takes_is_novel_though_every_column_is_common() -> None:
    base = np.random.default_rng(0).normal(size=(2000, 1))
    noise = np.random.default_rng(1).normal(size=(2000, 2)) * 0.05
    reference = of((base + noise).astype(np.float32))
    alike, against = np.array([[1.0, 1.0], [1.0, -1.0]], dtype=np.float32)
    assert reference.novelty(alike[None])[0] < 0.8
    assert reference.novelty(against[None])[0] == 1.0


def test_units_of_columns_do_not_matter() -> None:
    rows, test_rows = draw_rows(400), draw_rows(50, seed=3)
    scale = np.logspace(-3, 3, rows.shape[1]).astype(np.float32)
    np.testing.assert_allclose(
        of(rows * scale).novelty(test_rows * scale), of(rows).novelty(test_rows), atol=0.01
    )


def test_tenths_hold_a_tenth_of_the_train_rows_each() -> None:
    rows = draw_rows(1000, 40)
    reference = of(rows)
    bins = reference.bins(rows)
    assert reference.watched_count == WATCHED == bins.shape[1]
    np.testing.assert_allclose(reference.shares, 0.1, atol=0.002)
    for number in range(10):
        np.testing.assert_array_equal((bins == number).sum(axis=0), reference.counts[:, number])
    low, high = np.full((1, 40), -1e9, np.float32), np.full((1, 40), 1e9, np.float32)
    assert set(reference.bins(low)[0]) == {0}
    assert set(reference.bins(high)[0]) == {9}


def test_the_columns_of_most_variance_are_watched_and_constant_ones_ignored() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 5)) * [1, 30, 0, 3, 10]
    reference = of(rows.astype(np.float32) + np.float32(7))
    assert reference.columns == (1, 4, 3, 0)
    assert reference.watched_count == 4


def test_wide_features_are_cut_and_stay_small() -> None:
    width = WIDEST + 40
    rows = np.random.default_rng(0).normal(size=(60, width)) * np.linspace(2, 1, width)
    reference = of(rows.astype(np.float32))
    assert set(reference.columns) <= set(range(width))
    assert len(reference.columns) == WIDEST
    assert sum(array.nbytes for array in reference.tensors().values()) < 2_000_000
    assert reference.novelty(rows.astype(np.float32) * 9).tolist() == [1.0] * 60


def test_a_column_of_few_values_says_how_its_rows_lie() -> None:
    rows = np.repeat([[0.0], [1.0]], [900, 100], axis=0).astype(np.float32)
    reference = of(rows)
    assert reference.counts.sum() == 1000
    assert sorted(reference.counts[0].tolist())[-2:] == [100, 900]


def test_accuracy_is_that_of_known_labels() -> None:
    correct = np.array([[1, 0, np.nan], [0.5, np.nan, np.nan], [0, 1, np.nan]])
    reference = TrainReference.fit(draw_rows(3), correct)
    np.testing.assert_allclose(reference.accuracy, [0.5, 0.5, np.nan])
    assert reference.to_dict()["accuracy"] == [0.5, 0.5, None]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_rows_or_equal_ones_are_no_hindrance(count: int) -> None:
    for rows in (draw_rows(count), np.ones((count, 4), np.float32)):
        reference = of(rows)
        novelty = reference.novelty(np.concatenate([rows, rows * 50]))
        assert ((novelty >= 0) & (novelty <= 1)).all()
        again = TrainReference.from_dict(reference.to_dict(), reference.tensors())
        np.testing.assert_array_equal(again.novelty(rows), reference.novelty(rows))
    assert not of(np.ones((count, 4), np.float32)).novelty(np.ones((1, 4), np.float32)).any()


def test_numbers_near_the_end_of_their_range_are_novel_and_no_error() -> None:
    huge = np.full((1, 12), 3e38, np.float32)
    huge[0, ::2] *= -1
    assert of(draw_rows(100)).novelty(huge).tolist() == [1.0]


def test_saved_and_read_it_is_the_same() -> None:
    reference, test_rows = of(draw_rows(200)), draw_rows(30, seed=2)
    again = TrainReference.from_dict(reference.to_dict(), reference.tensors())
    np.testing.assert_array_equal(again.novelty(test_rows), reference.novelty(test_rows))
    np.testing.assert_array_equal(again.bins(test_rows), reference.bins(test_rows))
    accuracy, shares = outline(reference.to_dict(), targets=3)
    np.testing.assert_array_equal(accuracy, reference.accuracy)
    np.testing.assert_array_equal(shares, reference.shares)


@pytest.mark.parametrize("name", ["mean", "whitening", "quantiles", "edges"])
def test_arrays_that_are_not_a_references_are_refused(name: str) -> None:
    reference = of(draw_rows(200))
    complete = reference.tensors()
    less = {key: array for key, array in complete.items() if key != name}
    bad = [less, {**complete, "more": complete[name]}]
    bad += [
        {**complete, name: complete[name][..., :-1]},
        {**complete, name: complete[name].astype(np.float64)},
    ]
    bad += [{**complete, name: np.full_like(complete[name], np.nan)}]
    if name in ("quantiles", "edges"):
        bad += [{**complete, name: np.ascontiguousarray(complete[name][..., ::-1])}]
    for tensors in bad:
        with pytest.raises(CorruptError):
            TrainReference.from_dict(reference.to_dict(), tensors)


def test_features_of_another_width_are_refused() -> None:
    reference = of(draw_rows(50))
    for read in (reference.novelty, reference.bins):
        with pytest.raises(ConfigError, match="12"):
            read(draw_rows(2, 11))


@pytest.mark.slow
def test_a_fitted_router_tells_what_is_unlike_its_train_rows(
    router: Router, answers: RoutingDataset
) -> None:
    assert router.reference is not None
    train = answers.select(router.split["train"])
    np.testing.assert_allclose(router.reference.accuracy, np.nanmean(train.correct, axis=0))
    assert router.reference.rows == len(train)
    forecasts = router.forecast_many([query.prompt for query in train.queries[:20]])
    assert all(len(f.bins) == router.reference.watched_count for f in forecasts)
    assert {f.novelty for f in forecasts} != {None}
    assert router.with_pool(router.pool).reference is router.reference


def test_a_reference_of_other_features_or_targets_is_refused(router_fit: RouterFit) -> None:
    other = TrainReference.fit(draw_rows(30, router_fit.router.features.width), labels(30)[:, :2])
    for reference in (of(draw_rows(30)), other):
        with pytest.raises(ConfigError, match="reference has"):
            dataclasses.replace(router_fit.router, reference=reference)


def test_the_light_part_knows_accuracy_and_shares(router: Router, tmp_path: Path) -> None:
    assert router.reference is not None
    router.save(tmp_path / "router")
    light = read_light(tmp_path / "router")
    np.testing.assert_array_equal(light.reference_accuracy, router.reference.accuracy)
    np.testing.assert_array_equal(light.reference_shares, router.reference.shares)
    dataclasses.replace(router, reference=None).save(tmp_path / "older")
    older = read_light(tmp_path / "older")
    assert (older.reference_accuracy, older.reference_shares) == (None, None)
    with pytest.raises(CorruptError, match="has 3 targets, not 2"):
        outline(router.reference.to_dict(), targets=2)
