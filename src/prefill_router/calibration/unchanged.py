"""No calibration: the predictions as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from numpy.typing import NDArray

from prefill_router.calibration.base import Calibrator, CalibratorFit
from prefill_router.calibration.saved import check_saved, take
from prefill_router.predictors.base import Correctness, Tensors


@final
@dataclass(frozen=True, eq=False)
class Unchanged(Calibrator):
    """Leaves every prediction as it is.

    Attributes:
        names: The targets' names.
    """

    kind: ClassVar[str] = "none"
    label: ClassVar[str] = "none"
    source: ClassVar[str] = ""
    probabilistic: ClassVar[bool] = True
    names: tuple[str, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the columns."""
        return self.names

    @classmethod
    def fit(
        cls, correctness: Correctness, correct: Correctness, targets: tuple[str, ...]
    ) -> CalibratorFit:
        """Needs nothing of what it is given."""
        del correctness, correct
        return CalibratorFit(cls(targets))

    def _map(self, correctness: Correctness) -> Correctness:
        return correctness.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "targets": list(self.names)}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "Unchanged":
        """The calibrator of `to_dict`, checked.

        Raises:
            CorruptError: It isn't one.
        """
        take(tensors, {})
        return cls(tuple(check_saved(config, cls.kind).targets))
