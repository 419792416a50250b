"""What calibrators of all kinds have in common on disk, checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from prefill_router.errors import CorruptError
from prefill_router.predictors.base import Tensors

_AGAIN = "copy or make the router again"


class Saved(BaseModel):
    """What is saved of a calibrator beside its arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    targets: list[str]


class SavedCurves(Saved):
    """The same of a calibrator made of knots."""

    knots: list[PositiveInt]


def check_saved(config: Mapping[str, Any], kind: str, *, curves: bool = False) -> Saved:
    """The plain values of a calibrator of this kind.

    Args:
        config: What was read.
        kind: What it must be.
        curves: Whether it must be a `SavedCurves`.

    Raises:
        CorruptError: They are of another kind, incomplete, or contradict each other.
    """
    try:
        saved = (SavedCurves if curves else Saved).model_validate(dict(config))
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
