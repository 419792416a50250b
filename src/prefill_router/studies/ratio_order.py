"""A router's order of the queries for a strong target, and what forcing its first ones gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import PerResample, Weights, divide
from prefill_router.policy import Predictions

RATIOS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""The shares that tables show."""
BAND = 200
"""Steps of the share at which bands are drawn."""
_CPT = {"cpt_20": 0.2, "cpt_50": 0.5, "cpt_80": 0.8}
_SAME = 1e-12
Table = Float[NDArray[np.float64], "resample _point"]


@final
@dataclass(frozen=True, eq=False)
class RatioReading:
    """One router in some resamples.

    Attributes:
        band: Accuracy at `BAND` + 1 even shares from 0 to 1.
        at: Accuracy at `RATIOS`.
        summary: Means over all shares, by name.
    """

    band: Table
    at: Table
    summary: Mapping[str, PerResample]

    @classmethod
    def together(cls, parts: Sequence["RatioReading"]) -> "RatioReading":
        """The resamples of all parts."""
        summary = {n: np.concatenate([p.summary[n] for p in parts]) for n in parts[0].summary}
        band, at = (np.concatenate([getattr(p, n) for p in parts]) for n in ("band", "at"))
        return cls(band, at, summary)


@final
@dataclass(frozen=True, eq=False)
class RatioOrder:
    """A router's order of the queries, the most probable for the strong target first.

    Attributes:
        order: The queries.
        forced: In this order, the strong target's label, 0 where missing, and whether it is known.
        free: The same of the router's choice among the other targets.
        targets: How many targets there are.
    """

    order: NDArray[np.int64]
    forced: Float64[NDArray[np.float64], "2 query"]
    free: Float64[NDArray[np.float64], "2 query"]
    targets: int

    @classmethod
    def of(
        cls, predictions: Predictions, correct: NDArray[np.float64], strong: str
    ) -> "RatioOrder":
        """The order of a router's predictions.

        Args:
            predictions: Of all queries.
            correct: Their labels, in the same rows and columns.
            strong: The strong target.
        """
        column = predictions.targets.index(strong)
        # Stable: of queries with the same probability the one that stands first goes first.
        order = np.argsort(-predictions.correctness[:, column], kind="stable")
        others = predictions.correctness.copy()
        others[:, column] = -1
        chosen = others.argmax(axis=1)
        labels = [correct[order, column], correct[order, chosen[order]]]
        forced, free = (
            np.stack([np.nan_to_num(label), ~np.isnan(label)]).astype(np.float64)
            for label in labels
        )
        return cls(order, forced, free, len(predictions.targets))

    def points(self, weights: Weights) -> tuple[Table, Table, Table]:
        """Share, right and known after each query of the order, from none of them to all."""
        ordered = weights[:, self.order]
        share = _running(ordered) / ordered.sum(axis=1, keepdims=True)
        right, known = (
            (ordered * self.free[i]).sum(axis=1, keepdims=True)
            + _running(ordered * (self.forced[i] - self.free[i]))
            for i in range(2)
        )
        return share, right, known

    def read(self, weights: Weights) -> RatioReading:
        """What is reported, in each resample."""
        share, right, known = self.points(weights)
        grid = np.concatenate([np.linspace(0, 1, BAND + 1), RATIOS])
        rows = zip(share, right, known, strict=True)
        read = [
            np.interp(grid, x, up) / known_only(np.interp(grid, x, down)) for x, up, down in rows
        ]
        table = np.stack(read)
        accuracy = right / known_only(known)
        mean = _area(share, accuracy)
        summary = {
            "mean_accuracy": mean,
            "lift": mean - (accuracy[:, 0] + accuracy[:, -1]) / 2,
        }
        if self.targets == 2:
            summary |= _pair(share, accuracy)
        return RatioReading(table[:, : BAND + 1], table[:, BAND + 1 :], summary)


def _running(values: Table) -> Table:
    total = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=total[:, 1:])
    return total


def known_only(known: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN instead of nothing known, so that quotients by it aren't defined."""
    return np.where(known > _SAME, known, np.nan)


def _area(share: Table, accuracy: Table) -> PerResample:
    """The mean of the accuracy over all shares."""
    slices = np.diff(share, axis=1) * (accuracy[:, 1:] + accuracy[:, :-1]) / 2
    area: PerResample = slices.sum(axis=1)
    return area


def _pair(share: Table, accuracy: Table) -> dict[str, PerResample]:
    """Which part of the gap between the two targets is closed on average, and the share for it."""
    weak, strong = accuracy[:, :1], accuracy[:, -1:]
    gap = np.where(strong - weak > _SAME, strong - weak, np.nan)
    closed = (accuracy - weak) / gap
    rows = np.arange(len(share))
    found = {"apgr": _area(share, closed)}
    for name, part in _CPT.items():
        after = np.maximum((closed >= part).argmax(axis=1), 1)
        x0, x1 = share[rows, after - 1], share[rows, after]
        y0, y1 = closed[rows, after - 1], closed[rows, after]
        found[name] = np.where(np.isnan(y1), np.nan, x0 + divide(part - y0, y1 - y0) * (x1 - x0))
    return found
