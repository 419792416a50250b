import numpy as np
import pytest

from prefill_router import statistics
from prefill_router.cost.output import PENALTIES, fit_ridge, left_out_errors

RANDOM = np.random.default_rng(3)
COLUMNS = RANDOM.normal(size=(40, 6)) * [1, 1, 0.1, 3, 0, 1]
VALUES = COLUMNS @ [1, -0.5, 2, 0, 1, 0] + RANDOM.normal(size=40) + 7
FOLDS = np.arange(40) % 4


def solve_ridge(
    columns: np.ndarray, values: np.ndarray, penalty: float
) -> tuple[np.ndarray, float]:
    """A ridge regression with an intercept, as least squares with rows for the penalty."""
    width = columns.shape[1]
    rows = np.column_stack([columns, np.ones(len(columns))])
    pull = np.column_stack([np.sqrt(penalty) * np.eye(width), np.zeros(width)])
    weights = np.linalg.lstsq(
        np.vstack([rows, pull]), np.concatenate([values, np.zeros(width)]), rcond=None
    )[0]
    return weights[:-1], float(weights[-1])


@pytest.mark.parametrize("rows", [40, 5])
def test_errors_of_left_out_rows_are_those_of_fits_without_them(rows: int) -> None:
    columns, values = COLUMNS[:rows], VALUES[:rows]
    got = left_out_errors(columns, values)
    for place in (0, 9, 14, 20, len(PENALTIES) - 1):
        errors = []
        for row in range(rows):
            is_other = np.arange(rows) != row
            weights, offset = solve_ridge(columns[is_other], values[is_other], PENALTIES[place])
            errors.append(values[row] - columns[row] @ weights - offset)
        assert got[place] == pytest.approx(np.mean(np.square(errors)), rel=1e-5)


def test_fit_and_predictions_out_of_fold_are_those_of_fits_without_the_fold() -> None:
    fit = fit_ridge(COLUMNS, VALUES, FOLDS)
    best = PENALTIES[np.argmin(left_out_errors(COLUMNS, VALUES))]
    assert PENALTIES[0] < best < PENALTIES[-1]
    weights, offset = solve_ridge(COLUMNS, VALUES, best)
    np.testing.assert_allclose(fit.weights, weights, atol=1e-9)
    assert fit.intercept == pytest.approx(offset)
    for fold in range(4):
        is_train = fold != FOLDS
        weights, offset = solve_ridge(COLUMNS[is_train], VALUES[is_train], best)
        expected = COLUMNS[~is_train] @ weights + offset
        np.testing.assert_allclose(fit.out_of_fold[~is_train], expected, atol=1e-8)


def test_where_there_is_nothing_to_learn_the_penalty_is_large() -> None:
    random = np.random.default_rng(0)
    noise = fit_ridge(random.normal(size=(60, 40)), random.normal(size=60), np.arange(60) % 5)
    assert np.abs(noise.weights).max() < 0.1


@pytest.mark.parametrize("rows", [1, 7, 39])
def test_blocks_of_rows_give_the_whole(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_at_once = fit_ridge(COLUMNS, VALUES, FOLDS)
    errors = left_out_errors(COLUMNS, VALUES)
    monkeypatch.setattr(statistics, "_BLOCK_ROWS", rows)
    fit = fit_ridge(COLUMNS, VALUES, FOLDS)
    np.testing.assert_allclose(fit.weights, fit_at_once.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fit.out_of_fold, fit_at_once.out_of_fold, rtol=1e-9)
    np.testing.assert_allclose(left_out_errors(COLUMNS, VALUES), errors, rtol=1e-9)
