"""Ridge regression of one column, its penalty by leave-one-out, and its predictions out of fold."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

Matrix = Float64[NDArray[np.float64], "row column"]
Vector = Float64[NDArray[np.float64], " row"]
PENALTIES = np.geomspace(1e-3, 1e6, 28)
_LEAST = 1e-9
"""A row whose own weight in its fit is closer to 1 has nothing that others say of it."""


class RidgeFit(NamedTuple):
    """A ridge regression, and what it says of rows that it wasn't fitted on.

    Attributes:
        weights: One per column.
        intercept: Not penalised.
        out_of_fold: Predictions of each row by a fit without its fold, at the same penalty.
    """

    weights: Float64[NDArray[np.float64], " column"]
    intercept: float
    out_of_fold: Vector


def fit_ridge(columns: Matrix, values: Vector, folds: Int64[NDArray[np.int64], " row"]) -> RidgeFit:
    """Fit a ridge regression whose penalty has the least squared error, leaving one row out.

    Args:
        columns: Finite.
        values: What they are to tell, finite.
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
    """The mean squared error, each row predicted by a fit on the others, for each of `PENALTIES`.

    In closed form (Allen's PRESS): an error of the whole fit, over 1 less the row's own weight.
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
