"""Ridge regression of one column: penalty by leave-one-out, and out-of-fold predictions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

Matrix = Float64[NDArray[np.float64], "row column"]
Vector = Float64[NDArray[np.float64], " row"]
PENALTIES = np.geomspace(1e-3, 1e6, 28)
_LEAST = 1e-9
"""A row whose leverage is closer to 1 than this isn't predicted by the other rows at all."""


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


def fit_ridge(columns: Matrix, values: Vector, folds: Int64[NDArray[np.int64], " row"]) -> RidgeFit:
    """Fit a ridge regression whose penalty has the least leave-one-out squared error.

    Args:
        columns: The inputs, finite.
        values: The values to predict, finite.
        folds: The fold of each row; at least two differ.
    """
    beside = np.column_stack([np.ones(len(columns)), columns])
    best = float(PENALTIES[np.argmin(left_out_errors(columns, values))])
    penalty = np.diag([0.0, *np.full(columns.shape[1], best)])
    gram, right = beside.T @ beside, beside.T @ values
    unseen = np.empty(len(values))
    for fold in np.unique(folds):
        rows = folds == fold
        part = beside[rows]
        rest = gram - part.T @ part + penalty, right - part.T @ values[rows]
        unseen[rows] = part @ np.linalg.solve(*rest)
    found = np.linalg.solve(gram + penalty, right)
    return RidgeFit(found[1:], float(found[0]), unseen)


def left_out_errors(columns: Matrix, values: Vector) -> Float64[NDArray[np.float64], " penalty"]:
    """The leave-one-out mean squared error for each of `PENALTIES`.

    In closed form (Allen's PRESS): each residual of the whole fit, over 1 minus its leverage.
    """
    centred, away = columns - columns.mean(axis=0), values - values.mean()
    strength, directions = np.linalg.eigh(centred.T @ centred)
    turned = centred @ directions
    shrunk = 1 / (np.maximum(strength, 0)[:, None] + PENALTIES)
    errors = away[:, None] - turned @ ((turned.T @ away)[:, None] * shrunk)
    own = 1 / len(values) + np.square(turned) @ shrunk
    left: Float64[NDArray[np.float64], " penalty"] = np.square(
        errors / np.maximum(1 - own, _LEAST)
    ).mean(axis=0)
    return left
