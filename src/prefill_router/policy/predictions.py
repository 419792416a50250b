"""The input of policies, `Predictions`, and their chosen settings, `OperatingPoints`.

`Predictions` are made by a router, or any other predictor, before any target has answered.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.errors import DataError
from prefill_router.short_repr import short_repr

PerCell = Float[NDArray[np.float64], "query target"]


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Predictions:
    """Predicted correctness and estimated cost of every target on every query.

    Attributes:
        query_ids: Distinct ids, which join the rows to a dataset.
        targets: Distinct names, in the tables' column order.
        correctness: Probabilities of a correct answer.
        estimated_cost: US dollars, known before the answer.
        scale: Equation 1's range over the train rows, for Equation 2.

    Raises:
        DataError: Shapes differ, ids or names repeat, there are none, a probability is outside
            [0, 1], or a cost is negative or not finite.
    """

    query_ids: tuple[str, ...]
    targets: tuple[str, ...]
    correctness: PerCell
    estimated_cost: PerCell
    scale: CostScale

    def __post_init__(self) -> None:
        shape = (len(self.query_ids), len(self.targets))
        if 0 in shape:
            raise DataError(f"predictions have the shape {shape}; give at least one of each")
        for what, names in (("query ids", self.query_ids), ("targets", self.targets)):
            if len(set(names)) < len(names):
                raise DataError(f"{what} repeat in the predictions; keep one of each")
        for name in ("correctness", "estimated_cost"):
            got = getattr(self, name).shape
            if got != shape:
                raise DataError(f"{name} has the shape {got}; the ids and the targets need {shape}")
        if not ((self.correctness >= 0) & (self.correctness <= 1)).all():
            raise DataError("correctness must be probabilities in [0, 1]; check the predictor")
        if not ((self.estimated_cost >= 0) & np.isfinite(self.estimated_cost)).all():
            raise DataError("estimated_cost must be US dollars, finite, not negative; check prices")

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def normalised_cost(self) -> PerCell:
        """Estimated costs on the scale of the train rows."""
        return self.scale.normalise(self.estimated_cost)

    def select(
        self, ids: Iterable[str] | None = None, *, targets: Iterable[str] | None = None
    ) -> "Predictions":
        """The subset with these queries and targets, in the order given.

        Raises:
            DataError: Some have no predictions.
        """
        wanted = self.query_ids if ids is None else tuple(ids)
        names = self.targets if targets is None else tuple(targets)
        cells = np.ix_(
            _places(wanted, self.query_ids, "queries"), _places(names, self.targets, "targets")
        )
        return replace(
            self,
            query_ids=wanted,
            targets=names,
            correctness=self.correctness[cells],
            estimated_cost=self.estimated_cost[cells],
        )


def _places(wanted: tuple[str, ...], held: tuple[str, ...], what: str) -> list[int]:
    place = {name: i for i, name in enumerate(held)}
    lacking = [name for name in wanted if name not in place]
    if lacking:
        raise DataError(
            f"the predictions lack {len(lacking)} of {len(wanted)} {what}, the first is "
            f"{lacking[0]!r}; predict them too, or leave them out"
        )
    return [place[name] for name in wanted]


@short_repr
@final
@dataclass(frozen=True)
class OperatingPoints:
    """The settings that were best on train rows, out of fold.

    Attributes:
        accurate: The lam of the highest accuracy; the cheapest one if there are several.
        thrifty: The lam of the lowest cost at no less accuracy than the best single target; None
            where no setting is both as accurate and cheaper, or no cost is known.
        worth: The lam of the greatest gain over the best fixed mix at equal cost, among those that
            are as accurate as the best single target; among all where none is. So a gain at a low
            accuracy, which nobody would choose, doesn't represent the router.
        best: The best single target.
    """

    accurate: float
    thrifty: float | None
    worth: float
    best: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
