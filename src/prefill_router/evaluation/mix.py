"""The best fixed mix of targets at each cost: what a router must beat to know anything."""

from dataclasses import dataclass
from typing import Any, final

from prefill_router.evaluation.bootstrap import plain
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.envelope import envelope


@final
@dataclass(frozen=True)
class MixPoint:
    """A corner of the best mixes: one target alone. Between two corners lie mixes of both.

    Attributes:
        target: Its name.
        mean_cost: Observed, US dollars.
        accuracy: Mean label.
    """

    target: str
    mean_cost: float
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "target": self.target,
            "mean_cost": plain(self.mean_cost),
            "accuracy": plain(self.accuracy),
        }


def mix_of(singles: Points, targets: tuple[str, ...]) -> tuple[MixPoint, ...]:
    """The corners of the best mixes of these single targets, by rising cost.

    Args:
        singles: Each single target, in one resample.
        targets: Their names.

    Returns:
        None where no cost is known; of targets alike in both the first.
    """
    place = list(zip(singles.cost[0].tolist(), singles.accuracy[0].tolist(), strict=True))
    corners = zip(*(c[0].tolist() for c in envelope(singles.cost, singles.accuracy)), strict=True)
    known = [corner for corner in dict.fromkeys(corners) if corner in place]
    return tuple(MixPoint(targets[place.index(corner)], *corner) for corner in known)
