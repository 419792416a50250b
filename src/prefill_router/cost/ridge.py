"""Ridge regression of one column: penalty by leave-one-out, and out-of-fold predictions.

The inputs are read some rows at a time, so they may be computed when they are read.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.statistics import row_blocks

Matrix = Float64[NDArray[np.float64], "row column"]
Vector = Float64[NDArray[np.float64], " row"]
PENALTIES = np.geomspace(1e-3, 1e6, 28)
_LEAST = 1e-9
"""A row whose leverage is closer to 1 than this isn't predicted by the other rows at all."""


@runtime_checkable
class Inputs(Protocol):
    """The inputs of a regression: a matrix, or rows that are computed when they are read."""

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, rows: slice) -> Matrix:
        """Some of the rows."""


class _Products(NamedTuple):
    """Of rows with a leading 1: with each other, and with the values."""

    gram: Matrix
    right: Vector

    @classmethod
    def of(cls, beside: Matrix, values: Vector) -> "_Products":
        return cls(beside.T @ beside, beside.T @ values)

    def plus(self, other: "_Products") -> "_Products":
        return _Products(self.gram + other.gram, self.right + other.right)


class RidgeFit(NamedTuple):
    """A ridge regression, with predictions for rows that it wasn't fitted on.

    Attributes:
        weights: One per column.
        intercept: Not penalised.
        out_of_fold: The prediction for each row by a fit without its fold, at the same penalty.
    """

    weights: Float64[NDArray[np.float64], " column"]
    intercept: float
    out_of_fold: Vector


def fit_ridge(columns: Inputs, values: Vector, folds: Int64[NDArray[np.int64], " row"]) -> RidgeFit:
    """Fit a ridge regression whose penalty has the least leave-one-out squared error.

    Args:
        columns: The inputs, finite.
        values: The values to predict, finite.
        folds: The fold of each row; at least two differ.
    """
    whole, parts = _sums(columns, values, folds)
    best = float(PENALTIES[np.argmin(left_out_errors(columns, values, whole))])
    penalty = np.diag([0.0, *np.full(len(whole.right) - 1, best)])
    solved = {
        fold: np.linalg.solve(whole.gram - part.gram + penalty, whole.right - part.right)
        for fold, part in parts.items()
    }
    unseen = np.empty(len(values))
    for block, beside in _beside(columns):
        for fold, weights in solved.items():
            rows = folds[block] == fold
            unseen[block][rows] = beside[rows] @ weights
    found = np.linalg.solve(whole.gram + penalty, whole.right).astype(np.float64, copy=False)
    return RidgeFit(found[1:], float(found[0]), unseen)


def _beside(columns: Inputs) -> Iterator[tuple[slice, Matrix]]:
    for block in row_blocks(len(columns)):
        rows = columns[block]
        yield block, np.column_stack([np.ones(len(rows)), rows])


def _sums(
    columns: Inputs, values: Vector, folds: NDArray[np.int64]
) -> tuple[_Products, dict[int, _Products]]:
    """The products of all rows, and of each fold's."""
    whole, parts = list[_Products](), dict[int, _Products]()
    for block, beside in _beside(columns):
        here = _Products.of(beside, values[block])
        whole = [whole[0].plus(here)] if whole else [here]
        for fold in np.unique(folds[block]).tolist():
            rows = folds[block] == fold
            mine = _Products.of(beside[rows], values[block][rows])
            parts[fold] = parts[fold].plus(mine) if fold in parts else mine
    return whole[0], parts


def left_out_errors(
    columns: Inputs, values: Vector, products: _Products | None = None
) -> Float64[NDArray[np.float64], " penalty"]:
    """The leave-one-out mean squared error for each of `PENALTIES`.

    In closed form (Allen's PRESS): each residual of the whole fit, over 1 minus its leverage.
    """
    count, level = len(values), values.mean()
    if products is None:
        products, _ = _sums(columns, values, np.zeros(count, dtype=np.int64))
    mean = products.gram[0, 1:] / count
    strength, directions = np.linalg.eigh(products.gram[1:, 1:] - count * np.outer(mean, mean))
    along = directions.T @ (products.right[1:] - mean * products.right[0])
    shrunk = 1 / (np.maximum(strength, 0)[:, None] + PENALTIES)
    total = np.zeros(len(PENALTIES))
    for block in row_blocks(count):
        turned = (columns[block] - mean) @ directions
        errors = (values[block] - level)[:, None] - turned @ (along[:, None] * shrunk)
        own = 1 / count + np.square(turned) @ shrunk
        total += np.square(errors / np.maximum(1 - own, _LEAST)).sum(axis=0)
    return total / count
