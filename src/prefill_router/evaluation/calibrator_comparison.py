"""Calibrators compared: each fitted on one part of the data and judged on another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.calibration import KINDS, CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.errors import DataError
from prefill_router.evaluation.bootstrap import (
    Bootstrap,
    Estimate,
    PerResample,
    Rows,
    Weights,
    estimates,
    mean_over,
    ones,
)
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.metrics import macro_mean
from prefill_router.evaluation.reliability import log_loss, with_chance
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr

Numbers = Rows[tuple[int, str]]
NUMBERS = ("ece", "ece_by_chance", "brier_mean", "log_loss", "auc_mean", "argmax_accuracy")
"""The metrics that calibrators are judged by, all but the last as means over the targets."""
_WHY = "no target has the labels that it is computed from"


@short_repr
@final
@dataclass(frozen=True, eq=False)
class CalibratorComparison:
    """The metrics of one calibrator.

    Attributes:
        kind: The requested kind.
        fit: The fitted calibrator with its notes; of kind `none` where there was too little data.
        values: The metrics by name, see `NUMBERS`.
        differences: The metrics minus those without calibration, on the same resamples.
    """

    kind: CalibratorKind
    fit: CalibratorFit
    values: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "calibrator": self.kind,
            "fitted": self.fit.calibrator.kind,
            "probabilistic": self.fit.calibrator.probabilistic,
            "values": {name: value.to_dict() for name, value in self.values.items()},
            "differences": {name: value.to_dict() for name, value in self.differences.items()},
            "notes": list(self.fit.notes),
        }

    def row(self) -> dict[str, Any]:
        """One row of a table: each metric, and its interval as `_lower` and `_upper`."""
        row: dict[str, Any] = {"calibrator": self.kind}
        for name in NUMBERS:
            for what, value in (
                (name, self.values[name]),
                (f"{name}_gain", self.differences[name]),
            ):
                row |= {
                    what: value.value,
                    f"{what}_lower": value.lower,
                    f"{what}_upper": value.upper,
                }
        return row


def try_calibrators(
    calibration: Trial,
    judged: Trial,
    *,
    kinds: Sequence[CalibratorKind] = KINDS,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[CalibratorComparison, ...]:
    """Fit each calibrator on one part and judge it on another.

    Args:
        calibration: Predictions and labels that neither the predictor nor the test has seen.
        judged: Predictions of the same predictor and labels for the test part.
        kinds: The calibrators; the reference is always `none`, whether it is listed or not.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Random seed of the resampling.
        progress: Reports the progress of the bootstrap.

    Raises:
        DataError: The parts have queries in common, or their targets differ.
        ConfigError: An option is invalid.
    """
    shared = set(calibration.query_ids) & set(judged.query_ids)
    if shared:
        raise DataError(
            f"{len(shared)} queries are in both parts; calibrate and judge on different queries"
        )
    if calibration.targets != judged.targets:
        raise DataError(
            f"the calibration part has the targets {calibration.targets}, the other "
            f"{judged.targets}; predict both with the same router"
        )
    fits = [
        fit_calibrator(kind, calibration.correctness, calibration.observed, calibration.targets)
        for kind in kinds
    ]
    scorers = [
        Scorer(judged),
        *(
            Scorer(replace(judged, correctness=fit.calibrator.calibrate(judged.correctness)))
            for fit in fits
        ),
    ]

    def numbers(weights: Weights) -> Numbers:
        return {
            (place, name): value
            for place, scorer in enumerate(scorers)
            for name, value in _numbers(scorer.score(weights)).items()
        }

    point = numbers(ones(len(judged)))
    draws = Bootstrap(len(judged), resamples, seed, scorers[0].bins.width)
    drawn = draws.resample(numbers, point, progress, "calibrators")
    values = estimates(point, drawn, _WHY)
    differences = estimates(_less(point), _less(drawn), _WHY)
    return tuple(
        CalibratorComparison(
            kind,
            fit,
            with_chance({name: values[place, name] for name in NUMBERS}, "ece"),
            {name: differences[place, name] for name in NUMBERS},
        )
        for place, (kind, fit) in enumerate(zip(kinds, fits, strict=True), 1)
    )


def _numbers(scores: Scores) -> dict[str, PerResample]:
    trial = scores.trial
    chosen = trial.of_choice(trial.correct, trial.most_probable)
    return {
        "ece": scores.headline["ece_mean"],
        **{name: scores.headline[name] for name in ("ece_by_chance", "brier_mean", "auc_mean")},
        "log_loss": macro_mean(log_loss(trial, scores.weights)[:, :-1]),
        "argmax_accuracy": mean_over(scores.weights, chosen),
    }


def _less(numbers: Numbers) -> dict[tuple[int, str], NDArray[np.float64]]:
    """The numbers minus those without calibration."""
    return {key: value - numbers[0, key[1]] for key, value in numbers.items()}
