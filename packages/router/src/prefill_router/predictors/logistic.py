"""L2-regularised logistic regression, one per target.

The strength of the regularisation, and whether features are scaled to unit variance each or by one
common factor, is chosen by cross-validation on the train rows. A common factor suits principal
components, whose variances show how reliable they are; a factor each suits features with different
units.

From votes between two targets the same regression learns differences of scores (`bradley_terry`).
A score is then the log-odds of winning against the average target.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit, logit

from prefill_router.errors import ConfigError, FitError
from prefill_router.options import Positive, Several
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
    left_out_note,
    usable_rows,
)
from prefill_router.predictors.bradley_terry import PairScores, Votes, fit_scores, unvoted_notes
from prefill_router.predictors.training import draw_folds
from prefill_router.probes import Probes
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Part
from prefill_router.statistics import column_spread, cross_entropy, row_blocks

Scaling = Literal["each", "common"]
_CONSTANT = 1e-12
"""A standard deviation below this share of the mean is rounding error in float32 features."""
_TOLERANCE = 1e-6
"""Tolerance of a regression's loss per query; smaller differences don't affect the choice."""
_FARTHEST = 1e9
"""The clipping limit in standard deviations, since a feature can be almost constant in a fold."""
_RISES = 2
_NO_FEATURES = 1e-9
"""The c at which votes give the targets' strengths alone."""
_NOTHING_LEARNED = (
    "nothing was learned about which target suits a prompt better, so the strongest target is "
    "always chosen; more votes may change that"
)


@final
@dataclass(frozen=True, eq=False)
class FeatureScaler(Part):
    """A frozen scaler of features.

    Attributes:
        mean: The train rows' mean.
        scale: The positive divisor of each centred feature.
    """

    mean: Float32[NDArray[np.float32], " feature"]
    scale: Annotated[Float32[NDArray[np.float32], " feature"], Field(gt=0, title="scales")]

    @classmethod
    def fit(cls, features: Features, scaling: Scaling) -> "FeatureScaler":
        """Fit to unit variance each, or by a common factor; constant features become nearly 0."""
        mean, spread, varies = column_spread(features, rounding=_CONSTANT)
        if scaling == "common" and varies.any():
            spread = np.full_like(spread, np.sqrt((spread[varies] ** 2).mean()))
        else:
            spread = np.where(varies, spread, 1.0)
        return cls(mean.astype(np.float32), spread.astype(np.float32))

    def scale_features(self, features: Features) -> Float64[NDArray[np.float64], "query feature"]:
        """The features minus the mean, divided by the scale."""
        return np.asarray((features.astype(np.float64) - self.mean) / self.scale)


@final
@dataclass(frozen=True)
class RegularisationTrial:
    """One combination of options and its cross-validated loss.

    Attributes:
        scaling: The scaling of the features.
        c: The inverse of the regularisation's strength.
        loss: The mean cross-entropy of the held-out labels, in nats.
    """

    scaling: Scaling
    c: float
    loss: float


def cross_validate(
    rows: Examples,
    *,
    scalings: Sequence[Scaling],
    grid: Sequence[float],
    folds: int,
    seed: int,
    progress: Progress | None = None,
) -> tuple[RegularisationTrial, ...]:
    """Try every scaling with every strength, strongest first, until the loss keeps rising.

    Args:
        rows: The train rows.
        scalings: The scalings to try.
        grid: Values of c to try, ascending.
        folds: The number of folds; fewer where there are fewer distinct rows.
        seed: The seed of the folds.
        progress: Shows the number of strengths done.

    Returns:
        The trials; a strength at which a regression didn't converge has an infinite loss. If all
        features are constant there is one trial, with the strongest.
    """
    fold_of = draw_folds(rows.features, count=folds, seed=seed)
    if not fold_of.any():
        return (RegularisationTrial(scalings[0], grid[0], float("nan")),)
    total = len(scalings) * len(grid)
    trials: list[RegularisationTrial] = []
    with (progress or SilentProgress()).task("cross-validation", total=total) as advance:
        for scaling in scalings:
            parts = [
                _FoldProbes.of(rows, fold_of == fold, scaling) for fold in range(fold_of.max() + 1)
            ]
            losses: list[float] = []
            for c in grid:
                losses.append(_total_loss(parts, c))
                advance()
                if _keeps_rising(losses):
                    break
            trials += [
                RegularisationTrial(scaling, c, loss) for c, loss in zip(grid, losses, strict=False)
            ]
            advance(len(grid) - len(losses))
    return tuple(trials)


def _keeps_rising(losses: list[float]) -> bool:
    last = losses[-_RISES - 1 :]
    return len(last) > _RISES and last == sorted(last) and last[0] < last[-1]


@final
@dataclass(eq=False)
class _FoldProbes:
    """One fold: its train rows, its held-out rows, and the last regressions as a warm start."""

    inputs: NDArray[np.float32]
    correct: NDArray[np.float64]
    held_inputs: NDArray[np.float32]
    held_correct: NDArray[np.float64]
    probes: Probes | None = None

    @classmethod
    def of(cls, rows: Examples, is_held: NDArray[np.bool_], scaling: Scaling) -> "_FoldProbes":
        scaler = FeatureScaler.fit(rows.features[~is_held], scaling)
        scaled = np.empty_like(rows.features)
        for block in row_blocks(len(scaled)):
            scaled[block] = np.clip(
                scaler.scale_features(rows.features[block]), -_FARTHEST, _FARTHEST
            )
        return cls(scaled[~is_held], rows.correct[~is_held], scaled[is_held], rows.correct[is_held])

    def loss(self, c: float) -> tuple[float, int]:
        """The summed cross-entropy of the held-out labels, and their number."""
        self.probes = Probes.fit(
            self.inputs, self.correct, c=c, tolerance=_TOLERANCE, start=self.probes, soft=True
        )
        logits = self.probes.scores(self.held_inputs).astype(np.float64)
        is_known = ~np.isnan(self.held_correct) & ~np.isnan(logits)
        return float(cross_entropy(logits[is_known], self.held_correct[is_known]).sum()), int(
            is_known.sum()
        )


def _total_loss(parts: Sequence[_FoldProbes], c: float) -> float:
    try:
        losses = [part.loss(c) for part in parts]
    except FitError:
        return float("inf")
    count = sum(count for _, count in losses)
    return sum(loss for loss, _ in losses) / count if count else float("inf")


Choice = Literal["each", "common", "choose"]
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)


@final
@dataclass(frozen=True, eq=False)
class Logistic(Predictor):
    """The sigmoid of a weighted sum of scaled features.

    Attributes:
        scaler: The scaler of the features.
        weights: The weights of the scaled features; 0 for a target that can't be learned.
        intercepts: The intercepts; the logit of the base rate for a target that can't be learned.
    """

    kind: ClassVar[str] = "logistic"
    scaler: FeatureScaler
    weights: Float32[NDArray[np.float32], "feature target"]
    intercepts: Float32[NDArray[np.float32], " target"]

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return len(self.weights)

    def correctness(self, features: Features) -> Correctness:
        """The probabilities from the regressions."""
        check_features(features, width=self.width)
        logits, weights = np.empty((len(features), len(self.targets))), self.weights.astype(float)
        for block in row_blocks(len(features)):
            logits[block] = self.scaler.scale_features(features[block]) @ weights + self.intercepts
        probability: Correctness = expit(logits)
        return probability


@final
@dataclass(frozen=True, kw_only=True)
class LogisticConfig(PredictorConfig):
    """Options of the regressions.

    Attributes:
        c: The inverse of the regularisation's strength, as in scikit-learn; None to choose it.
        grid: The values of c to choose from, ascending. They are tried in this order until the loss
            has risen twice.
        scaling: Whether features are scaled to unit variance each, by a common factor, or by the
            better of both.
        folds: The number of folds of the cross-validation.
        votes: Whether the labels are votes, of two targets each, and a probability is the chance to
            win against the average target. Otherwise that of a correct answer.
    """

    c: Positive | None = None
    grid: tuple[Positive, ...] = GRID
    scaling: Choice = "choose"
    folds: Several = 5
    votes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.grid or list(self.grid) != sorted(set(self.grid)):
            raise ConfigError(f"grid is {self.grid}; give at least one value, in ascending order")

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Choose the strength and the scaling, then fit to all train rows."""
        used = usable_rows(examples)
        scalings: tuple[Scaling, ...] = (
            ("each", "common") if self.scaling == "choose" else (self.scaling,)
        )
        if self.votes:
            return self._fit_votes(examples, used, scalings, seed, progress or SilentProgress())
        trials = (
            (RegularisationTrial(scalings[0], self.c, math.nan),)
            if self.c is not None and len(scalings) == 1
            else cross_validate(
                used,
                scalings=scalings,
                grid=self.grid if self.c is None else (self.c,),
                folds=self.folds,
                seed=seed,
                progress=progress,
            )
        )
        best = min(trials, key=lambda trial: trial.loss)
        predictor = _fit_logistic(examples, used, best)
        notes = (*examples.target_notes(), *left_out_note(examples, len(used.features)))
        return PredictorFit(predictor, notes, _record_trials(best, trials))

    def _fit_votes(
        self,
        examples: Examples,
        used: Examples,
        scalings: tuple[Scaling, ...],
        seed: int,
        progress: Progress,
    ) -> PredictorFit:
        grid = (_NO_FEATURES, *self.grid) if self.c is None else (self.c,)
        fold_of = draw_folds(used.features, count=self.folds, seed=seed)
        trials = [RegularisationTrial(scalings[0], grid[0], math.nan)]
        if len(grid) * len(scalings) > 1 and fold_of.any():
            trials = _try_votes(used, fold_of, scalings, grid, progress)
        best = min(trials, key=lambda trial: trial.loss)
        scaler = FeatureScaler.fit(used.features, best.scaling)
        votes = Votes.of(used.correct)
        scores = fit_scores(votes, scaler.scale_features(used.features)[votes.row], c=best.c)
        predictor = Logistic(
            examples.targets,
            scaler,
            scores.weights.astype(np.float32),
            scores.strengths.astype(np.float32),
        )
        notes = (*unvoted_notes(votes, examples.targets), *left_out_note(examples, len(votes)))
        if best.c == _NO_FEATURES:
            notes = (*notes, _NOTHING_LEARNED)
        return PredictorFit(predictor, notes, _record_trials(best, tuple(trials)))


def _try_votes(
    used: Examples,
    fold_of: NDArray[np.int64],
    scalings: Sequence[Scaling],
    grid: Sequence[float],
    progress: Progress,
) -> list[RegularisationTrial]:
    """The cross-validated loss of every scaling with every strength, for votes."""
    votes, trials = Votes.of(used.correct), list[RegularisationTrial]()
    with progress.task("cross-validation", total=float(len(scalings) * len(grid))) as advance:
        for scaling in scalings:
            starts: dict[int, PairScores] = {}
            inputs = {}
            for fold in range(int(fold_of.max()) + 1):
                scaler = FeatureScaler.fit(used.features[fold_of != fold], scaling)
                scaled = np.clip(scaler.scale_features(used.features), -_FARTHEST, _FARTHEST)
                inputs[fold] = scaled[votes.row]
            losses = list[float]()
            for c in grid:
                total = 0.0
                for fold, rows in inputs.items():
                    is_held = fold_of[votes.row] == fold
                    scores = fit_scores(
                        *(votes[~is_held], rows[~is_held]),
                        c=c,
                        start=starts.get(fold),
                        tolerance=_TOLERANCE,
                    )
                    starts[fold] = scores
                    total += scores.loss(votes[is_held], rows[is_held])
                losses.append(total / max(1, len(votes)))
                advance()
                if _keeps_rising(losses):
                    break
            advance(len(grid) - len(losses))
            trials += [
                RegularisationTrial(scaling, c, loss) for c, loss in zip(grid, losses, strict=False)
            ]
    return trials


def _fit_logistic(examples: Examples, used: Examples, best: RegularisationTrial) -> Logistic:
    scaler = FeatureScaler.fit(used.features, best.scaling)
    correct = np.where(examples.learnable, used.correct, np.nan)
    probes = Probes.fit(scaler.scale_features(used.features), correct, c=best.c, soft=True)
    learned = ~np.isnan(probes.intercepts)
    intercepts = np.where(learned, probes.intercepts, logit(examples.base_rates))
    return Logistic(
        examples.targets,
        scaler,
        np.where(learned, probes.weights, 0).astype(np.float32),
        intercepts.astype(np.float32),
    )


def _record_trials(
    best: RegularisationTrial, trials: tuple[RegularisationTrial, ...]
) -> dict[str, Any]:
    finite = [
        {"scaling": trial.scaling, "c": trial.c, "loss": trial.loss}
        for trial in trials
        if math.isfinite(trial.loss)
    ]
    return {"scaling": best.scaling, "c": best.c, "cross_validation": finite}


ENTRY = PredictorEntry(
    LogisticConfig, Logistic, "Logistic regression", "section 3.2 of the paper, per-model LR"
)
