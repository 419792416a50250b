"""What every calibrator must do, whatever curves it has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefill_router.calibration import Calibrator, load_calibrator
from prefill_router.errors import ConfigError, CorruptError

Array = NDArray[np.float64]
Load = Callable[[Any, Any], Calibrator]


def check_calibrator(
    calibrator: Calibrator, correctness: Array, *, load: Load = load_calibrator
) -> None:
    """Put a fitted calibrator through all checks, with a few predictions like its train rows."""
    for check in (
        _check_range,
        _check_rows,
        _check_determinism,
        _check_order,
        _check_columns,
        _check_refusals,
    ):
        check(calibrator, correctness)
    _check_round_trip(calibrator, correctness, load)
    _check_corruption(calibrator, load)


def _check_range(calibrator: Calibrator, correctness: Array) -> None:
    for rows in (correctness, correctness[:0], np.round(correctness)):
        result = calibrator.calibrate(rows)
        assert result.shape == rows.shape
        assert result.dtype == np.float64
        assert ((result >= 0) & (result <= 1)).all()
    assert np.array_equal(calibrator(correctness), calibrator.calibrate(correctness))


def _check_rows(calibrator: Calibrator, correctness: Array) -> None:
    at_once = calibrator.calibrate(correctness)
    alone = np.concatenate([calibrator.calibrate(row[None]) for row in correctness])
    np.testing.assert_allclose(alone, at_once, rtol=0, atol=1e-12)


def _check_determinism(calibrator: Calibrator, correctness: Array) -> None:
    before = correctness.copy()
    first = calibrator.calibrate(correctness)
    assert np.array_equal(first, calibrator.calibrate(correctness))
    assert np.array_equal(correctness, before)
    first[:] = 0
    assert np.array_equal(correctness, before)  # what is given back isn't what was given


def _check_order(calibrator: Calibrator, correctness: Array) -> None:
    fine = np.concatenate([np.linspace(0, 1, 3001), np.linspace(0.4, 0.4001, 1001)])
    rising = np.sort(np.concatenate([fine, correctness.ravel()]))
    table = np.repeat(rising[:, None], len(calibrator.targets), axis=1)
    assert (np.diff(calibrator.calibrate(table), axis=0) >= 0).all()


def _check_columns(calibrator: Calibrator, correctness: Array) -> None:
    other = correctness.copy()
    other[:, 0] = 1 - other[:, 0]
    before, after = calibrator.calibrate(correctness), calibrator.calibrate(other)
    assert np.array_equal(before[:, 1:], after[:, 1:])


def _check_refusals(calibrator: Calibrator, correctness: Array) -> None:
    with pytest.raises(ConfigError, match="columns"):
        calibrator.calibrate(correctness[:, 1:])
    for bad in (np.nan, -0.01, 1.01):
        broken = correctness.copy()
        broken[1, 0] = bad
        with pytest.raises(ConfigError, match=r"in \[0, 1\]"):
            calibrator.calibrate(broken)


def _check_round_trip(calibrator: Calibrator, correctness: Array, load: Load) -> None:
    tensors = {name: array.copy() for name, array in calibrator.tensors().items()}
    assert all(array.dtype == np.float32 for array in tensors.values())
    again = load(calibrator.to_dict(), tensors)
    assert type(again) is type(calibrator)
    assert again.targets == calibrator.targets
    assert again.to_dict() == calibrator.to_dict()
    assert np.array_equal(again.calibrate(correctness), calibrator.calibrate(correctness))


def _check_corruption(calibrator: Calibrator, load: Load) -> None:
    config, tensors = calibrator.to_dict(), calibrator.tensors()
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (config, tensors | {"more": np.zeros(1, np.float32)}),
        (config | {"more": 1}, tensors),
        (config | {"targets": [calibrator.targets[0]] * len(calibrator.targets)}, tensors),
        (config | {"targets": []}, tensors),
    ]
    if tensors:
        cases.append((config | {"targets": [*calibrator.targets, "one too many"]}, tensors))
    for name, array in tensors.items():
        others = {k: v for k, v in tensors.items() if k != name}
        bad = (np.append(array, array[:1]), array.astype(np.float64), np.full_like(array, np.nan))
        cases += [(config, others), *((config, others | {name: value}) for value in bad)]
    for name in config:
        cases.append(({k: v for k, v in config.items() if k != name}, tensors))
        cases.append((config | {name: None}, tensors))
    for case in cases:
        with pytest.raises(CorruptError):
            load(*case)
