"""The paper's three geometric statistics (section 6), exact and streamed.

The sums that a statistic needs are objects that add up over disjoint rows; the statistic is a
function of the sums.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.data import Table, binary
from prefill_router.errors import ConfigError
from prefill_router.geometry.moments import Moments

Features = Float[NDArray[np.floating], "query feature"]


def effective_dimensionality(moments: Moments) -> float:
    """Participation ratio of the covariance's eigenvalues (Equation `deff`).

    From traces, without eigenvalues: (tr C)^2 / tr(C^2).

    Args:
        moments: Of the raw states.

    Returns:
        From 1, all spread in one direction, to the hidden size, the same in all; NaN where there is
        no spread at all.
    """
    trace, squares = (
        float(np.trace(moments.scatter)),
        float(np.vdot(moments.scatter, moments.scatter)),
    )
    return trace**2 / squares if squares > 0 else float("nan")


@brief
@final
@dataclass(frozen=True, eq=False)
class Directions:
    """The sum of rows scaled to length one; rows of zeros have no direction and are left out.

    Attributes:
        count: How many rows have a direction.
        total: The sum of their unit vectors.
    """

    count: int
    total: Float64[NDArray[np.float64], " hidden"]

    @classmethod
    def of(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Directions":
        """That of these rows."""
        largest = np.abs(states).max(axis=1, initial=0).astype(np.float64)
        shown = np.flatnonzero(largest)
        scaled = states[shown] / largest[shown, None]  # so that no square over- or underflows
        lengths = np.sqrt(np.einsum("rh,rh->r", scaled, scaled))
        return cls(len(shown), (1 / lengths) @ scaled)

    def __add__(self, other: "Directions") -> "Directions":
        return Directions(self.count + other.count, self.total + other.total)


def anisotropy(directions: Directions) -> float:
    """Mean cosine of all pairs of different rows (Equation `anisotropy`), in O(rows x hidden).

    The squared length of the sum of n unit vectors is n plus twice the sum of the pairs' cosines.

    Returns:
        1 where all states point one way, about 0 where they point everywhere; NaN for fewer than
        two rows with a direction.
    """
    n = directions.count
    if n < 2:
        return float("nan")
    return float((directions.total @ directions.total - n) / (n * (n - 1)))


@brief
@final
@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over the queries that each target answers wrongly (class 0) and correctly (class 1).

    Attributes:
        counts: How many queries.
        sums: The sum of their features.
        squares: The sum of their features' squared lengths.
    """

    counts: Float64[NDArray[np.float64], "2 target"]
    sums: Float64[NDArray[np.float64], "2 target feature"]
    squares: Float64[NDArray[np.float64], "2 target"]

    @classmethod
    def of(cls, features: Features, correct: Table) -> "ClassSums":
        """Those of these rows.

        Args:
            features: Best centred near zero, as `Reducer.transform` gives them.
            correct: Labels, cut at 0.5; NaN, not measured, is in neither class.
        """
        if len(features) != len(correct):
            raise ConfigError(f"{len(features)} rows of features, but {len(correct)} of labels")
        labels = binary(correct)
        members = np.stack([labels == 0, labels == 1]).astype(np.float64).transpose(0, 2, 1)
        wide = features.astype(np.float64)
        lengths = np.einsum("qf,qf->q", wide, wide)
        return cls(members.sum(axis=2), members @ wide, members @ lengths)

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return ClassSums(
            self.counts + other.counts, self.sums + other.sums, self.squares + other.squares
        )

    def fisher(self) -> Float64[NDArray[np.float64], " target"]:
        """Fisher's J of each target (Equation `fisher`), with sample covariances.

        NaN where a class has fewer than two queries, or nothing differs at all.
        """
        counts = np.where(self.counts < 2, np.nan, self.counts)
        means = self.sums / counts[:, :, None]
        traces = (self.squares - counts * (means**2).sum(axis=2)) / (counts - 1)
        gap = ((means[1] - means[0]) ** 2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # no spread: inf, or NaN as promised
            j: Float64[NDArray[np.float64], " target"] = gap / np.maximum(traces, 0).sum(axis=0)
        return j


def fisher_j(features: Features, correct: Table) -> Float64[NDArray[np.float64], " target"]:
    """Fisher's J of every target at once (Equation `fisher`); see `ClassSums`.

    Args:
        features: Of the train rows.
        correct: Their labels; soft ones are cut at 0.5, NaN is left out.
    """
    wide = features.astype(np.float64)
    return ClassSums.of(wide - wide.mean(axis=0), correct).fisher()
