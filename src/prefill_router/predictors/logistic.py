"""L2-regularised logistic regression, one per target.

How strongly it is regularised, and whether each feature is scaled to spread 1 or all by one factor,
is chosen by cross-validation on the train rows. One factor is right for principal components, whose
own spreads say how much they can be trusted; one each is right for features of different units.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.special import expit, logit

from prefill_router.errors import ConfigError
from prefill_router.predictors.base import (
    Correctness,
    Features,
    Predictor,
    Tensors,
    check_features,
    take_tensors,
)
from prefill_router.predictors.fitted import Examples, PredictorConfig, PredictorFit
from prefill_router.predictors.registry import Entry
from prefill_router.predictors.rows import left_out_note, usable_rows
from prefill_router.predictors.saving import Saved, read_saved
from prefill_router.predictors.strength import (
    Scaler,
    Scaling,
    Trial,
    cross_validate,
)
from prefill_router.probes import Probes
from prefill_router.progress import Progress

Choice = Literal["each", "common", "choose"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)


@final
@dataclass(frozen=True, eq=False)
class Logistic(Predictor):
    """The sigmoid of a weighted sum of scaled features.

    Attributes:
        names: The targets' names.
        scaler: What is taken off the features, and what they are divided by.
        weights: Of the scaled features; 0 for a target that can't be learned.
        intercepts: The logit of the base rate for a target that can't be learned.
    """

    kind: ClassVar[str] = "logistic"
    names: tuple[str, ...]
    scaler: Scaler
    weights: Float32[NDArray[np.float32], "feature target"]
    intercepts: Float32[NDArray[np.float32], " target"]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return len(self.weights)

    def correctness(self, features: Features) -> Correctness:
        """The probabilities by the regressions."""
        check_features(features, width=self.width)
        logits = self.scaler.scaled(features) @ self.weights.astype(np.float64) + self.intercepts
        probability: Correctness = expit(logits)
        return probability

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "targets": list(self.names), "width": self.width}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`mean` and `scale` of the features, `weights` and `intercepts`."""
        return {
            "mean": self.scaler.mean,
            "scale": self.scaler.scale,
            "weights": self.weights,
            "intercepts": self.intercepts,
        }

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Logistic":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = read_saved(Saved, config, kind=cls.kind)
        width, count = saved.width, len(saved.targets)
        shapes = {"mean": (width,), "scale": (width,), "weights": (width, count)}
        mean, scale, weights, intercepts = take_tensors(tensors, shapes | {"intercepts": (count,)})
        return cls(tuple(saved.targets), Scaler.saved(mean, scale), weights, intercepts)


@final
@dataclass(frozen=True, kw_only=True)
class LogisticConfig(PredictorConfig):
    """Options of the regressions.

    Attributes:
        c: The inverse of the regularisation's strength, as in scikit-learn; None to choose it.
        grid: What it is chosen from, rising. Stronger ones are tried first, and weaker ones no more
            once the loss has risen twice.
        scaling: Whether each feature is scaled to spread 1, all by one factor, or as is best.
        folds: Of the cross-validation that chooses.
    """

    c: float | None = None
    grid: tuple[float, ...] = GRID
    scaling: Choice = "choose"
    folds: int = 5

    def __post_init__(self) -> None:
        for value in (*self.grid, *(() if self.c is None else (self.c,))):
            if not 0 < value < math.inf:
                raise ConfigError(f"c is {value}; it must be positive and finite")
        if not self.grid or list(self.grid) != sorted(set(self.grid)):
            raise ConfigError(f"grid is {self.grid}; name at least one value, in rising order")
        if self.scaling not in CHOICES:
            raise ConfigError(f"scaling is {self.scaling!r}; it must be one of {list(CHOICES)}")
        if self.folds < 2:
            raise ConfigError(f"folds is {self.folds}; it must be at least 2")

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Choose the strength and the scaling, then fit to all train rows."""
        used = usable_rows(examples)
        scalings: tuple[Scaling, ...] = (
            ("each", "common") if self.scaling == "choose" else (self.scaling,)
        )
        trials = (
            (Trial(scalings[0], self.c, math.nan),)
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
        predictor = _fitted(examples, used, best)
        notes = (*examples.target_notes(), *left_out_note(examples, len(used.features)))
        return PredictorFit(predictor, notes, _record(best, trials))


def _fitted(examples: Examples, used: Examples, best: Trial) -> Logistic:
    scaler = Scaler.fit(used.features, best.scaling)
    correct = np.where(examples.learnable, used.correct, np.nan)
    probes = Probes.fit(scaler.scaled(used.features), correct, c=best.c, soft=True)
    learned = ~np.isnan(probes.intercepts)
    intercepts = np.where(learned, probes.intercepts, logit(examples.base_rates))
    return Logistic(
        examples.targets,
        scaler,
        np.where(learned, probes.weights, 0).astype(np.float32),
        intercepts.astype(np.float32),
    )


def _record(best: Trial, trials: tuple[Trial, ...]) -> dict[str, Any]:
    known = [
        {"scaling": trial.scaling, "c": trial.c, "loss": trial.loss}
        for trial in trials
        if math.isfinite(trial.loss)
    ]
    return {"scaling": best.scaling, "c": best.c, "cross_validation": known}


ENTRY = Entry(
    LogisticConfig, Logistic, "Logistic regression", "section 3.2 of the paper, per-model LR"
)
