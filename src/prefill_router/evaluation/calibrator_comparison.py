"""What calibrators would do: fitted on one part, judged on another, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.calibration import KINDS, CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.errors import DataError
from prefill_router.evaluation.binning import Bins
from prefill_router.evaluation.bootstrap import (
    Estimate,
    PerResample,
    Weights,
    chunks,
    mean_over,
    ones,
)
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.metrics import (
    Ranking,
    auc_by_target,
    brier_by_target,
    macro_mean,
    rankings,
)
from prefill_router.evaluation.reliability import (
    calibration_error,
    chance_error,
    log_loss,
    with_chance,
)
from prefill_router.progress import Progress, SilentProgress

_Numbers = dict[str, Float[NDArray[np.float64], "_"]]
NUMBERS = ("ece", "ece_by_chance", "brier_mean", "log_loss", "auc_mean", "argmax_accuracy")
"""What calibrators are judged by, all but the last as means over the targets."""


@final
@dataclass(frozen=True, eq=False)
class CalibratorComparison:
    """A calibrator, judged.

    Attributes:
        kind: What was asked for.
        fit: It, and what there is to say of it; `none` where there was too little to fit it on.
        values: By name, see `NUMBERS`.
        differences: To no calibration, on the same resamples.
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
        """The same as one row of a table, with `_lower` and `_upper`."""
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


@final
@dataclass(frozen=True, eq=False)
class _CalibratorJudge:
    """A trial with everything sorted that needs sorting."""

    trial: Trial
    bins: Bins
    ranking: tuple[Ranking, ...]

    @classmethod
    def of(cls, trial: Trial) -> "_CalibratorJudge":
        return cls(trial, Bins.of(trial), rankings(trial))

    def __call__(self, weights: Weights) -> dict[str, PerResample]:
        trial = self.trial
        chosen = trial.of_choice(trial.correct, trial.most_probable)
        sums = self.bins.sums(weights)
        return {
            "ece": macro_mean(calibration_error(sums)[:, :-1]),
            "ece_by_chance": macro_mean(chance_error(sums)[:, :-1]),
            "brier_mean": macro_mean(brier_by_target(trial, weights)),
            "log_loss": macro_mean(log_loss(trial, weights)[:, :-1]),
            "auc_mean": macro_mean(auc_by_target(self.ranking, weights)),
            "argmax_accuracy": mean_over(weights, chosen),
        }


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
        judged: Of the test part, by the same predictor.
        kinds: Which; `none` is what the others are compared with, whether it is among them or not.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Another seed, other resamples.
        progress: Shows how far the bootstrap is.

    Raises:
        DataError: The parts have queries in common, or other targets.
        ConfigError: An option makes no sense.
    """
    shared = set(calibration.query_ids) & set(judged.query_ids)
    if shared:
        raise DataError(
            f"{len(shared)} queries are in both parts; calibrate on others than are judged"
        )
    if calibration.targets != judged.targets:
        raise DataError(
            f"the calibration part has the targets {calibration.targets}, the other "
            f"{judged.targets}; predict both with the same router"
        )
    fits = [_fitted(kind, calibration) for kind in kinds]
    plain = _CalibratorJudge.of(judged)
    judges = [
        _CalibratorJudge.of(
            replace(judged, correctness=fit.calibrator.calibrate(judged.correctness))
        )
        for fit in fits
    ]
    at = [judge(ones(len(judged))) for judge in (plain, *judges)]
    tables: list[list[dict[str, PerResample]]] = []
    with (progress or SilentProgress()).task("calibrators", total=resamples) as advance:
        for weights in chunks(len(judged), count=resamples, seed=seed, width=plain.bins.width):
            tables.append([judge(weights) for judge in (plain, *judges)])
            advance(len(weights))
    together = [
        {n: np.concatenate([np.zeros(0), *(t[i][n] for t in tables)]) for n in NUMBERS}
        for i in range(len(at))
    ]
    return tuple(
        CalibratorComparison(kind, fit, *_estimates(at[0], at[i], together[0], together[i]))
        for i, (kind, fit) in enumerate(zip(kinds, fits, strict=True), 1)
    )


def _fitted(kind: CalibratorKind, part: Trial) -> CalibratorFit:
    return fit_calibrator(kind, part.correctness, part.correct, part.targets)


def _estimates(
    plain: _Numbers, own: _Numbers, plain_drawn: _Numbers, own_drawn: _Numbers
) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    why = "no target has what it is computed from"
    values = {n: Estimate.of(float(own[n][0]), own_drawn[n], reason=why) for n in NUMBERS}
    differences = {
        n: Estimate.of(float(own[n][0] - plain[n][0]), own_drawn[n] - plain_drawn[n], reason=why)
        for n in NUMBERS
    }
    return with_chance(values, "ece"), differences
