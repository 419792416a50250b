"""Boosted trees as plain arrays: read from XGBoost once, used through NumPy alone.

So a router routes without XGBoost, and no foreign parser sees what was downloaded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float32, Float64, Int32
from numpy.typing import NDArray

from prefill_router.errors import CorruptError
from prefill_router.predictors.base import Features, Tensors, take_tensors

LEAF = -1
_CELLS = 1 << 20  # rows times trees of one pass; bounds the memory of a large set of queries


@final
@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of all targets.

    Attributes:
        nodes: The feature that a node asks for, or `LEAF`; where to go on if the feature is below
            the node's value, and where otherwise, both further on in the array.
        values: A node's threshold, or a leaf's log-odds.
        roots: Where each tree begins, and which target it belongs to; those of a target stand
            together.
        shifts: The log-odds that each target begins with.
    """

    nodes: Int32[NDArray[np.int32], "3 node"]
    values: Float32[NDArray[np.float32], " node"]
    roots: Int32[NDArray[np.int32], "2 tree"]
    shifts: Float32[NDArray[np.float32], " target"]

    @classmethod
    def of(
        cls, boosters: Sequence[bytes | None], shifts: Float64[NDArray[np.float64], " target"]
    ) -> "Forest":
        """The forest of XGBoost's boosters.

        Args:
            boosters: Of each target, saved as JSON; None for a target without trees.
            shifts: The log-odds that each begins with.
        """
        nodes: list[NDArray[np.int32]] = []
        values: list[NDArray[np.float32]] = []
        roots: list[tuple[int, int]] = []
        count = 0
        for target, saved in enumerate(boosters):
            for tree in _trees(saved) if saved else ():
                roots.append((count, target))
                some, of_each = _arrays(tree, count)
                nodes.append(some)
                values.append(of_each)
                count += len(of_each)
        return cls(
            np.concatenate(nodes, axis=1),
            np.concatenate(values),
            np.array(roots, np.int32).T.copy(),
            shifts.astype(np.float32),
        )

    def log_odds(self, features: Features) -> Float64[NDArray[np.float64], "query target"]:
        """The sum of the leaves that each query falls into, for each target."""
        result = np.empty((len(features), len(self.shifts)))
        step = max(1, _CELLS // self.roots.shape[1])
        for start in range(0, len(features), step):
            leaves = self._leaves(features[start : start + step])
            result[start : start + step] = self.values.astype(np.float64)[leaves] @ self._member
        result += self.shifts
        return result

    def _leaves(self, features: Features) -> NDArray[np.intp]:
        feature, below, above = self.nodes.astype(np.intp)
        rows = np.arange(len(features))[:, None]
        place = np.tile(self.roots[0].astype(np.intp), (len(features), 1))
        while (feature[place] != LEAF).any():
            asked = feature[place]
            is_below = features[rows, np.maximum(asked, 0)] < self.values[place]
            place = np.where(asked == LEAF, place, np.where(is_below, below[place], above[place]))
        return place

    @cached_property
    def _member(self) -> Float64[NDArray[np.float64], "tree target"]:
        return np.asarray(self.roots[1][:, None] == np.arange(len(self.shifts)), np.float64)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`nodes`, `values`, `roots` and `shifts`."""
        return {
            "nodes": self.nodes,
            "values": self.values,
            "roots": self.roots,
            "shifts": self.shifts,
        }

    @classmethod
    def from_tensors(
        cls, tensors: Tensors, *, nodes: int, trees: int, width: int, targets: int
    ) -> "Forest":
        """The forest of `tensors`.

        Raises:
            CorruptError: They are incomplete or of another shape or type, or lead out of the trees.
        """
        numbers = {"nodes": (3, nodes), "roots": (2, trees)}
        rest = {name: array for name, array in tensors.items() if name not in numbers}
        values, shifts = take_tensors(rest, {"values": (nodes,), "shifts": (targets,)})
        for name, shape in numbers.items():
            array = tensors.get(name)
            if array is None or array.shape != shape or array.dtype != np.int32:
                raise CorruptError(
                    f"the predictor's array {name} must be int32 {shape}; "
                    "copy or make the router again"
                )
        forest = cls(tensors["nodes"], values, tensors["roots"], shifts)
        forest._check(width)
        return forest

    def _check(self, width: int) -> None:
        feature, below, above = self.nodes
        here = np.arange(len(feature))
        inner = feature != LEAF
        onward = all(
            ((to > here) & (to < len(feature)))[inner].all() for to in (below, above)
        )  # so that every way ends
        start, target = self.roots
        sound = (
            onward
            and ((feature >= LEAF) & (feature < width)).all()
            and ((start >= 0) & (start < len(feature))).all()
            and ((target >= 0) & (target < len(self.shifts))).all()
        )
        if not sound:
            raise CorruptError("the predictor's trees lead nowhere; copy or make the router again")


def _trees(saved: bytes) -> list[dict[str, Any]]:
    trees: list[dict[str, Any]] = json.loads(saved)["learner"]["gradient_booster"]["model"]["trees"]
    return trees


def _arrays(
    tree: dict[str, Any], offset: int
) -> tuple[Int32[NDArray[np.int32], "3 node"], Float32[NDArray[np.float32], " node"]]:
    """One tree's nodes and values; XGBoost numbers children after their parents."""
    below = np.array(tree["left_children"], np.int32)
    above = np.array(tree["right_children"], np.int32)
    leaf = below == LEAF
    feature = np.where(leaf, LEAF, np.array(tree["split_indices"], np.int32))
    go = [np.where(leaf, offset, to + offset) for to in (below, above)]
    return (
        np.stack([feature, *go]).astype(np.int32),
        np.array(tree["split_conditions"], np.float32),
    )
