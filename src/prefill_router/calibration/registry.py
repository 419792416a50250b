"""The calibrators by kind: fitting and loading."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.calibration.base import LEAST, Calibrator, CalibratorFit
from prefill_router.calibration.parametric import NoCalibration
from prefill_router.errors import FitError
from prefill_router.serialization import Kinds, Tensors

CalibratorKind: TypeAlias = str
"""One of `KINDS`."""
_CALIBRATORS = Kinds[type[Calibrator]](
    "calibrator",
    "prefill_router.calibration",
    {
        "none": "parametric:NoCalibration",
        "platt": "parametric:Platt",
        "isotonic": "curves:Isotonic",
        "percentile": "curves:Percentile",
        "z_score": "parametric:ZScore",
    },
)
KINDS = _CALIBRATORS.names
find = _CALIBRATORS.find
Table = Float64[NDArray[np.float64], "_ _"]


def fit_calibrator(
    kind: CalibratorKind, correctness: Table, correct: Table, targets: tuple[str, ...]
) -> CalibratorFit:
    """Fit a calibrator on rows that neither the predictor nor a test has seen.

    Each target's map is fitted on its own labels. Where they are too few, its predictions stay as
    they are; where all labels are the same, its predictions become the share of right answers by
    the rule of succession. The notes say so. With too few queries nothing is changed at all.

    Args:
        kind: The kind of calibrator.
        correctness: The predictor's probabilities on the calibration part, [query, target].
        correct: The labels, [query, target], in [0, 1], NaN where missing; soft ones as they are.
        targets: The targets' names.

    Raises:
        ConfigError: There is no such kind.
        FitError: The shapes differ, names repeat, or a prediction or a label is outside [0, 1].
    """
    calibrator = find(kind)
    _check(correctness, correct, targets)
    if len(correctness) < LEAST and kind != "none":
        why = (
            f"the calibration part has {len(correctness)} queries and needs {LEAST}, so the "
            "predictions are left as they are"
        )
        return CalibratorFit(NoCalibration(targets), (why,))
    return calibrator.fit(correctness, correct, targets)


def load_calibrator(config: Mapping[str, Any], tensors: Tensors) -> Calibrator:
    """The calibrator that `Calibrator.to_dict` and `Calibrator.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return _CALIBRATORS.of_saved(config).from_dict(config, tensors)


def _check(correctness: Table, correct: Table, targets: tuple[str, ...]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise FitError(f"the targets are {list(targets)}; name at least one, each once")
    if not correctness.shape == correct.shape == (len(correct), len(targets)):
        raise FitError(
            f"the predictions are {correctness.shape} and the labels {correct.shape} for "
            f"{len(targets)} targets; give one row per query, one column per target"
        )
    if not ((correctness >= 0) & (correctness <= 1)).all():
        raise FitError("the predictions must be probabilities in [0, 1]; check the predictor")
    if not (np.isnan(correct) | ((correct >= 0) & (correct <= 1))).all():
        raise FitError("the labels must be in [0, 1], or NaN where missing; check the dataset")
