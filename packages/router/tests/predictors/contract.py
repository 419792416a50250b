"""What every predictor must do, whatever it is made of."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors import Predictor, load_predictor
from prefill_router.predictors.base import Features


def check_predictor(
    predictor: Predictor,
    features: Features,
    *,
    load: Callable[[Any, Any], Predictor] = load_predictor,
) -> None:
    """Put a fitted predictor through all checks, with a few rows like its train rows."""
    for check in (_check_range, _check_rows, _check_determinism, _check_refusals):
        check(predictor, features)
    _check_round_trip(predictor, features, load)
    _check_corruption(predictor, load)


def _check_range(predictor: Predictor, features: Features) -> None:
    for rows in (features, 1000 * features, features[:0]):
        result = predictor.correctness(rows)
        assert result.shape == (len(rows), len(predictor.targets))
        assert result.dtype == np.float64
        assert np.isfinite(result).all()
        assert ((result >= 0) & (result <= 1)).all()


def _check_rows(predictor: Predictor, features: Features) -> None:
    expected = predictor.correctness(features)
    order = np.random.default_rng(0).permutation(len(features))
    alone = np.concatenate([predictor.correctness(row[None]) for row in features])
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(predictor.correctness(features[order]), expected[order], atol=1e-6)


def _check_determinism(predictor: Predictor, features: Features) -> None:
    before = features.copy()
    first = predictor.correctness(features)
    assert np.array_equal(first, predictor.correctness(features))
    assert np.array_equal(features, before)


def _check_refusals(predictor: Predictor, features: Features) -> None:
    assert features.shape[1] == predictor.width
    wider = np.concatenate([features, features[:, :1]], axis=1)
    with pytest.raises(ConfigError, match=rf"{wider.shape[1]} wide.*fitted on {predictor.width}"):
        predictor.correctness(wider)
    for bad in (np.nan, np.inf):
        broken = features.copy()
        broken[1, 0] = bad
        with pytest.raises(ConfigError, match="row 1"):
            predictor.correctness(broken)


def _check_round_trip(
    predictor: Predictor, features: Features, load: Callable[[Any, Any], Predictor]
) -> None:
    again = load(predictor.to_dict(), {k: v.copy() for k, v in predictor.tensors().items()})
    assert type(again) is type(predictor)
    assert again.targets == predictor.targets
    assert again.to_dict() == predictor.to_dict()
    assert np.array_equal(again.correctness(features), predictor.correctness(features))


def _check_corruption(predictor: Predictor, load: Callable[[Any, Any], Predictor]) -> None:
    config, tensors = predictor.to_dict(), predictor.tensors()
    for name in tensors:
        others = {k: v for k, v in tensors.items() if k != name}
        flat = np.concatenate([tensors[name].ravel(), tensors[name].ravel()[:1]])
        broken: list[dict[str, Any]] = [others, others | {f"{name}.x": tensors[name]}]
        broken += [others | {name: flat}, others | {name: tensors[name].astype(np.complex64)}]
        for case in broken:
            with pytest.raises(CorruptError):
                load(config, case)
    for name in config:
        for wrong in ({k: v for k, v in config.items() if k != name}, config | {name: None}):
            with pytest.raises(CorruptError):
                load(wrong, tensors)
    with pytest.raises(CorruptError):
        load(config | {"targets": [*predictor.targets, "one too many"]}, tensors)
