"""The interface of calibrators: a non-decreasing map of each target's predictions."""

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
"""The fewest labels of a target with which its predictions are calibrated."""
_EDGE = 1e-6
"""Probabilities are clipped to this distance from 0 and 1, so that every logit is finite."""


@dataclass(frozen=True, eq=False)
class Calibrator(Part, ABC):
    """A fitted, frozen map of each target's predictions.

    A target's map depends on its own predictions alone and is non-decreasing: it keeps the order of
    a target's queries, except for ties.

    Attributes:
        targets: The targets' names, in the order of the columns.
    """

    noun: ClassVar[str] = "calibrator"
    axes: ClassVar[Mapping[str, str]] = {"target": "targets"}
    label: ClassVar[str]
    """The name in tables."""
    source: ClassVar[str]
    """The publication that describes it."""
    probabilistic: ClassVar[bool]
    """Whether its output is meant as a probability, and not only to compare targets."""

    targets: Names

    @classmethod
    @abstractmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> "CalibratorFit":
        """Fit on the calibration part; use `fit_calibrator`, which checks the arguments.

        Args:
            correctness: Predictions for at least `LEAST` queries.
            correct: Labels in [0, 1], NaN where missing; soft ones as they are.
            targets: The targets' names.
        """

    def calibrate(self, correctness: Correctness) -> Correctness:
        """The calibrated predictions, in [0, 1].

        Args:
            correctness: A predictor's probabilities, one column per target.

        Raises:
            ConfigError: The number of columns differs, or a number isn't in [0, 1].
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
        """The calibrated values of predictions that were checked."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class CalibratorFit:
    """A fitted calibrator, with notes on the fit.

    Attributes:
        calibrator: The fitted calibrator.
        notes: Notes for the user, such as which targets couldn't be calibrated.
    """

    calibrator: Calibrator
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Labelled:
    """One target's labelled predictions, sorted, so that the order of the rows doesn't matter.

    Attributes:
        scores: Predictions, ascending, rounded as they are when the calibrator is used.
        labels: The labels of these predictions.
    """

    scores: Scores
    labels: Scores

    @classmethod
    def of(cls, scores: Scores, labels: Scores) -> "Labelled":
        """Leave out the missing labels."""
        has_label = ~np.isnan(labels)
        scores, labels = round_to_single(scores[has_label]), labels[has_label]
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
        """Whether there are enough labels to fit a map."""
        return len(self) >= LEAST

    def note(self) -> str:
        """Why a curve can't be fitted, and what is used instead; empty where it can."""
        if not self.enough:
            return (
                f"it has {len(self)} calibration labels and needs {LEAST}, so its predictions are "
                "left as they are"
            )
        if self.uniform:
            return (
                f"all its {len(self)} calibration labels are the same; its predictions become "
                f"{self.rate:.3f}"
            )
        return ""


def round_to_single(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to single precision, like a calibrator's arrays, so that equal values stay equal."""
    return values.astype(np.float32).astype(np.float64)


def logits(correctness: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln(p / (1 - p)), finite, since p is clipped to 1e-6 from 0 and 1."""
    return log_odds(np.asarray(np.clip(round_to_single(correctness), _EDGE, 1 - _EDGE)))
