"""Calibration target by target: data of the diagrams, and calibrators compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.calibration import KINDS, CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.errors import DataError
from prefill_router.evaluation.bootstrap import (
    LEVEL,
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
from prefill_router.evaluation.reliability import (
    BINS,
    BinKind,
    Bins,
    BinSums,
    bias,
    calibration_error,
    chance_error,
    decomposition,
    log_loss,
    with_chance,
)
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr

MEAN = "mean of targets"
MEANINGS: Mapping[str, str] = {
    "ece": "calibration error: how far predicted probability and share of right answers are "
    "apart, on average over bins of equal width",
    "ece_equal_mass": "the same over bins with equally many queries",
    "ece_by_chance": "the average calibration error of perfectly calibrated probabilities",
    "ece_equal_mass_by_chance": "the same over bins with equally many queries",
    "bias": "mean predicted probability minus share of right answers; above 0: overestimated",
    "brier": "mean squared difference of probability and outcome "
    "= reliability - resolution + uncertainty + within",
    "reliability": "the part of the Brier score that recalibration could remove",
    "reliability_beyond_chance": "the same minus what chance adds; around 0 for calibrated "
    "probabilities",
    "resolution": "how much distinguishing hard queries from easy ones lowers the Brier score",
    "uncertainty": "the Brier score of always predicting the share of right answers",
    "within": "the variance of predictions within bins, minus twice their covariance with the "
    "outcomes there",
    "log_loss": "mean cross-entropy, nats",
}
PerBinCell = Float[NDArray[np.float64], "column bin"]
_Table = dict[str, NDArray[np.float64]]
_OBSERVED = "observed in bins of equal "


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability diagrams of all targets, and of all together in the last row.

    Attributes:
        bins: The bins.
        cells: How many labelled predictions are in each bin.
        predicted: Mean prediction of each bin; NaN in an empty bin.
        observed: Share of right answers in each bin.
        lower: The 2.5th percentile of that share over the resamples; NaN without any.
        upper: The 97.5th percentile of that share.
    """

    bins: Bins
    cells: PerBinCell
    predicted: PerBinCell
    observed: PerBinCell
    lower: PerBinCell
    upper: PerBinCell

    def rows(self) -> list[dict[str, Any]]:
        """The data of the figure, one row for each bin that isn't empty."""
        columns = {
            "least": self.bins.lower,
            "greatest": self.bins.upper,
            "predicted": self.predicted,
            "observed": self.observed,
            "observed_lower": self.lower,
            "observed_upper": self.upper,
        }
        return [
            {
                "target": self.bins.names[k],
                "bins": f"equal {self.bins.kind}",
                "bin": b,
                "labels": int(self.cells[k, b]),
                **{name: float(table[k, b]) for name, table in columns.items()},
            }
            for k, b in np.argwhere(self.cells > 0).tolist()
        ]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Reliability:
    """The calibration of a system's probabilities.

    Attributes:
        queries: Number of judged queries.
        labels: Number of labels of each target.
        estimates: Metrics by target, `reliability.POOLED` and `MEAN`, then by name; see `MEANINGS`.
        diagrams: Diagrams with bins of equal width and of equal mass.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
    """

    queries: int
    labels: Mapping[str, int]
    estimates: Mapping[str, Mapping[str, Estimate]]
    diagrams: Mapping[BinKind, Diagram]
    resamples: int
    seed: int

    @property
    def off(self) -> tuple[str, ...]:
        """The rows of `estimates` that are miscalibrated beyond chance, worst first.

        The interval of their reliability beyond chance is above 0; of 40 calibrated rows, about one
        is listed by chance.
        """
        excess = {n: row["reliability_beyond_chance"] for n, row in self.estimates.items()}
        names = [name for name, value in excess.items() if value.lower > 0]
        return tuple(sorted(names, key=lambda name: -excess[name].value))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "queries": self.queries,
            "labels": dict(self.labels),
            "calibration": {
                name: {what: value.to_dict() for what, value in row.items()}
                for name, row in self.estimates.items()
            },
            "off_beyond_chance": list(self.off),
            "bins": self.diagrams["width"].bins.count,
            "meanings": dict(MEANINGS),
            "bootstrap": {"resamples": self.resamples, "seed": self.seed, "level": LEVEL},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per target, for all together, and for the mean; with `_lower` and `_upper`."""
        return [
            {"target": name, "labels": self.labels[name]}
            | {
                f"{what}{end}": float(number)
                for what, value in row.items()
                for end, number in zip(
                    ("", "_lower", "_upper"), (value.value, value.lower, value.upper), strict=True
                )
            }
            for name, row in self.estimates.items()
        ]


def reliability_of(
    trial: Trial,
    *,
    bins: int = BINS,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Reliability:
    """Measure the calibration of a system's probabilities.

    Args:
        trial: Its predictions and labels.
        bins: Number of bins.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Random seed of the resampling.
        progress: Reports the progress of the bootstrap.

    Raises:
        ConfigError: An option is invalid.
    """
    kinds: tuple[BinKind, BinKind] = ("width", "mass")
    bins_by_kind = {kind: Bins.of(trial, kind=kind, count=bins) for kind in kinds}
    whole = ones(len(trial))
    point = _judge(trial, bins_by_kind, whole)
    width = max(each.width for each in bins_by_kind.values())
    draws = Bootstrap(len(trial), resamples, seed, width, trial.conversations)
    resampled = draws.resample(partial(_judge, trial, bins_by_kind), point, progress, "calibration")
    for name, kind_bins in zip(("ece", "ece_equal_mass"), bins_by_kind.values(), strict=True):
        by_chance = _append_mean(chance_error(kind_bins.sums(whole, noise="sampling")))
        # It depends on the size of the sample, so it isn't resampled.
        point[f"{name}_by_chance"], resampled[f"{name}_by_chance"] = by_chance, by_chance[:0]
    names = (*bins_by_kind["width"].names, MEAN)
    labels = (~np.isnan(trial.observed)).sum(axis=0).tolist()
    return Reliability(
        len(trial),
        dict(zip(names, [*labels, sum(labels), sum(labels)], strict=True)),
        _estimate_columns(names, point, resampled),
        {
            kind: _make_diagram(b, b.sums(whole), resampled[_OBSERVED + kind])
            for kind, b in bins_by_kind.items()
        },
        resamples,
        seed,
    )


def _judge(trial: Trial, bins_by_kind: Mapping[BinKind, Bins], weights: Weights) -> _Table:
    """All numbers by name, with columns for the targets, all together, and the mean over targets.

    Further entries give the share of right answers in each bin of each kind.
    """
    sums = {kind: bins.sums(weights) for kind, bins in bins_by_kind.items()}
    wide, clean = sums["width"], bins_by_kind["width"].sums(weights, noise="all")
    table = {
        "ece": calibration_error(wide),
        "ece_equal_mass": calibration_error(sums["mass"]),
        "bias": bias(wide),
        **decomposition(wide),
        "reliability_beyond_chance": decomposition(clean)["reliability"],
        "log_loss": log_loss(trial, weights),
    }
    observed = {_OBSERVED + kind: each.observed for kind, each in sums.items()}
    return {**{what: _append_mean(values) for what, values in table.items()}, **observed}


def _append_mean(
    values: Float[NDArray[np.float64], "resample column"],
) -> Float[NDArray[np.float64], "resample _"]:
    mean: PerResample = macro_mean(values[:, :-1])
    return np.concatenate([values, mean[:, None]], axis=1)


def _estimate_columns(
    names: tuple[str, ...], point: _Table, resampled: _Table
) -> dict[str, dict[str, Estimate]]:
    numbers = [what for what in point if not what.startswith(_OBSERVED)]
    result = {}
    for k, name in enumerate(names):
        tables = (point, resampled)
        here, there = ({what: table[what][:, k] for what in numbers} for table in tables)
        row = estimates(here, there, "it has no labels")
        for what in ("ece", "ece_equal_mass"):
            row = with_chance(row, what, f"{what}_by_chance")
        result[name] = row
    return result


def _make_diagram(bins: Bins, at: BinSums, resampled: NDArray[np.float64]) -> Diagram:
    lower, upper = np.full((2, len(bins.names), bins.count), np.nan)
    tail = 50 * (1 - LEVEL)
    for k, b in np.argwhere(at.weight[0] > 0).tolist():
        shares = resampled[~np.isnan(resampled[:, k, b]), k, b]
        if len(shares):
            lower[k, b], upper[k, b] = np.percentile(shares, [tail, 100 - tail])
    return Diagram(bins, at.weight[0], at.predicted[0], at.observed[0], lower, upper)


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
    _check_parts(calibration, judged)
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

    def score_all(weights: Weights) -> Numbers:
        return {
            (place, name): value
            for place, scorer in enumerate(scorers)
            for name, value in _list_numbers(scorer.score(weights)).items()
        }

    point = score_all(ones(len(judged)))
    width = scorers[0].bins.width
    draws = Bootstrap(len(judged), resamples, seed, width, judged.conversations)
    resampled = draws.resample(score_all, point, progress, "calibrators")
    values = estimates(point, resampled, _WHY)
    differences = estimates(_subtract_baseline(point), _subtract_baseline(resampled), _WHY)
    return tuple(
        CalibratorComparison(
            kind,
            fit,
            with_chance({name: values[place, name] for name in NUMBERS}, "ece"),
            {name: differences[place, name] for name in NUMBERS},
        )
        for place, (kind, fit) in enumerate(zip(kinds, fits, strict=True), 1)
    )


def _check_parts(calibration: Trial, judged: Trial) -> None:
    """Refuse parts with queries in common or other targets."""
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


def _list_numbers(scores: Scores) -> dict[str, PerResample]:
    trial = scores.trial
    label = trial.of_choice(trial.correct, trial.most_probable)
    return {
        "ece": scores.headline["ece_mean"],
        **{name: scores.headline[name] for name in ("ece_by_chance", "brier_mean", "auc_mean")},
        "log_loss": macro_mean(log_loss(trial, scores.weights)[:, :-1]),
        "argmax_accuracy": mean_over(scores.weights, label),
    }


def _subtract_baseline(numbers: Numbers) -> dict[tuple[int, str], NDArray[np.float64]]:
    """The numbers minus those without calibration."""
    return {key: value - numbers[0, key[1]] for key, value in numbers.items()}
