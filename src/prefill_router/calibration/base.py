"""What every calibrator is: each target's predictions, mapped by a curve that never falls.

Also what calibrators of all kinds have in common on disk, and the checks when it is read back.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors.base import Correctness, Tensors
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_odds

Scores = Float64[NDArray[np.float64], " query"]
LEAST = 10
"""With fewer labels a target's predictions are left as they are."""
_EDGE = 1e-6
"""Probabilities nearer to 0 or 1 count as this near, so that every logit is finite."""


class Calibrator(ABC):
    """A fitted, frozen map of each target's predictions.

    A target's map sees its own predictions alone and never falls: a higher prediction never becomes
    a lower one, so which queries suit a target better is told as before, ties apart.
    """

    kind: ClassVar[str]
    """What a saved calibrator is told by; see `load_calibrator`."""
    label: ClassVar[str]
    """What tables call it."""
    source: ClassVar[str]
    """Where it is described."""
    probabilistic: ClassVar[bool]
    """Whether what it gives is meant as a probability, and not only to compare targets by."""

    @property
    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the columns."""

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

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with its `kind`; together with `tensors` they are all of it."""

    @abstractmethod
    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, by names that are unique in it."""

    @classmethod
    @abstractmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Calibrator":
        """The calibrator of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """


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


_AGAIN = "copy or make the router again"


class SavedCalibrator(BaseModel):
    """What is saved of a calibrator beside its arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    targets: list[str]


class SavedCurves(SavedCalibrator):
    """The same of a calibrator made of knots."""

    knots: list[PositiveInt]


def check_saved(config: Mapping[str, Any], kind: str, *, curves: bool = False) -> SavedCalibrator:
    """The plain values of a calibrator of this kind.

    Args:
        config: What was read.
        kind: What it must be.
        curves: Whether it must be a `SavedCurves`.

    Raises:
        CorruptError: They are of another kind, incomplete, or contradict each other.
    """
    try:
        saved = (SavedCurves if curves else SavedCalibrator).model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"the calibrator's {place}: {first['msg']}; {_AGAIN}") from None
    if saved.kind != kind:
        raise CorruptError(f"the calibrator is of the kind {saved.kind!r}, not {kind!r}; {_AGAIN}")
    if not saved.targets or len(set(saved.targets)) < len(saved.targets):
        raise CorruptError(
            f"the calibrator's targets {saved.targets} aren't distinct names; {_AGAIN}"
        )
    return saved


def take(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> list[NDArray[np.float32]]:
    """The named arrays of a saved calibrator, in order.

    Args:
        tensors: What was read.
        shapes: The name and shape of every array that must be there; all are float32 and finite.

    Raises:
        CorruptError: A name is missing or unknown, or a shape, type or value is wrong.
    """
    if set(tensors) != set(shapes):
        raise CorruptError(
            f"the calibrator's arrays are {sorted(tensors)}; they must be {sorted(shapes)}; "
            f"{_AGAIN}"
        )
    for name, shape in shapes.items():
        array = tensors[name]
        if array.shape != shape or array.dtype != np.float32:
            raise CorruptError(
                f"the calibrator's array {name} is {array.dtype} {array.shape}; it must be float32 "
                f"{shape}; {_AGAIN}"
            )
        if not np.isfinite(array).all():
            raise CorruptError(
                f"the calibrator's array {name} holds numbers that aren't finite; {_AGAIN}"
            )
    return [tensors[name] for name in shapes]


def require(holds: bool, what: str) -> None:
    """Check what must hold of the arrays.

    Raises:
        CorruptError: It doesn't.
    """
    if not holds:
        raise CorruptError(f"the calibrator's {what}; {_AGAIN}")
