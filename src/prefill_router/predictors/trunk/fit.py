"""Fits a SharedTrunkNet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray
from scipy.special import logit

from prefill_router.errors import FitError
from prefill_router.predictors.base import Features
from prefill_router.predictors.trunk.config import TrunkConfig
from prefill_router.predictors.trunk.curves import TrainingCurves, losses_table
from prefill_router.predictors.trunk.holdout import Holdout, hold_out
from prefill_router.predictors.trunk.network import SharedTrunkNet
from prefill_router.progress import Progress, SilentProgress

Labels = Float64[NDArray[np.float64], "query target"]
PerTarget = Float64[NDArray[np.float64], " target"]


@final
@dataclass(frozen=True, eq=False)
class TrunkFit:
    """A fitted trunk and how it came about.

    Attributes:
        predictor: The ensemble.
        curves: The losses of all seeds.
        notes: What the reader should know, such as targets that couldn't be learned.
    """

    predictor: SharedTrunkNet
    curves: TrainingCurves
    notes: tuple[str, ...]


def fit_trunk(
    features: Features,
    correct: Labels,
    targets: Sequence[str],
    *,
    config: TrunkConfig | None = None,
    progress: Progress | None = None,
) -> TrunkFit:
    """Fit a SharedTrunkNet on the train part.

    Rows without a label are left out. A target whose labels are all the same, or all missing, can't
    be learned: it gets a constant probability (see `_constants`), and a note says so.

    Args:
        features: Of the training queries (Equation 3).
        correct: Their labels in [0, 1], NaN where missing; soft labels train as they are.
        targets: The targets' names.
        config: The options; the authors' defaults if not given.
        progress: Told of every epoch.

    Raises:
        FitError: There is nothing to learn from, a feature isn't finite, a label is outside [0, 1],
            or the losses grew beyond all bounds.
    """
    config = config or TrunkConfig()
    _check(features, correct, targets)
    learned = _learnable(correct)
    present = ~np.isnan(correct) & learned
    rows = np.asarray(present.any(axis=1))
    parts = hold_out(features[rows], share=config.validation, seed=config.seed)
    curves, weights, biases = _train(
        features[rows], correct[rows], present[rows], parts, config, progress or SilentProgress()
    )
    _set_constants(weights[-1], biases[-1], learned, _constants(correct))
    predictor = SharedTrunkNet(tuple(targets), tuple(weights), tuple(biases))
    notes = (*_target_notes(correct, targets), *_row_notes(rows, parts))
    return TrunkFit(predictor, curves, notes)


def _check(features: Features, correct: Labels, targets: Sequence[str]) -> None:
    if correct.shape != (len(features), len(targets)):
        raise FitError(
            f"the labels are {correct.shape} for {len(features)} rows of features and "
            f"{len(targets)} targets; give one row per query and one column per target"
        )
    if len(set(targets)) < len(targets) or not targets:
        raise FitError(f"the targets are {list(targets)}; name at least one, and each once")
    if not features.shape[1]:
        raise FitError("the features have no columns; choose at least one layer")
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise FitError(
            f"{len(bad)} rows of features aren't finite, the first is row {bad[0]}; "
            "check the encoder's states of these queries"
        )
    outside = ~np.isnan(correct) & ~((correct >= 0) & (correct <= 1))
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise FitError(
            f"the label of {targets[column]!r} in row {row} is {correct[row, column]}; "
            "labels are in [0, 1], or NaN where missing"
        )
    if not _learnable(correct).any():
        raise FitError(
            "no target has two different labels, so there is nothing to learn; "
            "add queries that a target answers correctly and queries that it doesn't"
        )


def _learnable(correct: Labels) -> Bool[NDArray[np.bool_], " target"]:
    """Whether a target has at least two different labels."""
    missing = np.isnan(correct)
    low = np.where(missing, np.inf, correct).min(axis=0, initial=np.inf)
    high = np.where(missing, -np.inf, correct).max(axis=0, initial=-np.inf)
    return np.asarray(low < high)


def _constants(correct: Labels) -> PerTarget:
    """The base rate of each target by the rule of succession, (sum + 1) / (count + 2).

    For a target without labels it is that of all labels together.
    """
    count = (~np.isnan(correct)).sum(axis=0)
    total = np.nansum(correct, axis=0)
    nothing = count == 0
    count, total = np.where(nothing, count.sum(), count), np.where(nothing, total.sum(), total)
    return np.asarray((total + 1) / (count + 2))


def _train(
    features: Features,
    correct: Labels,
    present: Bool[NDArray[np.bool_], "query target"],
    parts: Holdout,
    config: TrunkConfig,
    progress: Progress,
) -> tuple[TrainingCurves, list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """The curves of all seeds, and the stacked weights and biases of the best."""
    import torch  # only fitting needs it, and using a router shouldn't wait for it

    from prefill_router.predictors.trunk.training import Examples, train

    examples = Examples(
        torch.from_numpy(features),
        torch.from_numpy(np.where(present, correct, 0).astype(np.float32)),
        torch.from_numpy(present.astype(np.float32)),
    )
    runs = train(examples, parts, config, seeds=list(range(config.seeds)), progress=progress)
    best = np.array([run.best for run in runs])
    if not np.isfinite(best).all():
        raise FitError(
            "the losses aren't finite; the features are up to "
            f"{np.abs(features).max():.3g}, scale them to about 1"
        )
    kept = np.sort(np.argsort(best, kind="stable")[: config.keep])
    curves = TrainingCurves(
        losses_table([run.train for run in runs]),
        losses_table([run.validation for run in runs]),
        np.array([run.best_epoch for run in runs]),
        np.isin(np.arange(len(runs)), kept),
    )
    chosen = [runs[i] for i in kept]
    weights = [np.stack(layer) for layer in zip(*(run.weights for run in chosen), strict=True)]
    biases = [np.stack(layer) for layer in zip(*(run.biases for run in chosen), strict=True)]
    return curves, weights, biases


def _set_constants(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    learned: Bool[NDArray[np.bool_], " target"],
    constants: PerTarget,
) -> None:
    """Give the targets that weren't learned a constant probability."""
    weight[:, :, ~learned] = 0
    bias[:, ~learned] = logit(constants[~learned])


def _target_notes(correct: Labels, targets: Sequence[str]) -> list[str]:
    notes = []
    learned, constants = _learnable(correct), _constants(correct)
    for i in np.flatnonzero(~learned).tolist():
        count = int((~np.isnan(correct[:, i])).sum())
        why = f"all its {count} training labels are the same" if count else "it has no labels"
        notes.append(f"{targets[i]} can't be learned: {why}; it is given {constants[i]:.3f}")
    return notes


def _row_notes(rows: Bool[NDArray[np.bool_], " query"], parts: Holdout) -> list[str]:
    notes = []
    if not rows.all():
        notes.append(f"{int((~rows).sum())} queries without a usable label were left out")
    if parts.shared:
        notes.append("all training queries have the same features; they were validated on too")
    return notes
