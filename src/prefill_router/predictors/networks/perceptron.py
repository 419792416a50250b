"""Networks of hidden layers with heads: what one of them computes, and how it is trained."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.predictors.networks.ensemble import Arrays, Rows, Shape

CORRECTNESS, DIFFICULTY = "correctness", "difficulty"


def shapes(
    widths: Shape, heads: Sequence[tuple[str, int]], *, side_by_side: int
) -> dict[str, Shape]:
    """The names and shapes of the arrays.

    Args:
        widths: Of the features and each hidden layer.
        heads: Names and widths of the last layers.
        side_by_side: How many such networks stand beside each other, each with its own layers.
    """
    found: dict[str, Shape] = {}
    for name, before, after in (
        *((f"{i}", before, after) for i, (before, after) in enumerate(pairwise(widths))),
        *((name, widths[-1], width) for name, width in heads),
    ):
        found[f"weight.{name}"] = (side_by_side, before, after)
        found[f"bias.{name}"] = (side_by_side, 1, after)
    return found


def outputs(
    arrays: Arrays, rows: Rows, layers: int, head: str
) -> Float64[NDArray[np.float64], "query output"]:
    """The outputs of one head after so many hidden layers; those of each network in turn."""
    units = rows
    for i in range(layers):
        units = np.maximum(units @ arrays[f"weight.{i}"] + arrays[f"bias.{i}"], 0)
    found = units @ arrays[f"weight.{head}"] + arrays[f"bias.{head}"]
    return np.moveaxis(found, 0, 1).reshape(len(rows), -1)
