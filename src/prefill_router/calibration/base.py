"""What every calibrator is: each target's predictions, mapped by a curve that never falls."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.predictors import Correctness
from prefill_router.serialization import Names, Part
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_odds

Scores = Float64[NDArray[np.float64], " query"]
LEAST = 10
"""With fewer labels a target's predictions are left as they are."""
_EDGE = 1e-6
"""Probabilities nearer to 0 or 1 count as this near, so that every logit is finite."""


@dataclass(frozen=True, eq=False)
class Calibrator(Part, ABC):
    """A fitted, frozen map of each target's predictions.

    A target's map sees its own predictions alone and never falls: a higher prediction never becomes
    a lower one, so which queries suit a target better is told as before, ties apart.

    Attributes:
        targets: The targets' names, in the order of the columns.
    """

    noun: ClassVar[str] = "calibrator"
    axes: ClassVar[Mapping[str, str]] = {"target": "targets"}
    label: ClassVar[str]
    """What tables call it."""
    source: ClassVar[str]
    """Where it is described."""
    probabilistic: ClassVar[bool]
    """Whether what it gives is meant as a probability, and not only to compare targets by."""

    targets: Names

    @classmethod
    @abstractmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> "CalibratorFit":
        """Fit on the calibration part; use `fit_calibrator`, which checks what it is given.

        Args:
            correctness: Predictions of at least `LEAST` queries.
            correct: Labels in [0, 1], NaN where missing; soft ones as they are.
            targets: The targets' names.
        """

    def calibrate(self, correctness: Correctness) -> Correctness:
        """The calibrated predictions, in [0, 1].

        Args:
            correctness: A predictor's probabilities, one column per target.

        Raises:
            ConfigError: The number of columns is another one, or a number isn't in [0, 1].
        """
        if correctness.shape[1] != len(self.targets):
            raise ConfigError(
                f"the predictions have {correctness.shape[1]} columns; the calibrator was fitted "
                f"on the {len(self.targets)} targets {list(self.targets)}; give it all of them"
            )
        if not ((correctness >= 0) & (correctness <= 1)).all():
            raise ConfigError(
                "the predictions must be probabilities in [0, 1]; check the predictor"
            )
        return self._map(correctness)

    def __call__(self, correctness: Correctness) -> Correctness:
        """The same as `calibrate`."""
        return self.calibrate(correctness)

    @abstractmethod
    def _map(self, correctness: Correctness) -> Correctness:
        """What `calibrate` gives, of predictions that were checked."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class CalibratorFit:
    """A fitted calibrator and what there is to say of it.

    Attributes:
        calibrator: It.
        notes: What the reader should know, such as targets that couldn't be calibrated.
    """

    calibrator: Calibrator
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Labelled:
    """One target's labelled predictions, in an order that doesn't depend on that of the rows.

    Attributes:
        scores: Predictions, rising, rounded as they are when the calibrator is used.
        labels: What happened.
    """

    scores: Scores
    labels: Scores

    @classmethod
    def of(cls, scores: Scores, labels: Scores) -> "Labelled":
        """Leave out the missing labels."""
        known = ~np.isnan(labels)
        scores, labels = rounded(scores[known]), labels[known]
        order = np.lexsort((labels, scores))
        return cls(scores[order], labels[order])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def rate(self) -> float:
        """The share of right answers by the rule of succession, (sum + 1) / (n + 2)."""
        return float((self.labels.sum() + 1) / (len(self) + 2))

    @property
    def uniform(self) -> bool:
        """Whether all labels are the same."""
        return not len(self) or bool(self.labels.min() == self.labels.max())

    @property
    def enough(self) -> bool:
        """Whether there are enough labels to say anything."""
        return len(self) >= LEAST

    def note(self) -> str:
        """Why a curve can't be fitted, and what stands in for it; empty where it can."""
        if not self.enough:
            return (
                f"it has {len(self)} calibration labels and needs {LEAST}, so its predictions are "
                "left as they are"
            )
        if self.uniform:
            return (
                f"all its {len(self)} calibration labels are the same; it is given {self.rate:.3f}"
            )
        return ""


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to single precision, as a calibrator's arrays are, so that equal stays equal."""
    return values.astype(np.float32).astype(np.float64)


def logits(correctness: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln(p / (1 - p)), finite: p is kept a millionth away from 0 and 1."""
    return log_odds(np.asarray(np.clip(rounded(correctness), _EDGE, 1 - _EDGE)))
