"""Fits a SharedTrunkNet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.errors import FitError
from prefill_router.predictors.base import Features
from prefill_router.predictors.fitted import Examples, Labels
from prefill_router.predictors.trunk.config import TrunkConfig
from prefill_router.predictors.trunk.curves import TrainingCurves, losses_table
from prefill_router.predictors.trunk.holdout import Holdout, hold_out
from prefill_router.predictors.trunk.network import SharedTrunkNet
from prefill_router.predictors.weights import query_weights
from prefill_router.progress import Progress, SilentProgress

PerTarget = Float64[NDArray[np.float64], " target"]


@brief
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
    be learned: it gets a constant probability (`Examples.base_rates`), and a note says so.

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
    examples = Examples(features, correct, tuple(targets), ("",) * len(features))
    learned = examples.learnable
    present = ~np.isnan(correct) & learned
    rows = np.asarray(present.any(axis=1))
    weights = query_weights(correct[rows], disagreement_weight=config.disagreement_weight)
    counts = present[rows] * weights[:, None]
    parts = hold_out(features[rows], share=config.validation, seed=config.seed)
    curves, layers, biases = _train(
        features[rows], correct[rows], counts, parts, config, progress or SilentProgress()
    )
    _set_constants(layers[-1], biases[-1], learned, examples.base_rates)
    predictor = SharedTrunkNet(tuple(targets), tuple(layers), tuple(biases))
    notes = (*examples.target_notes(), *_row_notes(rows, parts))
    return TrunkFit(predictor, curves, notes)


def _train(
    features: Features,
    correct: Labels,
    counts: Float64[NDArray[np.float64], "query target"],
    parts: Holdout,
    config: TrunkConfig,
    progress: Progress,
) -> tuple[TrainingCurves, list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """The curves of all seeds, and the stacked weights and biases of the best."""
    import torch  # only fitting needs it, and using a router shouldn't wait for it

    from prefill_router.predictors.trunk.training import Examples, train

    examples = Examples(
        torch.from_numpy(features),
        torch.from_numpy(np.where(counts > 0, correct, 0).astype(np.float32)),
        torch.from_numpy(counts.astype(np.float32)),
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
    from scipy.special import logit

    weight[:, :, ~learned] = 0
    bias[:, ~learned] = logit(constants[~learned])


def _row_notes(rows: Bool[NDArray[np.bool_], " query"], parts: Holdout) -> list[str]:
    notes = []
    if not rows.all():
        notes.append(f"{int((~rows).sum())} queries without a usable label were left out")
    if parts.shared:
        notes.append("all training queries have the same features; they were validated on too")
    return notes
