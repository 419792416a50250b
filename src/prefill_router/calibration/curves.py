"""Curves made of knots, straight between them: what isotonic and percentile maps are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.calibration.saved import SavedCurves, check_saved, require, take
from prefill_router.predictors.base import Correctness, Tensors

Knots = Float32[NDArray[np.float32], "_"]
Column = Float64[NDArray[np.float64], "_"]
IDENTITY = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""The curve that changes nothing."""


@final
@dataclass(frozen=True, eq=False)
class Curves:
    """One curve per target that never falls; beyond its first and last knot it is level.

    Attributes:
        names: The targets' names.
        x: Each curve's knots, strictly rising; predictions are rounded as they are.
        y: What the predictions there become.
    """

    names: tuple[str, ...]
    x: tuple[Knots, ...]
    y: tuple[Knots, ...]

    @classmethod
    def of(cls, names: tuple[str, ...], curves: Sequence[tuple[Column, Column]]) -> "Curves":
        """The curves of these knots, x and y of each."""
        return cls(
            names,
            tuple(x.astype(np.float32) for x, _ in curves),
            tuple(y.astype(np.float32) for _, y in curves),
        )

    def __call__(self, correctness: Correctness) -> Correctness:
        """Each column through its curve."""
        result = np.empty_like(correctness)
        for k, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
            result[:, k] = _between(x, y, correctness[:, k].astype(np.float32))
        return result

    def to_dict(self, kind: str) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": kind, "targets": list(self.names), "knots": [len(x) for x in self.x]}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`x` and `y` of all curves, one after another."""
        return {"x": np.concatenate(self.x), "y": np.concatenate(self.y)}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors, kind: str) -> "Curves":
        """The curves of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other, or a curve falls.
        """
        saved = check_saved(config, kind, curves=True)
        knots = saved.knots if isinstance(saved, SavedCurves) else []
        require(len(knots) == len(saved.targets), "curves aren't one for each of its targets")
        x, y = take(tensors, {"x": (sum(knots),), "y": (sum(knots),)})
        ends = np.cumsum(knots)[:-1]
        curves = cls(tuple(saved.targets), tuple(np.split(x, ends)), tuple(np.split(y, ends)))
        require(bool(((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)).all()), "knots leave [0, 1]")
        rising = all((np.diff(xs) > 0).all() for xs in curves.x)
        never_falling = all((np.diff(ys) >= 0).all() for ys in curves.y)
        require(rising and never_falling, "curves aren't in order, or fall")
        return curves


def _between(x: Knots, y: Knots, at: Knots) -> Column:
    """Straight lines between knots; rounding can't make the result fall, as in `np.interp`."""
    after = np.searchsorted(x, at, side="right")
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(x) - 1)
    low, high = y[left].astype(np.float64), y[right].astype(np.float64)
    run = x[right].astype(np.float64) - x[left]
    share = np.clip((at - x[left].astype(np.float64)) / np.where(run > 0, run, 1), 0, 1)
    return np.asarray(np.minimum(low + share * (high - low), high))
