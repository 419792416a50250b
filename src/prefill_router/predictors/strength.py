"""Chooses how strongly logistic regressions are regularised, by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float32, Float64, Int
from numpy.typing import NDArray

from prefill_router.errors import CorruptError, FitError
from prefill_router.predictors.base import Features
from prefill_router.predictors.fitted import Examples
from prefill_router.probes import Probes
from prefill_router.progress import Progress, SilentProgress

Scaling = Literal["each", "common"]
_CONSTANT = 1e-12
"""A spread below this share of the mean is rounding: float32 features can't vary by so little."""
_TOLERANCE = 1e-6
"""Of a regression's loss per query; choosing doesn't see what lies below."""
_FARTHEST = 1e9
"""From the mean, in spreads; a fold's own may be nothing beside that of the rows held out."""
_RISES = 2


@final
@dataclass(frozen=True, eq=False)
class Scaler:
    """Features made comparable.

    Attributes:
        mean: The train rows' mean.
        scale: What they are then divided by, positive.
    """

    mean: Float32[NDArray[np.float32], " feature"]
    scale: Float32[NDArray[np.float32], " feature"]

    @classmethod
    def fit(cls, features: Features, scaling: Scaling) -> "Scaler":
        """To spread 1 each, or by one factor; constant features become 0 or stay nearly so."""
        mean = features.mean(axis=0, dtype=np.float64)
        spread = features.std(axis=0, dtype=np.float64)
        least = float(np.finfo(np.float32).tiny)
        varies = spread > np.maximum(_CONSTANT * np.abs(mean), least)
        if scaling == "common" and varies.any():
            spread = np.full_like(spread, np.sqrt((spread[varies] ** 2).mean()))
        else:
            spread = np.where(varies, spread, 1.0)
        return cls(mean.astype(np.float32), spread.astype(np.float32))

    def scaled(self, features: Features) -> Float64[NDArray[np.float64], "query feature"]:
        """The features less the mean, divided by the scale."""
        return np.asarray((features.astype(np.float64) - self.mean) / self.scale)

    @classmethod
    def saved(cls, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> "Scaler":
        """The scaler of these arrays.

        Raises:
            CorruptError: A scale isn't positive.
        """
        if not (scale > 0).all():
            raise CorruptError(
                f"the predictor's scales are from {scale.min()}; they must be positive; "
                "copy or make the router again"
            )
        return cls(mean, scale)


@final
@dataclass(frozen=True)
class Trial:
    """One choice and what it was worth.

    Attributes:
        scaling: Of the features.
        c: The inverse of the regularisation's strength.
        loss: The mean cross-entropy of the labels held out, in nats.
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
) -> tuple[Trial, ...]:
    """Try every scaling with every strength, from the strongest on, until the loss keeps rising.

    Args:
        rows: The train rows.
        scalings: To try.
        grid: Values of c to try, rising.
        folds: How many; fewer where there are fewer distinct rows.
        seed: Another seed, other folds.
        progress: Told of every strength.

    Returns:
        The trials; a strength at which a regression didn't converge has an infinite loss. Of
        features that are all the same there is one, of the strongest.
    """
    fold_of = _folds(rows.features, folds, seed)
    if not fold_of.any():
        return (Trial(scalings[0], grid[0], float("nan")),)
    total = len(scalings) * len(grid)
    trials: list[Trial] = []
    with (progress or SilentProgress()).task("cross-validation", total=total) as advance:
        for scaling in scalings:
            parts = [_Part.of(rows, fold_of == fold, scaling) for fold in range(fold_of.max() + 1)]
            losses: list[float] = []
            for c in grid:
                losses.append(_loss(parts, c))
                advance()
                if _keeps_rising(losses):
                    break
            trials += [Trial(scaling, c, loss) for c, loss in zip(grid, losses, strict=False)]
            advance(len(grid) - len(losses))
    return tuple(trials)


def _folds(features: Features, folds: int, seed: int) -> Int[NDArray[np.int64], " row"]:
    """The fold of each row; rows with equal features share one."""
    numbers: dict[bytes, int] = {}
    group = [numbers.setdefault(row.tobytes(), len(numbers)) for row in features]
    count = min(folds, len(numbers))
    return np.random.default_rng(seed).permutation(len(numbers))[group] % count


def _keeps_rising(losses: list[float]) -> bool:
    last = losses[-_RISES - 1 :]
    return len(last) > _RISES and last == sorted(last) and last[0] < last[-1]


@final
@dataclass(eq=False)
class _Part:
    """One fold: what is fitted on, what is held out, and the last regressions, to start from."""

    inputs: NDArray[np.float32]
    correct: NDArray[np.float64]
    held_inputs: NDArray[np.float32]
    held: NDArray[np.float64]
    probes: Probes | None = None

    @classmethod
    def of(cls, rows: Examples, held: NDArray[np.bool_], scaling: Scaling) -> "_Part":
        scaler = Scaler.fit(rows.features[~held], scaling)
        scaled = np.clip(scaler.scaled(rows.features), -_FARTHEST, _FARTHEST).astype(np.float32)
        return cls(scaled[~held], rows.correct[~held], scaled[held], rows.correct[held])

    def loss(self, c: float) -> tuple[float, int]:
        """The summed cross-entropy of the labels held out, and how many they are."""
        self.probes = Probes.fit(
            self.inputs, self.correct, c=c, tolerance=_TOLERANCE, start=self.probes, soft=True
        )
        logits = self.probes.scores(self.held_inputs).astype(np.float64)
        known = ~np.isnan(self.held) & ~np.isnan(logits)
        each = np.logaddexp(0, logits[known]) - self.held[known] * logits[known]
        return float(each.sum()), int(known.sum())


def _loss(parts: Sequence[_Part], c: float) -> float:
    try:
        found = [part.loss(c) for part in parts]
    except FitError:
        return float("inf")
    count = sum(known for _, known in found)
    return sum(loss for loss, _ in found) / count if count else float("inf")
